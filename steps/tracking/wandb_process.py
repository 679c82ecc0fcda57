"""The process that tells W&B what stands in journals: `python -m steps.tracking.wandb_process HOME [JOURNAL]`.

It follows the one journal until its standard input ends, and then tells what earlier ones left. A journal counts as told when W&B has all
of it, and goes; else all of it is told again, into the same run, whose rows are numbered: W&B takes none twice.
"""

import json
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
from steps.tracking.journal import Journal
from steps.tracking.tags import NOTE
from steps.tracking.wandb_mirror import HEAD, LOG, MIRROR_FOLDER, Head, mirror_outbox

_SECONDS_BETWEEN_LOOKS: Final = 0.5
_SECONDS_TO_BEGIN: Final = 30.0
_SECONDS_TO_END: Final = 300.0  # Nobody waits for it: a step that does kills it sooner.
_OUR_TAGS: Final = "chess_grpo."
_KILLED: Final = 255
_STEP: Final = "step"
"""The axis of all charts: a record's step, which need not grow from row to row as W&B's own has to."""

_UNITS: Final = "units"


def main(home: Path, journal: Path | None = None) -> None:
    """Tell a journal while it grows, then what is left of others."""
    os.nice(10)  # The work comes first.
    own = ""
    if journal is not None:
        with closing(Journal(journal).open()) as mine:
            own = tell(mine, home, is_over=_input_has_ended)
    outbox = mirror_outbox(home)
    for parent in outbox.parents():
        with closing(outbox.left(parent)) as left:
            for each in left:
                if _head(each)["id"] == own:
                    _forget(each)  # An earlier try's: this one's has begun with what it had.
                else:
                    tell(each, home, is_over=lambda: True)


def tell(journal: Journal, home: Path, *, is_over: Callable[[], bool]) -> str:
    """Make W&B's run of a journal, forget the journal when it is whole there, and return the run's id.

    Args:
        journal: this process's own.
        home: where W&B keeps its files.
        is_over: whether its writer adds nothing more; it may wait a little before it answers.

    Raises what W&B raises when it cannot be told.
    """
    import wandb

    head = _head(journal)
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
    begun: dict[str, Any] = {**head}
    with _alone(home, head["id"]):
        run = wandb.init(dir=home, resume="allow", settings=settings, **begun)
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)
        told = Told(run)
        for record in _records(journal.path, is_over):
            told.log(record)
        told.row_ends()
        run.finish(exit_code=told.exit_code)
        if told.exit_code == 0:
            # An earlier try's offline files have nothing that the last ones have not, and would be sent too.
            for folder in sorted((home / MIRROR_FOLDER).glob(f"offline-run-*-{head['id']}"))[:-1]:
                shutil.rmtree(folder)
    _forget(journal)
    return head["id"]


def _head(journal: Journal) -> Head:
    head: Head = read_json(journal.path.with_suffix(HEAD))
    return head


def _forget(journal: Journal) -> None:
    journal.remove()
    for suffix in (HEAD, LOG):
        journal.path.with_suffix(suffix).unlink(missing_ok=True)


@contextmanager
def _alone(home: Path, run_id: str) -> Iterator[None]:
    """Wait until nobody else tells this run: the mirror of a try that was killed may not have come to its end yet."""
    while True:
        try:
            with file_lock(home / MIRROR_FOLDER / f"{run_id}.lock", what=f"W&B's run {run_id}"):
                yield
                return
        except BusyError:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


class Told:
    """What W&B's run is told: a row for all that has the same step, one after the other; the rest in its summary."""

    def __init__(self, run: Any) -> None:
        self.exit_code = _KILLED
        """Of the step; it was killed unless its journal says how it ended."""
        self._run = run
        self._num_rows = 0
        self._row: dict[str, float] = {}
        self._units: dict[str, str] = dict(run.config.get(_UNITS, {}))
        """Of the metrics so far, for W&B has no place for them but the configuration."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Tell one record of a journal. Files, and what concerns MLflow alone, stay there."""
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

    def row_ends(self) -> None:
        """Tell the last row: nothing more comes with its step."""
        if new := {name: METRICS[name].unit for name in self._row.keys() & METRICS.keys() - self._units.keys()}:
            self._units |= new
            self._run.config.update({_UNITS: dict(sorted(self._units.items()))}, allow_val_change=True)
        if self._row:
            # Of a run that goes on, W&B leaves out rows whose number it has.
            self._run.log(self._row, step=self._num_rows)
            self._num_rows += 1
        self._row = {}

    def _measured(self, name: str, value: float, seconds: float, step: int) -> None:
        if self._row.get(_STEP, step) != step:
            self.row_ends()
        self._row |= {_STEP: step, "_timestamp": seconds, name: value}


def _records(path: Path, is_over: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
    """Give a journal's records as they come, until it says that its step has ended, or nobody adds to it any more."""
    for line in _lines(path, is_over):
        yield line
        if line["kind"] == "ended":
            return


def _lines(path: Path, is_over: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
    end, rest = False, b""
    with path.open("rb") as file:
        while True:
            lines = (rest + file.read()).split(b"\n")
            rest = lines.pop()  # Nothing, or a line that is not whole yet, or never will be.
            for line in lines:
                yield json.loads(line)
            if end:
                return
            end = is_over()


def _input_has_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], _SECONDS_BETWEEN_LOOKS)[0])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
