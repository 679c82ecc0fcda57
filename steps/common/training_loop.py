"""The loop around the GRPO trainer. A killed run resumes from a checkpoint, and ends with the same output as an undisturbed run."""

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
    checkpoint_step,
    checkpoints_to_delete,
    load_checkpoint,
    save_checkpoint,
)
from grpo.policy.files import checkpoint_name
from grpo.policy.policy import weights_hash
from grpo.train.trainer import AnyTrainer
from steps.common.live_diagnosis import LiveDiagnosis
from steps.names import CHECKPOINTS, REPORT
from steps.pages.results import Training
from steps.run.processes import RESUMABLE
from steps.run.work import Work

NUM_CHECKPOINTS_KEPT: Final = 12  # Checkpoints with measurements on held-out boards.
_REGRET: Final = "heldout/regret_best"


class TrainingReport(Training):
    weights: str  # Hash of the final weights of `Trainer.evaluation_policy`.


class TrainingLoop:
    """Trains for `grpo.num_steps` steps, or fewer if the trainer stops."""

    def __init__(self, work: Work, trainer: AnyTrainer, heldout: Callable[[], Mapping[str, float]]) -> None:
        """`trainer` has made no step of this run; `heldout` measures `trainer.evaluation_policy`."""
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

        After a SIGTERM, completes the GRPO step, saves a checkpoint and raises SystemExit(RESUMABLE).
        """
        diagnosis = LiveDiagnosis(self._work.settings)
        self._work.observe = diagnosis.observe  # First, because resuming sends earlier records to `observe`.
        try:
            self._begin_or_resume(diagnosis)
            self._train()
        except PlainError as error:
            error.args = (f"{error}\n{self._how_to_resume()}",)
            raise
        shutil.copy(self._folder / REPORT, self._work.folder / REPORT)
        # Checkpoints are not moved, because a kill before the output is stored must not lose them.
        copy_folder(self._checkpoints, self._work.folder / CHECKPOINTS, _link)
        self._work.say(diagnosis.write(self._work.folder))

    def _begin_or_resume(self, diagnosis: LiveDiagnosis) -> None:
        history = self._work.history()
        remove_leftovers(self._folder)
        self._delete_damaged(last=history[-1].step if history else -1)
        if saved := checkpoint_folders(self._checkpoints):
            policy, state = load_checkpoint(saved[-1], torch.device("cpu"), type(self._trainer.policy))
            self._trainer.resume(policy, state)
            self._work.say(f"resuming from {self._newest()}")
            self._work.go_on_after(state.step)
            self._work.progress(state.step - self._first, self._config.num_steps, "steps")
            self._prune()  # A kill between saving and pruning leaves too many checkpoints.
            return
        if history:
            self._work.say(f"no checkpoint in {self._folder} can be resumed; training begins anew")
        diagnosis.refuse(self._trainer.preflight(), step=self._first + 1)
        self._work.progress(0, self._config.num_steps, "steps")
        self._work.log(self._with_measurements(Record(self._first, {})))

    def _delete_damaged(self, *, last: int) -> None:
        """Delete checkpoints that are damaged or newer than `last`, the journal's last step."""
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
        report = self._folder / REPORT
        # The report is written before the last checkpoint. After a kill between the two, training goes on.
        is_over = report.exists() and read_document(report, TrainingReport).last_step == self._trainer.num_steps_done
        with _first_sigterm_deferred() as has_sigterm:
            while not is_over:
                record = self._trainer.step()
                is_over = bool(record.stop) or record.step == self._last
                is_due = is_over or (record.step - self._first) % self._config.steps_per_checkpoint == 0
                if is_due:
                    record = self._with_measurements(record)
                if is_over:
                    self._write_report(record.stop)
                self._work.log(record)
                # The checkpoint is saved last, so the journal is complete, and a resumed run logs in the same order.
                self._work.log(self._trainer.timings(), is_aside=True)
                self._work.progress(record.step - self._first, self._config.num_steps, "steps")
                if is_due or has_sigterm():
                    save_checkpoint(self._checkpoints, self._trainer.evaluation_policy, self._trainer.state(self._work.facts))
                    self._prune()
                    self._work.saved()
                    if has_sigterm():
                        self._work.say(f"ended by SIGTERM. {self._how_to_resume()}")
                        raise SystemExit(RESUMABLE)

    def _with_measurements(self, record: Record) -> Record:
        return replace(record, metrics={**record.metrics, **self._heldout()})

    def _prune(self) -> None:
        """A checkpoint without a measurement (after a SIGTERM) stays while it is the newest."""
        saved = {checkpoint_step(folder) for folder in checkpoint_folders(self._checkpoints)}
        history = self._work.history()
        regrets = {record.step: record.metrics[_REGRET] for record in history if record.step in saved and _REGRET in record.metrics}
        unmeasured = saved - regrets.keys() - {max(saved)}
        for step in [*unmeasured, *checkpoints_to_delete(regrets, keep=NUM_CHECKPOINTS_KEPT)]:
            remove_folder(self._checkpoints / checkpoint_name(step))

    def _newest(self) -> str:
        saved = checkpoint_folders(self._checkpoints)
        return f"step {checkpoint_step(saved[-1]):,}, saved in {self._folder}" if saved else "the beginning (no checkpoint is saved yet)"

    def _how_to_resume(self) -> str:
        return f"To resume from {self._newest()}, run the same command again; after --fresh run `resume`"

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
def _first_sigterm_deferred() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a SIGTERM has arrived. A second SIGTERM ends the process at once."""
    before, has_arrived = signal.getsignal(signal.SIGTERM), False

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal has_arrived
        has_arrived = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield lambda: has_arrived
    finally:
        if not has_arrived:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
