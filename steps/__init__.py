"""The steps of the pipeline, one file each: declaration, body, card."""

from importlib import import_module
from typing import Any, Final

STEPS: Final = (
    "start",
    "build_boards",
    "join_boards",
    "check_boards",
    "pretrain",
    "calibrate",
    "baseline",
    "finetune",
    "screen",
    "confirm",
    "select",
    "report",
    "end",
)
"""In the order of the flow; the file of a step has its name. All that needs a table of steps is made from this."""


def __getattr__(name: str) -> Any:
    """Import the file of a step when it is first asked for: torch takes seconds, and a process that renders a card needs none of them."""
    if name not in STEPS:
        raise AttributeError(name)
    return import_module(f"steps.{name}")
