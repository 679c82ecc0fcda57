"""Settings by dotted name, such as `grpo.num_steps`.

A pipeline step's version is a hash of all that its output depends on.
"""

import json
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, TypeVar

from grpo.settings.tree import Settings
from grpo.settings.types import Section

_PATHS: Final = ("boards.files", "boards.exclude", "evaluation.opening_book")
IN_NO_VERSION: Final = (*_PATHS, "resources")
"""Settings that versions leave out: paths, because the files' contents are hashed, and `resources`, which change outputs only by rounding.
"""
MAIN: Final[Container[str]] = frozenset(
    (
        *("seed", "boards.num_train", "boards.depth", "policy.width", "policy.hidden_width"),
        *("language.model", "language.max_questions", "pretrain.max_positions", "pretrain.learning_rate"),
        *("grpo.num_steps", "grpo.states_per_step", "grpo.group_size", "grpo.temperature", "grpo.learning_rate"),
        *("grpo.entropy_coefficient", "grpo.entropy_schedule", "grpo.kl_coefficient"),
    )
)
"""Settings that a run's pages show even at their defaults."""
_NOT_COMPARED: Final = ("boards.num_units", "resources")  # Chosen to fit the machines, not as part of an experiment.
_MAX_LENGTH: Final = 60  # Characters.
_OFF: Final[tuple[object, ...]] = (None, "", [], ())
"""Values that turn a setting off."""


def is_within(name: str, names: Iterable[str]) -> bool:
    """Return whether `name` is in `names`, or lies within a section in `names`.

    >>> is_within("grpo.clip_low", ("seed", "grpo")), is_within("seeds", ("seed", "grpo"))
    (True, False)
    """
    return any(name == other or name.startswith(f"{other}.") for other in names)


def unknown_settings(names: Iterable[str]) -> list[str]:
    known = flattened(Settings().model_dump(mode="json"))
    return [name for name in names if not any(is_within(each, (name,)) for each in known)]


_Section = TypeVar("_Section", bound=Section)


def declared(section: _Section, names: Collection[str], prefix: str = "") -> _Section:
    """Return a copy with only the settings within `names`; reading another raises UndeclaredSettingError.

    `prefix`: the section's own dotted name and a dot.
    """
    shown = section.model_copy()
    for field, value in section:
        name = f"{prefix}{field}"
        if is_within(name, names):
            continue
        if isinstance(value, Section) and any(each.startswith(f"{name}.") for each in names):
            shown.__dict__[field] = declared(value, names, f"{name}.")
        else:
            del shown.__dict__[field]
    return shown


def part_of(settings: Settings, sections: Iterable[str]) -> dict[str, Any]:
    """Return the settings within `sections` as nested JSON data, without `IN_NO_VERSION`."""

    def part(section: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept = {}
        for name, value in section.items():
            if isinstance(value, dict):
                if below := part(value, f"{prefix}{name}."):
                    kept[name] = below
            elif is_within(prefix + name, sections) and not is_within(prefix + name, IN_NO_VERSION):
                kept[name] = value
        return kept

    return part(settings.model_dump(mode="json"), "")


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for name, value in settings.items():
        by_name |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return by_name


def compared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted name -> value of all settings except `_NOT_COMPARED` and settings that are off.

    >>> compared_settings({"seed": 1, "resources": {"num_tasks": 2}, "evaluation": {"ladder_nodes": [1, 300]}})
    {'seed': 1, 'evaluation.ladder_nodes': [1, 300]}
    """
    return {name: value for name, value in flattened(settings).items() if value not in _OFF and not is_within(name, _NOT_COMPARED)}


def short(name: str, value: Any) -> str:
    """Return a value as a short text. Files lose their folders.

    Above 60 characters, a list becomes first item, last item and length, and a text is cut.

    >>> short("boards.files", ["/data/a.pgn", "b.epd"]), short("grpo.num_steps", 40), short("boards.files", [])
    ('a.pgn b.epd', '40', 'none')
    """
    if name in _PATHS:
        value = [PurePath(each).name for each in ([value] if isinstance(value, str) else value)]
    return "none" if value in _OFF else _short(value)


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        text = " ".join(_short(each) for each in value)
        return text if len(text) <= _MAX_LENGTH else f"{_short(value[0])} ... {_short(value[-1])} ({len(value)})"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
