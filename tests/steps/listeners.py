"""Sinks that keep what a step reports."""

from grpo.metrics.table import Record


class Listener:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        """Begin with no records."""
        self.records: list[Record] = []

    def log(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Forget it."""
