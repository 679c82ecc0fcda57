"""The steps of the pipeline, one file each: declaration (`STEP`), computation (`body`) and, for some, a page (`card`).

`start` and `end` have only a function of this name.
"""

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
"""Order of the flow; `calibrate` runs beside `pretrain`."""


def __getattr__(name: str) -> Any:
    """Import a step's module at its first use, because torch takes seconds."""
    if name not in STEPS:
        raise AttributeError(name)
    return import_module(f"steps.{name}")
