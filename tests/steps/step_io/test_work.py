"""Records go to the history and to every sink."""

from pathlib import Path

from listeners import Listener

from grpo.metrics.table import Record
from steps.step_io.work import Work, read_history


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
