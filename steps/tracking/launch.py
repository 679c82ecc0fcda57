"""How a run was started: its nearest preset and the differences, the command that starts it again, and MLflow's parameters."""

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
    """A preset, and the differences of a run's settings from it."""

    preset: str
    differences: Mapping[str, Any]
    """Dotted name of a setting -> its value in the run."""

    @property
    def text(self) -> str:
        """The settings as a file for `--config settings`: TOML, or JSON when a value is null, which TOML lacks."""
        if None in self.differences.values():
            return json.dumps({"preset": self.preset, **_nested(self.differences)}) + "\n"
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in self.differences.items()]
        return "\n".join([f'preset = "{self.preset}"', *lines]) + "\n"

    def command(self, words: Sequence[str] = ()) -> str:
        """Return the shell command that starts such a run.

        Args:
            words: arguments after `run`.
        """
        is_plain = self.preset == DEFAULT_PRESET and not self.differences
        settings = [] if is_plain else ["--config-value", "settings", shlex.quote(self.text.strip())]
        return " ".join(["python", FLOW_FILE, *settings, "run", *map(shlex.quote, words)])


def launch_of(settings: Mapping[str, Any]) -> Launch:
    r"""Return the preset with the fewest differences from these complete settings, and the differences.

    >>> launch_of(read_settings('preset = "smoke"\nseed = 3').model_dump(mode="json"))
    Launch(preset='smoke', differences={'seed': 3})
    """
    given = flat(settings)
    found = [Launch(preset=name, differences=_differences(given, name)) for name in sorted(preset_names(), key=_default_first)]
    return min(found, key=lambda each: len(each.differences))


def compared_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings by which runs are compared, as short texts; settings that are off are left out.

    >>> compared_settings({"seed": 1, "boards": {"num_tasks": 2}, "evaluation": {"ladder": {"nodes": [1, 300]}}})
    {'seed': '1', 'evaluation.ladder.nodes': '1 300'}
    """
    return {name: _short(value) for name, value in flat(settings).items() if is_compared(name) and value not in (None, "", [], ())}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names, in their order."""
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
