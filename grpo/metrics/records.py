"""The record of one step: its metrics (numbers by name) and events (names with a message)."""

from collections.abc import Mapping
from dataclasses import dataclass

from grpo.metrics.table import EVENTS, METRICS


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    step: int  # Training step; in `select` the candidate's, in `calibrate` the number of a ladder opponent, otherwise 0.
    metrics: Mapping[str, float]
    events: tuple[Event, ...] = ()
    stop: str = ""
    """Reason to stop after this step, or ""; the history leaves it out."""


def refuse_undeclared(record: Record) -> None:
    """Raise ValueError for names that `METRICS` and `EVENTS` do not declare."""
    unknown = (record.metrics.keys() - METRICS.keys()) | ({event.name for event in record.events} - EVENTS.keys())
    if unknown:
        raise ValueError(f"names are not declared in grpo/metrics/table.py: {', '.join(sorted(unknown))}")
