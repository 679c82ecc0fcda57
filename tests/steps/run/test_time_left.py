"""The time that a run still takes, from earlier runs of its preset or from its own pace."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import FIRST, MadeRun, machine_of, make_run

from steps import STEPS
from steps.run.records import Run, Runs
from steps.run.store import Store
from steps.run.time_left import seconds_left, usual_seconds


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Records of a run of `smoke`, whose steps take a second each, and of one of `laptop`."""
    machine = machine_of(tmp_path)
    make_run(machine, MadeRun(name="1"))
    make_run(machine, MadeRun(name="2", settings="laptop"))
    return Runs(Store.of(machine))


def timed(run: Run | None, seconds: dict[str, float], **changes: Any) -> Run:
    assert run is not None
    run.__dict__["attempts"] = tuple(
        replace(each, started=FIRST, ended=FIRST + seconds[each.step], output={**each.output, **changes})  # type: ignore[typeddict-item]
        for each in run.attempts
        if each.step in seconds and each.output
    )
    return run


def test_earlier_runs_of_the_preset_say_how_long_the_steps_to_come_take(runs: Runs) -> None:
    usual = usual_seconds(runs.newest(5), "smoke")
    assert usual.keys() == set(STEPS[1:-1]) - {"calibrate"}
    new = timed(runs.get("1"), {})
    usual = dict.fromkeys(usual, 10.0)
    assert seconds_left(new, "build_boards", usual) == 100.0
    assert seconds_left(new, "select", usual) == 20.0
    assert usual_seconds(runs.newest(1), "smoke") == {}, "the newest is of another preset"


def test_without_earlier_runs_the_runs_own_pace_says_it_and_reused_steps_say_nothing(runs: Runs) -> None:
    begun = runs.get("1")
    assert seconds_left(timed(begun, {}), "build_boards", {}) is None
    measured = seconds_left(timed(runs.get("1"), {"build_boards": 95.0}), "join_boards", {})
    slow = seconds_left(timed(runs.get("1"), {"build_boards": 190.0}), "join_boards", {})
    assert measured is not None
    assert slow == pytest.approx(2 * measured)
    assert seconds_left(timed(runs.get("1"), {"build_boards": 190.0}, reused=True), "join_boards", {}) is None
