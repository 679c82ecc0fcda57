"""A network, which gives every legal move a probability."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.policy.files import NETWORK, policy_facts
from steps.kinds.kind import PolicyKind
from steps.runtime.machine import Machine

if TYPE_CHECKING:  # `chess-grpo uci` must start at once: torch and the settings take time to import.
    import torch

    from grpo.settings.tree import Settings
    from steps.export.model_card import CardWords
    from steps.step_io.work import Work


def _pretrain(settings: "Settings", boards: Path, device: "torch.device", work: "Work") -> None:
    from steps.bodies.pretrain import pretrain_policy

    pretrain_policy(settings, boards, device, work)


def _finetune(settings: "Settings", *, machine: Machine, num_engines: int, **given: Any) -> None:
    from steps.bodies.finetune import finetune_policy

    finetune_policy(
        settings,
        engine_path=machine.stockfish,
        num_processes=num_engines,
        **given,
    )


def _card(folder: Path) -> "CardWords":
    from steps.export.network_card import NetworkCard

    return NetworkCard(policy_facts(folder)["policy"])


NETWORK_KIND: Final = PolicyKind(
    name=NETWORK,
    lock="lock",
    preflight=lambda _settings, _machine: None,
    pretrain=_pretrain,
    pretrain_body="steps.bodies.pretrain",
    finetune=_finetune,
    finetune_body="steps.bodies.finetune",
    has_lines=True,
    card=_card,
)
