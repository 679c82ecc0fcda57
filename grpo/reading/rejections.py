"""The file of rejected games: a line of JSON each, by source and offset."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from grpo.reading.games import Rejection


def write_rejection(file: TextIO, rejection: Rejection) -> None:
    """Write a rejection as a line of JSON."""
    file.write(json.dumps(asdict(rejection), sort_keys=True, ensure_ascii=False) + "\n")


def sort_rejections(path: Path) -> None:
    """Sort a file of rejections by source and offset; they were written in the order of reading, from many files at a time."""
    with path.open(encoding="utf-8") as file:
        lines = sorted(file, key=rejection_place)
    path.write_text("".join(lines), encoding="utf-8")


def rejection_place(line: str) -> tuple[str, int]:
    """Return source and offset of a line of JSON."""
    rejection = json.loads(line)
    return rejection["source"], rejection["offset"]
