"""What steps take in from outside of the run, by hash."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from grpo.base.files import file_hashes, sha256_json
from grpo.dataset.streams import find_files, fingerprint, fingerprint_of_all
from grpo.engine.identity import identify
from grpo.match.openings import book_files
from grpo.policy.files import LANGUAGE
from grpo.settings.language import SMALL, LanguageConfig, model_folder
from grpo.settings.names import IN_NO_VERSION, flattened, is_within
from grpo.settings.tree import Settings
from steps.run.machine import Machine
from steps.run.step import Outside, step_of


def _device(settings: Settings, machine: Machine) -> dict[str, str]:  # noqa: ARG001
    from steps.run.device import device_facts  # Torch takes seconds to import.

    return {"device": device_facts(machine)}


def _sources(settings: Settings, machine: Machine) -> dict[str, str]:
    """Return what the dataset is made from, by hash."""
    boards = settings.boards
    files = find_files(boards.files) if boards.files else []
    judged = {"judged positions": fingerprint_of_all(find_files(boards.exclude))} if boards.exclude else {}
    # Names of sources are in the rows, folders are not; of what judges only the content counts.
    named = {f"file {file.name}": fingerprint(file) for file in files}
    return {"engine": str(identify(machine.stockfish))} | named | judged


def unread_by_imitation() -> dict[str, Any]:
    """Return the language settings that `pretrain` does not read, with their defaults."""
    reads = step_of("pretrain").reads
    return {name: field.default for name, field in LanguageConfig.model_fields.items() if not is_within(f"language.{name}", reads)}


def _model(settings: Settings, machine: Machine) -> dict[str, str]:  # noqa: ARG001
    """Return the language model that cloning begins with, and what cloning writes into the policy's folder without reading it.

    The model counts by hash where it lies in a folder, and where a hub has it by its commit, which tells that it has changed there since.

    Raises LanguageModelError when neither the hub nor its cache has the model.
    """
    if settings.policy.kind != LANGUAGE:
        return {}
    model, found = settings.language.model, {"unread settings": sha256_json(unread_by_imitation())}
    if model == SMALL:
        return found
    folder = model_folder(model)
    if folder is not None:
        return found | {"model": sha256_json(file_hashes(folder))}
    from grpo.language.model.loading import hub_commit  # It imports torch, and transformers to ask the hub.

    return found | {"model": hub_commit(settings.language)}


def _book(settings: Settings, machine: Machine) -> dict[str, str]:  # noqa: ARG001
    """Return what matches begin from, by hash: of a book only the content counts; the generator is code."""
    book = settings.evaluation.opening_book
    return {"opening book": fingerprint_of_all(book_files(book))} if book else {}


def _defaults(settings: Settings, machine: Machine) -> dict[str, str]:  # noqa: ARG001
    """Return the defaults beside which the pages of a run state its settings; of those that no step reads no page tells."""
    defaults = flattened(Settings.model_validate({"policy": {"kind": settings.policy.kind}}).model_dump(mode="json"))
    return {"defaults": sha256_json({name: value for name, value in defaults.items() if not is_within(name, IN_NO_VERSION)})}


OUTSIDE: Final[Mapping[Outside, Callable[[Settings, Machine], dict[str, str]]]] = {
    Outside.ENGINE: lambda _, machine: {"engine": str(identify(machine.stockfish))},
    Outside.DEVICE: _device,
    Outside.SOURCES: _sources,
    Outside.BOOK: _book,
    Outside.MODEL: _model,
    Outside.DEFAULTS: _defaults,
}
"""Dependency of a step -> name of each part and its hash, for the step's version."""
