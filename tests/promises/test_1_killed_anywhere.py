"""Promise 1: `kill -9` at any moment, or a notice to end, and the same command again: equal outputs, and every metric row once."""

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from made_run import forked, status_of
from tracked_runs import TrackedRun, counts, curve, rows_of, told
from trainings import Driver, Result, goes_on, progress_of, wait_for

from grpo.base.files import append_line
from grpo.settings.kinds import LANGUAGE, NETWORK
from steps.run.machine import Machine
from steps.run.store import Store

OPERATIONS = ("open", "os.rename", "os.mkdir", "os.link", "os.chmod", "os.truncate", "os.utime")
ANYWHERE = ("os.remove", "os.rmdir", "fcntl.flock")
"""Operations that name no whole path."""
FOLDERS = {"locks", "locks/finetune-v1", "outputs", "outputs/finetune", "outputs/finetune/v1", "progress", "progress/finetune"}
EVERYTHING: dict[str, Any] = {
    "self_play_fraction": 0.5,
    "self_play_states": 12,
    "self_play_steps": 3,
    "num_steps": 6,
    "num_own_moves": 2,
    "kl_coefficient": 0.01,
    "weight_averaging": 0.9,
}
"""Own games, trajectories and averaged weights: all of it must be in a checkpoint."""


def killed_at(number: int, folder: Path) -> None:
    """Kill this process before the operation with this number, from 0, on a file of the folder."""
    num_left = number

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal num_left
        if event in ANYWHERE or (event in OPERATIONS and str(arguments[0]).startswith(str(folder))):
            num_left -= 1
            if num_left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def make(place: Path, log: Path) -> None:
    """Make an output: count to three in the progress folder, and say what is saved."""
    with Store(place, place).making("finetune", "v1") as making:
        if making.output is None:
            with making.filling({}) as folder:
                path = making.progress / "count.jsonl"
                first = len(path.read_text().splitlines()) if path.exists() else 0
                append_line(log, f"from {first}")
                for number in range(first, 3):
                    append_line(path, str(number))
                    append_line(log, f"saved {number}")
                    making.save()
                (folder / "numbers").write_text(path.read_text())


def test_killed_before_any_file_operation_the_same_call_gives_the_equal_output_and_leaves_nothing(tmp_path: Path) -> None:
    number, status = 0, -signal.SIGKILL
    while status:
        place, log = tmp_path / f"store-{number}", tmp_path / f"log-{number}"
        place.mkdir()

        def first(number: int = number, place: Path = place, log: Path = log) -> None:
            killed_at(number, place)
            make(place, log)

        status = status_of(forked(first))
        assert status in (0, -signal.SIGKILL)
        make(place, log)
        lines = log.read_text().splitlines()
        *_, last = [number for number, line in enumerate(lines) if line.startswith("from")]
        num_saved = sum(line.startswith("saved") for line in lines[:last])
        assert int(lines[last].removeprefix("from ")) >= num_saved, "what was saved is not done again"
        left = {path.relative_to(place).as_posix() for path in place.rglob("*")} - FOLDERS
        assert left == {"outputs/finetune/v1/manifest.json", "outputs/finetune/v1/numbers"}, f"killed before operation {number}"
        assert (place / "outputs/finetune/v1/numbers").read_text() == "0\n1\n2\n"
        number += 1
    assert number > 30


KILLS = [
    (NETWORK, "within a line of the journal", 12),
    (NETWORK, "after a line of the journal", 8),
    (NETWORK, "before a checkpoint's tensors", 3),  # The policy's are written, the training state's are not.
    (NETWORK, "before a folder's name", 2),
    (NETWORK, "within a checkpoint's deletion", 1),
    (NETWORK, "before a training's report", 1),
    (NETWORK, "before an output's manifest", 1),
    (NETWORK, "before a finished output's progress", 1),
    (LANGUAGE, "within a line of the journal", 7),
]


@pytest.mark.parametrize(("kind", "failpoint", "nth"), KILLS)
def test_killed_at_a_failpoint_and_started_again_it_ends_as_if_nothing_had_happened(
    kind: str, failpoint: str, nth: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    driver.kill_at(home, failpoint, nth, kind)
    assert "WARNING" not in goes_on(driver, home, whole(kind), kind)


RARE = [pytest.param(*case, marks=pytest.mark.prove) for case in product(range(3, 23), (signal.SIGKILL, signal.SIGTERM))]


@pytest.mark.parametrize(("seed", "number"), [(1, signal.SIGKILL), *RARE])
def test_killed_again_and_again_at_random_points_it_ends_as_if_nothing_had_happened(
    seed: int, number: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        pid = driver.start(home)
        time.sleep(rng.uniform(0.02, 0.5))
        with contextlib.suppress(ProcessLookupError):  # On a fast machine it has ended by itself: its status says so.
            os.kill(pid, number)
        assert driver.end(home)[0] in (0, -number, 75)
    goes_on(driver, home, whole())


def test_own_games_trajectories_and_averages_are_gone_on_with_as_they_were(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    driver.kill_at(home, "before a minibatch's update", 9, grpo=EVERYTHING)
    goes_on(driver, home, whole(**EVERYTHING), grpo=EVERYTHING)
    assert whole(**EVERYTHING).history.count('"self_play/games"') == 2, "rounds begin within the steps between two checkpoints"


def test_a_killed_run_is_marked_as_such_and_after_the_next_try_has_every_row_once(here: Machine) -> None:
    run = TrackedRun(here)
    run.work(attempt := run.begin("finetune"), curve("grpo/entropy", 3))
    assert run.publish() == ""
    attempt.end("killed", error="its process ended without a word")
    assert run.publish() == ""
    assert told(here.home)["runs"]["07 finetune"]["status"] == "KILLED"
    run.step("finetune", curve("grpo/entropy", 5), attempt=run.runs.begin("7", "finetune", "", attempt.version))
    assert run.publish() == ""
    again = told(here.home)
    assert again["runs"]["07 finetune"]["status"] == "FINISHED"
    assert Counter(rows_of(again, "finetune")) == counts(run)["finetune"]


# SIGTERM and spot notices.


@pytest.mark.parametrize(
    ("failpoint", "nth", "last"),
    [
        ("before a minibatch's update", 11, 6),  # Of the sixth step, whose checkpoint is due anyway.
        ("before a line of the journal", 10, 5),
        ("before a measurement", 3, 4),
    ],
)
def test_told_to_end_it_saves_the_step_that_it_is_at_and_goes_on_from_there(
    failpoint: str, nth: int, last: int, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    status, log = driver.told_at(home, failpoint, nth)
    assert status == 75, log
    place = f"step {last}, saved in {progress_of(home)}"
    assert log.splitlines()[-1] == f"ended by SIGTERM. To resume from {place}, run the same command again; after --fresh run `resume`"
    log = goes_on(driver, home, whole())
    assert f"resuming from step {last}," in log
    assert "WARNING" not in log


@pytest.mark.parametrize("failpoint", ["before a look at the first rollout", "before a training's last copy"])
def test_before_the_first_step_and_after_the_last_it_ends_at_once(
    failpoint: str, driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    assert driver.told_at(home, failpoint, 1)[0] == -signal.SIGTERM
    goes_on(driver, home, whole())


def test_told_twice_it_ends_at_once(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    pid = driver.start(home, failpoint="before a checkpoint", nth=2, deed="pause twice")
    wait_for(home, "paused")
    os.kill(pid, signal.SIGTERM)
    wait_for(home, "paused\npaused")  # It would save for a minute now.
    os.kill(pid, signal.SIGTERM)
    assert driver.end(home)[0] == -signal.SIGTERM
    goes_on(driver, home, whole())


def test_told_by_a_spot_notice_it_ends_as_by_sigterm(driver: Driver, home: Path) -> None:
    notice = home.with_name("notice")
    driver.start(home, failpoint="before a minibatch's update", nth=5, deed="pause", notice=str(notice))
    wait_for(home, "paused")
    notice.write_text("2026-05-01T12:00:00Z")
    status, log = driver.end(home)
    assert status == 75, log
    assert "To resume from step 3, saved in" in log.splitlines()[-1]
