"""What people read while they wait: a line a minute, with the pace of the latest two minutes and the latest numbers."""

from collections.abc import Callable

import pytest

from grpo.metrics.table import Event, Record
from steps.step_io.terminal import TerminalSink


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets the clock."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def set_to(seconds: float) -> None:
        clock[0] = seconds

    return set_to


def test_a_line_a_minute_with_the_latest_numbers_and_events_at_once(at: Callable[[float], None]) -> None:
    said: list[str] = []
    sink = TerminalSink("finetune", ("grpo/entropy", "grpo/loss"), said.append)
    for second in range(0, 131, 5):
        at(second)
        sink.log(Record(second, {"grpo/entropy": second / 100, "grpo/loss": 0.5, "grpo/kl_reference": 1.0}))
        sink.progress(second, 1_000, "steps")
    assert said == [
        "finetune: 10 of 1,000 steps, 1/s, about 16 min left; step 10: entropy 0.1, loss 0.5",
        "finetune: 70 of 1,000 steps, 1/s, about 16 min left; step 70: entropy 0.7, loss 0.5",
        "finetune: 130 of 1,000 steps, 1/s, about 14 min left; step 130: entropy 1.3, loss 0.5",
    ]
    sink.log(Record(131, {"grpo/entropy": 0.0}, (Event("entropy_critical", "it fell"),)))
    assert said[3:] == ["finetune: step 131: entropy_critical: it fell"]
    sink.finish()
    sink.finish()
    assert said[4:] == ["finetune: step 131: entropy 0"]


def test_numbers_of_several_records_are_one_line_where_steps_count_nothing() -> None:
    said: list[str] = []
    sink = TerminalSink("baseline", ("baseline/score_random", "baseline/rating"), said.append, axis="")
    sink.log(Record(0, {"baseline/score_random": 1.0}))
    sink.log(Record(0, {"baseline/rating": 1178.0}))
    sink.finish()
    assert said == ["baseline: score_random 1, rating 1178"]
