"""Lines that a step prints while it works."""

import itertools

import pytest

from grpo.metrics.records import Event, Record
from steps.run.terminal import TerminalSink


def test_an_event_is_printed_in_full_once_and_then_only_how_often_it_came_again() -> None:
    said = list[str]()
    sink = TerminalSink("finetune", (), said.append)
    for step in range(1, 13):
        sink.log(Record(step, {}, (Event("trust_region", f"KL at step {step}"),)))
    sink.finish("12 of 60 steps")
    sink.finish("13 of 60 steps")
    assert said == [
        "finetune: step 1: trust_region: KL at step 1",
        "finetune: 12 of 60 steps; trust_region 11 more times",
        "finetune: 13 of 60 steps",
    ]


def test_each_finding_is_printed() -> None:
    said = list[str]()
    sink = TerminalSink("finetune", (), said.append)
    for step, name in ((10, "entropy_collapse"), (20, "silent_groups")):
        sink.log(Record(step, {}, (Event("finding", f"critical: {name}"),)))
    assert said == ["finetune: step 10: finding: critical: entropy_collapse", "finetune: step 20: finding: critical: silent_groups"]


def test_progress_is_printed_once_something_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", itertools.count(step=100).__next__)
    said = list[str]()
    sink = TerminalSink("finetune", (), said.append)
    for done in (0, 1):
        sink.progress(done, 60, "steps")
    assert said == ["finetune: 1 of 60 steps"]
