"""Sending of attempts to MLflow: by the launcher of a run on this machine, otherwise by the task's process."""

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import machine_of
from tracked_runs import TrackedRun, counts, curve, rows_of, told

from steps.run.machine import Machine
from steps.run.processes import LAUNCHER
from steps.run.records import Attempt, Run
from steps.track import trackers
from steps.track.sender import Sender
from steps.track.trackers import launcher_sending, sending

TASKS_SENDERS = "_CHESS_GRPO_LAUNCHER_SENDS"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(trackers, "_SECONDS_BETWEEN", 0.01)
    monkeypatch.setenv(TASKS_SENDERS, "")
    monkeypatch.delenv(TASKS_SENDERS)
    return machine_of(tmp_path)


def test_launcher_sends_its_own_attempts_while_they_work_and_at_their_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrackedRun(machine)
    monkeypatch.setenv(LAUNCHER, "an earlier one")
    run.step("pretrain", curve("imitation/validation_loss", 3))
    monkeypatch.setenv(LAUNCHER, "this one")
    ids = iter([None, None])  # Metaflow knows the run's id only after a while.
    with launcher_sending(machine, lambda: next(ids, run.name)):
        run.work(attempt := run.begin("finetune"), curve("grpo/entropy", 3))
        while "07 finetune" not in told(machine.home)["runs"]:
            time.sleep(0.01)
        run.step("finetune", curve("grpo/entropy", 6), attempt=attempt)
        run.step("screen", curve("selection/verdict_elo", 2))
    sent, wanted = told(machine.home), counts(run)
    assert all(Counter(rows_of(sent, step)) == wanted[step] for step in ("finetune", "screen"))
    assert not any("pretrain" in name for name in sent["runs"])


def test_task_of_such_a_launcher_sends_nothing_and_every_other_task_does(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def senders() -> list[str]:
        with sending(machine, attempt):
            return [thread.name for thread in threading.enumerate() if thread.name == "MLflow"]

    attempt = TrackedRun(machine).begin("finetune")
    assert senders() == ["MLflow"]
    with launcher_sending(replace(machine, store="s3://shop/store"), lambda: None):
        assert senders() == ["MLflow"]  # A task of an S3 store may work elsewhere, where the launcher cannot read its journal.
    with launcher_sending(replace(machine, store=str(machine.home / "shared")), lambda: None):
        assert senders() == []


def test_tracker_that_hangs_delays_the_launchers_end_once_and_not_for_each_attempt(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release, waits = threading.Event(), []
    monkeypatch.setattr(trackers, "publisher_of", lambda machine, attempt: Sender("MLflow", "later", attempt, run.store, hanging))
    monkeypatch.setattr(trackers, "_SECONDS_AT_END", 0.2)
    monkeypatch.setattr(Sender, "join", lambda _, seconds: waits.append(seconds))
    monkeypatch.setenv(LAUNCHER, "this one")

    def hanging(_run: Run, _attempt: Attempt) -> str:
        return str(release.wait())

    run = TrackedRun(machine)
    with launcher_sending(machine, lambda: run.name):
        for step in ("pretrain", "finetune", "screen"):
            run.begin(step)
    release.set()
    assert len(waits) == 3
    assert max(waits) <= 0.2
    assert capsys.readouterr().out.count("it did not finish") == 3
