"""A run's nearest preset, label, and the command that starts an equal run.

A preset is a settings file of the project, such as `smoke`. The nearest preset differs from the run in the fewest settings.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo.settings.names import flattened, short
from grpo.settings.tree import DEFAULT_PRESET, preset_names, read_settings
from steps.run.commands import FLOW_FILE

_SEED: Final = "seed"
_MAX_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    preset: str
    differences: Mapping[str, Any]  # Dotted name of a setting -> the run's value.
    seed: int

    @property
    def text(self) -> str:
        """TOML of preset and differences."""
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in self.differences.items()]
        return "\n".join([f'preset = "{self.preset}"', *lines]) + "\n"

    @property
    def label(self) -> str:
        """Name in trackers, such as `smoke, seed 3`."""
        changed = [f"{name} = {short(name, value)}" for name, value in self.differences.items() if name != _SEED]
        more = [f"{len(changed) - _MAX_SHOWN} more"] if len(changed) > _MAX_SHOWN else []
        return ", ".join([self.preset, *changed[:_MAX_SHOWN], *more, f"seed {self.seed}"])

    def command(self, words: Sequence[str] = ()) -> str:
        """Return a shell command; `words` are arguments of `run`."""
        is_plain = self.preset == DEFAULT_PRESET and not self.differences
        settings = [] if is_plain else ["--config-value", "settings", shlex.quote(self.text.strip())]
        return " ".join(["python", FLOW_FILE, *settings, "run", *map(shlex.quote, words)])


def launch_of(settings: Mapping[str, Any]) -> Launch:
    """Return the preset nearest to `settings` (complete), and the differences.

    >>> launch_of({**read_settings("smoke").model_dump(mode="json"), "seed": 3})
    Launch(preset='smoke', differences={'seed': 3}, seed=3)
    """
    values = flattened(settings)
    names = sorted(preset_names(), key=lambda name: (name != DEFAULT_PRESET, name))  # `min` returns the first of equals.
    launches = []
    for name in names:
        preset = flattened(read_settings(f'preset = "{name}"').model_dump(mode="json"))
        differences = {key: value for key, value in values.items() if key not in preset or preset[key] != value}
        launches.append(Launch(preset=name, differences=differences, seed=values[_SEED]))
    return min(launches, key=lambda launch: len(launch.differences))
