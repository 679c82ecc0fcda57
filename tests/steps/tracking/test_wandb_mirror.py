"""W&B is told what MLflow is told, once, by a process that the step neither waits for nor knows anything of.

Online runs are told to a server of our own (`wandb_doubles`).
"""

import json
import subprocess
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from wandb_doubles import WandbServer

from grpo.metrics.table import METRICS, Record
from steps.cli.track import MirrorError, deliver_journals
from steps.pipeline.job import Job
from steps.pipeline.run_step import run_step
from steps.runtime.machine import Machine, Mirror
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work
from steps.store.outputs import StepOutput
from steps.tracking import wandb_mirror
from steps.tracking.child_run import ChildRun
from steps.tracking.journal import JournalFolder, Reader
from steps.tracking.tracker import Tracker

KEY = "0123456789abcdef" * 2 + "01234567"
SETTINGS = {"seed": 0, "grpo": {"num_steps": 3}}
OWN = ("_step", "_runtime", "_timestamp", "step")
"""What W&B, and the mirror, put into a row beside the metrics."""


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_MODE", "CHESS_GRPO_WANDB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(wandb_mirror, "_SECONDS_AT_END", 600.0)  # A machine can be busy.
    monkeypatch.setattr(wandb_mirror, "_SECONDS_AT_FAILURE", 600.0)


@pytest.fixture
def machine(tmp_path: Path, give_tables: Callable[[Path], Path]) -> Machine:
    home = give_tables(tmp_path / "home")
    uri = f"sqlite:///{home / 'mlflow.db'}"
    return Machine(stockfish="none", home=home, tracking_uri=uri, device="cpu", num_threads=1, mirror=Mirror.OFFLINE, task="7/finetune/3")


def finetuned(machine: Machine, body: Callable[[Work], None]) -> StepOutput:
    run = Tracker(machine).start_flow_run(metaflow_run="7", settings=SETTINGS, tags={}, note="")
    code = {"commit": "abc", "is_dirty": True, "lock": "l"}
    job = Job(settings=SETTINGS, code=code, metaflow_run="7", mlflow_run=run, is_fresh=False, origin=None)

    def publish(folder: Path, child: ChildRun) -> None:
        child.tag_flow_run({"chess_grpo.verdict": "better"})
        child.tag({"chess_grpo.findings": "healthy"})
        child.note("# What came of it")

    return run_step(job, machine, StepSpec(name="finetune", body="steps.step_io.work"), settings={}, inputs={}, work=body, publish=publish)


def write(work: Work, steps: int = 3) -> None:
    (work.folder / "weights").write_text("w")
    for step in range(steps):
        work.record(Record(step, {"grpo/entropy": 1 / (step + 1), "grpo/loss": 0.5}))
        work.measured(Record(step, {"work/items_per_second": step}))
    if steps == 3:
        work.record(Record(1, {"heldout/regret_best": 0.25}))  # Of a step that is past.


def fail(work: Work) -> None:
    write(work, steps=2)
    raise ZeroDivisionError


WHOLE = [
    (0, {"grpo/entropy": 1.0, "grpo/loss": 0.5, "work/items_per_second": 0.0}),
    (1, {"grpo/entropy": 1 / 2, "grpo/loss": 0.5, "work/items_per_second": 1.0}),
    (2, {"grpo/entropy": 1 / 3, "grpo/loss": 0.5, "work/items_per_second": 2.0}),
    (1, {"heldout/regret_best": 0.25}),
]


def measured(run: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """Return the rows that a server has of a run: step and metrics."""
    assert sorted(run["rows"]) == list(range(len(run["rows"]))), "W&B's own count has no gap and no double"
    found = [run["rows"][number] for number in range(len(run["rows"]))]
    return [(row["step"], {name: value for name, value in row.items() if name not in OWN}) for row in found]


def test_two_tries_of_a_step_are_one_run_with_everything_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        machine = replace(machine, mirror=Mirror.ONLINE)
        with pytest.raises(ZeroDivisionError):
            finetuned(machine, fail)
        [run] = server.runs.values()
        assert (measured(run), run["exit_code"]) == (WHOLE[:2], 1)
        finetuned(replace(machine, attempt=1), write)
        [run] = server.runs.values()
        assert (measured(run), run["exit_code"], server.num_again) == (WHOLE, 0, 0)
    assert (run["groupName"], run["jobType"], run["displayName"]) == ("7", "finetune", "7/finetune")
    assert run["tags"] == ["finetune", "commit abc", "uncommitted changes"]
    config = {name: each["value"] for name, each in json.loads(run["config"]).items() if name != "_wandb"}
    assert (config["grpo.num_steps"], config["git.commit"]) == (3, "abc")
    assert config["units"]["heldout/regret_best"] == METRICS["heldout/regret_best"].unit
    assert (run["summary"]["verdict"], run["summary"]["findings"]) == ("better", "healthy")
    assert not list((machine.home / "outbox").glob("*/*")), "nothing is kept of what was told"


def test_two_tries_offline_leave_the_files_of_the_last_which_holds_all(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        finetuned(machine, fail)
    [failed] = (machine.home / "wandb").glob("offline-run-*")
    [time, run] = failed.name.removeprefix("offline-run-").split("-")
    for seconds in range(1000):  # W&B names the folder by the second: whenever the retry starts, its own name is taken.
        at = datetime.strptime(time, "%Y%m%d_%H%M%S") + timedelta(seconds=seconds)
        failed.with_name(f"offline-run-{at:%Y%m%d_%H%M%S}-{run}").mkdir(exist_ok=True)
    finetuned(replace(machine, attempt=1), write)
    [folder] = (machine.home / "wandb").glob("offline-run-*")
    assert folder.name.endswith(f"-{run}-1"), "one run, in a folder of its own"
    assert f"finetune: saved offline for W&B; upload it by: wandb sync {folder}\n" in capsys.readouterr().out
    assert not list((machine.home / "outbox").glob("*/*")), "nothing is kept of what was told"


def waiting(machine: Machine) -> int:
    return len(JournalFolder.of(machine).left(Reader.WANDB))


def test_without_the_mirror_there_is_no_trace_of_it_and_the_output_is_the_same(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give_tables: Callable[[Path], Path]
) -> None:
    modes = popen_that_fails(monkeypatch)
    mirrored_output = finetuned(machine, write)
    assert modes == ["offline"]
    home = give_tables(tmp_path / "off")
    off = replace(machine, home=home, tracking_uri=f"sqlite:///{home / 'mlflow.db'}", mirror=Mirror.OFF)
    assert finetuned(off, write) == mirrored_output
    assert (modes, waiting(off), (home / "wandb").exists()) == (["offline"], 0, False)


def popen_that_fails(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no process start, and return the list of the modes that they would have had."""
    modes: list[str] = []

    def noted(command: list[str], *, env: dict[str, str], **_: Any) -> None:
        modes.append(env["WANDB_MODE"])
        raise OSError("no process can be started")

    monkeypatch.setattr(wandb_mirror.subprocess, "Popen", noted)
    return modes


def tried(machine: Machine, steps: range, *, is_killed: bool = False) -> None:
    """Let an attempt of a step say something, and end, or be killed; MLflow has all of it at once."""
    tracker = Tracker(machine)
    run = tracker.start_flow_run(metaflow_run="7", settings=SETTINGS, tags={}, note="")
    with suppress(KeyboardInterrupt), tracker.child(run, "finetune", {"metaflow.run": "7"}, settings=SETTINGS) as child:
        for step in steps:
            child.log(Record(step, {"grpo/entropy": 1 / (step + 1)}))
        if is_killed:
            child.ended = lambda status: None  # type: ignore[method-assign]
            raise KeyboardInterrupt


def test_a_server_that_never_answers_holds_up_nothing_beyond_its_seconds(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[subprocess.Popen[bytes]] = []
    whole = subprocess.Popen
    monkeypatch.setattr(wandb_mirror.subprocess, "Popen", lambda *given, **named: made.append(whole(*given, **named)) or made[-1])
    monkeypatch.setattr(wandb_mirror, "_SECONDS_AT_END", 0.1)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with WandbServer() as server:
        server.is_silent = True
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        finetuned(replace(machine, mirror=Mirror.ONLINE), write)
    said = capsys.readouterr().out
    assert said.count("WARNING") == 1
    assert "finetune: WARNING: this step is not completely logged to W&B (it did not finish within 0 s): the run continues" in said
    assert waiting(machine) == 1
    assert [process.poll() is None for process in made] == [False], "it was ended"


@pytest.mark.prove
def test_a_killed_try_and_the_next_are_one_run_online_and_no_row_is_sent_twice(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = replace(machine, mirror=Mirror.ONLINE, shared=str(tmp_path / "shared"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    for name, value in {"CHESS_GRPO_HOME": str(tmp_path / "other"), "CHESS_GRPO_SHARED": machine.shared}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", machine.tracking_uri)
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        tried(machine, range(3), is_killed=True)
        [run] = server.runs.values()
        assert (run["exit_code"], sorted(run["rows"])) == (255, [0, 1, 2])
        monkeypatch.setattr(wandb_mirror, "_SECONDS_AT_END", 0.0)
        tried(replace(machine, attempt=1), range(5))
        assert "not completely logged to W&B" in capsys.readouterr().out
        # Another machine has the rest, for this one's disk may have vanished.
        assert not list((machine.home / "outbox").glob("*/*"))
        assert deliver_journals(Namespace(only_lists=False)) == 0
        assert "1 steps are not logged to W&B yet: CHESS_GRPO_WANDB=online chess-grpo track logs them" in capsys.readouterr().out
        monkeypatch.setenv("CHESS_GRPO_WANDB", "online")
        assert deliver_journals(Namespace(only_lists=True)) == 1
        assert deliver_journals(Namespace(only_lists=False)) == 0
        assert "W&B: 1 steps logged, 0 wait" in capsys.readouterr().out
        [run] = server.runs.values()
        assert measured(run) == [(n, {"grpo/entropy": 1 / (n + 1)}) for n in range(5)]
        assert (run["exit_code"], server.num_again, run["groupName"]) == (0, 0, "7")
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
        tried(replace(machine, attempt=2), range(5))
    with pytest.raises(MirrorError, match=r"W&B does not have 1 steps \(.*\): run this again later"):
        deliver_journals(Namespace(only_lists=False))


def test_without_a_key_it_is_offline_and_where_the_disk_goes_with_the_task_it_is_off(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modes = popen_that_fails(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "online")
    machine = replace(machine, mirror=Mirror.ONLINE)
    tried(machine, range(1))
    assert "finetune: WARNING: this step is not completely logged to W&B (no process can be started): " in capsys.readouterr().out
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    tried(machine, range(1))
    assert modes == ["offline", "online"]
    monkeypatch.delenv("WANDB_API_KEY")
    capsys.readouterr()
    tried(replace(machine, is_container=True), range(1))
    assert capsys.readouterr().out.startswith("finetune: WARNING: this step is not logged to W&B: there is no WANDB_API_KEY")
    assert len(modes) == 2
