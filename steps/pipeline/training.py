"""The training steps as the flow calls them: pretrain, and finetune on one machine or several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo.base.files import MANIFEST, read_json
from steps.bodies.live_diagnosis import LiveDiagnosis
from steps.bodies.strength_curve import nearest_rungs, rungs_text
from steps.kinds.lookup import kind_of
from steps.nodes.sockets import ONLY_NODE, Node
from steps.nodes.team import Team, joined_nodes
from steps.nodes.worker import WorkerTask
from steps.pipeline.here import Here
from steps.pipeline.job import Job
from steps.pipeline.resume import origin_checkpoint
from steps.pipeline.run_step import run_step
from steps.step_io.names import FINDINGS, LEARNABILITY
from steps.step_io.work import Sink
from steps.store.outputs import StepOutput
from steps.tracking.child_run import ChildRun
from steps.tracking.tags import FOUND

OnAssessed = Callable[[Mapping[str, Any]], None]
"""Called with what was found before the first update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strength:
    """The outputs that name the opponents of the strength curve."""

    calibrated: StepOutput
    baseline: StepOutput


def pretrain(job: Job, boards: StepOutput, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Imitate until the validation loss stops falling; a language model clones the answers of the value tables."""
    here = Here(job)
    kind = kind_of(here.settings)
    return run_step(
        job,
        here.machine,
        kind.pretrain_spec,
        settings=kind.pretrain_spec.settings(here.settings),
        inputs=here.inputs(kind.pretrain_spec, boards=boards),
        work=lambda work: kind.pretrain(here.settings, here.open(boards), here.device, work),
        sinks=sinks,
    )


def finetune(
    job: Job,
    boards: StepOutput,
    pretrained: StepOutput,
    sinks: Sequence[Sink] = (),
    *,
    strength: Strength | None = None,
    on_assessed: OnAssessed | None = None,
    node: Node = ONLY_NODE,
) -> StepOutput:
    """Fine-tune by GRPO, from the pretrained policy or from the origin's checkpoint; without `strength` there is no strength curve.

    Of several machines each calls this: all train, node 0 writes the output and logs it, and all return it.
    """
    here = Here(job)
    kind = kind_of(here.settings)
    kind.refuse_several(node.count * (node.num_processes or 1))
    if kind.trains_alone:
        node = replace(node, num_processes=1)
    with joined_nodes(node, here.machine) as team:
        return _finetune(here, boards, pretrained, sinks=sinks, strength=strength, on_assessed=on_assessed, team=team)


def _finetune(
    here: Here,
    boards: StepOutput,
    pretrained: StepOutput,
    *,
    sinks: Sequence[Sink],
    strength: Strength | None,
    on_assessed: OnAssessed | None,
    team: Team,
) -> StepOutput:
    job, kind = here.job, kind_of(here.settings)
    spec = kind.finetune_spec
    checkpoint = None if job["origin"] is None else origin_checkpoint(job["origin"], here.machine)
    settings = spec.settings(here.settings)
    inputs = here.inputs(spec, boards=boards, pretrained=pretrained)
    inputs["checkpoint"] = "" if checkpoint is None else str(read_json(checkpoint / MANIFEST)["output_hash"])
    rungs: list[dict[str, Any]] = []
    if strength is not None and here.settings.grpo.num_curve_pairs:
        rungs = nearest_rungs(here.open(strength.calibrated), here.open(strength.baseline))
        # Not the hashes of both outputs: a baseline that was measured anew and names the same opponents retrains nothing.
        inputs["rungs"] = rungs_text(rungs)
    if (num_processes := team.met(inputs)) > 1:
        inputs["processes"] = str(num_processes)  # Sums over them round differently.

    def task() -> WorkerTask:
        return WorkerTask(
            settings=job["settings"],
            boards=str(here.open(boards)),
            pretrained=str(here.open(pretrained)),
            checkpoint="" if checkpoint is None else str(checkpoint),
            facts={"settings": settings, **inputs},  # No more than the version holds: equal versions have equal checkpoints.
            rungs=rungs,
        )

    if not team.leads:
        return team.help(task)
    is_assessed = False

    def assessed(found: Mapping[str, Any]) -> None:
        nonlocal is_assessed
        is_assessed = True
        if on_assessed is not None:
            on_assessed(found)

    def publish(folder: Path, child: ChildRun) -> None:
        found = {FOUND: read_json(folder / FINDINGS)["tag"]}
        child.tag(found)
        child.tag_flow_run(found)
        if not is_assessed:  # The output, or its beginning, was there already.
            assessed(read_json(folder / LEARNABILITY))

    output = run_step(
        job,
        here.machine,
        spec,
        settings=settings,
        inputs=inputs,
        work=lambda work: team.finetune(task(), work, assessed),
        sinks=sinks,
        watcher=LiveDiagnosis(job["settings"]),
        publish=publish,
    )
    team.finished(output)
    return output
