"""A language model, which writes its moves as text. The packages of the extra are imported only where they are used."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.policy.files import LANGUAGE, policy_facts
from steps.kinds.kind import PolicyKind
from steps.runtime.machine import Machine

if TYPE_CHECKING:  # `chess-grpo uci` must start at once: torch and the settings take time to import.
    import torch

    from grpo.settings.tree import Settings
    from steps.export.model_card import CardWords
    from steps.step_io.work import Work

_MODEL_FILE: Final = "config.json"


def _preflight(settings: "Settings", machine: Machine) -> tuple[bool, str]:
    """Look for the packages of the extra, and for a model's folder; `pretrain` asks the hub itself."""
    from grpo.language.model.requirements import MissingExtraError, require_language_extra
    from grpo.settings.language import SMALL, model_folder

    try:
        require_language_extra()
    except MissingExtraError as error:
        where = "in an image, build it with --build-arg EXTRA=language (docs/aws.md)" if machine.is_container else "`make setup` does that"
        return False, f"{error}; {where}"
    model = settings.language.model
    folder = model_folder(model)
    if folder is None and model != SMALL:
        return True, f"{model} of the hub, downloaded by `pretrain` unless it is cached"
    if folder is not None and not (folder / _MODEL_FILE).is_file():
        lack = f"has no {_MODEL_FILE}" if folder.is_dir() else "is not an existing folder"
        remedy = "give a folder that transformers' `save_pretrained` wrote, the name of a model on the hub, or small"
        return False, f"language.model = {model!r} {lack}; {remedy}"
    return True, "small, built in" if folder is None else f"the folder {folder}"


def _pretrain(settings: "Settings", boards: Path, device: "torch.device", work: "Work") -> None:
    from steps.bodies.language_pretrain import pretrain_language
    from steps.store.external_inputs import seen_by_cloning

    pretrain_language(seen_by_cloning(settings), boards, device, work)


def _finetune(
    settings: "Settings",
    *,
    machine: Machine,  # noqa: ARG001
    num_engines: int,  # noqa: ARG001
    **given: Any,
) -> None:
    from steps.bodies.language_finetune import finetune_language

    finetune_language(settings, **given)


def _card(folder: Path) -> "CardWords":
    from steps.export.language_card import LanguageCard

    return LanguageCard(policy_facts(folder))


LANGUAGE_KIND: Final = PolicyKind(
    name=LANGUAGE,
    lock="language_lock",
    preflight=_preflight,
    pretrain=_pretrain,
    pretrain_body="steps.bodies.language_pretrain",
    finetune=_finetune,
    finetune_body="steps.bodies.language_finetune",
    has_lines=False,
    card=_card,
)
