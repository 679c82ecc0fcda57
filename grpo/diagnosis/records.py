"""What a step of training reports: metrics and events by declared names."""

from collections.abc import Mapping
from dataclasses import dataclass

from grpo.settings.metrics import EVENTS, METRICS


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run with a message for people."""

    name: str
    message: str

    def __post_init__(self) -> None:
        """Refuse names that are not in the table."""
        if self.name not in EVENTS:
            raise ValueError(f"event {self.name!r} is not declared in grpo/settings/metrics.py")


@dataclass(frozen=True, slots=True)
class Record:
    """Metrics and events of one step."""

    step: int
    metrics: Mapping[str, float]
    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that are not in the table."""
        unknown = self.metrics.keys() - METRICS.keys()
        if unknown:
            raise ValueError(f"metrics that are not declared in grpo/settings/metrics.py: {', '.join(sorted(unknown))}")
