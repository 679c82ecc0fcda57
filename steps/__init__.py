"""The steps of the pipeline, one file each: declaration, body, card."""

from typing import Final

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
