"""The registry's champion as a run meets it: whom its candidate has to beat, if it can be played."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grpo.base.errors import PlainError
from steps.names import CHAMPION
from steps.run.machine import Machine
from steps.run.step import Step
from steps.run.store import Store
from steps.track.find import NotFoundError, named_policy
from steps.track.outages import TrackingAwayError

_UNPLAYED: Final = "cannot be played"


@dataclass(frozen=True, kw_only=True, slots=True)
class Incumbent:
    """The champion before this run."""

    folder: Path | None = None
    """The policy to be beaten, if it is to be played."""
    label: str = ""
    """Its part in the step's version."""


def incumbent_of(preset: str, step: Step, machine: Machine, version_with: Callable[[str], str]) -> Incumbent:
    """Return the champion of a preset's registered model.

    When this very step of an earlier run has made it, it is no opponent: the step's output is found again.

    Args:
        preset: of the run.
        step: the step that asks.
        machine: says where registry and store are.
        version_with: the step's version, given the label of the champion that it met.
    """
    try:
        named = named_policy(CHAMPION, machine, role=CHAMPION, preset=preset)
    except NotFoundError:
        return Incumbent()
    except TrackingAwayError as error:
        return _unplayed(str(error))
    made = None if named.run is None else named.run.output_of(step.name)
    if made is not None:
        label = str(Store.of(machine).manifest(made)["parts"]["inputs"][CHAMPION])
        if version_with(label) == made["version"]:
            return Incumbent(label=label)
    try:
        found = named.fetch(machine)
        return Incumbent(folder=found.folder, label=found.weights_hash)
    except PlainError as error:
        return _unplayed(str(error))


def _unplayed(why: str) -> Incumbent:
    """Return a champion that stays, unbeaten, for it is not played."""
    print(f"WARNING: the registry's champion cannot be played, so it stays, unbeaten: {why}", flush=True)
    return Incumbent(label=_UNPLAYED)
