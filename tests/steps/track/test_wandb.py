"""W&B has what the journal has, once; it is off unless it is asked for, and no fault of it reaches the step.

Online runs are told to a server of our own (`wandb_doubles`).
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import machine_of
from tracked_runs import TrackedRun, curve
from wandb_doubles import WandbServer

from steps.run.machine import Machine, Mirror
from steps.run.records import Attempt
from steps.track import wandb as mirroring
from steps.track.publish import journal_of
from steps.track.wandb import mirror_of

KEY = "0123456789abcdef" * 2 + "01234567"
OWN = ("_step", "_runtime", "_timestamp", "step")
"""What W&B, and the mirror, put into a row beside the metrics."""


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "BASE_URL", "PROJECT", "ENTITY", "MODE", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setattr(mirroring, "_SECONDS_BETWEEN", 0.05)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return replace(machine_of(tmp_path, "http://127.0.0.1:9"), mirror=Mirror.OFFLINE)


def mirrored(run: TrackedRun, attempt: Attempt, work: Callable[[], Any], seconds: float = 600.0) -> None:
    """Do a step's work while it is mirrored."""
    mirror = mirror_of(run.machine, attempt, run.store, journal_of)
    assert mirror is not None
    mirror.start()
    try:
        work()
    finally:
        mirror.finish(seconds)


def two_tries(run: TrackedRun) -> None:
    """Begin a step, be killed, and do it."""
    first = run.begin("finetune")

    def be_killed() -> None:
        run.work(first, curve("grpo/entropy", 2))
        first.end("killed")

    mirrored(run, first, be_killed)
    second = run.runs.begin(run.name, "finetune", "", first.version)
    mirrored(run, second, lambda: run.step("finetune", curve("grpo/entropy", 4), attempt=second))


def assert_whole(server: WandbServer, run: TrackedRun) -> None:
    """Assert that a server has one run, with each line of the journal once."""
    [found] = server.runs.values()
    rows = journal_of(run.run.latest()["finetune", ""], run.store)
    assert sorted(found["rows"]) == list(range(len(rows)))
    for number, row in enumerate(rows):
        told, expected = found["rows"][number], {name: value for name, value in row["record"].items() if name != "step"}
        assert {name: float(value) for name, value in told.items() if name not in OWN} == pytest.approx(expected, nan_ok=True)
        assert (told["step"], told["_timestamp"]) == (row["record"]["step"], row["time"] / 1_000)
    assert (found["exit_code"], server.num_again) == (0, 0)
    assert (found["groupName"], found["jobType"], found["displayName"]) == ("7", "finetune", "7/finetune")


def synchronised(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload the one folder that is there, as people do, and assert that it is whole."""
    [folder] = (run.machine.home / "wandb").glob("offline-run-*")
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        command = [Path(sys.executable).with_name("wandb"), "sync", folder]
        subprocess.run(command, check=True, capture_output=True, cwd=run.machine.home)
        assert_whole(server, run)


def test_two_tries_of_a_step_are_one_run_with_every_line_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        run = TrackedRun(replace(machine, mirror=Mirror.ONLINE))
        two_tries(run)
    assert_whole(server, run)


def test_without_a_key_it_is_saved_offline_whole_and_a_line_says_how_to_upload_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = TrackedRun(replace(machine, mirror=Mirror.ONLINE))
    two_tries(run)
    [folder] = (machine.home / "wandb").glob("offline-run-*")
    assert f"saved offline for W&B; upload it by: wandb sync {folder}" in capsys.readouterr().out
    synchronised(run, monkeypatch)


def test_a_server_that_is_silent_or_gone_costs_the_step_a_line(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with WandbServer() as server:
        server.is_silent = True
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setattr(mirroring, "_SECONDS_TO_BEGIN", 1.0)
        run = TrackedRun(replace(machine, mirror=Mirror.ONLINE))
        attempt = run.begin("finetune")
        mirrored(run, attempt, lambda: run.step("finetune", curve("grpo/entropy", 4), attempt=attempt))
    assert "saved offline for W&B" in capsys.readouterr().out
    synchronised(run, monkeypatch)


def test_it_is_off_by_default_and_where_offline_files_would_be_lost(machine: Machine) -> None:
    run = TrackedRun(machine)
    attempt = run.begin("finetune")
    for of in (replace(machine, mirror=Mirror.OFF), replace(machine, is_container=True)):
        assert mirror_of(of, attempt, run.store, journal_of) is None


def test_a_fault_of_the_library_is_a_line(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import wandb

    def fail(**_: Any) -> None:
        raise RuntimeError("nothing works")

    monkeypatch.setattr(wandb, "init", fail)
    run = TrackedRun(machine)
    attempt = run.begin("finetune")
    mirrored(run, attempt, lambda: run.step("finetune", attempt=attempt))
    assert "finetune: WARNING: not logged to W&B completely (RuntimeError: nothing works)" in capsys.readouterr().out
