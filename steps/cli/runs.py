"""The command `chess-grpo runs`: lists the flow runs in MLflow with settings, status and results."""

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

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
    runs.add_argument("--json", action="store_true", help="print everything as JSON")
    runs.set_defaults(run=_runs)


def _runs(given: argparse.Namespace) -> int:
    from steps.runs.index import read_runs

    machine = Machine.here()
    found = read_runs(machine, last=given.last + 1)
    runs, has_more = found[: given.last], len(found) > given.last
    if given.json:
        print(json.dumps([listed_run(run) for run in runs], indent=2))
        return 0
    if not runs:
        print(wrapped(f"no runs in {machine.shown_uri} yet: `make run CONFIG=smoke` makes one in 3 to 7 minutes"))
        return 0
    print("\n".join(_lines(run) for run in runs))
    more = f" (earlier ones: --last {2 * given.last})" if has_more else ""
    print(wrapped(f"{len(runs)} of {machine.shown_uri}{more}; `chess-grpo show RUN` shows one in detail"))
    return 0


def listed_run(run: "TrackedRun") -> dict[str, Any]:
    """Return a run's facts in the list, as plain data."""
    from steps.runs.settings import from_preset
    from steps.tracking.tags import FOUND, SENTENCE, VERDICT

    preset = from_preset(run.settings)
    return {
        "run": run.metaflow_run,
        "mlflow_run": run.mlflow_run,
        "started": run.started,
        "status": run.status,
        "seconds": run.seconds,
        "preset": preset.preset,
        "changed": {name: value for name, (_, value) in preset.changed.items()},
        "settings": str(preset),
        "verdict": run.tags.get(VERDICT),
        "sentence": run.tags.get(SENTENCE),
        "findings": run.tags.get(FOUND),
        "sources": sources_of(run),
        "aliases": list(run.aliases),
    }


def sources_of(run: "TrackedRun") -> str | None:
    """Return what the run's boards come from, or None if it has none yet, or an older version of the code made them."""
    from steps.tracking.tags import SOURCES

    joined = run.output_of("join_boards")
    return None if joined is None else joined.tags.get(SOURCES)


def _lines(run: "TrackedRun") -> str:
    """Return two to five lines: id and status, settings, files, verdict, findings."""
    from steps.tracking.tags import ENGINE_GAMES

    facts = listed_run(run)
    took = f" after {duration(run.seconds)}" if run.seconds is not None else ""
    aliases = f"  = {', '.join(run.aliases)}" if run.aliases else ""
    lines = [
        f"{facts['run']}  {when(run.started)}  {run.status}{took}{aliases}",
        wrapped(facts["settings"], "    settings  "),
    ]
    if facts["sources"] is not None and facts["sources"] != ENGINE_GAMES:
        lines.append(wrapped(facts["sources"], "    boards    "))
    if facts["verdict"] is not None:
        lines.append(wrapped(". ".join(filter(None, (facts["verdict"], facts["sentence"]))), "    verdict   "))
    if facts["findings"] is not None:
        lines.append(wrapped(", ".join(name.strip() for name in facts["findings"].split(",")), "    findings  "))
    return "\n".join(lines)
