"""Command `chess-grpo card`."""

import subprocess
import sys
from pathlib import Path

import click

from grpo.base.files import explain_write_errors
from steps import STEPS
from steps.cli.options import open_in_browser
from steps.run.code import ROOT
from steps.run.commands import FLOW_FILE, shortened
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import LAST, NotFoundError, find_run


@click.command()
@click.argument("name", metavar="[RUN[/STEP]]", default=LAST)
def command(name: str) -> int:
    """Write a step's card (page of charts; default: report) to an HTML file, and open the file if there is a desktop.

    Call this command in the folder where the run was started: Metaflow keeps the cards there.
    """
    machine = Machine.here()
    run_name, _, step = name.partition("/")
    step = step or "report"
    if step not in STEPS:
        raise NotFoundError(f"no step is called {step!r}; the steps are {', '.join(STEPS)}")
    run = find_run(run_name, Store.of(machine), has=lambda run: any(attempt.step == step for attempt in run.attempts))
    # After a resume, the card has the id under which the step ran last.
    ids = [attempt.task.partition("/")[0] for attempt in run.attempts if attempt.step == step]
    run_id = (ids[-1] if ids else "") or run.name
    file = machine.home / "cards" / f"{run_id}-{step}.html"
    with explain_write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    metaflow = [sys.executable, str(ROOT / FLOW_FILE), "--quiet", "card", "get", f"{run_id}/{step}", str(file)]
    result = subprocess.run(metaflow, capture_output=True, text=True, check=False)
    if result.returncode or not file.exists():
        answer = " ".join((result.stderr or result.stdout).split())
        raise NotFoundError(
            f"no card of {run_id}/{step} in {Path.cwd()}: the step makes no card, or the run was started in another folder;"
            f" call this command in that folder. Metaflow's answer: {answer}"
        )
    file.chmod(0o644)  # Metaflow lets only the owner read the file.
    print(f"{run_id}/{step}: {shortened(file)}")
    open_in_browser(file.resolve().as_uri())
    return 0
