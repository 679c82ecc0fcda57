"""Names of MLflow tags by which runs and model versions are found again, and the check whether a description was edited by a person."""

import hashlib
from typing import Final

EXPERIMENT: Final = "chess-grpo"
"""The experiment of all runs."""
STEP: Final = "chess_grpo.step"
FLOW: Final = "flow"
"""Value of the step tag on the parent run."""

SWEEP: Final = "chess_grpo.sweep"
"""Id of a sweep: on its own MLflow run, whose step tag is `sweep`, and on the flow runs that are in it, which are children of that run."""

CHILD: Final = "chess_grpo.child"
"""Unique key of a run or version: METAFLOW RUN/STEP/ATTEMPT. Journaled before the call that creates it, so it is never created twice."""
VERSION: Final = "chess_grpo.version"
OUTPUT_HASH: Final = "chess_grpo.output_hash"
HOLDS: Final = "chess_grpo.holds_output"
"""Tag of a run with its complete output as artifacts; set after the last file, so that no partial output is used."""
HELD_BY: Final = "chess_grpo.output_held_by"
ROLE: Final = "chess_grpo.role"
"""On a version of the registered model: `champion` or `peak` of its run."""
LOGGED_MODEL: Final = "chess_grpo.logged_model"
"""On a version: MLflow's id of its logged model."""
POLICY_OUTPUT: Final = "chess_grpo.policy"
"""On a logged model: the hash of the output of `select` that has the policy, and its role there."""
RUN: Final = "metaflow.run"
PARENT: Final = "mlflow.parentRunId"
NOTE: Final = "mlflow.note.content"
NOTE_TIME: Final = "chess_grpo.note_time"
"""Time of a parent run's description in milliseconds: an older description that is delivered later does not replace it."""
NOTE_DIGEST: Final = "chess_grpo.note_digest"
"""Digest of the description that this software wrote: a description that a person has edited since is not replaced."""
RUN_NAME: Final = "mlflow.runName"
"""MLflow renames a run when this tag is set. Runs are found by other tags, so that a name may change."""
VERDICT: Final = "chess_grpo.verdict"
SENTENCE: Final = "chess_grpo.verdict_sentence"
"""The verdict in one sentence: against the run's own start, and against other opponents."""
SCORED_BY: Final = "chess_grpo.verdict_scored_by"
"""How games counted for the verdict: `played out` or `adjudicated`."""
PRESET: Final = "chess_grpo.preset"
COMMAND: Final = "chess_grpo.command"
"""The command that starts such a run again, from its settings and options."""
SETTINGS: Final = "mlflow.chess_grpo.settings"
"""JSON of all settings by which runs are compared, on the parent run. MLflow's pages leave out tags with this prefix: they show as
parameters only the main settings and those that differ from the preset."""
PEAK_STEP: Final = "chess_grpo.peak_step"
ENGINE: Final = "chess_grpo.engine"
ENGINE_GAMES: Final = "engine games"
DATASET: Final = "chess_grpo.dataset"
"""SHA-256 of the boards' file, on the runs of `join_boards`."""
SOURCES: Final = "chess_grpo.sources"
"""The files that the boards come from, with boards and how far each was read; or `engine games`. On the runs of `join_boards`."""
REUSED: Final = "chess_grpo.reused"
FOUND: Final = "chess_grpo.findings"
"""Findings of the diagnosis of a fine-tuning: `healthy` or comma-separated names; on its run and on the parent."""


def digest_of_note(note: str) -> str:
    """Return the digest of a description, by which a later run sees whether a person has edited it."""
    return hashlib.sha256(note.encode()).hexdigest()[:16]


def is_own_note(note: str | None, digest: str | None) -> bool:
    """Return whether a description may be replaced: it is empty, or this software wrote it."""
    return not note or digest_of_note(note) == digest
