"""The loop around the GRPO trainer. It saves checkpoints, so a killed run resumes and ends with the same files as an undisturbed run.

The progress folder holds the journal, `checkpoints/` and, after training, the report. The loop logs a step before it saves the step's
checkpoint, so every checkpoint has its complete history.

A SIGTERM during training takes effect after the current GRPO step and that step's measurement: the loop saves a checkpoint and exits.
Before the first step and after the last step, a SIGTERM ends the process at once.
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

NUM_CHECKPOINTS_KEPT: Final = 12  # The best by held-out regret and the newest are always kept.
_REGRET: Final = "heldout/regret_best"


class TrainingReport(Training):
    """The report of `finetune`."""

    weights: str  # Hash of the evaluation policy's weights at the end.


class TrainingLoop:
    """Trains for `grpo.num_steps` steps or until the trainer stops; continues after the newest checkpoint of a killed process."""

    def __init__(self, work: Work, trainer: AnyTrainer, heldout: Callable[[], Mapping[str, float]]) -> None:
        """Prepare the loop; `trainer` is at this run's first step, and `heldout` returns metrics of its current evaluation policy."""
        self._work = work
        self._trainer = trainer
        self._config = work.settings.grpo
        self._first = trainer.num_steps_done
        self._last = self._first + self._config.num_steps
        self._heldout = heldout
        self._folder = work.progress_folder
        self._checkpoints = self._folder / CHECKPOINTS

    def run(self) -> None:
        """Train, and write checkpoints, report and findings into the output.

        Raises SystemExit(RESUMABLE) at a SIGTERM, after saving a checkpoint. An error leaves the progress folder unchanged, and the
        message names the step at which the run resumes.
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
        # Links instead of moves: a kill before the output is in the store must not lose checkpoints.
        copy_folder(self._checkpoints, self._work.folder / CHECKPOINTS, _link)
        self._work.say(diagnosis.write(self._work.folder))

    def _begin_or_resume(self, diagnosis: LiveDiagnosis) -> None:
        """Restore trainer, checkpoints and history at the newest sound checkpoint, or begin anew.

        Raises NotLearnableError at the beginning if the first rollout shows that GRPO could learn nothing.
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
            self._prune()  # The kill may have come between saving and pruning.
            return
        if known:
            self._work.say(f"no checkpoint in {self._folder} can be resumed; training begins anew")
        diagnosis.refuse(self._trainer.preflight(), step=self._first + 1)
        self._work.progress(0, self._config.num_steps, "steps")
        self._work.log(self._with_measurements(Record(self._first, {})))

    def _delete_damaged(self, *, last: int) -> None:
        """Delete, with a warning, each checkpoint that is damaged or newer than the journal's last step."""
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
                # Logged before the checkpoint, so a resumed run logs the same lines in the same order.
                self._work.log(self._trainer.timings(), is_aside=True)
                self._work.progress(record.step - self._first, self._config.num_steps, "steps")
                if is_due or is_told():
                    self._save()
                    if is_told():
                        self._work.say(f"ended by SIGTERM; the same command again (after --fresh: `resume`) resumes from {self._place()}")
                        raise SystemExit(RESUMABLE)

    def _is_over(self) -> bool:
        report = self._folder / REPORT
        # The report precedes the last checkpoint; after a kill between them, training continues at an earlier checkpoint.
        return report.exists() and read_document(report, TrainingReport).last_step == self._trainer.num_steps_done

    def _with_measurements(self, record: Record) -> Record:
        """Return the record with the evaluation policy's held-out metrics."""
        return replace(record, metrics={**record.metrics, **self._heldout()})

    def _save(self) -> None:
        """Save a checkpoint, and delete surplus checkpoints."""
        state = self._trainer.state(self._work.facts)
        save_checkpoint(self._checkpoints, self._trainer.evaluation_policy, state)
        self._prune()
        self._work.saved()

    def _prune(self) -> None:
        """Keep the `NUM_CHECKPOINTS_KEPT` best measured checkpoints and, after a SIGTERM between two measurements, the newest."""
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
        shutil.copy2(source, target)  # The disk cannot link files.


@contextmanager
def sigterm_noted() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a SIGTERM has arrived. Only the first SIGTERM in the block is held back; a second one kills.

    Only the main thread can use this context manager, because Python delivers signals there.
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
