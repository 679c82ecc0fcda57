"""Promise 4: two runs at once on one home or one bucket: both end right."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import COUNT, STEPS, do_run, forked, hashes, progress_left, rows_logged, run_of, status_of
from tracked_runs import TrackedRun, counts, forget, rows_of, told
from trainings import Driver, Result, result_of, wait_for

from steps.run.machine import Machine
from steps.run.records import Run
from steps.track.publish import publish, publish_all


def both(homes: list[Path], tmp_path: Path) -> list[Run]:
    """Do two runs at once, in processes that have these homes, check that both end right, and return them."""
    gate = os.pipe()

    def begin(name: str) -> None:
        os.read(gate[0], 1)
        do_run(name)

    processes = [forked(lambda name=name: begin(name), CHESS_GRPO_HOME=home) for name, home in zip("12", homes, strict=True)]
    os.write(gate[1], b"..")
    assert [status_of(process) for process in processes] == [0, 0]
    runs = [run_of("1"), run_of("2")]
    for run in runs:
        assert run.status == "finished"
        assert [attempt.step for attempt in run.attempts] == [*(step.name for step in STEPS.values()), "end"]
    assert hashes(runs[0]) == hashes(runs[1])
    assert len(hashes(runs[0])) == len(STEPS)
    assert progress_left(tmp_path) == []
    return runs


def test_on_one_home_each_output_is_made_once_and_the_tracker_has_every_row_of_both_once(runs_here: Machine, tmp_path: Path) -> None:
    runs = both([runs_here.home] * 2, tmp_path)
    for step in STEPS.values():
        assert sorted(output["reused"] for run in runs if (output := run.output_of(step.name))) == [False, True]
    assert set(publish_all(runs_here).values()) <= {""}
    assert rows_logged(runs_here.home) == [list(range(COUNT))] * 2 * len(STEPS)


def test_on_one_bucket_with_a_home_each_both_end_with_the_outputs_that_were_there_first(
    runs_here: Machine, bucket: str, tmp_path: Path
) -> None:
    both([tmp_path / "one", tmp_path / "two"], tmp_path)


def test_a_second_training_says_for_whom_it_waits_and_goes_on_where_the_first_was_killed(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    first = driver.start(home, failpoint="before a minibatch's update", nth=10, deed="pause")
    wait_for(home, "paused")
    driver.start(home)
    wait_for(home, f"finetune: process {first} on ")
    os.kill(first, signal.SIGKILL)
    driver.wait(first)
    status, log = driver.end(home)
    assert status == 0, log
    assert "resuming from step 4," in log
    assert result_of(home) == whole()


@pytest.mark.parametrize("is_one_disk", [True, False])
def test_processes_that_publish_one_run_at_once_make_nothing_twice(is_one_disk: bool, here: Machine, tmp_path: Path) -> None:
    run = TrackedRun(here)
    run.select()
    reasons: list[str] = []

    def publish_once(number: int) -> None:
        # Of another machine are the lock files, and nothing else.
        machine = here if is_one_disk else replace(here, home=tmp_path / f"machine-{number}")
        reasons.append(publish(run.run, run.store, machine))

    threads = [threading.Thread(target=publish_once, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not is_one_disk:  # Who has lost its own parent to a double is refused, and begins again.
        forget(run)
        run.publish()
    else:
        assert reasons == [""] * 3
    found = told(here.home)
    assert len(found["runs"]) == 5
    assert {step: Counter(rows_of(found, step)) for step in counts(run)} == counts(run)
    assert found["aliases"] == {"chess-policy-default": {"peak": 1, "champion": 2}} or not is_one_disk
