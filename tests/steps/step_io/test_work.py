"""Records go to the history and to every sink; progress is told with rate and time left."""

from pathlib import Path

import pytest
from listeners import Listener

from grpo.metrics.table import Record
from steps.step_io.work import TerminalSink, Work, read_history


def test_the_history_gives_back_every_record_to_the_last_bit(tmp_path: Path) -> None:
    listeners = Listener(), Listener()
    work = Work(tmp_path, listeners)
    records = [Record(step, {"grpo/entropy": 1 / (step + 3), "grpo/loss": -0.1}) for step in range(5)]
    for record in records:
        work.record(record)
    work.progress(5, 9, "steps")
    work.write_history()
    assert read_history(tmp_path) == records
    assert all(listener.records == records and listener.progresses == [(5, 9, "steps")] for listener in listeners)


def test_progress_has_rate_and_time_left_and_is_not_told_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    said: list[str] = []
    sink = TerminalSink("finetune", ("grpo/entropy",), said.append)
    now = 105.0
    sink.progress(50, 1000, "steps")
    assert said == []
    now = 120.0
    sink.progress(200, 1000, "steps")
    assert said == ["finetune: 200 of 1,000 steps, 10/s, 1:20 left"]
    now = 121.0
    sink.progress(1000, 1000, "steps")
    assert said[-1].startswith("finetune: 1,000 of 1,000 steps")
