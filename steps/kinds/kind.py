"""A kind of policy: all that the command line and the pipeline need to know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from steps.runtime.machine import Machine
from steps.step_io.spec import StepSpec

if TYPE_CHECKING:  # Torch comes with them, and a chess program waits while `chess-grpo uci` starts.
    import torch

    from grpo.settings.tree import Settings
    from steps.export.model_card import CardWords
    from steps.step_io.work import Work


class PretrainBody(Protocol):
    """Writes a pretrained policy into the work's folder."""

    def __call__(self, settings: "Settings", boards: Path, device: "torch.device", work: "Work") -> None:
        """Pretrain on a dataset's folder."""


class FinetuneBody(Protocol):
    """Writes GRPO's checkpoints into the work's folder."""

    def __call__(
        self,
        settings: "Settings",
        *,
        boards: Path,
        pretrained: Path,
        checkpoint: Path | None,
        facts: Mapping[str, Any],
        machine: Machine,
        num_engines: int,
        device: "torch.device",
        work: "Work",
        on_assessed: Callable[[Mapping[str, Any]], None] | None,
    ) -> None:
        """Fine-tune, or resume after a kill.

        Args:
            settings: the run's.
            boards: folder of the dataset.
            pretrained: folder of the pretrained policy.
            checkpoint: the checkpoint of another run to resume from, if any.
            facts: written into each checkpoint.
            machine: has the path of the engine and the folder of the cache of move values.
            num_engines: how many engine processes may run here.
            device: to train on.
            work: the folder to fill, and the sinks.
            on_assessed: called with what was found before the first update.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyKind:
    """What one kind of policy does otherwise than the others."""

    name: str
    """As `policy.kind` names it."""
    lock: str
    """The lock of the packages that it runs with: a name of `steps.store.versions.LOCKS`."""
    preflight: "Callable[[Settings, Machine], tuple[bool, str] | None]"
    """Returns whether its packages and its first weights are there, and the detail or the remedy; None where it needs none."""
    pretrain: PretrainBody
    pretrain_body: str
    """The module of the body, which declares its `StepSpec`."""
    finetune: FinetuneBody
    finetune_body: str
    has_lines: bool
    """Whether it ranks all legal moves, so that the UCI engine can show several lines."""
    card: "Callable[[Path], CardWords]"
    """Returns what the model card says of the policy in a folder."""

    @property
    def pretrain_spec(self) -> StepSpec:
        """The step that pretrains it; imports the body."""
        return _spec(self.pretrain_body)

    @property
    def finetune_spec(self) -> StepSpec:
        """The step that fine-tunes it; imports the body."""
        return _spec(self.finetune_body)


def _spec(body: str) -> StepSpec:
    spec = import_module(body).SPEC
    assert isinstance(spec, StepSpec)
    return spec
