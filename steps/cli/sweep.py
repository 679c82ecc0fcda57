"""The command `chess-grpo sweep`: the whole pipeline over seeds and combinations of settings, and the means over seeds."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from grpo.base.files import json_text, replace_file
from steps.cli.tables import duration, text_table
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say, wrapped

if TYPE_CHECKING:
    from steps.runs.sweep_plan import PlannedRun, SweepPlan
    from steps.runs.sweep_results import SweepResults, SweepRow

_REMEDY: Final = "Fix the cause, which is in the log of each, and run the same command again"


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `sweep`."""
    sweep = commands.add_parser(
        "sweep",
        description="Run the whole pipeline with each seed and each combination of settings, one run after the other, and print each run's"
        " results with the mean over seeds. Runs reuse each other's outputs where the versions allow. The same command again skips the runs"
        " that have finished (the same settings, code and engine), and continues a killed one. A failed run does not stop the others. The"
        " table is also written to sweep.md and sweep.json in a folder of the home, and logged to MLflow.",
    )
    sweep.add_argument("settings", metavar="SETTINGS", help="a preset, or a TOML file with the differences from one")
    sweep.add_argument("--seeds", type=int, nargs="+", required=True, metavar="N", help="one run of each combination with each seed")
    sweep.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="values of a setting, as TOML (a word needs no quotes); several --set make all combinations",
    )
    sweep.add_argument("--show", action="store_true", help="print the table as it is now; run and write nothing")
    sweep.set_defaults(run=_sweep)


def _sweep(given: argparse.Namespace) -> int:
    from grpo.engine.identity import identify
    from steps.runs.sweep_plan import plan_sweep
    from steps.runs.sweep_results import read_sweep
    from steps.store.file_lock import file_lock
    from steps.store.versions import hash_of_all_steps

    machine = Machine.here()
    plan_sweep(given.settings, given.seeds, given.set, made_by="")  # Refuses bad settings before a missing engine.
    plan = plan_sweep(given.settings, given.seeds, given.set, made_by=f"{hash_of_all_steps()} {identify(machine.stockfish)}")
    if given.show:
        print("\n".join([*_lines(found := read_sweep(plan, machine)), *_earlier(found, machine)]))
        return 0
    folder = machine.home / plan.folder
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.parent / ".lock", what="a sweep of this home"):
        found = _run_all(plan, machine)
    print("\n".join(_lines(found)))
    print(wrapped(f"{folder / 'sweep.md'} and sweep.json have this table.", ""))
    if failed := [row.planned.name for row in found.rows if not row.is_finished]:
        say(f"chess-grpo: {len(failed)} of {len(found.rows)} runs did not finish: {'; '.join(failed)}. {_REMEDY}", sys.stderr)
    return 1 if failed else 0


def _run_all(plan: "SweepPlan", machine: Machine) -> "SweepResults":
    """Run what has not finished yet, and return the results; table and MLflow are kept up to date after each run."""
    from steps.runs.sweep_results import read_sweep

    found = read_sweep(plan, machine)
    finished = {row.planned.key for row in found.rows if row.is_finished}
    parts = f"combinations of settings: {len(plan.combinations)}, seeds: {len(plan.seeds)}"
    say(f"Sweep {plan.id}: {len(plan.runs)} runs ({parts}), of which {len(finished)} have finished already")
    for number, run in enumerate(plan.runs, start=1):
        if run.key in finished:
            continue
        _record(found, machine)
        log = machine.home / plan.folder / f"run-{number}.log"
        say(f"[{number}/{len(plan.runs)}] {run.name}: its output is in {log}")
        began = time.monotonic()
        code = start_flow(run, machine, log)
        found = read_sweep(plan, machine)
        row = next(row for row in found.rows if row.planned.key == run.key)
        say(f"[{number}/{len(plan.runs)}] {_outcome(code, row)} after {duration(time.monotonic() - began)}")
    _record(found, machine, is_over=True)
    return found


def _outcome(code: int, row: "SweepRow") -> str:
    if row.is_finished:
        return row.verdict
    return f"FAILED with exit code {code}" if code else "ended, but the tracking store does not say so yet (`chess-grpo track`)"


def start_flow(run: "PlannedRun", machine: Machine, log: Path) -> int:
    """Run the flow with these settings, and return its exit code. It ends when this process is killed, and saves a checkpoint before.

    Args:
        run: the settings, and the key under which Metaflow's run id is written to the home.
        machine: says where the home is.
        log: the file for everything that the flow prints.
    """
    from steps.runs.sweep_plan import run_id_file
    from steps.runtime.commands import FLOW_FILE
    from steps.runtime.parent_death import PARENT_VARIABLE
    from steps.store.versions import ROOT

    id_file = machine.home / run_id_file(run)
    id_file.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}  # The flow ends with this process.
    words = [sys.executable, str(ROOT / FLOW_FILE), "--config-value", "settings", run.launch.text, "run", "--run-id-file", str(id_file)]
    with log.open("ab") as output:
        return subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode


def _record(found: "SweepResults", machine: Machine, *, is_over: bool = False) -> None:
    """Write the table to the sweep's folder, and log it to MLflow once a run has finished."""
    from steps.runs.sweep_results import sweep_facts, sweep_page, sweep_records
    from steps.tracking.sweep_run import SweepRecord, log_sweep

    page, folder = sweep_page(found), machine.home / found.plan.folder
    files = (folder / "sweep.md", folder / "sweep.json")
    for path, text in zip(files, (page, json_text(sweep_facts(found))), strict=True):
        replace_file(path, text.encode())
    runs = [row.run for row in found.rows if row.run is not None and row.is_finished]  # Not an attempt that will be made again.
    if not runs:
        return
    reason = log_sweep(
        SweepRecord(
            sweep=found.plan.id,
            name=f"sweep {found.plan.settings} {found.plan.id}",
            command=found.plan.command,
            runs=[run.mlflow_run for run in runs],
            started=min(run.started for run in runs),
            ended=max(run.started + (run.seconds or 0.0) for run in runs),
            records=sweep_records(found) if is_over else [],  # Of several values at one step a chart would draw all.
            page=page,
            files=files,
            status="RUNNING" if not is_over else "FINISHED" if all(row.is_finished for row in found.rows) else "FAILED",
        ),
        machine,
    )
    if reason:
        say(f"WARNING: the sweep's table is not logged to {machine.shown_uri} ({reason}); the same command logs it later")


def _earlier(found: "SweepResults", machine: Machine) -> Iterator[str]:
    """Name the tables of this home where the sweep has no run yet: with other code or another engine it is another sweep."""
    tables = sorted((machine.home / found.plan.folder).parent.glob("*/sweep.md"))
    if tables and all(row.run is None for row in found.rows):
        yield wrapped("No run of this sweep was started here with this code and engine. Earlier tables: " + ", ".join(map(str, tables)))


def _lines(found: "SweepResults") -> Iterator[str]:
    from steps.runs.sweep_results import SWEEP_NOTES, sweep_cells

    for combination, rows in sweep_cells(found):
        yield f"\n{combination}"
        yield text_table(rows, indent="  ", folds=False)
    yield ""
    yield from map(wrapped, SWEEP_NOTES)
