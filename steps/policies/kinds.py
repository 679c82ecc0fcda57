"""What differs between the kinds of policies besides their bodies (`Step.variants`) and players (`steps.policies.open`): a row for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from grpo.base.errors import PlainError
from grpo.policy.files import LANGUAGE, NETWORK

if TYPE_CHECKING:  # `chess-grpo uci` must start at once: the settings take time to import.
    from grpo.settings.tree import Settings

_MODEL_FILE: Final = "config.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyKind:
    """What one kind of policy does otherwise than the others."""

    has_lines: bool
    """Whether it ranks all legal moves, so that the UCI engine can show several lines."""
    preflight: "Callable[[Settings], str]"
    """Returns what it begins with. Raises PlainError, with the remedy, where that is not there."""


def _network_preflight(settings: "Settings") -> str:
    from grpo.policy.networks import is_network

    name = settings.policy.network
    if not is_network(name):
        raise PlainError(f"policy.network = {name!r}: put it into grpo/policy/networks/{name}.py")
    return f"policy.network = {name!r}"


def _language_preflight(settings: "Settings") -> str:
    """Look for a model's folder; `pretrain` asks the hub itself."""
    from grpo.settings.language import SMALL, model_folder

    model = settings.language.model
    folder = model_folder(model)
    if folder is None:
        return "small, built in" if model == SMALL else f"{model} of the hub, downloaded by `pretrain` unless it is cached"
    if not (folder / _MODEL_FILE).is_file():
        lack = f"has no {_MODEL_FILE}" if folder.is_dir() else "is not an existing folder"
        remedy = "give a folder that transformers' `save_pretrained` wrote, the name of a model on the hub, or small"
        raise PlainError(f"language.model = {model!r} {lack}; {remedy}")
    return f"the folder {folder}"


KINDS: Final[Mapping[str, PolicyKind]] = {
    NETWORK: PolicyKind(has_lines=True, preflight=_network_preflight),
    LANGUAGE: PolicyKind(has_lines=False, preflight=_language_preflight),
}
"""By `policy.kind`; of a policy's folder `grpo.policy.files.policy_kind` says it."""
