"""The training steps as the flow calls them: pretrain, and finetune on one machine or several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.base.files import MANIFEST, read_json
from steps.bodies.live_diagnosis import LiveDiagnosis
from steps.kinds.kind import kind_of
from steps.nodes.sockets import ONLY_NODE, Node
from steps.nodes.team import Team, joined_nodes
from steps.nodes.worker import WorkerTask
from steps.pipeline.here import Here
from steps.pipeline.job import Job
from steps.pipeline.resume import origin_checkpoint
from steps.pipeline.run_step import log_plots, run_step
from steps.runtime.limits import refuse_several
from steps.step_io.names import FINDINGS, LEARNABILITY
from steps.step_io.work import Sink, Work, read_history
from steps.store import settings_by_step
from steps.store.outputs import StepOutput
from steps.tracking.child_run import ChildRun
from steps.tracking.plots import training_plots
from steps.tracking.tags import FOUND


def pretrain(job: Job, boards: StepOutput, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Imitate until the validation loss stops falling; a language model clones the answers of the value tables."""
    here = Here(job)
    kind = kind_of(here.settings)
    return run_step(
        job,
        here.machine,
        kind.pretrain_spec(),
        settings=settings_by_step.pretrain_settings(here.settings),
        inputs=here.inputs(kind.pretrain_spec(), boards=boards),
        work=lambda work: kind.pretrain(here.settings, here.open(boards), here.device, work),
        sinks=sinks,
    )
