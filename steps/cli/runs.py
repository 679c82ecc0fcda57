"""The command `chess-grpo runs`: lists the flow runs in MLflow with settings, status and results."""

import argparse
from typing import TYPE_CHECKING, Final

from steps.cli.parser import count
from steps.cli.tables import duration, when
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import wrapped

if TYPE_CHECKING:
    from steps.runs.index import TrackedRun

_DEFAULT: Final = 10


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `runs`."""
    runs = commands.add_parser(
        "runs",
        description="List the flow runs in MLflow (MLFLOW_TRACKING_URI, or the store in CHESS_GRPO_HOME), the newest first: Metaflow's"
        " run id, start, status, nearest preset, verdict (against the run's own start, and against other opponents), findings of the"
        " diagnosis, and the registry's aliases of its policies. Nothing is written.",
    )
    runs.add_argument("--last", type=count, default=_DEFAULT, metavar="N", help=f"show the N newest (default {_DEFAULT})")
    runs.set_defaults(run=_runs)


def _runs(given: argparse.Namespace) -> int:
    from steps.runs.index import read_runs

    machine = Machine.here()
    found = read_runs(machine, last=given.last + 1)
    runs, has_more = found[: given.last], len(found) > given.last
    if not runs:
        print(wrapped(f"no runs in {machine.shown_uri} yet: `make run CONFIG=smoke` makes one in 3 to 7 minutes"))
        return 0
    print("\n".join(_lines(run) for run in runs))
    more = f" (earlier ones: --last {2 * given.last})" if has_more else ""
    print(wrapped(f"{len(runs)} of {machine.shown_uri}{more}; `chess-grpo show RUN` shows one in detail"))
    return 0


def sources_of(run: "TrackedRun") -> str | None:
    """Return what the run's boards come from, or None if it has none yet."""
    from steps.tracking.tags import SOURCES

    joined = run.output_of("join_boards")
    return None if joined is None else joined.tags.get(SOURCES)


def _lines(run: "TrackedRun") -> str:
    """Return two to five lines: id and status, settings, files, verdict, findings."""
    from steps.runs.settings import from_preset
    from steps.tracking.tags import ENGINE_GAMES, FOUND, SENTENCE, VERDICT

    took = f" after {duration(run.seconds)}" if run.seconds is not None else ""
    aliases = f"  = {', '.join(run.aliases)}" if run.aliases else ""
    lines = [
        f"{run.metaflow_run}  {when(run.started)}  {run.status}{took}{aliases}",
        wrapped(str(from_preset(run.settings)), "    settings  "),
    ]
    if (sources := sources_of(run)) not in (None, ENGINE_GAMES):
        lines.append(wrapped(str(sources), "    boards    "))
    if VERDICT in run.tags:
        lines.append(wrapped(f"{run.tags[VERDICT]}. {run.tags.get(SENTENCE, '')}", "    verdict   "))
    if FOUND in run.tags:
        lines.append(wrapped(run.tags[FOUND], "    findings  "))
    return "\n".join(lines)
