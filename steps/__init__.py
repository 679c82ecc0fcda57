"""The steps of the pipeline, one file each: declaration (`STEP`), computation (`body`) and, for some, a page (`card`)."""

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
"""Order of the flow."""


def __getattr__(name: str) -> Any:
    """Import a step's module at its first use, because torch takes seconds."""
    if name not in STEPS:
        raise AttributeError(name)
    return import_module(f"steps.{name}")
