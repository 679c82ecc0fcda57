"""A fine-tuning that is killed and started again ends as if nothing had happened: bit for bit, wherever and however it was killed."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from forking import Forks
from killed_runs import EVERYTHING, Result, result_of

from grpo.learning.checkpoints import latest_valid_checkpoint

DRIVER = Path(__file__).with_name("kill_driver.py")
ALL_KEPT = {"num_checkpoints_kept": 12}


class Driver(Forks):
    """A process that has imported everything, and forks one that fine-tunes for each job."""

    def __init__(self) -> None:
        super().__init__([sys.executable, str(DRIVER), "serve"], env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"})
        self._last = 0

    def start(self, home: Path, **job: Any) -> int:
        """Start one, and return its process id."""
        home.mkdir(exist_ok=True)
        (home / "log").write_text("")
        self._last = self.fork(home=str(home), log=str(home / "log"), **job)
        return self._last

    def end(self, home: Path) -> tuple[int, str]:
        """Wait until it ends, and return its exit status and what it printed."""
        return self.wait(self._last), (home / "log").read_text()

    def run(self, home: Path, **job: Any) -> tuple[int, str]:
        """Run one to its end."""
        self.start(home, **job)
        return self.end(home)


def progress_of(home: Path) -> Path:
    return home / "in_progress" / "finetune" / "v1"


def steps_of(home: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (progress_of(home) / "checkpoints").iterdir())


def wait_for(home: Path, word: str) -> None:
    """Wait until the process has printed a word."""
    deadline = time.monotonic() + 300
    while word not in (home / "log").read_text():
        assert time.monotonic() < deadline, (home / "log").read_text()
        time.sleep(0.01)


def send(pid: int, number: int) -> None:
    os.kill(pid, number)


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def whole(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """Return a maker of uninterrupted runs, each configuration run once."""
    made: dict[str, Result] = {}

    def make(**config: Any) -> Result:
        key = json.dumps(config)
        if key not in made:
            home = tmp_path_factory.mktemp("whole") / "home"
            status, log = driver.run(home, config=config)
            assert status == 0, log
            made[key] = result_of(home)
        return made[key]

    return make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


# SIGKILL.


def rare(*values: Any) -> Any:
    """Return a case for `make prove`: another one leaves the same on the disk, or takes the same way."""
    return pytest.param(*values, marks=pytest.mark.prove)


KILLS = [
    rare("after the rollout", 13),
    rare("before the journal's line", 7),
    rare("within the journal's line", 8),
    ("after the journal's line", 6),
    ("between two files of a checkpoint", 3),
    rare("before the checkpoint's manifest", 3),
    ("before the checkpoint gets its name", 2),
    rare("after the checkpoint", 6),
    ("while a checkpoint is deleted", 1),
    ("before the report", 1),
    ("before the output's manifest", 1),
    ("when the output is in the store", 1),
]


@pytest.mark.parametrize(("failpoint", "nth"), KILLS)
def test_killed_at_a_failpoint_and_started_again_it_ends_as_if_nothing_had_happened(
    failpoint: str, nth: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    status, log = driver.run(home, failpoint=failpoint, nth=nth)
    assert status == -signal.SIGKILL, log
    status, log = driver.run(home)
    assert status == 0, log
    assert "WARNING" not in log
    assert result_of(home) == whole()


def test_killed_again_and_again_it_still_ends_as_if_nothing_had_happened(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    for failpoint, nth in (("before the checkpoint", 3), ("within the journal's line", 2), ("after the rollout", 7)):
        assert driver.run(home, failpoint=failpoint, nth=nth)[0] == -signal.SIGKILL
    assert driver.run(home)[0] == 0
    assert result_of(home) == whole()


def killed_at_random(driver: Driver, home: Path, seed: int, number: int, **job: Any) -> int:
    """Start one, end it by a signal after some time, and return its status."""
    pid = driver.start(home, **job)
    time.sleep(random.Random(seed).uniform(0.02, 0.4))
    with contextlib.suppress(ProcessLookupError):  # On a fast machine it has ended by itself: its status says so.
        send(pid, number)
    return driver.end(home)[0]


@pytest.mark.parametrize(
    ("seed", "number"), [(1, signal.SIGKILL), *(rare(*case) for case in product(range(3, 23), (signal.SIGKILL, signal.SIGTERM)))]
)
def test_killed_at_a_random_point_and_started_again_it_ends_as_if_nothing_had_happened(
    seed: int, number: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    assert killed_at_random(driver, home, seed, number) in (0, -number, 75)
    status, log = driver.run(home)
    assert status == 0, log
    assert result_of(home) == whole()


@pytest.mark.parametrize(("failpoint", "nth"), [("after the rollout", 13), rare("before the checkpoint", 3)])
def test_own_games_and_trajectories_are_gone_on_with_as_they_were(
    failpoint: str, nth: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    assert driver.run(home, config=EVERYTHING, failpoint=failpoint, nth=nth)[0] == -signal.SIGKILL
    assert driver.run(home, config=EVERYTHING)[0] == 0
    assert result_of(home) == whole(**EVERYTHING)
    assert whole(**EVERYTHING).history.count(b'"self_play/games"') == 3, "rounds begin within the steps between two checkpoints"


# SIGTERM.


@pytest.mark.parametrize(
    ("failpoint", "nth", "last"),
    [
        ("after the rollout", 1, None),
        ("after the rollout", 12, 5),
        rare("within the journal's line", 8, 6),
        ("between two files of a checkpoint", 3, 5),
    ],
)
def test_told_to_end_it_saves_the_last_finished_step_and_goes_on_from_there(
    failpoint: str, nth: int, last: int | None, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    pid = driver.start(home, failpoint=failpoint, nth=nth, deed="pause")
    wait_for(home, "paused")
    send(pid, signal.SIGTERM)
    status, log = driver.end(home)
    assert status == 75, log
    place = f"step {last}, which is saved in {progress_of(home)}" if last else "the beginning: there is no checkpoint yet"
    said = f"finetune: ended by SIGTERM; the same command again, without --fresh, resumes from {place}"
    assert log.splitlines()[-1] == said
    status, log = driver.run(home)
    assert status == 0, log
    assert ("nothing in" if last is None else f"resuming from step {last},") in log
    assert "WARNING" not in log
    assert result_of(home) == whole()


@pytest.mark.prove  # The other tests read the code of a fork, at a tenth of the time.
def test_the_exit_code_reaches_the_system(whole: Callable[..., Result], driver: Driver, home: Path) -> None:
    home.mkdir()
    job = {"home": str(home), "failpoint": "after the rollout", "nth": 9, "deed": "pause"}
    with (home / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, str(DRIVER), json.dumps(job)], stdout=log, stderr=subprocess.STDOUT)
    wait_for(home, "paused")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 75
    assert driver.run(home)[0] == 0
    assert result_of(home) == whole()


def test_told_by_a_spot_notice_it_ends_as_by_sigterm(driver: Driver, home: Path) -> None:
    notice = home.with_name("notice")
    driver.start(home, failpoint="after the rollout", nth=7, deed="pause", notice=str(notice))
    wait_for(home, "paused")
    notice.write_text("2026-05-01T12:00:00Z")
    status, log = driver.end(home)
    assert status == 75, log
    _, last = (line for line in log.splitlines() if "spot interruption" in line or "ended by SIGTERM" in line)
    assert "resumes from step 3, which is saved in" in last
    kept, problems = latest_valid_checkpoint(progress_of(home) / "interrupted")
    assert (kept, list(problems)) == (progress_of(home) / "interrupted" / "step-00000003", [])


def test_a_second_sigterm_leaves_at_once(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    pid = driver.start(home, failpoint="after the rollout", nth=8, deed="pause", pause_save=2)
    wait_for(home, "paused")
    send(pid, signal.SIGTERM)
    wait_for(home, "paused\npaused")  # It would save for a minute now.
    send(pid, signal.SIGTERM)
    status, log = driver.end(home)
    assert status == -signal.SIGTERM, log
    assert driver.run(home)[0] == 0
    assert result_of(home) == whole()


# Damage.


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def test_behind_a_damaged_checkpoint_the_one_before_it_is_taken_and_the_end_is_the_same(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    driver.run(home, failpoint="after the rollout", nth=20)
    newest = progress_of(home) / "checkpoints" / "step-00000008" / "weights.safetensors"
    flip(newest)
    status, log = driver.run(home)
    assert status == 0, log
    assert f"finetune: WARNING: {newest} is changed since it was written; it is deleted" in log
    assert "resuming from step 4," in log, "of the older ones the best is kept"
    assert result_of(home) == whole()


def test_behind_a_damaged_checkpoint_of_an_interruption_the_one_before_it_is_taken(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    pid = driver.start(home, failpoint="after the rollout", nth=12, deed="pause")
    wait_for(home, "paused")
    send(pid, signal.SIGTERM)
    driver.end(home)
    flip(progress_of(home) / "interrupted" / "step-00000005" / "optimiser.safetensors")
    assert "resuming from step 4," in driver.run(home)[1]
    assert result_of(home) == whole()


def test_where_all_checkpoints_are_damaged_it_starts_anew_and_says_so(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    driver.run(home, failpoint="after the rollout", nth=10)
    for folder in (progress_of(home) / "checkpoints").iterdir():
        flip(folder / "state.json")
    status, log = driver.run(home)
    assert status == 0, log
    assert log.count("WARNING") == 2
    assert f"finetune: nothing in {progress_of(home)} can be resumed from; starting again" in log
    assert result_of(home) == whole()


def test_a_checkpoint_whose_history_is_lost_is_not_gone_on_from(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    driver.run(home, config=ALL_KEPT, failpoint="after the rollout", nth=20)
    journal = progress_of(home) / "history.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:6], b"\0\0\0\n", *lines[7:]]))
    status, log = driver.run(home, config=ALL_KEPT)
    assert status == 0, log
    assert "is of a step that the journal does not have" in log
    assert "resuming from step 4," in log
    assert result_of(home) == whole(**ALL_KEPT)


# No room, errors, two writers, a fresh start.


def test_a_full_disk_costs_no_checkpoint_and_the_error_says_how_much_room_is_wanted(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    status, log = driver.run(home, limit=[3, 60_000])
    assert status == 1
    target = progress_of(home) / "checkpoints" / "step-00000006"
    assert f"StorageError: {target} could not be written (File too large): it needs " in log
    assert " bytes are free there; " in log
    assert f"The same command again, without --fresh, resumes from step 4, which is saved in {progress_of(home)}" in log
    assert steps_of(home) == [2, 4]
    assert sorted(path.name for path in progress_of(home).iterdir()) == ["checkpoints", "history.jsonl", "learnability.json"]
    assert list((home / "outputs" / "finetune").iterdir()) == []
    status, log = driver.run(home)
    assert status == 0, log
    assert result_of(home) == whole()


def test_a_second_writer_is_refused_and_told_who_is_the_first(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    pid = driver.start(home, failpoint="after the rollout", nth=10, deed="pause")
    wait_for(home, "paused")
    second = home.with_name("second")
    assert driver.wait(driver.fork(home=str(home), log=str(second))) == 1
    assert f"BusyError: the output of finetune, version v1, is being made by process {pid} on " in second.read_text()
    send(pid, signal.SIGKILL)
    driver.end(home)
    status, log = driver.run(home)
    assert status == 0, log
    assert "resuming from step 4," in log
    assert result_of(home) == whole()


def test_fresh_begins_anew(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    driver.run(home, failpoint="after the rollout", nth=10)
    status, log = driver.run(home, is_fresh=True)
    assert status == 0, log
    assert "going on" not in log
    assert "anew" not in log
    assert result_of(home) == whole()
