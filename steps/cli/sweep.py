"""The command `chess-grpo sweep`: the whole pipeline over seeds and combinations of settings, and the means over seeds."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from steps.cli.tables import text_table
from steps.run.machine import Machine
from steps.terminal import duration

if TYPE_CHECKING:
    from steps.run.store import Store
    from steps.track.sweep import PlannedRun


@click.command()
@click.argument("settings")
@click.option(
    "--seeds", "seed", type=int, required=True, metavar="N...", help="One run of each combination with each seed: --seeds 31 32 33."
)
@click.argument("further_seeds", type=int, metavar="", nargs=-1)  # An option of click takes one value; the next numbers are arguments.
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="KEY=A,B",
    help="Values of a setting, as TOML (a word needs no quotes); several --set make all combinations.",
)
@click.option("--show", "only_shows", is_flag=True, help="Print the table as it is now; run and write nothing.")
def command(settings: str, seed: int, further_seeds: tuple[int, ...], values: tuple[str, ...], only_shows: bool) -> int:
    """Run the whole pipeline with each seed and each combination of settings, and print the results with the mean over seeds.

    SETTINGS is a preset, or a TOML file with the differences from one. Runs reuse each other's outputs where the versions allow. The same
    command again skips the runs that have finished (the same settings, code and engine), and continues a killed one. A failed run does not
    stop the others.
    """
    seeds = [seed, *further_seeds]
    from grpo.engine.identity import identify
    from steps.run.store import Store
    from steps.track.sweep import NOTES, plan_sweep, read_sweep, sweep_name, sweep_tables

    machine = Machine.here()
    plan = plan_sweep(settings, seeds, values, made_by="")  # Refuses bad settings before a missing engine.
    made_by = f"{_code({(run.policy.kind, run.policy.network) for run in plan})} {identify(machine.stockfish)}"
    plan = plan_sweep(settings, seeds, values, made_by=made_by)
    store = Store.of(machine)
    if not only_shows:
        _run_all(plan, machine.home / "sweeps" / sweep_name(plan), store)
    rows = read_sweep(plan, store)
    for combination, table in sweep_tables(rows):
        print(f"\n{combination or settings}\n{text_table(table, indent='  ')}")
    print("\n".join(["", *NOTES]))
    failed = [] if only_shows else [row.planned.name for row in rows if not row.is_finished]
    if failed:
        what = f"{len(failed)} of {len(rows)} runs did not finish: {'; '.join(failed)}"
        click.echo(f"chess-grpo: {what}. Fix the cause, which is in the log of each, and run the same command again", err=True)
    return 1 if failed else 0


def _code(policies: Iterable[tuple[str, str]]) -> str:
    """Return the hash of the code of all steps that compute something, for policies of these kinds and networks."""
    from grpo.base.files import sha256_json
    from steps import STEPS
    from steps.run.code import code_hash
    from steps.run.step import step_of

    steps = [step_of(name) for name in STEPS[1:-1]]  # The first and the last compute nothing.
    return sha256_json([code_hash(step.module_for(kind), kind, network) for kind, network in sorted(policies) for step in steps])


def _run_all(plan: Sequence["PlannedRun"], folder: Path, store: "Store") -> None:
    """Run what has not finished yet, seed by seed; what each prints is in a file of the folder."""
    from steps.track.sweep import read_sweep

    folder.mkdir(parents=True, exist_ok=True)
    finished = {row.planned.key for row in read_sweep(plan, store) if row.is_finished}
    click.echo(f"Sweep {folder.name}: {len(plan)} runs, of which {len(finished)} have finished already")
    for number, run in enumerate(plan, start=1):
        if run.key in finished:
            continue
        log = folder / f"run-{number}.log"
        click.echo(f"[{number}/{len(plan)}] {run.name}: its output is in {log}")
        began = time.monotonic()
        code = start_flow(run, folder.name, log)
        verdict = f"FAILED with exit code {code}" if code else read_sweep([run], store)[0].verdict
        click.echo(f"[{number}/{len(plan)}] {verdict} after {duration(time.monotonic() - began)}")


def start_flow(run: "PlannedRun", sweep: str, log: Path) -> int:
    """Run the flow with these settings, and return its exit code. It ends when this process is killed, and saves a checkpoint before.

    Args:
        run: the settings, and the key by which the run is found again.
        sweep: name of the sweep.
        log: the file for everything that the flow prints.
    """
    from steps.run.code import ROOT
    from steps.run.commands import FLOW_FILE
    from steps.run.processes import PARENT_VARIABLE
    from steps.track.sweep import SWEEP_VARIABLE

    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), SWEEP_VARIABLE: f"{sweep}/{run.key}"}
    words = [sys.executable, str(ROOT / FLOW_FILE), "--config-value", "settings", run.launch.text, "run"]
    with log.open("ab") as output:
        return subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
