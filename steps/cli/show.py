"""Command `chess-grpo show`."""

from collections.abc import Iterator
from typing import Final

import click

from steps.cli.runs import close_gone, origin_of, status_of
from steps.cli.tables import text_table, when
from steps.names import CHAMPION, GAMES_PAGE, REPORT_PAGE
from steps.pages.known import dataset_of, findings_of, results_of
from steps.pages.results import Results
from steps.pages.templates import finding_lines, verdict_lines
from steps.run.commands import pasteable, resume_command
from steps.run.machine import Machine
from steps.run.records import Attempt, Run, Runs
from steps.run.store import Store
from steps.run.terminal import duration
from steps.track.find import LAST, find_run
from steps.track.sweep import SWEEP

_HASH: Final = 12  # Printed digits of a hash.


@click.command()
@click.argument("name", metavar="[RUN]", default=LAST)
def command(name: str) -> int:
    """Show a run (default: the last): status, error, settings, command, steps, results with 95 % intervals, findings, files."""
    machine = Machine.here()
    store = Store.of(machine)
    close_gone(Runs(store), machine)
    run = find_run(name, store, has=lambda _: True)  # `last` includes running runs.
    results = results_of(run, store)
    print("\n".join([*_head(run, store), *_steps(run), *_results(results), *_findings(run, results, store), "\nFiles and pages"]))
    print(text_table(_locations(run, store), indent="  "))
    return 0


def _head(run: Run, store: Store) -> Iterator[str]:
    facts = run.facts
    yield f"Run {run.name}: {status_of(run)}"
    rows = {
        "began": when(run.started),
        "other ids": ", ".join(run.other_ids),
        "settings": facts["label"],
        "data": str(dataset_of(run, store) or ""),
        "resumed": origin_of(run),
        "code": code_of(run),
        "sweep": facts["tags"].get(SWEEP, "").partition("/")[0],
    }
    command = [("" if number else "command", line) for number, line in enumerate(pasteable(facts["command"]).splitlines())]
    yield text_table([*(row for row in rows.items() if row[1]), *command], indent="  ")
    if run.status in ("failed", "killed"):
        if run.error:
            yield f"  {': '.join(filter(None, (run.failed_step, run.error)))}"
        yield f"  To resume: `{pasteable(resume_command(run.name, run.places))}`"


def code_of(run: Run) -> str:
    code = run.facts["code"]
    return f"commit {code['commit'][:_HASH]}{', with uncommitted changes' if code['is_dirty'] else ''}"


def _steps(run: Run) -> Iterator[str]:
    attempts = run.latest().values()
    if run.status == "finished":
        reused = [attempt.step for attempt in attempts if attempt.output is not None and attempt.output["reused"]]
        yield f"\nSteps: all finished; reused: {', '.join(dict.fromkeys(reused)) or 'none'}"
    else:
        yield f"\nSteps\n{text_table(map(_step, attempts), indent='  ') or '  none yet'}"


def _step(attempt: Attempt) -> tuple[str, ...]:
    name = f"{attempt.step} {attempt.part}".rstrip()
    took = "" if attempt.ended is None else duration(attempt.ended - attempt.started)
    origin = "" if attempt.output is None else "reused" if attempt.output["reused"] else "computed"
    return name, attempt.status, took, origin, attempt.version[:_HASH]


def _results(results: Results | None) -> Iterator[str]:
    yield f"\nResults: {'no verdict yet' if results is None else results.decision.verdict}"
    if results is not None:
        yield from (f"  {line}".rstrip() for line in verdict_lines(results))


def _findings(run: Run, results: Results | None, store: Store) -> Iterator[str]:
    diagnosis = findings_of(run, results, store)
    yield f"\nDiagnosis: {'none recorded' if diagnosis is None else diagnosis.tag}"
    if diagnosis is not None:
        yield from (f"  {line}" for line in finding_lines(diagnosis.findings))


def _locations(run: Run, store: Store) -> list[tuple[str, str]]:
    rows = []
    if (selected := run.output_of("select")) is not None:
        rows += [(name, f"{store.place(selected)}/{part}") for name, part in (("champion", CHAMPION), ("games", GAMES_PAGE))]
    if (reported := run.output_of("report")) is not None:
        rows += [("report", f"{store.place(reported)}/{REPORT_PAGE}"), ("card", pasteable(f"chess-grpo card {run.name}"))]
    if (finetuned := run.output_of("finetune")) is not None:
        rows.append(("training", store.place(finetuned)))
    return [*rows, ("MLflow", run.facts["tracking"])]
