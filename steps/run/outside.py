"""Hashes or descriptions of the inputs that no step computes, such as the engine.

A step's version, a hash of all that the output depends on, covers these inputs.
"""

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
    from steps.run.device import device_facts

    return {"device": device_facts(machine)}


def _sources(settings: Settings, machine: Machine) -> dict[str, str]:
    boards = settings.boards
    files = find_files(boards.files) if boards.files else []
    excluded = {"judged positions": fingerprint_of_all(find_files(boards.exclude))} if boards.exclude else {}
    # File names count, because the dataset's rows contain file names.
    sources = {f"file {file.name}": fingerprint(file) for file in files}
    return {"engine": str(identify(machine.stockfish))} | sources | excluded


def unread_by_pretrain(kind: str) -> dict[str, Any]:
    """Return name -> default of the settings in a kind's section that `pretrain` does not read. The saved policy has these defaults."""
    section, reads = KINDS[kind].section, step_of("pretrain").reads_for(kind)
    fields = type(getattr(Settings(), section)).model_fields if section else {}
    return {name: field.default for name, field in fields.items() if not is_within(f"{section}.{name}", reads)}


def _model(settings: Settings, machine: Machine) -> dict[str, str]:  # noqa: ARG001
    kind = settings.policy.kind
    unread = {"unread settings": sha256_json(unread_by_pretrain(kind))} if KINDS[kind].section else {}
    model: dict[str, str] = import_module(KINDS[kind].module).start_hashes(settings)
    return unread | model


def _book(settings: Settings, machine: Machine) -> dict[str, str]:  # noqa: ARG001
    """Return {} without a book: code then makes the openings, and the version covers code."""
    book = settings.evaluation.opening_book
    return {"opening book": fingerprint_of_all(book_files(book))} if book else {}


def _defaults(settings: Settings, machine: Machine) -> dict[str, str]:  # noqa: ARG001
    """Hash the defaults, which the report shows beside the run's settings."""
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
