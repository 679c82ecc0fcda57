"""The record of one step: its metrics and events, by declared names."""

from collections.abc import Mapping
from dataclasses import dataclass

from grpo.metrics.table import EVENTS, METRICS


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run with a message for people."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    """Metrics and events of one step; in records of other code their names may be any."""

    step: int
    metrics: Mapping[str, float]
    events: tuple[Event, ...] = ()
    stop: str = ""
    """Why training stops after this step, with numbers; empty while training goes on. The history leaves it out."""


def refuse_undeclared(record: Record) -> None:
    """Raise ValueError for names that are not in the table: what this code writes is declared."""
    unknown = (record.metrics.keys() - METRICS.keys()) | ({event.name for event in record.events} - EVENTS.keys())
    if unknown:
        raise ValueError(f"names that are not declared in grpo/metrics/table.py: {', '.join(sorted(unknown))}")
