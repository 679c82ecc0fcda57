"""A step's body at work in folders of its own, without store and records."""

from pathlib import Path
from typing import Any

from grpo.settings.tree import Settings
from steps.run.machine import Machine
from steps.run.work import Work


def work_in(folder: Path, settings: Settings, *, stockfish: str = "none", **more: Any) -> Work:
    """Return what a body works with: it fills a new folder, and its journal is in another beside that."""
    progress = folder.with_name(f"{folder.name}.progress")
    for each in (folder, progress):
        each.mkdir()
    machine = Machine(stockfish=stockfish, home=folder.parent, tracking_uri="", device="cpu", num_threads=1)
    return Work(folder=folder, settings=settings, machine=machine, progress_folder=progress, **more)
