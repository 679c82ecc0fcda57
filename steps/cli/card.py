"""The command `chess-grpo card`: a step's card as one HTML file, opened in a browser where there is one."""

import subprocess
import sys
from pathlib import Path

import click

from steps.cli.options import open_in_browser
from steps.run.commands import FLOW_FILE, shortened
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import LAST, NotFoundError, find_run


@click.command()
@click.argument("name", metavar="[RUN[/STEP]]", default=LAST)
def command(name: str) -> int:
    """Write the card of a run's step (by default: report) as one HTML file into the home, and open it where there is a desktop.

    Metaflow keeps cards below the folder in which the run was started: call it there.
    """
    from steps import STEPS
    from steps.run.code import ROOT

    machine = Machine.here()
    asked, _, step = name.partition("/")
    step = step or "report"
    if step not in STEPS:
        raise NotFoundError(f"no step is called {step!r}; the steps are {', '.join(STEPS)}")
    found = find_run(asked, Store.of(machine), has=lambda run: any(attempt.step == step for attempt in run.attempts))
    # The card is kept under the id that Metaflow gave the run when the step was last done.
    ids = [attempt.task.partition("/")[0] for attempt in found.attempts if attempt.step == step]
    run = (ids[-1] if ids else "") or found.name
    file = machine.home / "cards" / f"{run}-{step}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, str(ROOT / FLOW_FILE), "--quiet", "card", "get", f"{run}/{step}", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode or not file.exists():
        why = " ".join((done.stderr or done.stdout).split())
        raise NotFoundError(
            f"no card of {run}/{step} in {Path.cwd()}: call this in the folder where the run was started; docs/tracking.md lists"
            f" the steps that have one. Metaflow says: {why}"
        )
    file.chmod(0o644)  # Metaflow writes it for the owner alone, and people serve and send it.
    print(f"{run}/{step}: {shortened(file)}")
    open_in_browser(file.resolve().as_uri())
    return 0
