"""Records of runs: each written once, read back as a run; what has no process any more is over, and nobody else is judged."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steps.run.processes import LAUNCHER, own_token, state_of
from steps.run.records import Run, RunFacts, Runs
from steps.run.step import StepOutput
from steps.run.store import Store

OUTPUT = StepOutput(step="end", version="v", output_hash="0", reused=False)


@pytest.fixture(params=["folder", "S3"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Runs:
    if request.param == "S3":
        request.getfixturevalue("aws")
    return Runs(Store("s3://shop/x" if request.param == "S3" else tmp_path, tmp_path))


@pytest.fixture
def gone() -> str:
    """Return the token of a process that was killed."""
    return token_of(lambda: os.kill(os.getpid(), signal.SIGKILL))


def token_of(end: Callable[[], object]) -> str:
    """Return the token of a child that ended so."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, own_token().encode())
        end()
        os._exit(1)
    os.waitpid(pid, 0)
    return os.read(reader, 10_000).decode()


def facts(run: str, launcher: str = "", started: float = 1.0, **more: Any) -> RunFacts:
    given: dict[str, Any] = {"tracking": "", "command": "", "label": "", "head": "", "settings": {}, "code": {}, "tags": {}, "texts": {}}
    return RunFacts(**{"run": run, "preset": "smoke", "origin": None, "started": started, "launcher": launcher, **given, **more})


def read(runs: Runs, name: str) -> Run:
    run = runs.get(name)
    assert run is not None
    return run


# Processes.


def test_a_process_is_alive_until_it_ends_in_any_way_and_of_another_machine_nothing_is_known(gone: str) -> None:
    assert state_of(own_token()) == "alive"
    for token in (gone, token_of(lambda: os._exit(0))):
        assert state_of(token) == "gone"
    for unknown in ("", gone.replace(socket.gethostname(), "elsewhere", 1), gone.replace("pid:[", "pid:[1")):
        assert state_of(unknown) == "unknown"


def test_a_process_of_before_a_restart_of_the_machine_or_of_an_earlier_use_of_its_id_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, boot, namespace, process, start = own_token().split()
    assert state_of(" ".join((machine, boot, namespace, process, f"1{start}"))) == "gone"
    monkeypatch.setattr("steps.run.processes._MACHINE", Path("/proc/sys/kernel/ostype"))
    token = own_token()
    assert state_of(token) == "alive"
    assert state_of(token.replace(boot, "before")) == "gone"


# Runs.


def test_a_run_is_read_back_as_it_was_recorded(runs: Runs) -> None:
    runs.begin_run(facts("17", label="first try"))
    runs.begin_run(facts("17", started=2.0))
    assert read(runs, "17").facts == facts("17", label="first try"), "where its task is tried again"
    runs.begin("17", "calibrate", "", "v0").end("failed", error="no")
    again = runs.begin("17", "calibrate", "", "v0").end("finished", output=OUTPUT)
    part = runs.begin("17", "confirm", "1 of 2", "v1")
    run = read(runs, "17")
    first, second, third = run.attempts
    assert (first.status, first.error) == ("failed", "no")
    assert (first.number, second.number, third.number) == (0, 1, 0)
    assert second == again
    assert (third.part, third.status, third.ended) == ("1 of 2", "running", None)
    assert run.output_of("calibrate") == OUTPUT
    assert run.output_of("confirm") is None
    assert (run.status, run.started, run.ended, run.error, run.failed_step) == ("running", 1.0, None, "", "")
    assert part.end("finished").status == part.end("failed").status == "finished", "who was first stands"
    assert runs.get("18") is runs.get("../17") is None


def test_runs_come_newest_first_whatever_their_names(runs: Runs) -> None:
    for number, name in enumerate(("1764146715123456", "2", "10")):
        runs.begin_run(facts(name, started=1e9 + number))
    assert [run.name for run in runs.all()] == ["10", "2", "1764146715123456"]
    runs.begin("2", "end", "", "").end("finished")
    for name in ("2", "10"):
        read(runs, name).set_published()
    assert [run.name for run in runs.unpublished()] == ["10", "1764146715123456"], "of a run that goes on nobody has all"


def test_a_damaged_record_is_named_and_passed_over(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.begin_run(facts("1"))
    runs._store._objects.create("runs/2/start.json", b"<html>")
    runs._store._objects.create("runs/1/finetune/0.begun.json", b"")
    runs.begin("1", "finetune", "", "v")
    [run] = runs.all()
    assert [attempt.number for attempt in run.attempts] == [1]
    said = capsys.readouterr().out
    assert "runs/2/start.json is damaged" in said
    assert "runs/1/finetune/0.begun.json is damaged" in said


def test_tasks_that_begin_and_end_at_once_lose_no_record_of_each_other(tmp_path: Path) -> None:
    gate = threading.Barrier(8)

    def task(number: int) -> None:
        runs = Runs(Store(tmp_path, tmp_path))
        gate.wait()
        runs.begin_run(facts("1", label=str(number)))
        for part in ("", f"{number % 2 + 1} of 2"):
            runs.begin("1", "confirm", part, "v").end("finished")

    threads = [threading.Thread(target=task, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [run] = Runs(Store(tmp_path, tmp_path)).all()
    numbers = {part: sorted(each.number for each in run.attempts if each.part == part) for part in ("", "1 of 2", "2 of 2")}
    assert numbers == {"": list(range(8)), "1 of 2": list(range(4)), "2 of 2": list(range(4))}
    assert {attempt.status for attempt in run.attempts} == {"finished"}


# How a run is.


def test_a_run_is_finished_when_its_last_step_is(runs: Runs, gone: str) -> None:
    runs.begin_run(facts("1", launcher=gone))
    runs.begin("1", "finetune", "", "v").end("failed")
    ended = runs.begin("1", "end", "", "").end("finished").ended
    assert (read(runs, "1").status, read(runs, "1").ended) == ("finished", ended)
    assert runs.close_gone() == []


@pytest.mark.parametrize("how", ["killed", "failed", "killed between two steps"])
def test_a_run_whose_launcher_is_gone_is_closed_once_with_what_was_at_work(how: str, runs: Runs, gone: str) -> None:
    runs.begin_run(facts("1", launcher=gone))
    runs.begin("1", "pretrain", "", "v").end("finished")
    if "between" not in how:
        attempt = runs.begin("1", "finetune", "", "v")
    if how == "failed":
        attempt.end("failed", error="no room")
    assert read(runs, "1").status == how.split(maxsplit=1)[0], "also before anybody has closed it"
    [closed] = runs.close_gone()
    for run in (closed, read(runs, "1")):
        assert (run.status, run.failed_step) == (how.split(maxsplit=1)[0], "" if "between" in how else "finetune")
        assert run.ended == run.attempts[-1].ended
        assert bool(run.error) == ("between" not in how)
    assert runs.close_gone() == []


def test_a_run_that_was_closed_and_is_resumed_runs_again_and_ends_as_that_ends(
    runs: Runs, gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.begin_run(facts("1", launcher=gone))
    runs.begin("1", "finetune", "", "v")
    for _ in range(2):
        runs.close(read(runs, "1")).set_published()
        assert (read(runs, "1").status, runs.unpublished()) == ("killed", [])
        monkeypatch.setenv(LAUNCHER, own_token())
        attempt = runs.begin("1", "finetune", "", "v")
        assert (read(runs, "1").status, read(runs, "1").ended) == ("running", None)
        assert [run.name for run in runs.unpublished()] == ["1"]
    attempt.end("finished")
    runs.begin("1", "end", "", "").end("finished")
    assert (read(runs, "1").status, len(runs.unpublished()), runs.close_gone()) == ("finished", 1, [])


def test_a_task_that_was_killed_is_over_while_its_run_may_try_again(runs: Runs, gone: str, tmp_path: Path) -> None:
    runs.begin_run(facts("1", launcher=own_token()))
    runs.begin("1", "finetune", "", "v")
    assert runs.close_gone() == []
    runs.begin("1", "finetune", "", "v")
    assert [attempt.status for attempt in read(runs, "1").attempts] == ["killed", "running"]
    assert runs.close(read(runs, "1")).status == "killed", "its launcher gives up"


def test_what_another_host_does_is_not_judged_but_an_attempt_that_is_followed_is_over(runs: Runs, gone: str) -> None:
    there = gone.replace(socket.gethostname(), "elsewhere", 1)
    runs.begin_run(facts("1", launcher=there))
    for part in ("1 of 2", "1 of 2", "2 of 2"):
        runs.begin("1", "confirm", part, "v")
    assert runs.close_gone() == []
    states = [(attempt.part, attempt.number, attempt.status) for attempt in read(runs, "1").attempts]
    assert sorted(states) == [("1 of 2", 0, "killed"), ("1 of 2", 1, "running"), ("2 of 2", 0, "running")]
    assert read(runs, "1").status == "running"


def test_a_run_of_a_service_fails_with_its_step(runs: Runs) -> None:
    runs.begin_run(facts("1"))
    runs.begin("1", "finetune", "", "v").end("failed")
    assert read(runs, "1").status == "failed"
    runs.begin("1", "finetune", "", "v")
    assert read(runs, "1").status == "running", "it is tried again"
    assert runs.close_gone() == []
