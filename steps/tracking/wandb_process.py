"""The process that sends journals to Weights & Biases: `python -m steps.tracking.wandb_process HOME SHARED [JOURNAL]`.

It follows one journal until its standard input closes, and then sends the pending journals of earlier steps. A journal that W&B does not
have completely is sent from the beginning into the same run: its rows are numbered, so W&B stores none twice.
"""

import fcntl
import hashlib
import os
import select
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from grpo.metrics.table import METRICS
from steps.store.objects import objects_at
from steps.tracking.journal import Journal, JournalFolder, Reader
from steps.tracking.tags import NOTE, RUN
from steps.tracking.wandb_mirror import MIRROR_FOLDER, SAVED_OFFLINE

_SECONDS_BETWEEN_LOOKS: Final = 0.5
_SECONDS_TO_BEGIN: Final = 30.0
_SECONDS_TO_END: Final = 300.0  # A step that waits for the process kills it sooner.
_OUR_TAGS: Final = "chess_grpo."
_KILLED: Final = 255
_STEP: Final = "step"
"""The x axis of all charts: the training step. W&B's own step must increase with every row, the training step need not."""
_UNITS: Final = "units"


def main(home: str, shared: str, journal: str = "") -> None:
    """Send a journal while it grows, then the pending journals of earlier steps."""
    os.nice(10)  # Training has priority.
    own = ""
    if journal:
        own = send_journal(Journal(Path(journal)), Path(home), is_over=_input_has_ended)
    with closing(JournalFolder(Path(home), objects_at(shared) if shared else None).pending(Reader.WANDB)) as pending:
        for each in pending:
            send_journal(each, Path(home), is_over=lambda: True, own=own)


def send_journal(journal: Journal, home: Path, *, is_over: Callable[[], bool], own: str = "") -> str:
    """Send a journal to its W&B run, note that W&B has it, and return the run's id.

    Args:
        journal: a journal whose first record describes the step.
        home: the folder of W&B's files.
        is_over: returns whether the writer has finished the journal; it may block for a moment.
        own: id of the run that this process has sent. A journal of an earlier attempt of that run has nothing new.

    Raises W&B's exception when sending fails.
    """
    import wandb

    given = next((_wandb_run(entry.row) for entry in journal.entries() if "settings" in entry.row), None)
    if given is None or given["id"] == own:
        journal.done(Reader.WANDB)
        return own
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
    (home / MIRROR_FOLDER).mkdir(exist_ok=True)
    with (home / MIRROR_FOLDER / f"{given['id']}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # The mirror process of a killed attempt may still send to this run.
        run = wandb.init(dir=home, resume="allow", settings=settings, **given)
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)
        logger = WandbLogger(run)
        for record in _records(journal, is_over):
            logger.log(record)
        logger.end_row()
        run.finish(exit_code=logger.exit_code)
        folders = sorted((home / MIRROR_FOLDER).glob(f"offline-run-*-{given['id']}"))
        for folder in folders[-1:]:
            print(f"{SAVED_OFFLINE}; upload it by: wandb sync {folder}", flush=True)
        if logger.exit_code == 0:
            # The last offline files contain those of earlier attempts, which `wandb sync` would upload too.
            for folder in folders[:-1]:
                shutil.rmtree(folder)
    journal.done(Reader.WANDB)
    return str(given["id"])


def _wandb_run(begin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `wandb.init` for a step, from the first record of its journal."""
    flow_run, step, tags = begin["tags"].get(RUN, ""), begin["step"], {name: tag for name, tag in begin["tags"].items() if name != NOTE}
    labels = [step, *([f"commit {tags['git.commit'][:12]}"] if tags.get("git.commit") else [])]
    # From the task, if there is one: a retry resumes the same W&B run.
    which = f"{flow_run}/{begin['task']}" if begin["task"] else begin["key"]
    return {
        "id": hashlib.sha256(which.encode()).hexdigest()[:16],
        "name": f"{flow_run}/{step}",
        "group": flow_run,
        "job_type": step,
        "config": begin["settings"] | tags,
        "notes": begin["tags"].get(NOTE, ""),
        "tags": [*labels, "uncommitted changes"] if tags.get("git.dirty") == str(True) else labels,
    }


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
        """Log one record of a journal; files, records that concern MLflow alone and damaged ones are skipped."""
        match record:
            case {"kind": "record", "time": int(milliseconds), "record": {"step": int(step), **metrics}}:
                if self._row.get(_STEP, step) != step:
                    self.end_row()
                self._row |= {_STEP: step, "_timestamp": milliseconds / 1000}
                self._row |= {str(name): value for name, value in metrics.items() if isinstance(value, int | float)}
            case {"kind": "log", "tags": tags}:
                for name, value in tags.items():
                    if name == NOTE:
                        self._run.notes = value
                    elif name.startswith(_OUR_TAGS):
                        self._run.summary[name.removeprefix(_OUR_TAGS)] = value
            case {"kind": "dataset", "digest": digest}:
                self._run.summary["dataset"] = digest
            case {"kind": "ended", "status": status}:
                self.exit_code = 0 if status == "FINISHED" else 1

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


def _records(journal: Journal, is_over: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
    """Yield a journal's records as they are written, until the record of the step's end or the end of its writer."""
    place, is_last = 0, False
    while True:
        for entry in journal.entries(place):
            yield entry.row
            place = entry.end
            if entry.row["kind"] == "ended":
                return
        if is_last:
            return
        is_last = is_over()


def _input_has_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], _SECONDS_BETWEEN_LOOKS)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
