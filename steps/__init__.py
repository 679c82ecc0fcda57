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
"""All steps in the order of the flow; step NAME is the module `steps.NAME`. Other tables of steps derive from this tuple."""


def __getattr__(name: str) -> Any:
    """Import a step's module at its first use: torch takes seconds, and a process that renders a card does not need the steps."""
    if name not in STEPS:
        raise AttributeError(name)
    return import_module(f"steps.{name}")
