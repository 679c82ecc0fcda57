"""A tiny fine-tuning within one process: the loop around a trainer, with its output in a store."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from doubles import CPU, TINY, fake_arrays, some_boards

from grpo.evaluation.regret import heldout_metrics
from grpo.learning.checkpoints import NETWORK_FORMAT
from grpo.learning.states import DatasetStates, StateSource
from grpo.learning.trainer import GrpoTrainer
from grpo.policy.distribution import new_policy
from grpo.settings.grpo import GrpoConfig
from steps.bodies.training_loop import TrainingLoop
from steps.pipeline.make_output import make_output
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Sink, Watcher, Work
from steps.store.outputs import Store

BOARDS = some_boards(24)
TRAIN, HELDOUT = fake_arrays(BOARDS[:16]), fake_arrays(BOARDS[16:])
SETTINGS: Mapping[str, Any] = {
    "num_steps": 6,
    "states_per_step": 8,
    "group_size": 4,
    "steps_per_checkpoint": 2,
    "self_play": {"fraction": 0.0},
}


def tiny_trainer(config: GrpoConfig, states: StateSource | None = None, **given: Any) -> GrpoTrainer:
    """Return a trainer of a fresh policy, by default on the boards of `TRAIN`."""
    policy, reference = (new_policy(TINY, seed=0, device=CPU) for _ in range(2))
    source = states or DatasetStates(TRAIN, states_per_step=config.states_per_step, seed=0, mirrors_boards=False)
    return GrpoTrainer(policy, reference, source, config, seed=0, **given)


def in_store(
    home: Path, body: Callable[[Work], None], *, sinks: tuple[Sink, ...] = (), watcher: Watcher | None = None, **told: Any
) -> Path:
    """Make an output of `finetune` by a body, or go on with it, and return its folder.

    Args:
        home: of the store.
        body: fills the folder of its `Work`.
        sinks: what logs the records.
        watcher: follows them.
        told: `said`, a list that gets the terminal's lines; `shown`, the metrics that it shows.
    """
    terminal = TerminalSink("finetune", told.get("shown", ()), told.get("said", []).append)
    store, is_fresh = Store(home), told.get("is_fresh", False)
    make_output(
        store, "finetune", "v1", facts={}, body=body, resumes=True, is_fresh=is_fresh, sinks=sinks, terminal=terminal, watcher=watcher
    )
    return store.folder("finetune", "v1")


def trained(home: Path, trainer: GrpoTrainer, config: GrpoConfig, **given: Any) -> Path:
    """Return the output of a fine-tuning by this trainer; see `in_store`."""

    def body(work: Work) -> None:
        def heldout() -> Mapping[str, float]:
            return heldout_metrics(trainer.evaluation_policy, HELDOUT)

        TrainingLoop(trainer, TINY, NETWORK_FORMAT, config, first=0, heldout=heldout, facts={}, work=work).run()

    return in_store(home, body, **given)
