"""The training steps as the flow calls them: pretrain and finetune."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo.base.files import MANIFEST, read_json
from steps.bodies.live_diagnosis import LiveDiagnosis
from steps.kinds.lookup import kind_of
from steps.pipeline.here import Here
from steps.pipeline.job import Job
from steps.pipeline.resume import origin_checkpoint
from steps.pipeline.run_step import run_step
from steps.runtime.exit_codes import RESUMABLE
from steps.runtime.sigterm import Terminated, terminable
from steps.step_io.names import FINDINGS, LEARNABILITY
from steps.step_io.work import Sink, Work
from steps.store.outputs import StepOutput
from steps.tracking.child_run import ChildRun
from steps.tracking.tags import FOUND

OnAssessed = Callable[[Mapping[str, Any]], None]
"""Called with what was found before the first update."""


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
    on_assessed: OnAssessed | None = None,
) -> StepOutput:
    """Fine-tune by GRPO, from the pretrained policy or from the origin's checkpoint.

    On SIGTERM the process exits with RESUMABLE.
    """
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

    with _resumable():
        here = Here(job)
        kind = kind_of(here.settings)
        spec = kind.finetune_spec
        checkpoint = None if job["origin"] is None else origin_checkpoint(job["origin"], here.machine)
        settings = spec.settings(here.settings)
        inputs = here.inputs(spec, boards=boards, pretrained=pretrained)
        inputs["checkpoint"] = "" if checkpoint is None else str(read_json(checkpoint / MANIFEST)["output_hash"])

        def train(work: Work) -> None:
            import torch

            torch.set_num_threads(here.machine.num_threads)
            kind.finetune(
                here.settings,
                boards=here.open(boards),
                pretrained=here.open(pretrained),
                checkpoint=checkpoint,
                facts={"settings": settings, **inputs},  # No more than the version holds: equal versions have equal checkpoints.
                machine=here.machine,
                num_engines=here.machine.num_threads,
                device=here.device,
                work=work,
                on_assessed=assessed,
            )

        return run_step(
            job,
            here.machine,
            spec,
            settings=settings,
            inputs=inputs,
            work=train,
            sinks=sinks,
            watcher=LiveDiagnosis(job["settings"]),
            publish=publish,
        )


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        with terminable():
            yield
    except Terminated:
        raise SystemExit(RESUMABLE) from None
