"""The settings of a diagnosed run, ours or another trainer's, under one name each; and what they themselves recorded."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpo.diagnosis.history import History, Summary
from grpo.diagnosis.quantities import quantity_of

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "learning_rate": ("grpo.learning_rate", "learning_rate", "lr"),
    "entropy_coefficient": ("grpo.entropy_coefficient", "entropy_coef", "entropy_coefficient", "ent_coef", "entropy_coeff"),
    "kl_coefficient": ("grpo.kl_coefficient", "kl_coef", "kl_coefficient", "beta", "kl_coeff"),
    "max_kl_coefficient": ("grpo.kl_target.max_coefficient", "kl_coef_max", "max_kl_coef"),
    "target_kl": ("grpo.kl_target.nats", "target_kl", "kl_target"),
    "clip": ("grpo.clip_high", "clip_ratio", "clip_range", "clip_eps", "cliprange"),
    "rollout_temperature": ("grpo.temperature", "rollout_temperature", "temperature", "sampling_temperature"),
    "loss_temperature": ("grpo.temperature", "loss_temperature"),
    "entropy_floor": ("grpo.field_notes.entropy_floor", "entropy_floor"),
    "optimiser_steps": ("grpo.num_inner_epochs", "optimizer_steps_per_rollout", "ppo_epochs", "num_iterations"),
    "group_size": ("grpo.group_size", "group_size", "num_generations"),
    "self_play": ("grpo.self_play.fraction",),
}
"""What a remedy may turn -> our setting, by which it is named when no settings are given, and names that others have for it."""


class Given:
    """Looks settings up for remedies; without any, remedies name our own settings."""

    def __init__(self, settings: Mapping[str, Any] | None) -> None:
        """Take settings as a tree of plain data, or None."""
        self._flat = {} if settings is None else _flat(settings)

    def value(self, name: str) -> float | None:
        """Return a setting's number; None when it is not given, or is none."""
        found = self._flat.get(self._key(name))
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found) else None

    def named(self, name: str) -> str:
        """Return how to call a setting in a remedy: its name in the given settings, with its value; else our own name."""
        key, value = self._key(name), self.value(name)
        return f"`{key}`" if value is None else f"`{key}` (here {value:g})"

    def _key(self, name: str) -> str:
        whole = (key for key in _NAMES[name] if key in self._flat)
        # Others nest them: `actor.optim.lr` is a learning rate too.
        nested = (key for wanted in _NAMES[name] for key in self._flat if key.rpartition(".")[2] == wanted)
        return next(whole, None) or next(nested, _NAMES[name][0])


def with_recorded(history: History, settings: Mapping[str, Any] | None) -> History:
    """Return the history with what a settings file recorded of the run beside its settings: `final` values, and `ranges` as [low, high].

    These are measurements, wherever they stand, so that they count in the verdict; settings do not.
    """
    recorded: dict[str, Summary] = {}
    for name, value in _mapping(settings, "final").items():
        quantity = quantity_of(name)
        if quantity is not None and _is_number(value):
            recorded[quantity] = Summary(column=f"final {name}", last=float(value))
    for name, value in _mapping(settings, "ranges").items():
        quantity = quantity_of(name)
        if quantity is not None and isinstance(value, Sequence) and len(value) == 2 and all(map(_is_number, value)):
            recorded[quantity] = Summary(column=f"range of {name}", low=float(value[0]), high=float(value[1]))
    return history.joined(History(summaries=recorded, is_ours=history.is_ours)) if recorded else history


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def are_of_several_runs(settings: Mapping[str, Any]) -> bool:
    """Return whether this is a table of runs: its values are settings of their own, and at least two have the same one."""
    if not settings or not all(isinstance(value, Mapping) for value in settings.values()):
        return False
    known = {key for keys in _NAMES.values() for key in keys}
    found = [set(value) & known for value in settings.values()]
    return any(found[0] & other for other in found[1:]) if found else False


def _mapping(settings: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    found = None if settings is None else settings.get(name)
    return found if isinstance(found, Mapping) else {}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and set(value) <= {"value", "desc"} and "value" in value:
            flat[f"{prefix}{name}"] = value["value"]  # So W&B writes it.
        elif isinstance(value, Mapping):
            if prefix or name not in ("final", "ranges"):
                flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
