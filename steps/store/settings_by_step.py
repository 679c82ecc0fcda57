"""Which part of the settings each step reads: that part, and no other, is in the step's version."""

from collections.abc import Mapping
from typing import Any

from grpo.base.files import file_hashes, sha256_json
from grpo.engine.identity import EngineIdentity
from grpo.play.openings import book_files
from grpo.reading.streams import find_files, fingerprint, fingerprint_of_all
from grpo.settings.language import LanguageConfig, model_folder
from grpo.settings.tree import Settings

_NOT_IN_BOARDS = {"num_tasks", "files", "exclude"}  # Where files lie; their names and contents are inputs.
_NOT_IN_GAMES = {"evaluation": {"opening_book"}}  # Its content is an input.
_NOT_IN_SELECTION = {**_NOT_IN_GAMES, "selection": {"num_tasks"}}
_NOT_IN_LADDER: Mapping[str, Any] = {
    "evaluation": {
        "opening_book": True,
        "heldout_depth": True,
        "opponent_nodes": True,
        "num_baseline_pairs": True,
        "adjudication_depth": True,
        "adjudication_centipawns": True,
        "ladder": {"num_probe_pairs", "num_rung_pairs"},
    }
}
_ONLY_IN_GRPO = frozenset({"rewards", "loss", "kl_warmup_steps", "reward_warmup_steps", "max_collection_kl"})
_ONLY_WHERE_MEASURED = frozenset({"max_questions", "num_judged_boards", "num_sampled_answers"})
_NOT_IN_CLONING = _ONLY_IN_GRPO | _ONLY_WHERE_MEASURED


def is_of_language(settings: Settings) -> bool:
    """Return whether the policy is a language model."""
    return settings.policy.kind == "language"


def dataset_settings(settings: Settings) -> dict[str, Any]:
    """Return what makes the dataset: not over how many tasks it is spread, nor in which folder a file lies."""
    return {
        "seed": settings.seed,
        "boards": settings.boards.model_dump(mode="json", exclude=_NOT_IN_BOARDS),
        "values": settings.values.model_dump(mode="json"),
        "heldout_depth": settings.evaluation.heldout_depth,
    }


def check_settings(settings: Settings) -> dict[str, Any]:
    """Return what the dataset is checked against."""
    return {
        "boards": settings.boards.model_dump(mode="json", exclude=_NOT_IN_BOARDS),
        "values": settings.values.model_dump(mode="json"),
    }


def pretrain_settings(settings: Settings) -> dict[str, Any]:
    """Return what makes the pretrained policy of a dataset: imitation's settings, or those of a language model and its cloning."""
    if is_of_language(settings):
        return _policy(settings) | _language(settings, _NOT_IN_CLONING)
    return _policy(settings) | settings.model_dump(mode="json", include={"pretrain"})


def seen_by_cloning(settings: Settings) -> Settings:
    """Return the settings with what cloning does not read at its default: a policy's folder tells its settings, and may tell no others."""
    unread = {name: LanguageConfig.model_fields[name].default for name in _NOT_IN_CLONING}
    return settings.model_copy(update={"language": settings.language.model_copy(update=unread)})


def _policy(settings: Settings) -> dict[str, Any]:
    # A network's versions are those of the time when there was no other kind.
    exclude: dict[str, Any] = {} if is_of_language(settings) else {"policy": {"kind"}}
    return settings.model_dump(mode="json", include={"seed", "policy"}, exclude=exclude)


def _language(settings: Settings, unread: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the section of a language model but for what is not read; nothing for a network."""
    return settings.model_dump(mode="json", include={"language"}, exclude={"language": set(unread)}) if is_of_language(settings) else {}


def ladder_settings(settings: Settings) -> dict[str, Any]:
    """Return how the ladder's rungs are rated: not how anybody is placed on it."""
    return settings.model_dump(mode="json", include={"evaluation"}, exclude=dict(_NOT_IN_LADDER))


def baseline_settings(settings: Settings) -> dict[str, Any]:
    """Return how the pretrained policy is measured."""
    return settings.model_dump(mode="json", include={"seed", "evaluation"}, exclude=_NOT_IN_GAMES) | _language(settings, _ONLY_IN_GRPO)


def finetune_settings(settings: Settings) -> dict[str, Any]:
    """Return how the pretrained policy is fine-tuned; values are those of states that no dataset has."""
    return _policy(settings) | settings.model_dump(mode="json", include={"values", "grpo"}) | _language(settings)


def selection_settings(settings: Settings) -> dict[str, Any]:
    """Return how the champion is chosen."""
    measured = settings.model_dump(mode="json", include={"seed", "evaluation", "selection"}, exclude=_NOT_IN_SELECTION)
    return measured | _language(settings, _ONLY_IN_GRPO)


def source_inputs(settings: Settings, engine: EngineIdentity) -> dict[str, str]:
    """Return what the dataset is made from, by hash."""
    boards = settings.boards
    files = find_files(boards.files) if boards.files else []
    judged = {"judged positions": fingerprint_of_all(find_files(boards.exclude))} if boards.exclude else {}
    # Names of sources are in the rows, folders are not; of what judges only the content counts.
    named = {f"file {file.name}": fingerprint(file) for file in files}
    return {"engine": str(engine)} | named | judged


def model_inputs(settings: Settings) -> dict[str, str]:
    """Return the language model that cloning begins with, by hash, where it lies in a folder; a hub's is in the settings by its name."""
    folder = model_folder(settings.language.model) if is_of_language(settings) else None
    return {} if folder is None else {"model": sha256_json(file_hashes(folder))}


def opening_inputs(settings: Settings) -> dict[str, str]:
    """Return what matches begin from, by hash: of a book only the content counts; the generator is code."""
    book = settings.evaluation.opening_book
    return {"opening book": fingerprint_of_all(book_files(book))} if book else {}
