"""Shared by all parts of the soak: the process that runs pipelines, a finished pipeline's leftovers, the table of faults."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forking import MARK, Forks, marked
from presets import TEST
from real_flow import outputs_in

from grpo.base.files import verified_manifest
from steps.names import HISTORY
from steps.run.work import read_history
from steps.track.client import RUN
from steps.track.notes import tracked_name

SEED: Final = int(os.environ.get("SOAK_SEED", "20261121"))
"""Seed of everything random; every assertion names it."""
_LEAK_SECONDS: Final = 5.0
_SMALL: Final = f"""
preset = "{TEST}"
boards.num_train = 60
boards.num_validation = 15
boards.num_heldout = 9
boards.num_units = 1
pretrain.num_steps = 16
grpo.num_steps = 4
grpo.steps_per_checkpoint = 1
grpo.states_per_step = 16
grpo.group_size = 4
grpo.self_play_states = 11
grpo.self_play_steps = 4
evaluation.max_plies = 8
evaluation.num_baseline_pairs = 1
evaluation.num_calibration_pairs = 1
evaluation.ladder_fractions = [1.0]
selection.num_candidates = 1
selection.num_confirmation_pairs = 2
"""
"""The preset `test`, made smaller: every step is there."""
_SHORT_GAMES: Final = {"grpo.train.self_play.MAX_PLIES": 30}


def number_of(name: str, default: int) -> int:
    """Return how often a part does what it does; the environment can ask for less, or more."""
    return int(os.environ.get(name, default))


@dataclass(frozen=True)
class Place:
    folder: Path
    elsewhere: Path | None = None
    """The home, where it is on another disk."""

    @property
    def home(self) -> Path:
        return self.elsewhere or self.folder / "home"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def outputs(self, run: str = "run-1") -> dict[str, Any]:
        return outputs_in(json.loads((self.folder / "artifacts" / run / "end.json").read_text()))

    def hashes(self, run: str = "run-1") -> dict[str, str]:
        """Return step -> version and hash of its output."""
        return {step: f"{output['version']} {output['output_hash']}" for step, output in self.outputs(run).items()}


@dataclass(frozen=True)
class Undisturbed:
    """Results and duration of a run without any fault."""

    hashes: dict[str, str]
    seconds: float


_OWN_MOUNTS: Final = ("unshare", "--user", "--map-root-user", "--mount", "--")


def may_mount() -> bool:
    """Return whether a process can have a mount namespace of its own here."""
    tried = [*_OWN_MOUNTS, "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and not subprocess.run(tried, capture_output=True, check=False).returncode


class Pipelines(Forks):
    """Runs whole pipelines, where Linux allows it in a mount namespace of its own with an empty disk."""

    def __init__(self, folder: Path, **variables: str) -> None:
        (scratch := folder / "scratch").mkdir(parents=True)
        self.mark, self._num_started = uuid.uuid4().hex, 0
        self.disk = folder / "disk" if may_mount() else None
        """A small disk that only these processes have mounted; None where Linux does not allow that."""
        ours = {MARK: self.mark, "TMPDIR": str(scratch), "CHESS_GRPO_DEVICE": "cpu", "CHESS_GRPO_THREADS": "1"}
        others = {"GX_ANALYTICS_ENABLED": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_WAIT_POLICY": "PASSIVE"}
        within: tuple[str, ...] = ()
        if self.disk is not None:
            self.disk.mkdir()
            within = (*_OWN_MOUNTS, "sh", "-c", f"mount -t tmpfs -o size=8g none '{self.disk}' && exec \"$@\"", "sh")
        with (folder / "errors.log").open("w") as errors:
            super().__init__("flow", within=within, variables={**ours, **others, **variables}, stderr=errors, cwd=folder)

    def seen(self, path: Path) -> Path:
        """Return where its processes' file is from here."""
        return path if self.disk is None else Path(f"/proc/{self.pid}/root") / path.relative_to("/")

    def taken_home(self, place: Place) -> Place:
        """Move a home from the small disk to where sqlite can open it: sqlite takes /proc/PID/root for a link to /."""
        if place.elsewhere is None:
            return place
        left = Place(place.folder, place.folder / "home-that-was")
        shutil.move(self.seen(place.home), left.home)
        return left

    def start(
        self,
        place: Place,
        *,
        run: str = "run-1",
        environment: Mapping[str, str] | None = None,
        constants: Mapping[str, float] | None = None,
        clock_jumps: bool = False,
        **job: Any,
    ) -> int:
        """Start a run, or go on with it, and return the process id; its clock may be hours off and jump, each time in another way."""
        self._num_started += 1
        job |= {"constants": _SHORT_GAMES | dict(constants or {})}
        job |= {"clock": f"{SEED} {self._num_started}"} if clock_jumps else {}
        variables = {"CHESS_GRPO_HOME": str(place.home), **(environment or {})}
        place.folder.mkdir(parents=True, exist_ok=True)
        with place.log.open("a") as log:
            log.write(f"--- {json.dumps({'run': run, **job})}\n")
        return self.fork(cwd=str(place.folder), log=str(place.log), settings=_SMALL, run=run, environment=variables, **job)

    def run(self, place: Place, **job: Any) -> int:
        return self.wait(self.start(place, **job))

    def resize(self, place: Path, free: int | None) -> None:
        self.ask("resize", place=str(place), free=free)

    def leaked(self) -> list[str]:
        """Return the command lines of processes that still run after `_LEAK_SECONDS`."""
        deadline = time.monotonic() + _LEAK_SECONDS
        while (left := self._others()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"{pid}: {command}" for pid, command in left.items()]

    def close(self) -> None:
        """End it and all that it has left."""
        super().close()
        for pid in self._others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _others(self) -> dict[int, str]:
        return {pid: command for pid, command in marked(self.mark).items() if pid != self.pid}


def lost_of(place: Place, expected: Mapping[str, str], run: str = "run-1", *, tracking: Path | None = None) -> list[str]:
    """Return what is missing or other than it should be: in the artifacts, in the store, and in the tracking store."""
    found = place.hashes(run)
    lost = [f"{step}: {found.get(step)} instead of {wanted}" for step, wanted in expected.items() if found.get(step) != wanted]
    return lost or _missing_of(place.home, expected, run, tracking or place.home)


def _missing_of(home: Path, expected: Mapping[str, str], run: str, tracked: Path) -> list[str]:
    """Return what of these outputs is not in the store as its manifest says, what MLflow lacks or has twice of the journals' rows, and how
    MLflow has the run if not as finished.
    """
    lost = []
    query = "SELECT status FROM runs JOIN tags USING (run_uuid) WHERE tags.key = ? AND tags.value LIKE ?"
    with contextlib.closing(sqlite3.connect(f"file:{tracked / 'mlflow.db'}?mode=ro", uri=True)) as tracking:
        statuses = [status for (status,) in tracking.execute(query, (RUN, f"{run}@%"))]
        lost += [] if statuses == ["FINISHED"] else [f"MLflow has {run} as {statuses}"]
        for step, wanted in expected.items():
            version, output_hash = wanted.split()
            folder = home / "outputs" / step / version
            if verified_manifest(folder)["output_hash"] != output_hash:
                lost.append(f"{step}: the store has another output")
            if (folder / HISTORY).exists():
                lost += _rows_apart(tracking, step, version, folder)
        lost += [f"mlflow.db: {checked}" for (checked,) in tracking.execute("PRAGMA integrity_check") if checked != "ok"]
    return lost


def _rows_apart(tracking: sqlite3.Connection, step: str, version: str, folder: Path) -> list[str]:
    """Return which rows of a step's history MLflow has not exactly once: of a run that finished each, of one that was killed none twice."""
    wanted = Counter((tracked_name(name), record.step) for record in read_history(folder) for name in record.metrics)
    query = """SELECT tags.run_uuid, runs.status FROM tags JOIN tags AS others USING (run_uuid) JOIN runs USING (run_uuid)
        WHERE tags.key = 'chess_grpo.step' AND tags.value = ? AND others.key = 'chess_grpo.version' AND others.value = ?"""
    states = dict(tracking.execute(query, (step, version)).fetchall())
    lost = [] if "FINISHED" in states.values() else [f"{step}: MLflow has no finished run of it"]
    for run, status in states.items():
        found = Counter(tracking.execute("SELECT key, step FROM metrics WHERE run_uuid = ?", (run,)).fetchall())
        due = wanted if status == "FINISHED" else Counter({row: count for row, count in found.items() if not row[0].startswith("time/")})
        apart = [row for row, count in due.items() if found[row] != 1 or count != wanted[row]]
        lost += [f"{step} in {run}: {len(apart)} of {len(wanted)} rows are not there once, such as {apart[0]}"] if apart else []
    return lost


def other_outputs(place: Place, undisturbed: Undisturbed) -> list[str]:
    """Return the steps whose output is not that of any run; the report names the version of `select`, which may have met no registry."""
    found = place.outputs()
    expected = {step: wanted.split()[1] for step, wanted in undisturbed.hashes.items() if step != "report"}
    return [f"{step}: another output" for step, wanted in expected.items() if found[step]["output_hash"] != wanted]


def leftovers_of(place: Place) -> list[str]:
    """Return temporary files and folders, and progress that no step needs any more."""
    progress = (path for path in (place.home / "progress").glob("*/*") if path.is_dir())
    return sorted(str(path) for path in {*place.home.glob("outputs/**/.*"), *progress})


@dataclass
class Row:
    """A line of the table: what one part did to the pipeline, and what came of it."""

    part: str
    runs: int = 0
    """Whole pipelines that were brought to their end."""
    injected: int = 0
    """Faults after which the work went on, by itself or by the same command again."""
    lost: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    seconds: float = 0.0
    note: str = ""


ROWS: Final[list[Row]] = []


@contextlib.contextmanager
def part(name: str) -> Iterator[Row]:
    """Give the row of a part, which is in the table however the part ends; it fails if anything was lost or leaked."""
    row, started = Row(name), time.monotonic()
    ROWS.append(row)
    try:
        yield row
    finally:
        row.seconds = time.monotonic() - started
    assert not row.lost, f"seed {SEED}: {row.lost}"
    assert not row.leaked, f"seed {SEED}: {row.leaked}"


def table() -> str:
    head = "| part | whole runs | faults injected | lost | processes leaked | seconds | |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    cells = ([row.part, row.runs, row.injected, len(row.lost), len(row.leaked), round(row.seconds), row.note] for row in ROWS)
    return head + "".join(f"| {' | '.join(map(str, row))} |\n" for row in cells)
