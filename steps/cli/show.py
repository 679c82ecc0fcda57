"""The command `chess-grpo show`: one run with settings, steps, results, findings and locations."""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from steps.cli.runs import sources_of
from steps.cli.tables import duration, text_table, when
from steps.runs.names import LAST, RUN_NAMES
from steps.runtime.commands import pasteable, resume_command
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import width, wrapped

_HASH = 12
_INDENT, _GAP = 2, "  "


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `show`."""
    show = commands.add_parser(
        "show",
        description="One flow run: its command, the settings that differ from the nearest preset, its steps (computed, or reused from"
        " the store), its results with 95 % intervals, findings of the diagnosis, and where champion, report, card and UI are.",
    )
    show.add_argument("name", metavar="RUN", nargs="?", default=LAST, help=f"{RUN_NAMES}; {LAST} by default")
    show.add_argument("--json", action="store_true", help="print everything as JSON")
    show.set_defaults(run=_show)


def _show(given: argparse.Namespace) -> int:
    facts = _facts(given.name, Machine.here())
    print(json.dumps(facts, indent=2) if given.json else "\n".join(_lines(facts)))
    return 0


def _facts(name: str, machine: Machine) -> dict[str, Any]:
    from steps.runs.index import find_run
    from steps.runs.places import findings, places
    from steps.runs.results import run_document, run_measurements
    from steps.runs.settings import from_preset
    from steps.step_io.results_text import verdict_picture
    from steps.tracking.tags import COMMAND, ENGINE, FOUND, SENTENCE, VERDICT

    run = find_run(name, machine)
    document, settings = run_document(run, machine), from_preset(run.settings)
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
        "preset": settings.preset,
        "changed": {name: {"preset": usual, "run": value} for name, (usual, value) in settings.changed.items()},
        "num_unknown_settings": settings.num_unknown,
        "steps": [
            {"step": step.name, "status": step.status, "seconds": step.seconds, "version": step.version, "reused": step.is_reused}
            for step in run.steps
        ],
        "boards": sources_of(run),
        "verdict": run.tags.get(VERDICT),
        "sentence": run.tags.get(SENTENCE),
        "picture": None if document is None else verdict_picture(document["decision"]),
        "candidate_step": None if document is None else document["decision"]["candidate_step"],
        "results": run_measurements(run, document),
        "findings_tag": run.tags.get(FOUND),
        "findings": findings(run, document, machine),
        "places": dict(places(run, machine)),
    }


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    run, changed, unknown = facts["run"], facts["changed"], facts["num_unknown_settings"]
    took = f" after {duration(facts['seconds'])}" if facts["seconds"] is not None else ""
    aliases = f"  = {', '.join(facts['aliases'])}" if facts["aliases"] else ""
    dirty = ", with uncommitted changes" if facts["is_dirty"] else ""
    yield f"Run {run}: {facts['status']}{took}{aliases}"
    rows = {
        "began": when(facts["started"]),
        "MLflow": facts["mlflow_run"],
        "engine": facts["engine"],
        "code": facts["commit"] and f"commit {facts['commit'][:_HASH]}{dirty}",
    }
    # Its line breaks are part of the command (settings in TOML), and another one would break it.
    lines = pasteable(facts["command"]).splitlines() if facts["command"] else []
    command = [("" if number else "command", line) for number, line in enumerate(lines)]
    yield text_table([*((name, value) for name, value in rows.items() if value), *command], indent="  ", folds=False)
    resume = f"`{pasteable(resume_command(run))}` resumes it."
    if facts["status"] == "running":
        yield wrapped(f"It is running, or was killed: then {resume}", "  ")
    if facts["status"] == "failed":
        yield wrapped(f"Fix the cause, then {resume}", "  ")
    yield f"\nSettings: preset {facts['preset']}{', but' if changed else ''}"
    yield from (wrapped(f"{each['run']}  (preset: {each['preset']})", f"  {name} = ") for name, each in changed.items())
    if unknown:
        yield wrapped(f"{unknown} of its settings are of another version of the code, and not compared.", "  ")
    if facts["boards"] is not None:
        yield "\nBoards"
        yield wrapped(f"from {facts['boards']}", "  ")
    yield "\nSteps"
    yield text_table(map(_step, facts["steps"]), indent="  ") if facts["steps"] else "  none yet"
    yield ""
    yield from _result_lines(facts)
    yield from _finding_lines(facts)
    yield "\nWhere"
    yield text_table(facts["places"].items(), indent="  ")


def _step(step: Mapping[str, Any]) -> tuple[str, ...]:
    made = "" if not step["version"] else "reused" if step["reused"] else "computed"
    return step["step"], step["status"], duration(step["seconds"]), made, step["version"][:_HASH]


def _result_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    from steps.step_io.results_text import measurement_text

    yield f"Results: {facts['verdict'] or 'no verdict yet'}"
    if facts["sentence"]:
        yield wrapped(facts["sentence"], "  ")
    if facts["picture"]:
        yield "\n".join(["", *(f"  {line}" for line in facts["picture"]), ""])
    if not facts["results"]:
        yield "  no results yet"
        return
    rows = [(each["name"], measurement_text(each)) for each in facts["results"]]
    name_width = max(len(name) for name, _ in rows)
    for name, text in rows:  # A score that would not fit beside its Elo has it in the next line, and no interval is broken.
        fits = _INDENT + name_width + len(_GAP) + len(text) <= width()
        score, equals, elo = (text, "", "") if fits else text.partition(" = ")
        yield f"{' ' * _INDENT}{name:<{name_width}}{_GAP}{score}"
        if equals:
            yield f"= {elo}".rjust(min(width(), _INDENT + name_width + len(_GAP) + len(text)))
    yield wrapped("95 % intervals in brackets; a score counts a win as 1 and a draw as 0.5; regret is win probability lost per move.", "  ")


def _finding_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    from steps.step_io.results_text import finding_lines

    tag = facts["findings_tag"]
    yield "\nDiagnosis: " + ("none recorded" if tag is None else ", ".join(name.strip() for name in tag.split(",")))
    yield from (wrapped(line, "  ") for line in finding_lines(facts["findings"]))
