"""How a run was asked for: the preset it is nearest to, what differs, the command that asks for it again, and what runs are compared by."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo.settings.roles import is_compared
from grpo.settings.tree import DEFAULT_PRESET, preset_names, read_settings

FLOW_FILE: Final = "flows/chess_grpo.py"
_MAX_LENGTH: Final = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A preset, and what a run's settings have otherwise."""

    preset: str
    differences: Mapping[str, Any]
    """Dotted name of a setting -> its value in the run."""

    @property
    def text(self) -> str:
        """The settings as a file for `--config settings`: TOML, or JSON where one must be taken away, for which TOML has no word."""
        if None in self.differences.values():
            return json.dumps({"preset": self.preset, **_nested(self.differences)}) + "\n"
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in self.differences.items()]
        return "\n".join([f'preset = "{self.preset}"', *lines]) + "\n"

    def command(self, words: Sequence[str] = ()) -> str:
        """Return the shell command that asks for such a run.

        Args:
            words: what follows `run`.
        """
        is_plain = self.preset == DEFAULT_PRESET and not self.differences
        settings = [] if is_plain else ["--config-value", "settings", shlex.quote(self.text.strip())]
        return " ".join(["python", FLOW_FILE, *settings, "run", *map(shlex.quote, words)])


def launch_of(settings: Mapping[str, Any]) -> Launch:
    r"""Return the preset with the fewest differences from these settings, which are whole, and the differences.

    >>> launch_of(read_settings('preset = "smoke"\nseed = 3').model_dump(mode="json"))
    Launch(preset='smoke', differences={'seed': 3})
    """
    given = flat(settings)
    found = [Launch(preset=name, differences=_differences(given, name)) for name in sorted(preset_names(), key=_default_first)]
    return min(found, key=lambda each: len(each.differences))


def compared_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that people compare runs by, as short texts; those that are switched off are left out.

    >>> compared_settings({"seed": 1, "boards": {"num_tasks": 2}, "evaluation": {"ladder": {"nodes": [1, 300]}}})
    {'seed': '1', 'evaluation.ladder.nodes': '1 300'}
    """
    return {name: _short(value) for name, value in flat(settings).items() if is_compared(name) and value not in (None, "", [], ())}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names, in their order."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _differences(given: Mapping[str, Any], preset: str) -> dict[str, Any]:
    usual = flat(read_settings(f'preset = "{preset}"').model_dump(mode="json"))
    return {name: value for name, value in given.items() if name not in usual or usual[name] != value}


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, key = name.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return nested


def _default_first(preset: str) -> tuple[bool, str]:
    return preset != DEFAULT_PRESET, preset


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        text = " ".join(_short(each) for each in value)
        return text if len(text) <= _MAX_LENGTH else f"{_short(value[0])} ... {_short(value[-1])} ({len(value)})"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
