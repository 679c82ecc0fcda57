"""Names of the tags by which runs, and versions of the registry, are found again in the tracking store; and whose words a page has."""

import hashlib
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
NOTE_TIME: Final = "chess_grpo.note_time"
"""When what a parent run's page says was written, in milliseconds: what was written earlier and is told later does not replace it."""
NOTE_DIGEST: Final = "chess_grpo.note_digest"
"""Of the page's text as this software wrote it: a page that a person has changed since is left as it is."""
VERDICT: Final = "chess_grpo.verdict"
PRESET: Final = "chess_grpo.preset"
COMMAND: Final = "chess_grpo.command"
"""The command that asks for such a run again, as far as its settings and options tell it."""
PEAK_STEP: Final = "chess_grpo.peak_step"
ENGINE: Final = "chess_grpo.engine"
DATASET: Final = "chess_grpo.dataset"
"""SHA-256 of the boards' file, on the runs of `join_boards`."""
REUSED: Final = "chess_grpo.reused"
FOUND: Final = "chess_grpo.findings"
"""What the diagnosis of a fine-tuning found: `healthy`, or names with commas; on its run and on the parent."""


def digest_of_note(note: str) -> str:
    """Return what is kept beside a page's text, by which a later run sees whether it is still this software's."""
    return hashlib.sha256(note.encode()).hexdigest()[:16]


def is_own_note(note: str | None, digest: str | None) -> bool:
    """Return whether a page's text may be replaced: there is none, or this software has written it."""
    return not note or digest_of_note(note) == digest
