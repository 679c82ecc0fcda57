"""The last steps as the flow calls them: report, and the words that end a run."""

import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from steps.bodies import report as report_body
from steps.export.model_card import CardFacts, model_card
from steps.kinds.lookup import kind_of
from steps.pipeline.here import Here
from steps.pipeline.job import Job
from steps.pipeline.run_step import run_step
from steps.runs.index import TrackedRun, TrackedStep, find_run
from steps.runs.names import NotFoundError
from steps.runs.places import run_page
from steps.runtime.commands import pasteable, shortened
from steps.runtime.machine import SHARED, Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.names import GAMES_PAGE, MODEL_CARD, PGN, REPORT_PAGE, RESULTS
from steps.step_io.results import Results, read_results
from steps.step_io.results_text import outcome, verdict_picture
from steps.step_io.spec import StepSpan
from steps.store.outputs import StepOutput
from steps.tracking import notes
from steps.tracking.child_run import ChildRun
from steps.tracking.launch import verdict_tags
from steps.tracking.outages import TrackingAwayError

_WIDTH: Final = 80


def report(job: Job, outputs: Mapping[str, StepOutput]) -> StepOutput:
    """Write the run's results and its report."""
    here, spec = Here(job), report_body.SPEC

    def publish(folder: Path, child: ChildRun) -> None:
        results = read_results(folder / RESULTS)
        decision = results["decision"]
        facts = CardFacts(
            run=job["metaflow_run"],
            policy_step=decision["champion_step"],
            words=kind_of(here.settings).card(here.open(outputs["select"]) / CHAMPION),
            hashes={"weights, as numbers": decision["candidate_weights"] if decision["promoted"] else decision["initial_weights"]},
            results=results,
        )
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / MODEL_CARD).write_text(model_card(facts), encoding="utf-8")
            child.file(Path(made) / MODEL_CARD)

    return run_step(
        job,
        here.machine,
        spec,
        settings={step: output["version"] for step, output in outputs.items()},  # The document names them beside the hashes.
        inputs=here.inputs(spec, **outputs),
        work=lambda work: report_body.write_report({step: here.open(output) for step, output in outputs.items()}, work),
        publish=publish,
    )


def end(job: Job, selected: StepOutput, reported: StepOutput, *, card: str = "") -> str:
    """Close the run and return the words that end it, in lines of at most 80 characters but for paths.

    No line begins with a space, because Metaflow strips those.

    Args:
        job: the run.
        selected: output of `select`, whose game viewer the run's MLflow page gets.
        reported: output of `report`.
        card: the card of `report` as one HTML page, which the MLflow page gets too; empty if there is none.
    """
    here = Here(job)
    pages = {GAMES_PAGE: (here.open(selected) / GAMES_PAGE).read_text(encoding="utf-8"), "report.html": card}
    results = read_results(here.open(reported) / RESULTS)
    run = job["metaflow_run"]
    places = {
        "Champion": f"{_place(here, selected)}/{CHAMPION}",
        "Report": f"{_place(here, reported)}/{REPORT_PAGE}",
    }
    head = job.get("story", "")
    note = notes.ended(head, results, places={**places, "Card": f"chess-grpo card {run}"}) if head else ""
    tags = verdict_tags(results["decision"], job["settings"])
    num_left = here.tracker.end_flow_run(job["mlflow_run"], tags, note, files={name: text for name, text in pages.items() if text})
    waiting = f"NOT LOGGED: {num_left:,} steps wait for the tracking store, which is away. Log them later: {_track(here.machine)}"
    sentence = f"Verdict: {results['decision']['verdict']}. {results['verdict']}"
    commands = {
        "chess-grpo card last": "the report as a page",
        "chess-grpo show last": "the same in the terminal",
        "make ui": "all runs in MLflow",
    }
    printed = {pasteable(command): why for command, why in commands.items()}
    width = max(map(len, printed))
    return "\n".join(
        [
            "",
            _wrapped(sentence),
            "",
            *verdict_picture(results["decision"]),
            "",
            _wrapped(
                f"95 % intervals: own start by {_num_pairs(results):,} pairs of fresh games; the ladder by others, with its opponents'"
                f" ratings taken as exact. {_capital(outcome(results['decision']))}."
            ),
            *([_wrapped(waiting)] if num_left else []),
            "",
            *(f"{what}: {shortened(place)}" for what, place in places.items()),
            "Next:",
            *(f"{command:<{width}}  # {why}" for command, why in printed.items()),
        ]
    )


def results(job: Job, selected: StepOutput, reported: StepOutput) -> dict[str, Any]:
    """Return the run's results as plain data for Metaflow's client: `steps.step_io.results.Results`, and `where` files are.

    The document's `places` are below the home; those of `where` are absolute, or in the shared store.
    """
    here = Here(job)
    document = read_results(here.open(reported) / RESULTS)
    select, report, joined = _place(here, selected), _place(here, reported), document["outputs"]["join_boards"]
    boards = StepOutput(step="join_boards", version=joined["version"], output_hash=joined["output_hash"], reused=True)
    where = {
        "boards": _place(here, boards),
        "champion": f"{select}/{CHAMPION}",
        "peak": f"{select}/{PEAK}",
        "games": f"{select}/{PGN}",
        "viewer": f"{select}/{GAMES_PAGE}",
        "report": f"{report}/{REPORT_PAGE}",
        "results": f"{report}/{RESULTS}",
    }
    run = {"metaflow_run": job["metaflow_run"], "mlflow_run": job["mlflow_run"], "mlflow_uri": here.machine.shown_uri}
    return {**document, "where": where, "run": run}


def overview(job: Job, selected: StepOutput, reported: StepOutput) -> tuple[Results, list[StepSpan], dict[str, str]]:
    """Return what the card of `end` shows: the results, the run's steps by the tracking store, and where all is.

    Where the store does not answer, there are no steps, and no page of it.
    """
    here = Here(job)
    document = read_results(here.open(reported) / RESULTS)
    where = {"champion": f"{_place(here, selected)}/{CHAMPION}", "report": f"{_place(here, reported)}/{REPORT_PAGE}"}
    try:
        run = find_run(job["metaflow_run"], here.machine)
    except (TrackingAwayError, NotFoundError):
        return document, [], where
    pages = {"MLflow run": run_page(run, here.machine), "cards": f"chess-grpo card {job['metaflow_run']}/STEP"}
    return document, _spans(run), pages | where


def _spans(run: TrackedRun) -> list[StepSpan]:
    """Return the run's steps, the tasks of one as one; of a step that was retried, the attempts that failed too."""
    grouped: dict[tuple[str, str], list[TrackedStep]] = {}
    for step in run.steps:
        grouped.setdefault((step.name, "reused" if step.is_reused else step.status), []).append(step)
    return [
        StepSpan(
            name=name,
            num_tasks=len(tasks),
            state=state,
            begin=min(task.started for task in tasks) - run.started,
            end=max(task.started + (task.seconds or 0.0) for task in tasks) - run.started,
        )
        for (name, state), tasks in grouped.items()
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _num_pairs(results: Results) -> int:
    return results["decision"]["confirmation_best_moves"]["num_pairs"]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _track(machine: Machine) -> str:
    # What a container left lies in the shared store, of which the launcher's shell need not know.
    return f"{SHARED}={machine.shared} chess-grpo track" if machine.is_container else "chess-grpo track"


def _place(here: Here, output: StepOutput) -> str:
    """Return where people find an output: not on a disk that goes with the task."""
    if here.machine.is_container:
        return f"{here.machine.shared}/outputs/{output['step']}/{output['version']}/{output['output_hash']}"
    return str(here.store.folder(output["step"], output["version"]))
