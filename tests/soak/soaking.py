"""What all parts of the soak share: the process that runs pipelines, what a finished one left behind, and the table of it all."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forking import MARK, Forks, marked
from presets import TEST

from grpo.base.files import verified_manifest
from steps.run.names import HISTORY
from steps.run.work import read_history
from steps.track.notes import tracked_name

DRIVER: Final = Path(__file__).with_name("soak_driver.py")
SEED: Final = int(os.environ.get("SOAK_SEED", "20261121"))
"""Of everything random; every assertion names it."""
STEPS: Final = ("join_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "select", "report")
NO_RETRY: Final = 202
RESUMABLE: Final = 75
_LEAK_SECONDS: Final = 5.0

SMALL: Final = f"""
preset = "{TEST}"
boards.num_train = 120
boards.num_validation = 30
boards.num_heldout = 15
pretrain.max_steps = 24
grpo.states_per_step = 32
grpo.steps_per_checkpoint = 1
grpo.self_play_states = 30
evaluation.max_plies = 24
evaluation.num_baseline_pairs = 1
evaluation.num_calibration_pairs = 1
selection.num_screening_pairs = 1
selection.num_confirmation_pairs = 2
selection.num_sampled_pairs = 1
"""
"""The preset `test`, made smaller: every step is there."""


def number_of(name: str, default: int) -> int:
    """Return how often a part does what it does; the environment can ask for less, or more."""
    return int(os.environ.get(name, default))


class Driver(Forks):
    """A process that has imported everything, and forks one that runs a whole pipeline for each job."""

    def __init__(self, folder: Path, *, tmpfs: Path | None = None, **variables: str) -> None:
        """Start it; with `tmpfs`, in a mount namespace of its own with an empty disk there."""
        folder.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CHESS_GRPO_", "MLFLOW_", "SOAK_"))}
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        self.environment = {
            **kept,
            MARK: self.mark,
            "TMPDIR": str(scratch),
            "CHESS_GRPO_DEVICE": "cpu",
            "CHESS_GRPO_THREADS": "1",
            "GX_ANALYTICS_ENABLED": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OMP_WAIT_POLICY": "PASSIVE",
            **variables,
        }
        command = [sys.executable, str(DRIVER)]
        if tmpfs is not None:
            tmpfs.mkdir(parents=True, exist_ok=True)
            mounted = f"mount -t tmpfs -o size=8g none '{tmpfs}' && exec \"$@\""
            command = ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c", mounted, "sh", *command]
        self._errors = (folder / "driver.log").open("w")
        super().__init__(command, stderr=self._errors, env=self.environment, cwd=folder)
        self.root = Path("/") if tmpfs is None else Path(f"/proc/{self.pid}/root")
        """Where its file system is seen from here."""

    def start(self, place: "Place", *, settings: str = SMALL, run: str = "run-1", **job: Any) -> int:
        """Start a run, or go on with it, and return the process id."""
        job["environment"] = {"CHESS_GRPO_HOME": str(place.home), **job.get("environment", {})}
        place.folder.mkdir(parents=True, exist_ok=True)
        with place.log.open("a") as log:
            log.write(f"--- {json.dumps({'run': run, **job})}\n")
        return self.fork(artifacts=str(place.artifacts), log=str(place.log), settings=settings, run=run, **job)

    def run(self, place: "Place", **job: Any) -> int:
        """Run to the end."""
        return self.wait(self.start(place, **job))

    def resize(self, place: Path, free: int | None) -> int:
        """Leave so many bytes free on the disk, or plenty; return what is free."""
        return self.ask("resize", place=str(place), free=free)

    def others(self) -> dict[int, str]:
        """Return all living processes that descend from this one: id -> command line."""
        return {pid: command for pid, command in marked(self.mark).items() if pid != self.pid}

    def leaked(self) -> list[str]:
        """Return the command lines of processes that nobody has ended, after a moment in which they may."""
        return still_there(self.others)

    def close(self) -> None:
        """End it and all that it has left."""
        super().close()
        self._errors.close()
        for pid in self.others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def still_there(living: Callable[[], dict[int, str]]) -> list[str]:
    """Return the command lines of processes that have not ended within five seconds."""
    deadline = time.monotonic() + _LEAK_SECONDS
    while (left := living()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"{pid}: {command}" for pid, command in left.items()]


@dataclass(frozen=True)
class Place:
    """Where one pipeline has its home, its artifacts and its log."""

    folder: Path
    elsewhere: Path | None = None
    """The home, where it is on another disk."""

    @property
    def home(self) -> Path:
        return self.elsewhere or self.folder / "home"

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def said(self) -> str:
        """Return the end of what its processes have said."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def artifact(self, run: str, name: str) -> Any:
        """Return what a step of a run gave back."""
        return json.loads((self.artifacts / run / f"{name}.json").read_text())

    def hashes(self, run: str = "run-1") -> dict[str, str]:
        """Return step -> version and hash of its output."""
        found = {step: self.artifact(run, step) for step in STEPS}
        return {step: f"{output['version']} {output['output_hash']}" for step, output in found.items()}

    def seconds_and_counts(self) -> tuple[float, dict[str, int]]:
        """Return how long the undisturbed run took, and how often it came by each failpoint."""
        last = json.loads(self.log.read_text().splitlines()[-1].removeprefix("soak: "))
        return last["seconds"], last["seen"]


def lost_of(place: Place, expected: Mapping[str, str], run: str, *, tracking: Path | None = None) -> list[str]:
    """Return what is missing or other than it should be: in the artifacts, in the store, and among the tracking store's files."""
    if (found := place.hashes(run)) != expected:
        return [f"{step}: {found[step]} instead of {wanted}" for step, wanted in expected.items() if found[step] != wanted]
    return missing_of(place.home, expected, tracked=tracking or place.home)


def missing_of(home: Path, expected: Mapping[str, str], *, tracked: Path) -> list[str]:
    """Return what of these outputs is not in the store as its manifest says, and what rows of the journals MLflow lacks or has twice."""
    lost = []
    for step, wanted in expected.items():
        version, output_hash = wanted.split()
        folder = home / "outputs" / step / version
        if verified_manifest(folder)["output_hash"] != output_hash:
            lost.append(f"{step}: the store has another output")
        lost += _rows_apart(tracked, step, version, folder)
    with contextlib.closing(sqlite3.connect(f"file:{tracked / 'mlflow.db'}?mode=ro", uri=True)) as opened:
        if (checked := opened.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            lost.append(f"mlflow.db: {checked}")
    return lost


def _rows_apart(tracked: Path, step: str, version: str, folder: Path) -> list[str]:
    """Return which rows of a step's history MLflow has not exactly once: of a run that finished each, of one that was killed none twice."""
    if not (folder / HISTORY).exists():
        return []
    wanted = Counter((tracked_name(name), record.step) for record in read_history(folder) for name in record.metrics)
    query = """SELECT tags.run_uuid, runs.status FROM tags JOIN tags AS others USING (run_uuid) JOIN runs USING (run_uuid)
        WHERE tags.key = 'chess_grpo.step' AND tags.value = ? AND others.key = 'chess_grpo.version' AND others.value = ?"""
    with contextlib.closing(sqlite3.connect(f"file:{tracked / 'mlflow.db'}?mode=ro", uri=True)) as opened:
        states = dict(opened.execute(query, (step, version)).fetchall())
        rows = {run: Counter(opened.execute("SELECT key, step FROM metrics WHERE run_uuid = ?", (run,)).fetchall()) for run in states}
    lost = [] if "FINISHED" in states.values() else [f"{step}: MLflow has no finished run of it"]
    for run, found in rows.items():
        apart = [row for row, count in (wanted if states[run] == "FINISHED" else found).items() if found[row] != 1 or count != wanted[row]]
        lost += [f"{step} in {run}: {len(apart)} of {len(wanted)} rows are not there once, such as {apart[0]}"] if apart else []
    return lost


def leftovers_of(place: Place) -> list[str]:
    """Return temporary files and folders, and progress nobody needs any more."""
    home = place.home
    progress = [path for path in (home / "progress").glob("*/*") if path.is_dir()]
    return sorted(str(path.relative_to(home)) for path in {*home.glob("outputs/**/.*"), *progress})


def states_of_runs(home: Path) -> Counter[str]:
    """Return how many runs the tracking store has in each state, of steps and flows."""
    with contextlib.closing(sqlite3.connect(f"file:{home / 'mlflow.db'}?mode=ro", uri=True)) as tracking:
        return Counter(status for (status,) in tracking.execute("SELECT status FROM runs"))


@dataclass
class Row:
    """A line of the table: what one part did to the pipeline, and what came of it."""

    part: str
    runs: int = 0
    """Whole pipelines that were brought to their end."""
    injected: int = 0
    recovered: int = 0
    """Faults after which the work went on, by itself or by the same command again."""
    lost: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    is_equal: bool = False
    """Whether every output has the hash that it has without faults."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


ROWS: list[Row] = []


@contextlib.contextmanager
def part(name: str) -> Any:
    """Give the row of a part; it is in the table however the part ends."""
    row, started = Row(name), time.monotonic()
    ROWS.append(row)
    try:
        yield row
    finally:
        row.seconds = time.monotonic() - started


def table() -> str:
    """Return all rows as Markdown."""
    lines = [
        "| part | whole runs | faults injected | recovered | lost | processes leaked | hashes equal | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row.part} | {row.runs} | {row.injected} | {row.recovered} | {len(row.lost)} | {len(row.leaked)} |"
        f" {'yes' if row.is_equal else '**no**'} | {row.seconds:.0f} |"
        for row in ROWS
    ]
    notes = [f"- {row.part}: {note}" for row in ROWS for note in row.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def fresh_place(folder: Path, template: Path | None, *, root: Path = Path("/"), elsewhere: Path | None = None) -> Place:
    """Return a place of its own; with a template its tracking store has its tables already, which takes seven seconds to make."""
    place = Place(folder, elsewhere)
    if template is not None:
        home = root / place.home.relative_to("/")
        home.mkdir(parents=True)
        shutil.copy(template, home / "mlflow.db")
    return place
