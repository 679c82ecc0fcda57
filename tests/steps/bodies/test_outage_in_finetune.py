"""The tracking server is killed in the middle of the real step `finetune`: the step finishes, and nothing is missing and nothing twice.

The step trains a real policy on boards that Stockfish has valued; the server is MLflow's, a process of its own, and ends by SIGKILL.
"""

import shutil
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from toggled_server import ServerProcess, ToggledServer, picture

from grpo.base.files import sha256_file
from grpo.metrics.table import Record, tracked_name
from grpo.settings.tree import read_settings
from steps.cli.track import deliver_journals
from steps.pipeline import dataset, start, training
from steps.pipeline.job import Job
from steps.step_io.work import read_history
from steps.store.outputs import StepOutput
from steps.tracking import tracker as tracking
from steps.tracking.journal import JournalFolder, Reader
from steps.tracking.outages import RetryPolicy
from steps.tracking.step_notes import run_name

pytestmark = pytest.mark.prove  # `steps/tracking/test_outages.py` has every outage of a server that is a thread.
BRISK = RetryPolicy(between_deliveries=0.05, after_outage=0.05, longest=0.05, between_tries=(), between_asks=(0.0,) * 3, at_end=600.0)
"""Gives up at the first outage, and soon tries again."""
CODE = {"commit": "abc", "is_dirty": False, "lock": "l"}
SETTINGS = read_settings("""
preset = "test"
boards.num_train = 48
boards.num_validation = 12
boards.num_heldout = 12
pretrain.max_steps = 8
grpo.num_steps = 14
grpo.states_per_step = 16
grpo.steps_per_checkpoint = 5
grpo.self_play.fraction = 0.0
""").model_dump(mode="json")
MIDDLE = 4
"""From this step on the server is killed, as soon as it was told anything of the step."""


@dataclass(frozen=True)
class Prepared:
    """What `finetune` needs, made once."""

    home: Path
    boards: StepOutput
    pretrained: StepOutput


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path], stockfish: str) -> Prepared:
    home = give_tables(tmp_path_factory.mktemp("prepared"))
    with pytest.MonkeyPatch.context() as patch:
        place(patch, home, f"sqlite:///{home / 'mlflow.db'}", stockfish)
        job = started("0")
        boards = dataset.join_boards(job, [dataset.build_boards(job, task) for task in range(SETTINGS["boards"]["num_tasks"])])
        return Prepared(home, boards, training.pretrain(job, boards))


def place(patch: pytest.MonkeyPatch, home: Path, address: str, stockfish: str) -> None:
    """Make this machine one with this home and this tracking server."""
    for name, value in {
        "CHESS_GRPO_HOME": str(home),
        "CHESS_GRPO_STOCKFISH": stockfish,
        "CHESS_GRPO_THREADS": "1",
        "CHESS_GRPO_DEVICE": "cpu",
        "MLFLOW_TRACKING_URI": address,
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",  # A machine can be busy.
    }.items():
        patch.setenv(name, value)
    patch.setattr(tracking, "RetryPolicy", lambda: BRISK)


def started(name: str) -> Job:
    """Begin a run of a learning rate of its own, so that its output is no other's."""
    settings = SETTINGS | {"grpo": SETTINGS["grpo"] | {"learning_rate": 1e-3 / (1 + int(name))}}
    return start.start(settings, CODE, metaflow_run=name, is_fresh=False, resume_from=None)


@pytest.fixture
def home(prepared: Prepared, tmp_path: Path) -> Path:
    shutil.copytree(prepared.home / "outputs", tmp_path / "home" / "outputs")
    return tmp_path / "home"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Iterator[ServerProcess]:
    with ServerProcess(give_tables(tmp_path_factory.mktemp("server"))) as process:
        yield process


class Listener:
    """Hears all that the tracker hears, just before it; kills the server in the middle, and may start it again two steps later."""

    def __init__(self, server: ServerProcess, job: Job, *, comes_back: bool) -> None:
        self.rows: Counter[str] = Counter()
        self.killed_at: int | None = None
        self.back_at: int | None = None
        self._server = server
        self._job = job
        self._comes_back = comes_back

    def log(self, record: Record) -> None:
        self.rows.update(rows(record))
        if self.killed_at is None and record.step >= MIDDLE:
            while not told(self._server.folder, self._job)["metrics"]:
                time.sleep(0.02)
            self._server.kill()
            self.killed_at = record.step
        elif self._comes_back and self.back_at is None and self.killed_at is not None and record.step >= self.killed_at + 2:
            self._server.start()
            self.back_at = record.step

    def progress(self, done: int, total: int, unit: str) -> None:
        """Take no note."""


def rows(record: Record) -> list[str]:
    return [f"{tracked_name(name)} {record.step} {float(value)}" for name, value in record.metrics.items()]


def told(folder: Path, job: Job) -> dict[str, Any]:
    """Return what a server keeps of the step `finetune` of a flow run: one run, of which each row is there once."""
    runs = picture(folder)["runs"]
    found = [run for run in runs if run["name"] == run_name("finetune") and run["tags"]["metaflow.run"] == job["metaflow_run"]]
    assert len(found) <= 1
    [run] = found or [{"metrics": {}}]
    return {**run, "metrics": Counter(f"{name} {point}" for name, points in run["metrics"].items() for point in points)}


def check_all_is_told_once(folder: Path, job: Job, output: StepOutput, home: Path, listener: Listener) -> None:
    found, made = told(folder, job), home / "outputs" / "finetune" / output["version"]
    history = Counter(row for record in read_history(made) for row in rows(record))
    assert found["status"] == "FINISHED"
    assert found["metrics"] == listener.rows, "each row that the step had to say, once"
    assert history <= found["metrics"]
    assert {row.removeprefix("zz_detail/").partition("/")[0] for row in found["metrics"] - history} <= {"time", "system", "cache"}, (
        "what differs between equal runs"
    )
    tags = found["tags"]
    assert (tags["chess_grpo.version"], tags["chess_grpo.output_hash"]) == (output["version"], output["output_hash"])
    assert (tags["chess_grpo.holds_output"], tags["chess_grpo.reused"]) == ("True", "False")
    for path in made.rglob("*"):
        assert path.is_dir() or found["artifacts"].get(path.relative_to(made).as_posix()) == sha256_file(path)
    assert not list((home / "outbox" / job["mlflow_run"]).glob("*")), "nothing is kept of what was told"


def test_a_server_that_is_back_before_the_step_ends_has_all_of_it_when_it_ends(
    server: ServerProcess, prepared: Prepared, home: Path, stockfish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(monkeypatch, home, server.address, stockfish)
    job = started("1")
    listener = Listener(server, job, comes_back=True)
    output = training.finetune(job, prepared.boards, prepared.pretrained, [listener])
    assert listener.back_at is not None
    assert listener.back_at < SETTINGS["grpo"]["num_steps"]
    check_all_is_told_once(server.folder, job, output, home, listener)


def test_a_server_that_is_back_after_the_step_is_told_by_the_command_track_or_by_the_next_run(
    server: ServerProcess,
    prepared: Prepared,
    home: Path,
    stockfish: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place(monkeypatch, home, server.address, stockfish)
    job = started("2")
    listener = Listener(server, job, comes_back=False)
    output = training.finetune(job, prepared.boards, prepared.pretrained, [listener])
    assert f"finetune: WARNING: the tracking store {server.address} is away (" in capsys.readouterr().out
    found = told(server.folder, job)
    assert (found["status"], len(JournalFolder(home).left(Reader.MLFLOW, job["mlflow_run"]))) == ("RUNNING", 1)
    assert found["metrics"] < listener.rows
    # What is on the two disks now, twice: each copy is told in another way.
    other = {name: shutil.copytree(folder, tmp_path / f"other-{name}") for name, folder in (("home", home), ("server", server.folder))}
    server.start()
    assert deliver_journals(Namespace(only_lists=False)) == 0
    check_all_is_told_once(server.folder, job, output, home, listener)
    server.kill()
    place(monkeypatch, other["home"], server.address, stockfish)
    with ToggledServer(other["server"], server.port):
        started("3")
        check_all_is_told_once(other["server"], job, output, other["home"], listener)
