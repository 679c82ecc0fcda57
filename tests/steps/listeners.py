"""A sink that keeps what a step reports."""

from grpo.diagnosis.records import Record


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.records: list[Record] = []
        self.progresses: list[tuple[int, int, str]] = []

    def log(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Keep how far the work is."""
        self.progresses.append((done, total, unit))

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric."""
        return {name: value for record in self.records for name, value in record.metrics.items()}
