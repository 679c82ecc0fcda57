"""The steps that measure strength, as the flow calls them: calibrate, baseline, screen, confirm and select."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo.base.errors import PlainError
from grpo.base.files import read_json
from steps.bodies import baseline as baseline_body
from steps.bodies import calibrate as calibrate_body
from steps.bodies import screen as screen_body
from steps.bodies import select as select_body
from steps.bodies.game_cache import TaskPart
from steps.pipeline.here import Here
from steps.pipeline.job import Job
from steps.pipeline.run_step import part_of, run_step
from steps.policies.open import open_policy
from steps.runs.files import output_manifest
from steps.runs.find_policy import named_policy
from steps.runs.names import NotFoundError
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.names import REPORT
from steps.step_io.work import Sink
from steps.store.outputs import StepOutput
from steps.store.versions import step_version
from steps.tracking import notes
from steps.tracking.child_run import ChildRun
from steps.tracking.launch import verdict_tags
from steps.tracking.outages import TrackingAwayError
from steps.tracking.registry import Choice, Chosen
from steps.tracking.tags import PEAK_STEP


def calibrate(job: Job, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Rate the opponents that strength is measured with; they depend on no dataset, so that later runs use the same ladder."""
    here, spec = Here(job), calibrate_body.SPEC
    return run_step(
        job,
        here.machine,
        spec,
        settings=spec.settings(here.settings),
        inputs=here.inputs(spec),
        work=lambda work: calibrate_body.calibrate_ladder(
            here.settings,
            engine=here.engine,
            engine_path=here.machine.stockfish,
            num_processes=here.machine.num_threads,
            work=work,
        ),
        sinks=sinks,
    )


def baseline(job: Job, boards: StepOutput, pretrained: StepOutput, calibrated: StepOutput, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Measure the pretrained policy against the ladder and Stockfish before GRPO touches it."""
    here, spec = Here(job), baseline_body.SPEC
    return run_step(
        job,
        here.machine,
        spec,
        settings=spec.settings(here.settings),
        inputs=here.inputs(spec, boards=boards, pretrained=pretrained, ladder=calibrated),
        work=lambda work: baseline_body.play_baseline(
            here.settings,
            boards=here.open(boards),
            pretrained=here.open(pretrained),
            calibrated=here.open(calibrated),
            engine_path=here.machine.stockfish,
            num_processes=here.machine.num_threads,
            device=here.device,
            work=work,
        ),
        sinks=sinks,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionOutputs:
    """The outputs that a selection is made from."""

    boards: StepOutput
    pretrained: StepOutput
    calibrated: StepOutput
    finetuned: StepOutput


def screen(job: Job, contest: SelectionOutputs, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Let candidates play against the initial policy, from which one is chosen."""
    return _precompute(job, contest, screened=None, part=None, sinks=sinks)


def confirm(job: Job, contest: SelectionOutputs, screened: StepOutput, part: int, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Play one task's part of the games that decide whether the chosen candidate is better."""
    return _precompute(job, contest, screened=screened, part=part, sinks=sinks)


def _precompute(job: Job, contest: SelectionOutputs, *, screened: StepOutput | None, part: int | None, sinks: Sequence[Sink]) -> StepOutput:
    here = Here(job)
    spec = screen_body.SPEC if screened is None else screen_body.CONFIRM_SPEC
    incumbent = _incumbent(here, contest)
    task = None if part is None else TaskPart(part=part, num_parts=here.settings.selection.num_tasks)
    return run_step(
        job,
        here.machine,
        spec,
        settings=spec.settings(here.settings) | ({} if task is None else asdict(task)),
        inputs=_inputs(here, contest, incumbent.label) | ({} if screened is None else {"screened": screened["output_hash"]}),
        work=lambda work: screen_body.precompute_games(
            here.settings,
            boards=here.open(contest.boards),
            pretrained=here.open(contest.pretrained),
            finetuned=here.open(contest.finetuned),
            previous=incumbent.folder,
            screened=None if screened is None else here.open(screened),
            share=task,
            engine_path=here.machine.stockfish,
            num_processes=here.machine.num_threads,
            device=here.device,
            work=work,
        ),
        sinks=sinks,
        part="" if task is None else part_of(task.part, task.num_parts),
    )


def select(job: Job, contest: SelectionOutputs, precomputed: Sequence[StepOutput] = (), sinks: Sequence[Sink] = ()) -> StepOutput:
    """Let checkpoints compete, and register peak and champion; games that other tasks have played already are not played again."""
    here, spec = Here(job), select_body.SPEC
    incumbent = _incumbent(here, contest)
    if incumbent.problem:
        print(f"select: WARNING: the registry's champion cannot be played, so it stays, unbeaten: {incumbent.problem}", flush=True)

    def publish(folder: Path, child: ChildRun) -> None:
        decision = read_json(folder / REPORT)
        # Bounds can be compared only when they are of the same start.
        peak, champion = (
            Choice(policy_step=decision[f"{part}_step"], initial_weights=decision["initial_weights"], low=low)
            for part, low in ((PEAK, decision["peak_low"]), (CHAMPION, None))
        )
        child.tag_flow_run({PEAK_STEP: decision["peak_step"], **verdict_tags(decision, job["settings"])})
        child.choose(
            Chosen(
                flow_run=job["mlflow_run"],
                description=notes.version_note(decision),
                peak=peak,
                champion=champion,
                is_beaten=decision["replaces_previous"] and not incumbent.problem,
                seen=incumbent.version,
            )
        )

    return run_step(
        job,
        here.machine,
        spec,
        settings=spec.settings(here.settings),
        inputs=_inputs(here, contest, incumbent.label),
        work=lambda work: select_body.select_champion(
            here.settings,
            boards=here.open(contest.boards),
            pretrained=here.open(contest.pretrained),
            calibrated=here.open(contest.calibrated),
            finetuned=here.open(contest.finetuned),
            previous=incumbent.folder,
            engine_path=here.machine.stockfish,
            num_processes=here.machine.num_threads,
            device=here.device,
            work=work,
            precomputed=[here.open(output) for output in precomputed],
        ),
        sinks=sinks,
        publish=publish,
    )


def _inputs(here: Here, contest: SelectionOutputs, previous: str) -> dict[str, str]:
    outputs = {"boards": contest.boards, "pretrained": contest.pretrained, "ladder": contest.calibrated, "finetuned": contest.finetuned}
    return here.inputs(select_body.SPEC, **outputs) | {"previous": previous}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Incumbent:
    """The registry's champion, as the step `select` meets it."""

    version: int | None = None
    """Its number in the registry; None when there is no champion."""
    folder: Path | None = None
    """The policy to be beaten, if it is to be played."""
    label: str = ""
    """Its part in the step's version."""
    problem: str = ""
    """Why it cannot be played."""


def _incumbent(here: Here, contest: SelectionOutputs) -> _Incumbent:
    """Return the registry's champion. When this very step made it, it is no opponent: the step's output is found again."""
    try:
        named = named_policy(CHAMPION, here.machine, role=CHAMPION)
    except NotFoundError:
        return _Incumbent()
    except TrackingAwayError as error:
        return _Incumbent(label="cannot be played", problem=str(error))  # If there is one, it stays: `Registry.enter` sees to that.
    try:
        label = str(output_manifest(here.machine, named.output)["parts"]["inputs"].get("previous", ""))
        again = step_version(
            select_body.SPEC, settings=select_body.SPEC.settings(here.settings), inputs=_inputs(here, contest, label), code=here.job["code"]
        )
        if again.version == named.output["version"] and here.store.has(named.output):
            return _Incumbent(version=named.version, label=label)
        model = named.fetch(here.machine)
        open_policy(model.folder, here.device)  # Now, and not after games were played.
    except PlainError as error:
        return _Incumbent(version=named.version, label="cannot be played", problem=str(error))
    return _Incumbent(version=named.version, folder=model.folder, label=model.weights_hash)
