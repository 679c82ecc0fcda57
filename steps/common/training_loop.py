"""The loop around the GRPO trainer: what it saves on the disk, so that a killed run resumes and ends as if there had been no kill.

In the progress folder: the journal, `checkpoints/` and, when training is over, the report. A step's line is in the journal before
its checkpoint is made, so that a checkpoint has all of its history.

SIGTERM is read between the steps: after the step's own evaluation, if it is due, a checkpoint is saved and the process exits. Before the
first step, with its imports, the look at its rollout and the first evaluation, and after the last one SIGTERM ends the process at once.
"""

import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

import torch

from grpo.base.documents import read_document
from grpo.base.errors import PlainError
from grpo.base.files import (
    CorruptError,
    copy_folder,
    json_text,
    remove_folder,
    remove_leftovers,
    replace_file,
    verified_manifest,
)
from grpo.metrics.records import Record
from grpo.metrics.shared import BUDGET_SPENT, ENTROPY_CRITICAL
from grpo.policy.checkpoints import (
    checkpoint_folders,
    checkpoint_name,
    checkpoint_step,
    checkpoints_to_delete,
    load_checkpoint,
    save_checkpoint,
)
from grpo.policy.policy import weights_hash
from grpo.train.trainer import AnyTrainer
from steps.common.live_diagnosis import LiveDiagnosis
from steps.names import CHECKPOINTS, REPORT
from steps.pages.results import Training
from steps.run.processes import RESUMABLE
from steps.run.work import Work

NUM_CHECKPOINTS_KEPT: Final = 12
"""At most; the best by held-out regret and the newest are never deleted."""
_REGRET: Final = "heldout/regret_best"


class TrainingReport(Training):
    """The report of `finetune`."""

    weights: str
    """Hash of the evaluation policy's weights at the end."""


class TrainingLoop:
    """Trains for as many steps as the settings say, or until the trainer ends it; resumes where a killed process was."""

    def __init__(self, work: Work, trainer: AnyTrainer, heldout: Callable[[], Mapping[str, float]]) -> None:
        """Prepare the loop.

        Args:
            work: with the facts that each checkpoint holds: where it comes from.
            trainer: at the step at which this run begins.
            heldout: measures the trainer's evaluation policy, as it is now.
        """
        self._work = work
        self._trainer = trainer
        self._config = work.settings.grpo
        self._first = trainer.num_steps_done
        self._last = self._first + self._config.num_steps
        self._heldout = heldout
        self._folder = work.progress_folder
        self._checkpoints = self._folder / CHECKPOINTS

    def run(self) -> None:
        """Train, and put checkpoints, report and findings into the output.

        Ends the process with RESUMABLE at a SIGTERM, after a checkpoint of the last finished step. An error leaves the progress folder as
        it is, and its message says from where the run resumes.
        """
        diagnosis = LiveDiagnosis(self._work.settings)
        self._work.observe = diagnosis.observe
        try:
            self._begin_or_resume(diagnosis)
            self._train()
        except PlainError as error:
            error.args = (f"{error}\nThe same command again (after --fresh: `resume`) resumes from {self._place()}",)
            raise
        shutil.copy(self._folder / REPORT, self._work.folder / REPORT)
        # Links, not moves: until the output is in the store, a kill would lose what was moved.
        copy_folder(self._checkpoints, self._work.folder / CHECKPOINTS, _link)
        self._work.say(diagnosis.write(self._work.folder))

    def _begin_or_resume(self, diagnosis: LiveDiagnosis) -> None:
        """Bring trainer, checkpoints and history to the latest point that is whole; without one, to the beginning.

        Raises NotLearnableError at the beginning where nothing could be learned.
        """
        known = self._work.history()
        remove_leftovers(self._folder)
        self._delete_damaged(last=known[-1].step if known else -1)
        if saved := checkpoint_folders(self._checkpoints):
            policy, state = load_checkpoint(saved[-1], torch.device("cpu"), type(self._trainer.policy))
            self._trainer.resume(policy, state)
            self._work.say(f"resuming from {self._place()}")
            self._work.go_on_after(state.step)
            self._work.progress(state.step - self._first, self._config.num_steps, "steps")
            self._prune()  # The kill may have come before that.
            return
        if known:
            self._work.say(f"nothing in {self._folder} can be resumed from; starting again")
        diagnosis.refuse(self._trainer.preflight(), step=self._first + 1)
        self._work.progress(0, self._config.num_steps, "steps")
        self._work.log(self._with_measurements(Record(self._first, {})))

    def _delete_damaged(self, *, last: int) -> None:
        """Warn of all checkpoints that are not whole, or of a step that the journal does not have, and delete those."""
        for folder in checkpoint_folders(self._checkpoints):
            try:
                verified_manifest(folder)
                problem = "" if checkpoint_step(folder) <= last else f"{folder} is of a step that the journal does not have"
            except CorruptError as error:
                problem = str(error)
            if problem:
                self._work.say(f"WARNING: {problem}; it is deleted")
                remove_folder(folder)

    def _train(self) -> None:
        with sigterm_noted() as is_told:
            is_over = self._is_over()
            while not is_over:
                record = self._trainer.step()
                is_over = bool(record.stop) or record.step == self._last
                is_due = is_over or (record.step - self._first) % self._config.steps_per_checkpoint == 0
                if is_due:
                    record = self._with_measurements(record)
                if is_over:
                    self._write_report(record.stop)
                self._work.log(record)
                # Before the checkpoint: a run that goes on from it then says the same lines in the same order.
                self._work.log(self._trainer.timings(), is_aside=True)
                self._work.progress(record.step - self._first, self._config.num_steps, "steps")
                if is_due or is_told():
                    self._save()
                    if is_told():
                        self._work.say(f"ended by SIGTERM; the same command again (after --fresh: `resume`) resumes from {self._place()}")
                        raise SystemExit(RESUMABLE)

    def _is_over(self) -> bool:
        report = self._folder / REPORT
        # Written before the last checkpoint: a run may have resumed from an earlier one.
        return report.exists() and read_document(report, TrainingReport).last_step == self._trainer.num_steps_done

    def _with_measurements(self, record: Record) -> Record:
        """Return the record with what the evaluation policy is like now, on held-out boards."""
        return replace(record, metrics={**record.metrics, **self._heldout()})

    def _save(self) -> None:
        """Save a checkpoint, and delete those that are too many."""
        state = self._trainer.state(self._work.facts)
        save_checkpoint(self._checkpoints, self._trainer.evaluation_policy, state)
        self._prune()
        self._work.saved()

    def _prune(self) -> None:
        """Delete the checkpoints that are too many, and of those that SIGTERM left between two measurements all but the newest."""
        saved = {checkpoint_step(folder) for folder in checkpoint_folders(self._checkpoints)}
        found = ((record.step, record.metrics.get(_REGRET)) for record in self._work.history() if record.step in saved)
        regrets = {step: regret for step, regret in found if regret is not None}
        unmeasured = saved - regrets.keys() - {max(saved)}
        for step in [*unmeasured, *checkpoints_to_delete(regrets, keep=NUM_CHECKPOINTS_KEPT)]:
            remove_folder(self._checkpoints / checkpoint_name(step))

    def _place(self) -> str:
        saved = checkpoint_folders(self._checkpoints)
        if not saved:
            return "the beginning: there is no checkpoint yet"
        return f"step {checkpoint_step(saved[-1]):,}, which is saved in {self._folder}"

    def _write_report(self, stop: str) -> None:
        trainer = self._trainer
        entropy = trainer.control.mean_entropy()
        report = TrainingReport(
            reason=ENTROPY_CRITICAL if stop else BUDGET_SPENT,
            message=stop,
            first_step=self._first,
            last_step=trainer.num_steps_done,
            mean_entropy_at_end=entropy if math.isfinite(entropy) else None,
            control=trainer.control.metrics(),
            weights=weights_hash(trainer.evaluation_policy),
        )
        replace_file(self._folder / REPORT, json_text(report.model_dump(mode="json")).encode())


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)  # A disk without links.


@contextmanager
def sigterm_noted() -> Iterator[Callable[[], bool]]:
    """Only note the first SIGTERM in the block; a second one ends the process at once, and so does the first outside of the block.

    Gives a function that says whether it came. For a main thread: no other can be told to end.
    """
    before, is_told = signal.getsignal(signal.SIGTERM), False

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal is_told
        is_told = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: is_told
    finally:
        if not is_told:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
