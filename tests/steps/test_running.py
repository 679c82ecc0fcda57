"""A step is taken from the store when its version is there, made when it is not, and the tracker is told which."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.config import read_settings
from grpo.metrics import Record
from steps.machine import Machine
from steps.running import Job, run_step
from steps.store import StepOutput, Store
from steps.tracking import MODEL, OriginError, Tracker
from steps.work import Work


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose tracking store has its tables: making them takes seconds."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Machine.here()


@pytest.fixture
def tracker(machine: Machine) -> Tracker:
    return Tracker(machine)


@pytest.fixture
def new_job(tracker: Tracker, request: pytest.FixtureRequest) -> Callable[..., Job]:
    def make(**changes: Any) -> Job:
        run = tracker.start_flow_run(metaflow_run=request.node.name, settings={"seed": 0}, tags={}, note="")
        job = Job(
            settings=read_settings("test").model_dump(mode="json"),
            code={"commit": "abc", "is_dirty": False, "lock": request.node.name},  # So that no other test's outputs are found.
            metaflow_run=request.node.name,
            mlflow_run=run,
            is_fresh=False,
            origin=None,
        )
        return Job(**{**job, **changes})  # type: ignore[typeddict-item]

    return make


def run(job: Job, machine: Machine, text: str = "output", fail: bool = False) -> tuple[StepOutput, int]:
    """Return the output of a small step and how often its body ran."""
    calls = 0

    def body(work: Work) -> None:
        nonlocal calls
        calls += 1
        (work.folder / "out.txt").write_text(text)
        work.record(Record(3, {"grpo/entropy": 1.5}))
        if fail:
            raise ZeroDivisionError

    output = run_step(job, machine, step="finetune", module="steps.finetuning", settings={"a": 1}, inputs={}, work=body)
    return output, calls


def runs_of(tracker: Tracker, job: Job) -> list[Any]:
    return tracker._search(f"tags.`mlflow.parentRunId` = '{job['mlflow_run']}'")


def test_a_version_that_is_there_is_reused_and_said_to_be(
    new_job: Callable[..., Job], machine: Machine, tracker: Tracker, capsys: pytest.CaptureFixture[str]
) -> None:
    first, calls = run(new_job(), machine)
    assert (first["reused"], calls) == (False, 1)
    job = new_job()
    second, calls = run(job, machine)
    assert (second["reused"], calls) == (True, 0)
    assert (second["version"], second["output_hash"]) == (first["version"], first["output_hash"])
    assert f"finetune: reusing version {first['version']}" in capsys.readouterr().out
    [child] = runs_of(tracker, job)
    assert child.data.tags["chess_grpo.reused"] == "True"
    assert child.data.metrics["grpo/entropy"] == 1.5


def test_fresh_makes_it_anew_and_keeps_the_old_one_aside(new_job: Callable[..., Job], machine: Machine) -> None:
    first, _ = run(new_job(), machine, "old")
    second, calls = run(new_job(is_fresh=True), machine, "new")
    assert (second["reused"], calls) == (False, 1)
    folder = Store(machine.home).folder("finetune", first["version"])
    assert (folder / "out.txt").read_text() == "new"
    assert (folder.with_name(f"{first['version']}.set-aside-1") / "out.txt").read_text() == "old"


def test_a_spoilt_output_is_set_aside_with_a_warning_and_made_anew(
    new_job: Callable[..., Job], machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = run(new_job(), machine)
    (Store(machine.home).folder("finetune", first["version"]) / "out.txt").write_text("spoilt")
    second, calls = run(new_job(), machine)
    assert calls == 1
    assert second["output_hash"] == first["output_hash"]
    assert "WARNING" in capsys.readouterr().out


def test_a_body_that_fails_leaves_no_output_and_failed_runs(new_job: Callable[..., Job], machine: Machine, tracker: Tracker) -> None:
    job = new_job()
    with pytest.raises(ZeroDivisionError):
        run(job, machine, fail=True)
    [child] = runs_of(tracker, job)
    assert child.info.status == "FAILED"
    assert tracker._client.get_run(job["mlflow_run"]).info.status == "FAILED"
    # Resumed, the parent runs again.
    _, calls = run(job, machine)
    assert calls == 1
    assert sorted(each.info.status for each in runs_of(tracker, job)) == ["FAILED", "FINISHED"]
    assert tracker._client.get_run(job["mlflow_run"]).info.status == "RUNNING"


def test_an_alias_that_nobody_has_cannot_be_resumed_from(tracker: Tracker) -> None:
    with pytest.raises(OriginError, match="no policy has the alias 'peak'"):
        tracker.origin("peak")
    assert not tracker.has_alias("champion")


def test_a_run_without_a_peak_says_how_to_finish_it(new_job: Callable[..., Job], tracker: Tracker) -> None:
    job = new_job()
    with pytest.raises(OriginError, match=f"resume --origin-run-id {job['metaflow_run']}"):
        tracker.origin(job["metaflow_run"])


@pytest.mark.parametrize("name", ["", "a b", "x' or '1'='1", "../.."])
def test_what_cannot_be_the_id_of_a_run_is_refused(tracker: Tracker, name: str) -> None:
    with pytest.raises(OriginError):
        tracker.origin(name)


def test_an_alias_moves_to_the_newest_policy_that_gets_it(
    new_job: Callable[..., Job], machine: Machine, tracker: Tracker, tmp_path: Path
) -> None:
    job = new_job()
    (tmp_path / "weights").write_text("x")
    with tracker.child(job["mlflow_run"], "select", {}) as child:
        child.file(tmp_path, "policy")
        for step in (4, 7):
            tracker.register(child, "policy", parent=job["mlflow_run"], policy_step=step, description="", aliases=("newest",))
    assert tracker._client.get_model_version_by_alias(MODEL, "newest").tags["chess_grpo.policy_step"] == "7"
