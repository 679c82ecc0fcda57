"""The command `chess-grpo runs`: lists the runs of the store with settings, status and results."""

from itertools import islice
from typing import TYPE_CHECKING

import click

from steps.cli.options import COUNT
from steps.cli.tables import when
from steps.run.machine import Machine
from steps.run.terminal import duration

if TYPE_CHECKING:
    from steps.run.records import Run, Runs
    from steps.run.store import Store


@click.command()
@click.option("--last", type=COUNT, default=10, metavar="N", help="How many, the newest first (default 10).")
def command(last: int) -> int:
    """List the runs of the store (CHESS_GRPO_STORE, or CHESS_GRPO_HOME), the newest first.

    Id, start, status, settings, the run that it resumed from, verdict, findings of the diagnosis, and of a failed run the step and the
    cause. A run whose process was killed is recorded as such.
    """
    from steps.run.records import Runs
    from steps.run.store import Store

    machine = Machine.here()
    store = Store.of(machine)
    runs = Runs(store)
    _close_gone(runs, machine)
    found = list(islice(runs.all(), last + 1))
    shown, has_more = found[:last], len(found) > last
    if not shown:
        print(f"no runs in {store} yet: `make run CONFIG=smoke` makes one in 3 to 7 minutes")
        return 0
    print("\n".join(_lines(run, store) for run in shown))
    more = f" (earlier ones: --last {2 * last})" if has_more else ""
    print(f"{len(shown)} of {store}{more}; `chess-grpo show RUN` shows one in detail")
    return 0


def _close_gone(runs: "Runs", machine: Machine) -> None:
    """End the runs whose processes are gone, in the records and in MLflow."""
    if not (gone := runs.close_gone()):
        return
    from steps.track.publish import SECONDS, publish_all  # MLflow takes seconds to import.

    reasons = publish_all(machine, runs=gone, seconds=SECONDS)
    for run in gone:
        left = reasons[run.name]
        click.echo(f"run {run.name} is over: its processes are gone" + (f"; not logged to MLflow yet ({left})" if left else ""), err=True)


def status_of(run: "Run") -> str:
    """Return how a run is or ended, and after how long."""
    took = "" if run.ended is None else f" after {duration(run.ended - run.started)}"
    where = f" in {run.failed_step}" if run.failed_step and run.status in ("failed", "killed") else ""
    return f"{run.status}{where}{took}"


def origin_of(run: "Run") -> str:
    """Return which checkpoint a run was resumed from; empty for a new training."""
    origin = run.facts["origin"]
    return "" if origin is None else f"run {origin['run']}, step {origin['step']:,}"


def _lines(run: "Run", store: "Store") -> str:
    """Return id and status, settings, origin, verdict, findings, and why it failed."""
    from steps.pages.known import summary_of

    rows = {"settings": run.facts["label"], "resumed": origin_of(run), **summary_of(run, store), "error": run.error}
    head = f"{run.name}  {when(run.started)}  {status_of(run)}"
    return "\n".join([head, *(f"    {name:<8}  {text}" for name, text in rows.items() if text)])
