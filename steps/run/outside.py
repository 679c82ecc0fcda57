"""What steps take in from outside of the run, by hash."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from grpo.base.files import sha256_json
from grpo.dataset.streams import find_files, fingerprint, fingerprint_of_all
from grpo.engine.identity import identify
from grpo.match.openings import book_files
from grpo.settings.kinds import KINDS
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
    excluded = {"judged positions": fingerprint_of_all(find_files(boards.exclude))} if boards.exclude else {}
    # Names of sources are in the rows, folders are not; of what judges only the content counts.
    sources = {f"file {file.name}": fingerprint(file) for file in files}
    return {"engine": str(identify(machine.stockfish))} | sources | excluded


def unread_by_pretrain(kind: str) -> dict[str, Any]:
    """Return the settings of a kind's section that `pretrain` does not read, with their defaults; empty for a kind without a section."""
    section, reads = KINDS[kind].section, step_of("pretrain").reads_for(kind)
    fields = type(getattr(Settings(), section)).model_fields if section else {}
    return {name: field.default for name, field in fields.items() if not is_within(f"{section}.{name}", reads)}


def _model(settings: Settings, machine: Machine) -> dict[str, str]:  # noqa: ARG001
    """Return what imitation begins with, and what `pretrain` writes into the policy's folder without reading it, by hash.

    Raises a PlainError of the kind when the model that imitation begins with is missing.
    """
    kind = settings.policy.kind
    unread = {"unread settings": sha256_json(unread_by_pretrain(kind))} if KINDS[kind].section else {}
    model: dict[str, str] = import_module(KINDS[kind].module).start_hashes(settings)
    return unread | model


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
