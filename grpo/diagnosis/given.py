"""Settings of the diagnosed run (ours or another trainer's) under common names, and measurements that a settings file contains."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpo.diagnosis.history import History, Summary
from grpo.diagnosis.quantities import is_finite, quantity_of

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "learning_rate": ("grpo.learning_rate", "learning_rate", "lr"),
    "entropy_coefficient": ("grpo.entropy_coefficient", "entropy_coef"),
    "kl_coefficient": ("grpo.kl_coefficient", "kl_coef", "beta"),
    "max_kl_coefficient": ("kl_coef_max",),
    "target_kl": ("grpo.kl_target", "target_kl"),
    "rollout_temperature": ("grpo.temperature", "rollout_temperature", "temperature"),
    "loss_temperature": ("grpo.temperature", "loss_temperature"),
    "entropy_floor": ("grpo.field_notes.entropy_floor", "entropy_floor"),
    "optimiser_steps": ("grpo.num_inner_epochs", "optimizer_steps_per_rollout", "ppo_epochs", "num_iterations"),
    "self_play": ("grpo.self_play.fraction",),
}
"""Setting that a remedy may name -> our name (used if no settings are given), and the names in other trainers."""

SETTINGS_FILE: Final = " (from the settings file)"
"""Added to what was measured and stands in no table."""


class Given:
    """Looks up settings for remedies; without settings, remedies use our own names."""

    def __init__(self, settings: Mapping[str, Any] | None) -> None:
        """Store settings given as a tree of plain data, or None."""
        self._flat = {} if settings is None else _flat(settings)

    def value(self, name: str) -> float | None:
        """Return a setting's value; None if it is not given or not a number."""
        found = self._flat.get(self._key(name))
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) and is_finite(found) else None

    def named(self, name: str, *, largest: str | None = None) -> str:
        """Return a setting's name for a remedy: its name and value in the given settings, else our own name.

        With the name of the setting that bounds it, the largest value that a controller may reach is added.
        """
        key, value = self._key(name), self.value(name)
        most = None if largest is None else self.value(largest)
        grows = "" if most is None or most == value else f", can grow to {most:g}"
        return f"`{key}`" if value is None else f"`{key}` (here {value:g}{grows})"

    def key(self, name: str) -> str:
        """Return a setting's name as the given settings write it, else our own."""
        return f"`{self._key(name)}`"

    def _key(self, name: str) -> str:
        whole = (key for key in _NAMES[name] if key in self._flat)
        # Other trainers nest settings: `actor.optim.lr` is a learning rate too.
        nested = (key for known in _NAMES[name] for key in self._flat if key.rpartition(".")[2] == known)
        return next(whole, None) or next(nested, _NAMES[name][0])


def with_recorded(history: History, settings: Mapping[str, Any] | None) -> History:
    """Return the history with the measurements of a settings file added: `final` values, and `ranges` as [low, high].

    Because these are measurements, they count in the verdict, unlike settings.
    """
    recorded: dict[str, Summary] = {}
    for name, value in _mapping(settings, "final").items():
        quantity = quantity_of(name)
        if quantity is not None and _is_number(value):
            recorded[quantity] = Summary(column=f"final {name}{SETTINGS_FILE}", last=float(value), source=SETTINGS_FILE)
    for name, value in _mapping(settings, "ranges").items():
        quantity = quantity_of(name)
        if quantity is not None and isinstance(value, Sequence) and len(value) == 2 and all(map(_is_number, value)):
            recorded[quantity] = Summary(
                column=f"range of {name}{SETTINGS_FILE}", source=SETTINGS_FILE, low=float(value[0]), high=float(value[1])
            )
    return history.joined(History(summaries=recorded, is_ours=history.is_ours)) if recorded else history


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)


def _mapping(settings: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    found = None if settings is None else settings.get(name)
    return found if isinstance(found, Mapping) else {}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            if prefix or name not in ("final", "ranges"):
                flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
