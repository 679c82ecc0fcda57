"""The last steps as the flow calls them: report, and the words that end a run."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from grpo.base.files import read_json
from steps.bodies import report as report_body
from steps.export.model_card import CardFacts, model_card
from steps.kinds.lookup import kind_of
from steps.pipeline.here import Here
from steps.pipeline.job import Job
from steps.pipeline.run_step import log_plots, run_step
from steps.runs.facts import run_facts
from steps.runtime.machine import SHARED, Machine
from steps.step_io.aliases import CHAMPION
from steps.step_io.names import MODEL_CARD, REPORT, REPORT_PAGE
from steps.step_io.work import read_history
from steps.store.outputs import StepOutput
from steps.tracking import notes
from steps.tracking.child_run import ChildRun
from steps.tracking.plots import phases_plot, selection_plot
from steps.tracking.tags import verdict_tags


def report(job: Job, outputs: Mapping[str, StepOutput]) -> StepOutput:
    """Write the run's report: comparison, phases, curves, and where everything is."""
    here, spec = Here(job), report_body.SPEC

    def publish(folder: Path, child: ChildRun) -> None:  # noqa: ARG001
        kind = kind_of(here.settings)
        behind = run_facts({step: here.open(output) for step, output in outputs.items()})
        decision = behind.reports["select"]
        plots = kind.plots(read_history(here.open(outputs["finetune"])), here.settings)
        log_plots(child, plots | {"selection": selection_plot(decision), "phases": phases_plot(behind.reports["join_boards"])})
        weights = decision["candidate_weights" if decision["promoted"] else "initial_weights"]
        facts = CardFacts(
            run=job["metaflow_run"],
            policy_step=decision["champion_step"],
            words=kind.card(here.open(outputs["select"]) / CHAMPION),
            hashes={"weights, as numbers": weights},
            behind=behind,
        )
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / MODEL_CARD).write_text(model_card(facts), encoding="utf-8")
            child.file(Path(made) / MODEL_CARD)

    return run_step(
        job,
        here.machine,
        spec,
        settings={},
        inputs=here.inputs(spec, **outputs),
        work=lambda work: report_body.write_report({step: here.open(output) for step, output in outputs.items()}, work),
        publish=publish,
    )


def end(job: Job, selected: StepOutput, reported: StepOutput) -> str:
    """Close the run and return the words that end it: verdict, and where champion, report and UI are."""
    here = Here(job)
    decision = read_json(here.open(selected) / REPORT)
    facts = read_json(here.open(reported) / REPORT)
    places = {
        "Champion of this run": f"{_place(here, selected)}/{CHAMPION}",
        "Report": f"{_place(here, reported)}/{REPORT_PAGE}",
        "Card": f"python flows/chess_grpo.py card view {job['metaflow_run']}/report",
    }
    head = job.get("story", "")
    note = notes.ended(head, facts=facts["steps"], findings=facts.get("findings"), places=places) if head else ""
    num_left = here.tracker.end_flow_run(job["mlflow_run"], verdict_tags(decision), note)
    waiting = f"NOT LOGGED: {num_left:,} steps wait for that store, which is away: `{_track(here.machine)}` logs them"
    return "\n".join(
        [
            f"GRPO against the pretrained policy: {decision['verdict']} (candidate: step {decision['candidate_step']:,})",
            f"  best moves, as played   {decision['confirmation_best_moves']['text']}",
            f"  best moves, adjudicated {decision['confirmation_best_moves']['adjudicated']['text']}",
            f"  sampled at T = 1        {decision['confirmation_sampled_moves']['text']}",
            f"  against everybody else  {decision['ladder_gain']['text']}",
            *([f"  {decision['disagreement']}"] if decision["disagreement"] else []),
            f"Champion of this run: {places['Champion of this run']}",
            f"Report:   {places['Report']}",
            f"Card:     {places['Card']}",
            f"UI:       make ui   (MLflow at {here.tracker.uri})",
            *([waiting] if num_left else []),
        ]
    )


def _track(machine: Machine) -> str:
    # What a container left lies in the shared store, of which the launcher's shell need not know.
    return f"{SHARED}={machine.shared} chess-grpo track" if machine.is_container else "chess-grpo track"


def _place(here: Here, output: StepOutput) -> str:
    """Return where people find an output: not on a disk that goes with the task."""
    if here.machine.is_container:
        return f"{here.machine.shared}/outputs/{output['step']}/{output['version']}/{output['output_hash']}"
    return str(here.store.folder(output["step"], output["version"]))
