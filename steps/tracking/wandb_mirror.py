"""Mirrors what a step logs to MLflow to Weights & Biases (W&B); off by default, and never blocks the step.

W&B is a second reader of the step's journal (`steps.tracking.journal`). A process of its own, `python -m steps.tracking.wandb_mirror HOME
SHARED [JOURNAL]`, follows the journal, so W&B's library is never imported in the step's process. When the step ends, that process gets some
seconds to finish and is then killed. A later step or `chess-grpo track` sends an unfinished journal again from the beginning, into the same
W&B run: its rows are numbered, so W&B stores none twice.
"""

import hashlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from grpo.metrics.table import METRICS
from steps.runtime.machine import Machine, Mirror
from steps.store.file_lock import waiting_lock
from steps.store.objects import objects_at
from steps.store.versions import ROOT
from steps.tracking.journal import Journal, JournalFolder, Reader
from steps.tracking.tags import NOTE, RUN

KEY: Final = "WANDB_API_KEY"
_FOLDER: Final = "wandb"
"""Folder below the home; W&B always uses this name."""
_SAVED_OFFLINE: Final = "saved offline for W&B"
"""How the process begins a line of its output that people should see."""
_PROJECT: Final = "chess-grpo"
_PASSED_ON: Final = (KEY, "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_PROJECT")
"""Variables that the process inherits; W&B's others would change a run's name or location."""
_SECONDS_AT_END: Final = 20.0
"""Time-out at the end of a step that succeeded; the process takes some seconds to start, and a step may be short."""
_SECONDS_AT_FAILURE: Final = 5.0
_SECONDS_BETWEEN_LOOKS: Final = 0.5
_SECONDS_TO_BEGIN: Final = 30.0
_SECONDS_TO_END: Final = 300.0  # A step that waits for the process kills it sooner.
_OUR_TAGS: Final = "chess_grpo."
_KILLED: Final = 255
_STEP: Final = "step"
"""The x axis of all charts: the training step. W&B's own step must increase with every row, the training step need not."""
_UNITS: Final = "units"


class MirrorProcess:
    """The process that sends journals to W&B."""

    def __init__(self, machine: Machine, journal: Journal | None = None) -> None:
        """Start it: it follows this journal until `finish`, and then sends pending journals; raises OSError when that is impossible."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") or name in _PASSED_ON}
        environment |= {"WANDB_MODE": _mode(machine), "PYTHONPATH": str(ROOT), "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        environment.setdefault("WANDB_PROJECT", _PROJECT)
        for name in ("CACHE", "CONFIG", "DATA"):
            environment[f"WANDB_{name}_DIR"] = str(machine.home / _FOLDER / "own")
        command = [sys.executable, "-m", "steps.tracking.wandb_mirror", str(machine.home), machine.shared]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - `finish` reads it.
        try:
            self._process = subprocess.Popen(
                command if journal is None else [*command, str(journal.path)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                env=environment,
                start_new_session=True,  # Ctrl-C must not reach it.
            )
        except OSError:
            self._output.close()
            raise

    def finish(self, whose: str, seconds: float | None = None) -> str:
        """Wait for it, print for `whose` what it saved offline, and return why it failed, or an empty string; after the time, kill it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._output:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                return f"it did not finish within {seconds:.0f} s"
            self._output.seek(0)
            lines = [line.strip() for line in self._output.read().decode(errors="replace").split("\n") if line.strip()]
        for line in lines:
            if line.startswith(_SAVED_OFFLINE):
                print(f"{whose}: {line}", flush=True)
        return "" if not self._process.returncode else (lines or ["no output"])[-1]


@contextmanager
def mirrored(machine: Machine, step: str, journal: Journal) -> Iterator[None]:
    """Send a journal to W&B, if that is one of its readers, while the block lasts, and then wait, but not for long.

    Its failures do not affect the step: one line of the log says what was not sent, and why.
    """
    process, why, seconds = None, "", _SECONDS_AT_FAILURE
    try:
        if journal.state(Reader.WANDB) is not None:
            process = MirrorProcess(machine, journal)
    except OSError as error:
        why = str(error)
    try:
        yield
        seconds = _SECONDS_AT_END
    finally:
        if process is not None:
            why = process.finish(step, seconds)
        if journal.state(Reader.WANDB) is not None:
            print(
                f"{step}: WARNING: this step is not completely logged to W&B ({why}): the run continues, MLflow is not affected, and a"
                " later step or `chess-grpo track` logs it again",
                flush=True,
            )


def readers_of(machine: Machine, step: str) -> list[Reader]:
    """Return who reads the journal of a step on this machine; warn when W&B should and cannot."""
    mode = _mode(machine)
    if mode == Mirror.OFFLINE and machine.is_container:
        print(
            f"{step}: WARNING: this step is not logged to W&B: there is no {KEY}, and offline files would be lost with this disk",
            flush=True,
        )
        mode = Mirror.OFF
    return [Reader.MLFLOW] if mode == Mirror.OFF else [Reader.MLFLOW, Reader.WANDB]


def _mode(machine: Machine) -> Mirror:
    return Mirror.OFFLINE if machine.mirror == Mirror.ONLINE and not os.environ.get(KEY) else machine.mirror


def main(home: str, shared: str, journal: str = "") -> None:
    """Send a journal while it grows, then the pending journals of earlier steps: what the process does."""
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
    (home / _FOLDER).mkdir(exist_ok=True)
    with waiting_lock(home / _FOLDER / f"{given['id']}.lock"):  # The mirror process of a killed attempt may still send to this run.
        run = wandb.init(dir=home, resume="allow", settings=settings, **given)
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)
        logger = WandbLogger(run)
        for record in _records(journal, is_over):
            logger.log(record)
        logger.end_row()
        run.finish(exit_code=logger.exit_code)
        if run.offline:
            print(f"{_SAVED_OFFLINE}; upload it by: wandb sync {run.sync_dir}", flush=True)
        if run.offline and logger.exit_code == 0:
            # The last offline files contain those of earlier attempts, which `wandb sync` would upload too. In one second W&B numbers them.
            for folder in (home / _FOLDER).glob(f"offline-run-*-{given['id']}*"):
                if folder.name != Path(run.sync_dir).name:
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
