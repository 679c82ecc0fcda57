"""A fine-tuning that is killed and started again ends as if nothing had happened: bit for bit, and each line of its journal once.

Promises 1, 2 and 8 of the step that trains, for both kinds of policies: the real bodies, in processes that die where a test says.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from forking import Forks
from tiny_training import VERSION, prepare, progress_of

from grpo.base.files import verified_manifest
from grpo.policy.files import LANGUAGE, NETWORK
from steps.run.names import HISTORY
from steps.run.work import JOURNAL, read_journal

DRIVER = Path(__file__).with_name("kill_driver.py")
EVERYTHING: dict[str, Any] = {
    "self_play": {"fraction": 0.5, "states_per_round": 12, "steps_per_round": 5, "max_plies": 20},
    "num_own_moves": 2,
    "num_inner_epochs": 2,
    "kl_coefficient": 0.01,
    "weight_averaging": 0.9,
}
"""Own games, trajectories and averaged weights: all of it must be in a checkpoint."""


@dataclass(frozen=True)
class Result:
    """What a fine-tuning left in its home."""

    output_hash: str
    history: str
    lines: list[tuple[int, str]]
    """Step and first metric of each line of the journal."""


def result_of(home: Path) -> Result:
    """Return the output, after checking that it is alone and that nothing is in progress any more."""
    assert not progress_of(home).exists()
    [folder] = (home / "outputs" / "finetune").glob("[!.]*")
    lines = [(row["record"]["step"], min(row["record"])) for row in read_journal(folder)]
    return Result(verified_manifest(folder)["output_hash"], (folder / HISTORY).read_text(), lines)


class Driver(Forks):
    """A process that has imported everything, and forks one that fine-tunes for each job."""

    def __init__(self, prepared: Path) -> None:
        super().__init__([sys.executable, str(DRIVER)], env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"})
        self._prepared = prepared
        self._last = 0

    def start(self, home: Path, kind: str = NETWORK, **job: Any) -> int:
        """Start one, and return its process id."""
        home.mkdir(exist_ok=True)
        (home / "log").write_text("")
        self._last = self.fork(home=str(home), log=str(home / "log"), prepared=str(self._prepared), kind=kind, **job)
        return self._last

    def end(self, home: Path) -> tuple[int, str]:
        """Wait until it ends, and return its exit status and what it printed."""
        return self.wait(self._last), (home / "log").read_text()

    def run(self, home: Path, kind: str = NETWORK, **job: Any) -> tuple[int, str]:
        """Run one to its end."""
        self.start(home, kind, **job)
        return self.end(home)

    def kill_at(self, home: Path, failpoint: str, nth: int, kind: str = NETWORK, **job: Any) -> bytes:
        """Run one that is killed at a failpoint, and return the whole lines of the journal that it leaves."""
        status, log = self.run(home, kind, failpoint=failpoint, nth=nth, **job)
        assert status == -signal.SIGKILL, log
        return journal_of(home)

    def told_at(self, home: Path, failpoint: str, nth: int, kind: str = NETWORK, **job: Any) -> tuple[int, str]:
        """Run one that gets a SIGTERM at a failpoint, and return its exit status and what it printed."""
        pid = self.start(home, kind, failpoint=failpoint, nth=nth, deed="pause", **job)
        wait_for(home, "paused")
        os.kill(pid, signal.SIGTERM)
        return self.end(home)


def journal_of(home: Path) -> bytes:
    """Return the whole lines of the journal of a step at work or done."""
    done = home / "outputs" / "finetune" / VERSION / JOURNAL
    path = done if done.exists() else progress_of(home) / HISTORY
    return b"".join(line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")) if path.exists() else b""


def steps_of(home: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (progress_of(home) / "checkpoints").glob("step-*"))


def wait_for(home: Path, word: str) -> None:
    """Wait until the process has printed a word."""
    deadline = time.monotonic() + 300
    while word not in (home / "log").read_text():
        assert time.monotonic() < deadline, (home / "log").read_text()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    prepared = tmp_path_factory.mktemp("prepared") / "inputs"
    prepare(prepared)
    driver = Driver(prepared)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def whole(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """Return a maker of uninterrupted runs, each configuration run once."""
    made: dict[str, Result] = {}

    def make(kind: str = NETWORK, **grpo: Any) -> Result:
        key = json.dumps([kind, grpo])
        if key not in made:
            home = tmp_path_factory.mktemp("whole") / "home"
            status, log = driver.run(home, kind, grpo=grpo)
            assert status == 0, log
            made[key] = result_of(home)
            assert len(set(made[key].lines)) == len(made[key].lines)
        return made[key]

    return make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def goes_on(driver: Driver, home: Path, whole: Result, before: bytes, kind: str = NETWORK, **job: Any) -> str:
    """Run the same again to its end, check that it ends as an undisturbed one and changed no line, and return what it printed."""
    status, log = driver.run(home, kind, **job)
    assert status == 0, log
    assert result_of(home) == whole
    assert journal_of(home).startswith(before), "what a tracker has seen stays"
    return log


# SIGKILL.


def rare(*values: Any) -> Any:
    """Return a case for `make prove`: another one leaves the same on the disk, or takes the same way."""
    return pytest.param(*values, marks=pytest.mark.prove)


KILLS = [
    rare(NETWORK, "after the rollout", 13),
    rare(NETWORK, "before the journal's line", 9),
    (NETWORK, "within the journal's line", 12),
    (NETWORK, "after the journal's line", 8),
    (NETWORK, "after the journal's line", 9),
    (NETWORK, "between two files of a checkpoint", 3),
    rare(NETWORK, "before the checkpoint's manifest", 3),
    (NETWORK, "before the checkpoint gets its name", 2),
    rare(NETWORK, "after the checkpoint", 5),
    (NETWORK, "while a checkpoint is deleted", 1),
    (NETWORK, "before the report", 1),
    (NETWORK, "before the output's manifest", 1),
    (NETWORK, "when the output is in the store", 1),
    (LANGUAGE, "within the journal's line", 7),
    rare(LANGUAGE, "after the checkpoint", 1),
    rare(LANGUAGE, "before the checkpoint gets its name", 2),
]


@pytest.mark.parametrize(("kind", "failpoint", "nth"), KILLS)
def test_killed_at_a_failpoint_and_started_again_it_ends_as_if_nothing_had_happened(
    kind: str, failpoint: str, nth: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    before = driver.kill_at(home, failpoint, nth, kind)
    assert "WARNING" not in goes_on(driver, home, whole(kind), before, kind)


def test_killed_again_and_again_it_still_ends_as_if_nothing_had_happened(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    for failpoint, nth in (("before the checkpoint", 3), ("within the journal's line", 2), ("after the rollout", 7)):
        before = driver.kill_at(home, failpoint, nth)
    goes_on(driver, home, whole(), before)


@pytest.mark.parametrize(
    ("seed", "number"), [(1, signal.SIGKILL), *(rare(*case) for case in product(range(3, 23), (signal.SIGKILL, signal.SIGTERM)))]
)
def test_killed_at_a_random_point_and_started_again_it_ends_as_if_nothing_had_happened(
    seed: int, number: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    pid = driver.start(home)
    time.sleep(random.Random(seed).uniform(0.02, 0.8))
    with contextlib.suppress(ProcessLookupError):  # On a fast machine it has ended by itself: its status says so.
        os.kill(pid, number)
    assert driver.end(home)[0] in (0, -number, 75)
    goes_on(driver, home, whole(), journal_of(home))


@pytest.mark.parametrize(("failpoint", "nth"), [("after the rollout", 13), rare("before the checkpoint", 3)])
def test_own_games_trajectories_and_averages_are_gone_on_with_as_they_were(
    failpoint: str, nth: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    before = driver.kill_at(home, failpoint, nth, grpo=EVERYTHING)
    goes_on(driver, home, whole(**EVERYTHING), before, grpo=EVERYTHING)
    assert whole(**EVERYTHING).history.count('"self_play/games"') == 3, "rounds begin within the steps between two checkpoints"


# SIGTERM.


@pytest.mark.parametrize(
    ("kind", "failpoint", "nth", "last"),
    [
        (NETWORK, "after the rollout", 11, 6),  # Of the sixth step, whose checkpoint is due anyway.
        (NETWORK, "before the journal's line", 10, 5),
        (NETWORK, "before a measurement", 3, 4),
        rare(NETWORK, "between two files of a checkpoint", 3, 6),
        rare(NETWORK, "before the report", 1, 12),
        (LANGUAGE, "before the journal's line", 6, 3),
    ],
)
def test_told_to_end_it_saves_the_step_that_it_is_at_and_goes_on_from_there(
    kind: str, failpoint: str, nth: int, last: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    status, log = driver.told_at(home, failpoint, nth, kind)
    assert status == 75, log
    place = f"step {last}, which is saved in {progress_of(home)}"
    assert log.splitlines()[-1] == f"ended by SIGTERM; the same command again, without --fresh, resumes from {place}"
    log = goes_on(driver, home, whole(kind), journal_of(home), kind)
    assert f"resuming from step {last}," in log
    assert "WARNING" not in log


@pytest.mark.parametrize("failpoint", ["before the look at the first rollout", "before a measurement", "when training is over"])
def test_before_the_first_step_and_after_the_last_it_ends_at_once(
    failpoint: str, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    assert driver.told_at(home, failpoint, 1)[0] == -signal.SIGTERM
    goes_on(driver, home, whole(), journal_of(home))


def test_told_twice_it_ends_at_once(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    pid = driver.start(home, failpoint="before the checkpoint", nth=2, deed="pause twice")
    wait_for(home, "paused")
    os.kill(pid, signal.SIGTERM)
    wait_for(home, "paused\npaused")  # It would save for a minute now.
    os.kill(pid, signal.SIGTERM)
    assert driver.end(home)[0] == -signal.SIGTERM
    goes_on(driver, home, whole(), journal_of(home))


def test_told_by_a_spot_notice_it_ends_as_by_sigterm(driver: Driver, home: Path) -> None:
    notice = home.with_name("notice")
    driver.start(home, failpoint="after the rollout", nth=5, deed="pause", notice=str(notice))
    wait_for(home, "paused")
    notice.write_text("2026-05-01T12:00:00Z")
    status, log = driver.end(home)
    assert status == 75, log
    assert "resumes from step 3, which is saved in" in log.splitlines()[-1]


# Damage.


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def test_behind_a_damaged_checkpoint_the_one_before_it_is_taken_and_the_end_is_the_same(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    assert driver.told_at(home, "after the rollout", 13)[0] == 75
    saved = steps_of(home)
    newest = progress_of(home) / "checkpoints" / f"step-{saved[-1]:08}" / "optimiser.safetensors"
    flip(newest)
    log = goes_on(driver, home, whole(), journal_of(home))
    assert f"WARNING: {newest} is changed since it was written; it is deleted" in log
    assert f"resuming from step {saved[-2]}," in log


def test_where_all_checkpoints_are_damaged_it_starts_anew_and_says_so(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    before = driver.kill_at(home, "after the rollout", 10)
    for folder in (progress_of(home) / "checkpoints").iterdir():
        flip(folder / "state.json")
    log = goes_on(driver, home, whole(), before)
    assert log.count("WARNING") == 2
    assert f"nothing in {progress_of(home)} can be resumed from; starting again" in log


def test_a_checkpoint_whose_history_is_lost_is_not_gone_on_from(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    all_kept = {"num_checkpoints_kept": 12}
    driver.kill_at(home, "after the rollout", 20, grpo=all_kept)
    journal = progress_of(home) / HISTORY
    lines = journal.read_bytes().splitlines(keepends=True)
    before = b"".join(lines[:11])
    journal.write_bytes(b"".join([before, b"\0\0\0\n", *lines[12:]]))
    log = goes_on(driver, home, whole(**all_kept), before, grpo=all_kept)
    assert "is of a step that the journal does not have" in log
    assert "resuming from step 4," in log


# No room, two at once, a fresh start.


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
    assert sorted(path.name for path in progress_of(home).iterdir()) == ["checkpoints", HISTORY]
    assert not (home / "outputs" / "finetune" / VERSION).exists()
    goes_on(driver, home, whole(), journal_of(home))


def test_a_second_process_waits_for_the_first_and_goes_on_where_that_was_killed(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    first = driver.start(home, failpoint="after the rollout", nth=10, deed="pause")
    wait_for(home, "paused")
    driver.start(home)
    os.kill(first, signal.SIGKILL)
    driver.wait(first)
    status, log = driver.end(home)
    assert status == 0, log
    assert "resuming from step 4," in log
    assert result_of(home) == whole()


def test_fresh_begins_anew(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    driver.kill_at(home, "after the rollout", 10)
    log = goes_on(driver, home, whole(), b"", is_fresh=True)
    assert "resuming" not in log
    assert "anew" not in log
