"""What the loop around a trainer asks of it, whatever kind of policy it trains."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from grpo.control.controller import Control, Outcome
from grpo.learning.checkpoints import TrainingState
from grpo.learning.learnability import Learnability
from grpo.metrics.table import Event, Record
from grpo.policy.trainable import TrainablePolicy

if TYPE_CHECKING:
    from grpo.learning.trainer import Snapshot


class Trainer(Protocol):
    """Trains a policy, one rollout a step; all that is random follows from the number of the step."""

    num_steps_done: int
    healthy_step: int | None
    outcome: Outcome
    control: Control

    @property
    def policy(self) -> TrainablePolicy:
        """What is trained."""

    @property
    def judged(self) -> TrainablePolicy:
        """What is measured, saved and played."""

    def preflight(self) -> Learnability:
        """Return whether there is anything to learn; changes nothing."""

    def step(self) -> Record:
        """Make one rollout and learn from it."""

    def timings(self) -> Record:
        """Return where the last step's time went."""

    def state(self, facts: Mapping[str, Any]) -> TrainingState:
        """Return what a checkpoint needs besides the weights of the policy that is judged."""

    def restore(self, state: TrainingState) -> None:
        """Take up a checkpoint's state, its weights being the policy's already."""

    def snapshot(self) -> "Snapshot":
        """Return a copy of all that a step changes."""

    def reset(self, snapshot: "Snapshot") -> None:
        """Take back whatever was done since the snapshot."""

    def checkpointed(self) -> None:
        """Take note that a checkpoint is made now."""

    def roll_back(self, state: TrainingState, weights: Mapping[str, Tensor]) -> Event:
        """Take back weights and optimiser to a healthy checkpoint's."""

    def cannot_roll_back(self) -> None:
        """Take note that there is no healthy checkpoint."""
