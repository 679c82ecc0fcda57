"""The command `chess-grpo show`: one run with settings, steps, results, findings and locations."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from steps.cli.runs import sources_of
from steps.cli.tables import duration, text_table, when
from steps.runs.names import LAST, RUN_NAMES
from steps.runtime.commands import pasteable, resume_command
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import wrapped

if TYPE_CHECKING:
    from steps.runs.index import TrackedRun, TrackedStep
    from steps.step_io.results import Results

_HASH = 12


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `show`."""
    show = commands.add_parser(
        "show",
        description="One flow run: its command, the settings that differ from the nearest preset, its steps (computed, or reused from"
        " the store), its results with 95 % intervals, findings of the diagnosis, and where champion, report, card and UI are.",
    )
    show.add_argument("name", metavar="RUN", nargs="?", default=LAST, help=f"{RUN_NAMES}; {LAST} by default")
    show.set_defaults(run=_show)


def _show(given: argparse.Namespace) -> int:
    from steps.runs.index import find_run
    from steps.runs.places import places
    from steps.runs.results import run_document

    machine = Machine.here()
    run = find_run(given.name, machine)
    document = run_document(run, machine)
    print("\n".join([*_head(run), *_steps(run), *_results(run, document), *_findings(run, document, machine)]))
    print("\nWhere")
    print(text_table(places(run, machine), indent="  "))
    return 0


def _head(run: "TrackedRun") -> Iterator[str]:
    """Yield status, command, and the settings that differ from the nearest preset."""
    from steps.runs.settings import from_preset
    from steps.tracking.tags import COMMAND, ENGINE

    took = f" after {duration(run.seconds)}" if run.seconds is not None else ""
    aliases = f"  = {', '.join(run.aliases)}" if run.aliases else ""
    yield f"Run {run.metaflow_run}: {run.status}{took}{aliases}"
    commit, is_dirty = run.tags.get("git.commit"), run.tags.get("git.dirty") == str(True)
    rows = {
        "began": when(run.started),
        "MLflow": run.mlflow_run,
        "engine": run.tags.get(ENGINE),
        "code": commit and f"commit {commit[:_HASH]}{', with uncommitted changes' if is_dirty else ''}",
    }
    lines = pasteable(run.tags[COMMAND]).splitlines() if COMMAND in run.tags else []
    command = [("" if number else "command", line) for number, line in enumerate(lines)]
    yield text_table([*((name, value) for name, value in rows.items() if value), *command], indent="  ", folds=False)
    resume = f"`{pasteable(resume_command(run.metaflow_run))}` resumes it."
    if run.status == "running":
        yield wrapped(f"It is running, or was killed: then {resume}", "  ")
    if run.status == "failed":
        yield wrapped(f"Fix the cause, then {resume}", "  ")
    settings = from_preset(run.settings)
    yield f"\nSettings: preset {settings.preset}{', but' if settings.changed else ''}"
    yield from (wrapped(f"{value}  (preset: {usual})", f"  {name} = ") for name, (usual, value) in settings.changed.items())
    if settings.num_unknown:
        yield wrapped(f"{settings.num_unknown} of its settings are of another version of the code, and not compared.", "  ")


def _steps(run: "TrackedRun") -> Iterator[str]:
    if (sources := sources_of(run)) is not None:
        yield "\nBoards"
        yield wrapped(f"from {sources}", "  ")
    yield "\nSteps"
    yield text_table(map(_step, run.steps), indent="  ") if run.steps else "  none yet"


def _step(step: "TrackedStep") -> tuple[str, ...]:
    made = "" if not step.version else "reused" if step.is_reused else "computed"
    return step.name, step.status, duration(step.seconds), made, step.version[:_HASH]


def _results(run: "TrackedRun", document: "Results | None") -> Iterator[str]:
    from steps.runs.results import run_measurements
    from steps.step_io.results_text import measurement_text, verdict_picture
    from steps.tracking.tags import SENTENCE, VERDICT

    yield f"\nResults: {run.tags.get(VERDICT, 'no verdict yet')}"
    if SENTENCE in run.tags:
        yield wrapped(run.tags[SENTENCE], "  ")
    if document is not None:
        yield "\n".join(["", *(f"  {line}" for line in verdict_picture(document["decision"])), ""])
    measured = run_measurements(run, document)
    yield text_table(((each["name"], measurement_text(each)) for each in measured), indent="  ") if measured else "  no results yet"
    if measured:
        yield wrapped(
            "95 % intervals in brackets; a score counts a win as 1 and a draw as 0.5; regret is win probability lost per move.", "  "
        )


def _findings(run: "TrackedRun", document: "Results | None", machine: Machine) -> Iterator[str]:
    from steps.runs.places import findings
    from steps.step_io.results_text import finding_lines
    from steps.tracking.tags import FOUND

    yield f"\nDiagnosis: {run.tags.get(FOUND, 'none recorded')}"
    yield from (wrapped(line, "  ") for line in finding_lines(findings(run, document, machine)))
