"""Command `chess-grpo runs`."""

from itertools import islice

import click

from steps.cli.options import COUNT
from steps.cli.tables import when
from steps.pages.known import summary_of
from steps.run.machine import Machine
from steps.run.records import Run, Runs
from steps.run.store import Store
from steps.run.terminal import duration


@click.command()
@click.option("--last", type=COUNT, default=10, metavar="N", help="Number of runs to list (default 10).")
def command(last: int) -> int:
    """List the runs of CHESS_GRPO_STORE (default: CHESS_GRPO_HOME), newest first. Record the end of runs whose processes are gone."""
    machine = Machine.here()
    store = Store.of(machine)
    runs = Runs(store)
    close_gone(runs, machine)
    newest = list(islice(runs.all(), last + 1))
    if not newest:
        print(f"no runs in {store} yet: `make run CONFIG=smoke` makes a run in 3 to 7 minutes")
        return 0
    print("\n".join(_lines(run, store) for run in newest[:last]))
    more = f" (--last {2 * last} lists earlier runs)" if len(newest) > last else ""
    print(f"{len(newest[:last])} runs of {store}{more}; `chess-grpo show RUN` has a run's details")
    return 0


def close_gone(runs: Runs, machine: Machine) -> None:
    if not (gone := runs.close_gone()):
        return
    from steps.track.publish import SECONDS, publish_all

    reasons = publish_all(machine, runs=gone, seconds=SECONDS)
    for run in gone:
        not_logged = f"; not logged to MLflow yet ({reasons[run.name]})" if reasons[run.name] else ""
        click.echo(f"run {run.name} is over: its processes are gone{not_logged}", err=True)


def status_of(run: Run) -> str:
    """Return a status such as "running" or "failed in screen after 2 min 08 s"."""
    took = "" if run.ended is None else f" after {duration(run.ended - run.started)}"
    where = f" in {run.failed_step}" if run.failed_step and run.status in ("failed", "killed") else ""
    return f"{run.status}{where}{took}"


def origin_of(run: Run) -> str:
    origin = run.facts["origin"]
    return "" if origin is None else f"run {origin['run']}, step {origin['step']:,}"


def _lines(run: Run, store: Store) -> str:
    rows = {"settings": run.facts["label"], "resumed": origin_of(run), **summary_of(run, store), "error": run.error}
    head = f"{run.name}  {when(run.started)}  {status_of(run)}"
    return "\n".join([head, *(f"    {name:<8}  {text}" for name, text in rows.items() if text)])
