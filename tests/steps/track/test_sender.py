"""The sender's warnings."""

from pathlib import Path

import pytest
from made_runs import machine_of
from tracked_runs import TrackedRun

from steps.run.records import Attempt, Run
from steps.track import sender as sending
from steps.track.sender import Sender


def test_each_outage_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sending, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(sending, "_SECONDS_AFTER_FAILURE", 0.0)
    run = TrackedRun(machine_of(tmp_path))
    answers = ["first", "first", "", "second", "second"]

    def send(_run: Run, _attempt: Attempt) -> str:
        if len(answers) == 2:
            sender.is_over.set()  # One more call follows.
        return answers.pop(0)

    sender = Sender("MLflow", "later", run.begin("finetune"), run.store, send)
    sender.run()
    assert answers == []
    warned = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert [reason for reason in ("first", "second") for line in warned if f"({reason})" in line] == ["first", "second"]
