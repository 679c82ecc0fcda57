"""The loop around the GRPO trainer: what it saves on the disk, so that a killed run resumes and ends as if there had been no kill.

In the progress folder: the history's journal, `checkpoints/` with those that become part of the output, `interrupted/` with one that was
saved at a SIGTERM and is only for resuming, what was found before the first update and, when training is over, the report. A step's
line is in the journal before its checkpoint is made; so a checkpoint always has all of its history, and the journal is cut back to the
checkpoint from which a run resumes.
"""

import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, StorageError, copy_folder, json_text, read_json, remove_folder, replace_file, verified_manifest
from grpo.learning.checkpoints import (
    TrainingState,
    checkpoint_folders,
    checkpoint_name,
    checkpoint_step,
    checkpoints_to_delete,
    latest_valid_checkpoint,
    load_checkpoint,
    save_checkpoint,
    weights_hash,
)
from grpo.learning.learnability import Consequence, refuse_unlearnable
from grpo.learning.lifecycle import Snapshot, TrainerLifecycle
from grpo.metrics.table import BUDGET_SPENT, Record
from grpo.policy.trainable import PolicyFormat
from grpo.settings.grpo import GrpoConfig
from grpo.settings.tree import PolicyConfig
from steps.runtime.exit_codes import RESUMABLE
from steps.runtime.sigterm import Terminated, terminable
from steps.step_io.names import CHECKPOINTS, HISTORY, LEARNABILITY, REPORT
from steps.step_io.work import Work, read_journal

_INTERRUPTED: Final = "interrupted"
_REGRET: Final = "heldout/regret_best"


class TrainingLoop:
    """Trains for as many steps as the settings say, or until the trainer ends it; resumes where a killed process was."""

    def __init__(
        self,
        trainer: TrainerLifecycle[Any],
        policy_config: PolicyConfig,
        policy_format: PolicyFormat[Any],
        config: GrpoConfig,
        *,
        first: int,
        heldout: Callable[[], Mapping[str, float]],
        facts: Mapping[str, Any],
        work: Work,
        on_assessed: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """Prepare the loop.

        Args:
            trainer: at the step `first`.
            policy_config: what its policy's network is.
            policy_format: how checkpoints hold the policy.
            config: GRPO's settings.
            first: where this run begins.
            heldout: measures the trainer's evaluation policy, as it is now.
            facts: written into each checkpoint: where it comes from.
            work: with a progress folder.
            on_assessed: called with what was found before the first update.
        """
        assert work.progress_folder is not None
        self._trainer = trainer
        self._policy_config = policy_config
        self._format = policy_format
        self._config = config
        self._first = first
        self._last = first + config.num_steps
        self._heldout = heldout
        self._facts = facts
        self._work = work
        self._on_assessed = on_assessed
        self._folder = work.progress_folder
        self._checkpoints = self._folder / CHECKPOINTS
        self._interrupted = self._folder / _INTERRUPTED
        self._finished: tuple[int, Snapshot] | None = None

    def run(self) -> None:
        """Train, and put checkpoints and report into the output.

        Ends the process with RESUMABLE at a SIGTERM, after a checkpoint of the last finished step.
        An error leaves the progress folder as it is, and its message says so.
        """
        try:
            with terminable() as check:
                self._take_up()
                self._train(check)
        except Terminated:
            place = _place(self._save_interrupted(), self._folder)
            self._work.say(f"ended by SIGTERM; the same command again, without --fresh, resumes from {place}")
            raise SystemExit(RESUMABLE) from None
        except Exception as error:
            if not isinstance(error, StorageError):
                self._save_interrupted()
            _add(error, f"The same command again, without --fresh, resumes from {_place(self._saved(), self._folder)}")
            raise
        for name in (REPORT, LEARNABILITY):
            shutil.copy(self._folder / name, self._work.folder / name)
        # Links, not moves: until the output is in the store, a kill would lose what was moved.
        copy_folder(self._checkpoints, self._work.folder / CHECKPOINTS, _link)

    def _take_up(self) -> None:
        """Bring trainer, checkpoints and history to the latest point that is whole; without one, to the beginning."""
        records = read_journal(self._folder)
        begun = (self._folder / HISTORY).exists()
        self._delete_damaged(last=records[-1].step if records else -1)
        found = self._latest()
        if found is None:
            self._assess()
            if begun:
                self._work.say(f"nothing in {self._folder} can be resumed from; starting again")
            self._work.resume_after([])
            self._work.record(self._with_measurements(Record(self._first, {})))
        else:
            state = self._go_on_from(found)
            self._work.say(f"resuming from {_place(state.step, self._folder)}")
            self._work.resume_after([record for record in records if record.step <= state.step])
            self._prune()  # The kill may have come before that.
        self._finished = self._trainer.num_steps_done, self._trainer.snapshot()

    def _go_on_from(self, checkpoint: Path) -> TrainingState:
        """Restore the trainer from a checkpoint, and return its state."""
        policy, _, state = load_checkpoint(checkpoint, torch.device("cpu"), self._format)
        self._trainer.load_weights(policy.network.state_dict())
        self._trainer.restore(state)
        return state

    def _assess(self) -> None:
        """Assess before the first update, save what was found, and refuse where nothing could be learnt."""
        found = self._trainer.preflight()
        facts = found.facts()
        replace_file(self._folder / LEARNABILITY, json_text(facts).encode())
        notable = [finding for finding in found.findings if finding.severity != Consequence.FINE]
        for finding in notable:
            self._work.say(f"{finding.severity}: {finding.name}: {finding.seen}{'. ' if finding.advice else ''}{finding.advice}")
        num_fine = len(found.findings) - len(notable)
        self._work.say(f"before the first update: {num_fine} of {len(found.findings)} checks are fine; the card has their numbers")
        if self._on_assessed is not None:
            self._on_assessed(facts)
        refuse_unlearnable(found)

    def _delete_damaged(self, *, last: int) -> None:
        """Warn of all checkpoints that are not whole, or of a step that the journal does not have, and delete those."""
        for folder in [*checkpoint_folders(self._checkpoints), *checkpoint_folders(self._interrupted)]:
            try:
                verified_manifest(folder)
                problem = "" if checkpoint_step(folder) <= last else f"{folder} is of a step that the journal does not have"
            except CorruptError as error:
                problem = str(error)
            if problem:
                self._work.say(f"WARNING: {problem}; it is deleted")
                remove_folder(folder)

    def _latest(self) -> Path | None:
        found = [latest_valid_checkpoint(root)[0] for root in (self._interrupted, self._checkpoints)]
        return max((folder for folder in found if folder is not None), key=checkpoint_step, default=None)

    def _train(self, check: Callable[[], None]) -> None:
        trainer, config = self._trainer, self._config
        is_over = self._is_over()
        while not is_over:
            record = trainer.step()
            is_over = bool(trainer.outcome.stop) or record.step == self._last
            is_due = is_over or (record.step - self._first) % config.steps_per_checkpoint == 0
            self._keep(record, is_due=is_due, is_last=is_over)
            check()

    def _keep(self, record: Record, *, is_due: bool, is_last: bool) -> None:
        """Put a step's record, and what is due with it, on the disk."""
        if is_due:
            record = self._with_measurements(record)
        if is_last:
            self._write_report()
        self._work.record(record)
        if is_due:
            self._save()
        self._finished = record.step, self._trainer.snapshot()
        self._work.measured(self._trainer.timings())
        self._work.progress(record.step - self._first, self._config.num_steps, "steps")

    def _with_measurements(self, record: Record) -> Record:
        """Return the record with what the evaluation policy is like now, on held-out boards."""
        return replace(record, metrics={**record.metrics, **self._heldout()})

    def _is_over(self) -> bool:
        report = self._folder / REPORT
        # Written before the last checkpoint: a run may have resumed from an earlier one.
        return report.exists() and read_json(report)["last_step"] == self._trainer.num_steps_done

    def _save(self) -> None:
        """Save a checkpoint, and delete those that are too many."""
        self._write(self._checkpoints)
        for folder in checkpoint_folders(self._interrupted):
            remove_folder(folder)
        self._prune()
        self._work.saved()

    def _write(self, root: Path) -> None:
        state = self._trainer.state(self._facts)
        save_checkpoint(root, self._trainer.evaluation_policy, self._policy_config, state, self._format)

    def _prune(self) -> None:
        saved = {checkpoint_step(folder) for folder in checkpoint_folders(self._checkpoints)}
        regrets = {record.step: record.metrics[_REGRET] for record in self._work.history() if record.step in saved}
        for step in checkpoints_to_delete(regrets, keep=self._config.num_checkpoints_kept):
            remove_folder(self._checkpoints / checkpoint_name(step))

    def _save_interrupted(self) -> int | None:
        """Save the last finished step unless that is done, and return from which step a run will resume."""
        if self._finished is not None:
            step, snapshot = self._finished
            saved = self._saved()
            if step > self._first and (saved is None or step > saved):
                self._trainer.reset(snapshot)
                self._write(self._interrupted)
        self._work.saved()  # With nothing new too: it may have been cut short after the last checkpoint.
        return self._saved()

    def _saved(self) -> int | None:
        folders = [*checkpoint_folders(self._checkpoints), *checkpoint_folders(self._interrupted)]
        return max(map(checkpoint_step, folders), default=None)

    def _write_report(self) -> None:
        trainer = self._trainer
        entropy = trainer.control.mean_entropy()
        report = {
            "reason": trainer.outcome.stop or BUDGET_SPENT,
            "message": trainer.outcome.message,
            "first_step": self._first,
            "last_step": trainer.num_steps_done,
            "mean_entropy_at_end": entropy if math.isfinite(entropy) else None,
            "control": trainer.control.metrics(),
            "weights": weights_hash(trainer.evaluation_policy),
            "num_trained_parameters": trainer.num_trained_parameters,
        }
        replace_file(self._folder / REPORT, json_text(report).encode())


def _place(step: int | None, folder: Path) -> str:
    return "the beginning: there is no checkpoint yet" if step is None else f"step {step:,}, which is saved in {folder}"


def _add(error: Exception, text: str) -> None:
    """Say more: in the message where that is all that people see, else below the traceback."""
    if isinstance(error, PlainError):
        error.args = (f"{error}\n{text}",)
    else:
        error.add_note(text)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)  # A disk without links.
