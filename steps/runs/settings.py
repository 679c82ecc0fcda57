"""Settings of runs, from their MLflow parameters: the nearest preset of a run, and the differences of two runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from grpo.settings.roles import compared_settings
from grpo.settings.tree import DEFAULT_PRESET, preset_names, read_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class FromPreset:
    """A run's settings as the nearest shipped preset and the differences from it."""

    preset: str
    changed: Mapping[str, tuple[str, str]]
    """Name -> the preset's value and the run's."""
    num_unknown: int
    """Parameters that this version of the code does not know: another version made the run."""

    def __str__(self) -> str:
        more = len(self.changed) - 1
        if not self.changed:
            return self.preset
        first = min(self.changed, key=len)
        return f"{self.preset}, {first}={self.changed[first][1]}" + (f" and {more} more" if more else "")


def from_preset(params: Mapping[str, str]) -> FromPreset:
    """Return the shipped preset with the fewest differences from a run's parameters; a name that only one side has is not a difference."""
    found = []
    for name in sorted(preset_names(), key=lambda name: name != DEFAULT_PRESET):
        usual = compared_settings(read_settings(name).model_dump(mode="json"))
        changed = {key: (usual[key], value) for key, value in params.items() if key in usual and usual[key] != value}
        found.append(FromPreset(preset=name, changed=changed, num_unknown=len(params.keys() - usual.keys())))
    return min(found, key=lambda each: len(each.changed))


def different_settings(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return the parameters in which two runs differ, by name; None where a run does not have one."""
    names = sorted(first.keys() | second.keys())
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}
