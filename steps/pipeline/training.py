"""The training steps as the flow calls them: pretrain, and finetune on one machine or several."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from grpo.base.files import MANIFEST, read_json
from grpo.learning.distributed import ALONE, Processes
from grpo.metrics.table import BUDGET_SPENT
from steps.bodies.live_diagnosis import LiveDiagnosis
from steps.kinds.lookup import kind_of
from steps.pipeline.here import Here
from steps.pipeline.job import Job
from steps.pipeline.resume import origin_checkpoint
from steps.pipeline.run_step import run_step
from steps.runtime.exit_codes import RESUMABLE
from steps.runtime.notify import Notice, Notifier
from steps.runtime.sigterm import Terminated, terminable
from steps.step_io.names import FINDINGS, LEARNABILITY, REPORT
from steps.step_io.work import Sink, Work
from steps.store.outputs import StepOutput
from steps.tracking.child_run import ChildRun
from steps.tracking.tags import FOUND

OnAssessed = Callable[[Mapping[str, Any]], None]
"""Called with what was found before the first update."""

_TRAIN: Final = b"train"
_REUSED: Final = b""


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
    processes: Processes = ALONE,
) -> StepOutput:
    """Fine-tune by GRPO, from the pretrained policy or from the origin's checkpoint.

    Of several processes the first calls this, and the others `follow`. On SIGTERM the process exits with RESUMABLE.

    Raises UnlikeMachinesError when the machines differ.
    """
    assert processes.is_first
    is_assessed = has_trained = False

    def assessed(found: Mapping[str, Any]) -> None:
        nonlocal is_assessed
        is_assessed = True
        if on_assessed is not None:
            on_assessed(found)

    def train(work: Work) -> None:
        nonlocal has_trained
        has_trained = True
        processes.broadcast(_TRAIN, finetuning.device)
        finetuning.train(work, assessed)

    def publish(folder: Path, child: ChildRun) -> None:
        found = {FOUND: read_json(folder / FINDINGS)["tag"]}
        child.tag(found)
        child.tag_flow_run(found)
        if not is_assessed:  # The output, or its beginning, was there already.
            assessed(read_json(folder / LEARNABILITY))

    with _resumable():
        finetuning = _Finetuning(job, boards, pretrained, processes)
        output = run_step(
            job,
            finetuning.here.machine,
            finetuning.kind.finetune_spec,
            settings=finetuning.settings,
            inputs=finetuning.inputs,
            work=train,
            sinks=sinks,
            watcher=LiveDiagnosis(job["settings"]),
            publish=publish,
        )
        if not has_trained:
            processes.broadcast(_REUSED, finetuning.device)
        elif (report := read_json(finetuning.here.open(output) / REPORT))["reason"] != BUDGET_SPENT:
            notifier = Notifier(finetuning.here.machine, run=job["metaflow_run"], step="finetune")
            notifier.post(Notice.STOP, f"stopped early by {report['reason']}: {report['message']}")
        return output


def follow(job: Job, boards: StepOutput, pretrained: StepOutput, *, processes: Processes) -> None:
    """Train together with the first process, which calls `finetune`, unless it reuses an output; this process leaves nothing."""
    with _resumable(), tempfile.TemporaryDirectory() as folder:
        finetuning = _Finetuning(job, boards, pretrained, processes)
        if processes.broadcast(_REUSED, finetuning.device) == _TRAIN:
            finetuning.train(Work(Path(folder), ()), None)


class _Finetuning:
    """The training as each of its processes sees it."""

    def __init__(self, job: Job, boards: StepOutput, pretrained: StepOutput, processes: Processes) -> None:
        self.here = here = Here(job)
        self.kind = kind_of(here.settings)
        self._boards, self._pretrained, self._processes = boards, pretrained, processes
        self._checkpoint = None if job["origin"] is None else origin_checkpoint(job["origin"], here.machine)
        spec = self.kind.finetune_spec
        self.settings = spec.settings(here.settings)
        self.inputs = here.inputs(spec, boards=boards, pretrained=pretrained)
        self.inputs["checkpoint"] = "" if self._checkpoint is None else str(read_json(self._checkpoint / MANIFEST)["output_hash"])
        self.device = here.device
        if processes.size > 1:
            processes.refuse_unlike(self.inputs, self.device)
            self.inputs["processes"] = str(processes.size)  # Sums over them round differently.

    def train(self, work: Work, on_assessed: OnAssessed | None) -> None:
        import torch

        num_threads = max(1, self.here.machine.num_threads // self._processes.num_here)
        torch.set_num_threads(num_threads)
        self.kind.finetune(
            self.here.settings,
            boards=self.here.open(self._boards),
            pretrained=self.here.open(self._pretrained),
            checkpoint=self._checkpoint,
            facts={"settings": self.settings, **self.inputs},  # No more than the version holds: equal versions have equal checkpoints.
            machine=self.here.machine,
            num_engines=num_threads,
            device=self.device,
            work=work,
            on_assessed=on_assessed,
            processes=self._processes,
        )


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        with terminable():
            yield
    except Terminated:
        raise SystemExit(RESUMABLE) from None
