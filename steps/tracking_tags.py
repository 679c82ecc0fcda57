"""Names of the tags by which runs, and versions of the registry, are found again in the tracking store."""

from typing import Final

STEP: Final = "chess_grpo.step"
FLOW: Final = "flow"
"""Value of the step tag on the parent run."""

CHILD: Final = "chess_grpo.child"
"""Who made this run or version: METAFLOW RUN/STEP/ATTEMPT. Written down before the call that makes it, so that it is never made twice."""
VERSION: Final = "chess_grpo.version"
OUTPUT_HASH: Final = "chess_grpo.output_hash"
HOLDS: Final = "chess_grpo.holds_output"
"""Tag of a run whose artifacts are its whole output: set after the last file, so that no half of one is ever taken for it."""
HELD_BY: Final = "chess_grpo.output_held_by"
RUN: Final = "metaflow.run"
PARENT: Final = "mlflow.parentRunId"
NOTE: Final = "mlflow.note.content"
PEAK_STEP: Final = "chess_grpo.peak_step"
FOUND: Final = "chess_grpo.findings"
"""What the diagnosis of a fine-tuning found: `healthy`, or names; on its run and on the parent."""
