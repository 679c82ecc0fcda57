"""The command `chess-grpo show`: one run with settings, steps, results, findings and locations."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steps.cli.tables import duration, text_table, when, wrapped
from steps.runtime.machine import Machine

if TYPE_CHECKING:
    from steps.runs.index import TrackedRun
    from steps.runs.settings import FromPreset
    from steps.step_io.results import Measurement

_HASH = 12


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `show`."""
    show = commands.add_parser(
        "show",
        description="One flow run: its command, the settings that differ from the nearest preset, its steps (computed, or reused from"
        " the store), its results with 95 % intervals, findings of the diagnosis, and where champion, report, card and UI are. RUN is last,"
        " champion, peak (the run whose policy has that alias), Metaflow's run id, or MLflow's or its beginning.",
    )
    show.add_argument("name", metavar="RUN", help="last, champion, peak, or an id")
    show.add_argument("--json", action="store_true", help="print everything as JSON")
    show.set_defaults(run=_show)


def _show(given: argparse.Namespace) -> int:
    from steps.runs.index import find_run
    from steps.runs.places import findings, places
    from steps.runs.results import run_document, run_measurements
    from steps.runs.settings import from_preset

    machine = Machine.here()
    run = find_run(given.name, machine)
    document = run_document(run, machine)
    settings = from_preset(run.params)
    shown = _Shown(
        run=run,
        settings=settings,
        measured=run_measurements(run, document),
        findings=findings(run, document, machine),
        places=places(run, machine),
    )
    if given.json:
        facts = {
            **_head(run),
            "preset": settings.preset,
            "changed": {name: {"preset": usual, "run": value} for name, (usual, value) in settings.changed.items()},
            "steps": [
                {"step": step.name, "status": step.status, "seconds": step.seconds, "version": step.version, "reused": step.is_reused}
                for step in run.steps
            ],
            "candidate_step": None if document is None else document["decision"]["candidate_step"],
            "results": shown.measured,
            "findings": shown.findings,
            "places": dict(shown.places),
        }
        print(json.dumps(facts, indent=2))
        return 0
    print("\n".join(_lines(shown)))
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """What is shown of a run."""

    run: "TrackedRun"
    settings: "FromPreset"
    measured: "Sequence[Measurement]"
    findings: Sequence[Mapping[str, Any]]
    places: Sequence[tuple[str, str]]


def _head(run: "TrackedRun") -> dict[str, Any]:
    from steps.tracking.tags import COMMAND, ENGINE, FOUND, SENTENCE, VERDICT

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
        "sentence": run.tags.get(SENTENCE),
        "findings_tag": run.tags.get(FOUND),
    }


def _lines(shown: _Shown) -> Iterator[str]:
    run, settings = shown.run, shown.settings
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
    yield from _result_lines(head, shown.measured)
    yield from _finding_lines(head, shown.findings)
    yield "\nWhere"
    yield text_table(shown.places, indent="  ")


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


def _result_lines(head: Mapping[str, Any], measured: "Sequence[Measurement]") -> Iterator[str]:
    from steps.step_io.results_text import measurement_rows

    yield f"Results: {head['verdict'] or 'no verdict yet'}"
    if head["sentence"]:
        yield wrapped(head["sentence"], "  ")
    if not measured:
        yield "  no results yet"
        return
    yield text_table([row[:2] for row in measurement_rows(measured)], indent="  ")
    yield wrapped("95 % intervals in brackets; a score counts a win as 1 and a draw as 0.5; regret is win probability lost per move.", "  ")


def _finding_lines(head: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    tag = head["findings_tag"]
    if tag is None:
        yield "\nDiagnosis: none recorded"
        return
    yield f"\nDiagnosis: {', '.join(name.strip() for name in tag.split(','))}"
    for found in findings:
        yield wrapped(f"{'; '.join(found['evidence'])}. {found['remedy']} ({found['page']})", f"  {found['severity']}: {found['name']}: ")
