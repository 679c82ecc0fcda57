"""Records of runs: each is written once and read back as a run; an attempt without a process is over, others are untouched."""

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.base.files import seal
from steps.run.processes import LAUNCHER, own_token, state_of
from steps.run.records import Run, RunFacts, Runs
from steps.run.step import StepOutput
from steps.run.store import Store

VERSION = "5e" * 12
OUTPUT = StepOutput(step="end", version=VERSION, output_hash="0f" * 32, reused=False)


@pytest.fixture
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Runs:
    """Return the runs of a store in a folder, or in S3 where a test asks for that too: what both stores promise is in test_store.py."""
    is_s3 = getattr(request, "param", "folder") == "S3"
    if is_s3:
        request.getfixturevalue("aws")
    return Runs(Store("s3://shop/x" if is_s3 else tmp_path, tmp_path))


IN_BOTH = pytest.mark.parametrize("runs", ["folder", "S3"], indirect=True)


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
    given: dict[str, Any] = {"tracking": "", "command": "", "label": "", "head": "", "settings": {}, "tags": {}, "texts": {}}
    given["code"] = {"commit": "", "is_dirty": False, "lock": ""}
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


def test_a_run_that_its_user_stopped_says_so_until_it_goes_on(runs: Runs, gone: str) -> None:
    """A13: Ctrl-C is no lost machine."""
    runs.begin_run(facts("17", launcher=gone))
    runs.begin("17", "finetune", "", VERSION)
    read(runs, "17").set_stopped()
    [over] = runs.close_gone()
    assert (over.status, over.error) == ("killed", "stopped by Ctrl-C or SIGTERM")
    runs.begin_run(facts("18", launcher=gone))
    runs.begin("18", "finetune", "", VERSION).end("finished", output=OUTPUT)
    read(runs, "18").set_stopped()
    [between] = runs.close_gone()
    assert (between.status, between.error) == ("killed", "stopped by Ctrl-C or SIGTERM"), "no task was at work"
    runs.begin("17", "finetune", "", VERSION)
    assert runs.close(read(runs, "17")).error == "its process is gone: it was killed, or its machine was lost"


@IN_BOTH
def test_a_run_is_read_back_as_it_was_recorded(runs: Runs) -> None:
    runs.begin_run(facts("17", label="first try"))
    runs.begin_run(facts("17", started=2.0))
    assert read(runs, "17").facts == facts("17", label="first try"), "where its task is tried again"
    runs.begin("17", "calibrate", "", VERSION).end("failed", error="no")
    again = runs.begin("17", "calibrate", "", VERSION).end("finished", output=OUTPUT)
    part = runs.begin("17", "confirm", "1 of 2", VERSION)
    run = read(runs, "17")
    first, second, third = run.attempts
    assert (first.status, first.error) == ("failed", "no")
    assert (first.number, second.number, third.number) == (0, 1, 2)
    assert second == again
    assert (third.part, third.status, third.ended) == ("1 of 2", "running", None)
    assert run.output_of("calibrate") == OUTPUT
    assert run.output_of("confirm") is None
    assert (run.status, run.started, run.ended, run.error, run.failed_step) == ("running", 1.0, None, "", "")
    assert part.end("finished").status == part.end("failed").status == "finished", "who was first stands"
    assert runs.get("18") is runs.get("../17") is None


@IN_BOTH
def test_runs_come_newest_first_whatever_their_names(runs: Runs) -> None:
    for name in ("1764146715123456", "2", "10"):
        runs.begin_run(facts(name))
    assert [run.name for run in runs.all()] == ["10", "2", "1764146715123456"]
    runs.begin("2", "end", "", "").end("finished")
    for name in ("2", "10"):
        read(runs, name).set_published()
    assert [run.name for run in runs.unpublished()] == ["10", "1764146715123456"], "of a run that goes on nobody has all"


def changed(data: bytes, how: str) -> bytes:
    """Return a record with one fault; but for a flipped bit its hash fits, as other code would write it."""
    if how == "no JSON":
        return b"<html>"
    if how == "a flipped bit":
        return data.replace(b'"launcher"', b'"launchar"')
    record = json.loads(data)
    del record["record_hash"]
    record |= {"a key more": {"more": 1}, "a path for a run": {"run": "../../x"}, "text for a number": {"started": "noon"}}.get(how, {})
    if how == "a key less":
        del record["launcher"]
    return json.dumps(record | {"record_hash": seal(record, place="runs/1/start.json")}).encode()


@pytest.mark.parametrize("how", ["no JSON", "a flipped bit", "a key more", "a key less", "a path for a run", "text for a number"])
def test_a_damaged_or_foreign_record_is_named_and_passed_over(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(Store(tmp_path, tmp_path))
    for name in ("1", "2"):
        runs.begin_run(facts(name))
        runs.begin(name, "finetune", "", VERSION)
    begun, start = (tmp_path / "runs" / "1" / name for name in ("000000.begun.json", "start.json"))
    begun.write_bytes(changed(begun.read_bytes(), "a flipped bit"))
    assert (len(read(runs, "1").attempts), len(read(runs, "2").attempts)) == (0, 1)
    start.write_bytes(changed(start.read_bytes(), how))
    assert [run.name for run in runs.all()] == [run.name for run in runs.unpublished()] == ["2"]
    assert runs.close_gone() == []
    assert runs.get("1") is None
    said = capsys.readouterr().out.splitlines()
    assert f"{tmp_path}/runs/1/000000.begun.json is damaged" in said[0]
    assert all(f"{tmp_path}/runs/1/start.json " in line for line in said[1:])
    assert len(said) == 5


def test_records_of_a_renamed_folder_are_named_and_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(Store(tmp_path, tmp_path))
    runs.begin_run(facts("1"))
    (tmp_path / "runs" / "1").rename(tmp_path / "runs" / "my run")
    assert runs.all() == runs.unpublished() == []
    assert "runs/my run/start.json is damaged: it is changed since it was written, or was moved there" in capsys.readouterr().out


def test_an_attempt_whose_end_cannot_be_read_counts_as_killed_and_says_which_record(runs: Runs, gone: str) -> None:
    runs.begin_run(facts("1", launcher=gone))
    runs.begin("1", "finetune", "", VERSION)
    runs._store._objects.create("runs/1/000000.ended.json", b"{}")
    [closed] = runs.close_gone()
    assert (closed.status, closed.failed_step) == ("killed", "finetune")
    assert closed.error == "the record of the attempt's end, runs/1/000000.ended.json, is damaged"
    closed.set_published()
    assert runs.unpublished() == []


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_what_came_later_is_later_whatever_the_clocks_say(jump: float, runs: Runs, gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: the clock is set back, or forward and then right again, while a run works."""
    runs.begin_run(facts("1", launcher=gone, started=time.time()))
    runs.begin("1", "select", "", VERSION).end("failed")
    set_clock = iter([jump, 0.0, 0.0, jump, jump, 0.0])
    clock = time.time
    monkeypatch.setattr("time.time", lambda: clock() + next(set_clock))
    runs.begin("1", "select", "", VERSION).end("finished", output=OUTPUT)
    runs.begin("1", "report", "", VERSION).end("finished", output=OUTPUT)
    last = runs.begin("1", "end", "", "").end("finished")
    run = read(runs, "1")
    assert (run.status, run.ended, run.error) == ("finished", last.ended, "")
    assert [attempt.step for attempt in run.attempts] == ["select", "select", "report", "end"]
    assert run.latest()["select", ""].status == "finished"
    runs.begin_run(facts("2", started=1.0))
    assert [run.name for run in runs.all()] == ["2", "1"], "the run that was begun later is the newer one"
    assert runs.close_gone() == []


def test_a_start_reads_no_record_of_runs_that_are_over_and_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R11: a start costs the same after one run as after three hundred."""
    store = Store(tmp_path, tmp_path)
    runs, asked = Runs(store), list[str]()
    for name in ("1", "2", "3"):
        runs.begin_run(facts(name))
        runs.begin(name, "end", "", "").end("finished")
        (runs.close(read(runs, name)) if name == "1" else read(runs, name)).set_published()
    runs.begin("2", "end", "", "")
    get = store._objects.get
    monkeypatch.setattr(store._objects, "get", lambda key: asked.append(key) or get(key))
    monkeypatch.setattr(store, "keys", lambda prefix, keys=store.keys: asked.append(prefix) or keys(prefix))
    runs.begin_run(facts("4"))
    assert [run.name for run in runs.unpublished()] == ["4", "2"]
    assert runs.close_gone() == []
    assert not [key for key in asked if key == "runs/" or key.startswith(("runs/1/", "runs/3/"))]


def test_a_run_that_was_resumed_is_found_by_each_of_its_ids(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: Metaflow gives a resumed run a new id, and that is the one on the screen."""
    runs.begin_run(facts("1"))
    for name in ("1", "2", "3"):
        monkeypatch.setenv("CHESS_GRPO_TASK", f"{name}/finetune/7")
        runs.begin("1", "finetune", "", VERSION)
    assert [read(runs, name).name for name in ("1", "2", "3")] == ["1", "1", "1"]
    assert read(runs, "3").other_ids == ("2", "3")
    assert [run.name for run in runs.all()] == ["1"]
    assert runs.get("4") is None
    runs._store.create("aliases/5.json", {"run": "5"})
    assert runs.get("5") is None


def test_tasks_that_begin_and_end_at_once_lose_no_record_of_each_other(tmp_path: Path) -> None:
    gate = threading.Barrier(8)

    def task(number: int) -> None:
        runs = Runs(Store(tmp_path, tmp_path))
        gate.wait()
        runs.begin_run(facts("1", label=str(number)))
        for part in ("", f"{number % 2 + 1} of 2"):
            runs.begin("1", "confirm", part, VERSION).end("finished")

    threads = [threading.Thread(target=task, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [run] = Runs(Store(tmp_path, tmp_path)).all()
    assert Counter(each.part for each in run.attempts) == {"": 8, "1 of 2": 4, "2 of 2": 4}
    assert [each.number for each in run.attempts] == list(range(16))
    assert {attempt.status for attempt in run.attempts} == {"finished"}


# How a run is.


def test_a_run_is_finished_when_its_last_step_is(runs: Runs, gone: str) -> None:
    runs.begin_run(facts("1", launcher=gone))
    runs.begin("1", "finetune", "", VERSION).end("failed")
    ended = runs.begin("1", "end", "", "").end("finished").ended
    assert (read(runs, "1").status, read(runs, "1").ended) == ("finished", ended)
    assert runs.close_gone() == []


@pytest.mark.parametrize("how", ["killed", "failed", "killed between two steps"])
def test_a_run_whose_launcher_is_gone_is_closed_once_with_what_was_at_work(how: str, runs: Runs, gone: str) -> None:
    runs.begin_run(facts("1", launcher=gone))
    runs.begin("1", "pretrain", "", VERSION).end("finished")
    if "between" not in how:
        attempt = runs.begin("1", "finetune", "", VERSION)
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
    runs.begin("1", "finetune", "", VERSION)
    for _ in range(2):
        runs.close(read(runs, "1")).set_published()
        assert (read(runs, "1").status, runs.unpublished()) == ("killed", [])
        monkeypatch.setenv(LAUNCHER, own_token())
        attempt = runs.begin("1", "finetune", "", VERSION)
        assert (read(runs, "1").status, read(runs, "1").ended) == ("running", None)
        assert [run.name for run in runs.unpublished()] == ["1"]
    attempt.end("finished")
    runs.begin("1", "end", "", "").end("finished")
    assert (read(runs, "1").status, len(runs.unpublished()), runs.close_gone()) == ("finished", 1, [])


def test_a_task_that_was_killed_is_over_while_its_run_may_try_again(runs: Runs, gone: str, tmp_path: Path) -> None:
    runs.begin_run(facts("1", launcher=own_token()))
    runs.begin("1", "finetune", "", VERSION)
    assert runs.close_gone() == []
    runs.begin("1", "finetune", "", VERSION)
    assert [attempt.status for attempt in read(runs, "1").attempts] == ["killed", "running"]
    assert runs.close(read(runs, "1")).status == "killed", "its launcher gives up"


def test_what_another_host_does_is_not_judged_but_an_attempt_that_is_followed_is_over(runs: Runs, gone: str) -> None:
    there = gone.replace(socket.gethostname(), "elsewhere", 1)
    runs.begin_run(facts("1", launcher=there))
    for part in ("1 of 2", "1 of 2", "2 of 2"):
        runs.begin("1", "confirm", part, VERSION)
    assert runs.close_gone() == []
    states = [(attempt.part, attempt.number, attempt.status) for attempt in read(runs, "1").attempts]
    assert states == [("1 of 2", 0, "killed"), ("1 of 2", 1, "running"), ("2 of 2", 2, "running")]
    assert read(runs, "1").status == "running"


def test_a_run_of_a_service_fails_with_its_step(runs: Runs) -> None:
    runs.begin_run(facts("1"))
    runs.begin("1", "finetune", "", VERSION).end("failed")
    assert read(runs, "1").status == "failed"
    runs.begin("1", "finetune", "", VERSION)
    assert read(runs, "1").status == "running", "it is tried again"
    assert runs.close_gone() == []
