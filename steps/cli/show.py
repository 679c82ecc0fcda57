"""The command `chess-grpo show`: one run with settings, steps, results, findings and locations."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from steps.cli.tables import duration, text_table, when, wrapped
from steps.runs.names import RUN_NAMES
from steps.runtime.machine import Machine

if TYPE_CHECKING:
    from steps.runs.index import TrackedRun
    from steps.runs.results import Result
    from steps.runs.settings import FromPreset

_HASH = 12


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `show`."""
    show = commands.add_parser(
        "show",
        description="One flow run: its command, the settings that differ from the nearest preset, its steps (computed, or reused from"
        " the store), its results with 95 % intervals, findings of the diagnosis, and where champion, report, card and UI are.",
    )
    show.add_argument("name", metavar="RUN", help=RUN_NAMES)
    show.add_argument("--json", action="store_true", help="print everything as JSON")
    show.set_defaults(run=_show)


def _show(given: argparse.Namespace) -> int:
    from steps.runs.index import find_run
    from steps.runs.places import findings, places
    from steps.runs.results import all_results
    from steps.runs.settings import from_preset

    machine = Machine.here()
    run = find_run(given.name, machine)
    candidate, numbers = all_results(run, machine)
    settings = from_preset(run.params)
    if given.json:
        facts = {
            **_head(run),
            "preset": settings.preset,
            "changed": {name: {"preset": usual, "run": value} for name, (usual, value) in settings.changed.items()},
            "steps": [
                {"step": step.name, "status": step.status, "seconds": step.seconds, "version": step.version, "reused": step.is_reused}
                for step in run.steps
            ],
            "candidate_step": candidate,
            "results": [{"name": each.name, "unit": each.unit, **asdict(each.estimate)} for each in numbers],
            "findings": findings(run, machine),
            "places": dict(places(run, machine)),
        }
        print(json.dumps(facts, indent=2))
        return 0
    print("\n".join(_lines(run, machine, settings, candidate, numbers)))
    return 0


def _head(run: "TrackedRun") -> dict[str, Any]:
    from steps.tracking.tags import COMMAND, DISAGREEMENT, ENGINE, FOUND, ON_LADDER, VERDICT

    return {
        "run": run.metaflow_run,
        "mlflow_run": run.mlflow_run,
        "started": run.started,
        "status": run.status,
        "seconds": run.seconds,
        "aliases": list(run.aliases),
        "command": run.tags.get(COMMAND),
        "engine": run.tags.get(ENGINE),
        "commit": run.tags.get("git.commit"),
        "is_dirty": run.tags.get("git.dirty") == str(True),
        "verdict": run.tags.get(VERDICT),
        "on_ladder": run.tags.get(ON_LADDER),
        "disagreement": run.tags.get(DISAGREEMENT),
        "findings_tag": run.tags.get(FOUND),
    }


def _lines(run: "TrackedRun", machine: Machine, settings: "FromPreset", candidate: int | None, numbers: list["Result"]) -> Iterator[str]:
    from steps.runs.places import places

    head = _head(run)
    took = f" after {duration(run.seconds)}" if run.seconds is not None else ""
    aliases = f"  = {', '.join(run.aliases)}" if run.aliases else ""
    yield f"Run {run.metaflow_run}: {run.status}{took}{aliases}"
    rows = [("began", when(run.started)), ("MLflow", run.mlflow_run)]
    rows += [("command", " ".join(head["command"].split()))] if head["command"] else []
    rows += [("engine", head["engine"])] if head["engine"] else []
    rows += (
        [("code", f"commit {head['commit'][:_HASH]}{', with uncommitted changes' if head['is_dirty'] else ''}")] if head["commit"] else []
    )
    yield text_table(rows, indent="  ")
    if run.status == "running":
        yield wrapped(
            f"It is running, or was killed: then `python flows/chess_grpo.py resume --origin-run-id {run.metaflow_run}` resumes it.", "  "
        )
    if run.status == "failed":
        yield wrapped(f"Fix the cause, then `python flows/chess_grpo.py resume --origin-run-id {run.metaflow_run}` resumes it.", "  ")
    yield f"\nSettings: preset {settings.preset}{', but' if settings.changed else ''}"
    yield from (wrapped(f"{value}  (preset: {usual})", f"  {name} = ") for name, (usual, value) in settings.changed.items())
    if settings.num_unknown:
        yield wrapped(f"{settings.num_unknown} of its settings are of another version of the code, and not compared.", "  ")
    yield "\nSteps"
    yield _steps(run) if run.steps else "  none yet"
    yield ""
    yield from _result_lines(run, candidate, numbers)
    yield from _finding_lines(run, machine)
    yield "\nWhere"
    yield text_table(places(run, machine), indent="  ")


def _steps(run: "TrackedRun") -> str:
    done = [
        (
            step.name,
            step.status,
            duration(step.seconds),
            "" if not step.output_hash else "reused" if step.is_reused else "computed",
            step.version[:_HASH],
        )
        for step in run.steps
    ]
    return text_table(done, indent="  ")


def _result_lines(run: "TrackedRun", candidate: int | None, numbers: list["Result"]) -> Iterator[str]:
    from steps.tracking.tags import DISAGREEMENT, ON_LADDER, VERDICT

    who = "" if candidate is None else f" (candidate: step {candidate:,})"
    on_ladder = f" (on the ladder: {run.tags[ON_LADDER]})" if ON_LADDER in run.tags else ""
    yield f"Results{who}: {run.tags[VERDICT]}{on_ladder}" if VERDICT in run.tags else "Results: no verdict yet"
    if DISAGREEMENT in run.tags:
        yield wrapped(run.tags[DISAGREEMENT], "  ")
    if not numbers:
        yield "  no results yet"
        return
    yield text_table([(each.name, each.unit, str(each)) for each in numbers], indent="  ")
    yield wrapped("95 % intervals in brackets; a score counts a win as 1 and a draw as 0.5.", "  ")


def _finding_lines(run: "TrackedRun", machine: Machine) -> Iterator[str]:
    from steps.runs.places import findings
    from steps.tracking.tags import FOUND

    tag = run.tags.get(FOUND)
    if tag is None:
        yield "\nDiagnosis: none recorded"
        return
    yield f"\nDiagnosis: {', '.join(name.strip() for name in tag.split(','))}"
    for found in findings(run, machine):
        yield wrapped(f"{'; '.join(found['evidence'])}. {found['remedy']} ({found['page']})", f"  {found['severity']}: {found['name']}: ")
