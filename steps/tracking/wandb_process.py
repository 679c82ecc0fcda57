"""The process that sends journals to Weights & Biases: `python -m steps.tracking.wandb_process HOME [JOURNAL]`.

It follows one journal until its standard input closes, and then sends the pending journals of earlier steps. A journal is deleted when W&B
has all of it. Otherwise all of it is sent again into the same run; rows are numbered, so W&B stores none twice.
"""

import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from grpo.base.files import read_json
from grpo.metrics.table import METRICS
from steps.store.file_lock import BusyError, file_lock
from steps.tracking.journal import Journal, record_of
from steps.tracking.tags import NOTE
from steps.tracking.wandb_mirror import LOG_SUFFIX, MIRROR_FOLDER, RUN_SUFFIX, WandbRun, mirror_journals

_SECONDS_BETWEEN_LOOKS: Final = 0.5
_SECONDS_TO_BEGIN: Final = 30.0
_SECONDS_TO_END: Final = 300.0  # A step that waits for the process kills it sooner.
_OUR_TAGS: Final = "chess_grpo."
_KILLED: Final = 255
_STEP: Final = "step"
"""The x axis of all charts: the training step. W&B's own step must increase with every row, the training step need not."""

_UNITS: Final = "units"


def main(home: Path, journal: Path | None = None) -> None:
    """Send a journal while it grows, then the pending journals of earlier steps."""
    os.nice(10)  # Training has priority.
    own = ""
    if journal is not None:
        with closing(Journal(journal).open()) as mine:
            own = send_journal(mine, home, is_over=_input_has_ended)
    journals = mirror_journals(home)
    for parent in journals.parents():
        with closing(journals.pending(parent)) as pending:
            for each in pending:
                if _wandb_run(each)["id"] == own:
                    _delete(each)  # Of an earlier attempt: this attempt's journal begins with its records.
                else:
                    send_journal(each, home, is_over=lambda: True)


def send_journal(journal: Journal, home: Path, *, is_over: Callable[[], bool]) -> str:
    """Send a journal to its W&B run, delete the journal when all of it was sent, and return the run's id.

    Args:
        journal: a journal that is locked by this process.
        home: the folder of W&B's files.
        is_over: returns whether the writer has finished the journal; it may block for a moment.

    Raises W&B's exception when sending fails.
    """
    import wandb

    wandb_run = _wandb_run(journal)
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        save_code=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        init_timeout=_SECONDS_TO_BEGIN,
        finish_timeout=_SECONDS_TO_END,
    )
    begun: dict[str, Any] = {**wandb_run}
    with _run_lock(home, wandb_run["id"]):
        run = wandb.init(dir=home, resume="allow", settings=settings, **begun)
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)
        logger = WandbLogger(run)
        for record in _records(journal.path, is_over):
            logger.log(record)
        logger.end_row()
        run.finish(exit_code=logger.exit_code)
        if logger.exit_code == 0:
            # The last offline files contain those of earlier attempts, which `wandb sync` would upload too.
            for folder in sorted((home / MIRROR_FOLDER).glob(f"offline-run-*-{wandb_run['id']}"))[:-1]:
                shutil.rmtree(folder)
    _delete(journal)
    return wandb_run["id"]


def _wandb_run(journal: Journal) -> WandbRun:
    wandb_run: WandbRun = read_json(journal.path.with_suffix(RUN_SUFFIX))
    return wandb_run


def _delete(journal: Journal) -> None:
    journal.remove()
    for suffix in (RUN_SUFFIX, LOG_SUFFIX):
        journal.path.with_suffix(suffix).unlink(missing_ok=True)


@contextmanager
def _run_lock(home: Path, run_id: str) -> Iterator[None]:
    """Wait until no other process sends to this run: the mirror process of a killed attempt may still be running."""
    while True:
        try:
            with file_lock(home / MIRROR_FOLDER / f"{run_id}.lock", what=f"W&B's run {run_id}"):
                yield
                return
        except BusyError:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


class WandbLogger:
    """Logs journal records to a W&B run: one row per training step; everything else goes to the run's summary."""

    def __init__(self, run: Any) -> None:
        self.exit_code = _KILLED
        """Exit code of the step; it counts as killed unless the journal has its final status."""
        self._run = run
        self._num_rows = 0
        self._row: dict[str, float] = {}
        self._units: dict[str, str] = dict(run.config.get(_UNITS, {}))
        """Metric -> unit; W&B can store units only in the run's configuration."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Log one record of a journal; files and records that concern MLflow alone are skipped."""
        match record["kind"]:
            case "metrics":
                for name, value, milliseconds, step in record["rows"]:
                    self._measured(name, value, milliseconds / 1000, step)
            case "tags" | "parent_tags":
                for name, value in record["tags"].items():
                    if name == NOTE:
                        self._run.notes = value
                    elif name.startswith(_OUR_TAGS):
                        self._run.summary[name.removeprefix(_OUR_TAGS)] = value
            case "dataset":
                self._run.summary["dataset"] = record["digest"]
            case "ended":
                self.exit_code = 0 if record["status"] == "FINISHED" else 1

    def end_row(self) -> None:
        """Log the current row: no further metrics of its training step follow."""
        if new := {name: METRICS[name].unit for name in self._row.keys() & METRICS.keys() - self._units.keys()}:
            self._units |= new
            self._run.config.update({_UNITS: dict(sorted(self._units.items()))}, allow_val_change=True)
        if self._row:
            # When a run is resumed, W&B ignores rows with numbers that it already has.
            self._run.log(self._row, step=self._num_rows)
            self._num_rows += 1
        self._row = {}

    def _measured(self, name: str, value: float, seconds: float, step: int) -> None:
        if self._row.get(_STEP, step) != step:
            self.end_row()
        self._row |= {_STEP: step, "_timestamp": seconds, name: value}


def _records(path: Path, is_over: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
    """Yield a journal's records as they are written, until the record of the step's end or the end of its writer."""
    for line in _lines(path, is_over):
        yield line
        if line["kind"] == "ended":
            return


def _lines(path: Path, is_over: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
    end, rest = False, b""
    with path.open("rb") as file:
        while True:
            lines = (rest + file.read()).split(b"\n")
            rest = lines.pop()  # Empty, or an incomplete line.
            for line in lines:
                yield record_of(line)
            if end:
                return
            end = is_over()


def _input_has_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], _SECONDS_BETWEEN_LOOKS)[0])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
