"""A step's body at work in folders of its own, without store and records, and what listens to it."""

from pathlib import Path
from typing import Any

from grpo.metrics.records import Record
from grpo.settings.tree import Settings
from steps.run.machine import Machine
from steps.run.work import Work


class Listener:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.progresses: list[tuple[int, int, str]] = []

    def log(self, record: Record) -> None:
        self.records.append(record)

    def progress(self, done: int, total: int, unit: str) -> None:
        self.progresses.append((done, total, unit))

    @property
    def metrics(self) -> dict[str, float]:
        return {name: value for record in self.records for name, value in record.metrics.items()}


def work_in(folder: Path, settings: Settings, *, stockfish: str = "none", **more: Any) -> Work:
    """Return what a body works with: it fills a new folder, and its journal is in another beside that."""
    progress = folder.with_name(f"{folder.name}.progress")
    for each in (folder, progress):
        each.mkdir()
    machine = Machine(stockfish=stockfish, home=folder.parent, tracking_uri="", device="cpu", num_threads=1)
    return Work(folder=folder, settings=settings, machine=machine, progress_folder=progress, **more)
