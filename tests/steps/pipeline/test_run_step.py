"""A step is taken from the store when its version is there, made when it is not, and the tracker is told which."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from grpo.metrics.table import Record
from grpo.settings.tree import read_settings
from steps.pipeline.job import Job
from steps.pipeline.run_step import run_step
from steps.runtime.machine import Machine
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work
from steps.store.outputs import StepOutput, Store
from steps.tracking.tracker import Tracker


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Path:
    return give_tables(tmp_path_factory.mktemp("home"))


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

    output = run_step(job, machine, StepSpec(name="finetune", body="steps.bodies.finetune"), settings={"a": 1}, inputs={}, work=body)
    return output, calls


def runs_of(tracker: Tracker, job: Job) -> list[Any]:
    return tracker.search(f"tags.`mlflow.parentRunId` = '{job['mlflow_run']}'")


def test_a_version_that_is_there_is_reused_and_said_to_be(
    new_job: Callable[..., Job], machine: Machine, tracker: Tracker, capsys: pytest.CaptureFixture[str]
) -> None:
    first, calls = run(new_job(), machine)
    assert (first["reused"], calls) == (False, 1)
    job = new_job()
    second, calls = run(job, machine)
    assert (second["reused"], calls) == (True, 0)
    assert (second["version"], second["output_hash"]) == (first["version"], first["output_hash"])
    assert f"finetune: step 7 of 11: reusing version {first['version'][:12]}" in capsys.readouterr().out
    [child] = runs_of(tracker, job)
    assert child.data.tags["chess_grpo.reused"] == "True"
    assert child.data.metrics["curves/4 entropy"] == 1.5


def test_fresh_makes_it_anew_and_keeps_the_old_one_aside(new_job: Callable[..., Job], machine: Machine) -> None:
    first, _ = run(new_job(), machine, "old")
    second, calls = run(new_job(is_fresh=True), machine, "new")
    assert (second["reused"], calls) == (False, 1)
    folder = Store(machine.home).folder("finetune", first["version"])
    assert (folder / "out.txt").read_text() == "new"
    assert (folder.with_name(f"{first['version']}.set-aside-1") / "out.txt").read_text() == "old"


def test_fresh_makes_it_anew_where_another_machine_has_it_too_and_a_later_try_keeps_what_the_first_made(
    new_job: Callable[..., Job], machine: Machine, tmp_path: Path
) -> None:
    sharing = replace(machine, shared=str(tmp_path / "shared"))
    run(new_job(), sharing, "old")
    elsewhere = replace(sharing, home=tmp_path / "other")
    second, calls = run(job := new_job(is_fresh=True), elsewhere, "new")
    assert (second["reused"], calls) == (False, 1)
    # The machine was lost after that: the same task again, on an empty disk.
    third, calls = run(job, replace(sharing, home=tmp_path / "third", attempt=1), "newer")
    assert (third["output_hash"], calls) == (second["output_hash"], 0)


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
    assert tracker.client.get_run(job["mlflow_run"]).info.status == "FAILED"
    # Resumed, the parent runs again.
    _, calls = run(job, machine)
    assert calls == 1
    assert sorted(each.info.status for each in runs_of(tracker, job)) == ["FAILED", "FINISHED"]
    assert tracker.client.get_run(job["mlflow_run"]).info.status == "RUNNING"


def test_an_output_is_kept_in_the_tracking_store_once_whoever_uses_it(
    new_job: Callable[..., Job], machine: Machine, tracker: Tracker
) -> None:
    first, _ = run(job := new_job(), machine)
    [maker] = runs_of(tracker, job)
    run(again := new_job(), machine)
    [user] = runs_of(tracker, again)
    assert tracker.holder(first) == maker.info.run_id
    assert {each.data.tags["chess_grpo.output_held_by"] for each in (maker, user)} == {maker.info.run_id}
    assert {file.path for file in tracker.client.list_artifacts(maker.info.run_id)} == {"out.txt", "manifest.json", "history.jsonl"}
    assert {file.path for file in tracker.client.list_artifacts(user.info.run_id)} == {"manifest.json", "history.jsonl"}


def test_an_output_whose_holder_was_deleted_is_kept_again(new_job: Callable[..., Job], machine: Machine, tracker: Tracker) -> None:
    first, _ = run(job := new_job(), machine)
    tracker.client.delete_run(runs_of(tracker, job)[0].info.run_id)
    assert tracker.holder(first) is None
    run(again := new_job(), machine)
    assert tracker.holder(first) == runs_of(tracker, again)[0].info.run_id


def test_an_output_that_could_not_be_kept_whole_counts_as_not_kept(
    new_job: Callable[..., Job], machine: Machine, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, sent = MlflowClient.log_artifact, 0

    def fail_after_one(self: MlflowClient, run_id: str, path: str, folder: str | None = None) -> None:
        nonlocal sent
        if sent:
            raise OSError("the server is gone")
        sent += 1
        log(self, run_id, path, folder)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifact", fail_after_one)
        output, calls = run(job := new_job(), machine)
    assert (calls, sent) == (1, 1), "the step ends well all the same"
    [half] = runs_of(tracker, job)
    assert len(tracker.client.list_artifacts(half.info.run_id)) == 1
    assert tracker.holder(output) is None
    _, calls = run(job, machine)
    assert calls == 0
    assert tracker.holder(output) == half.info.run_id, "the rest was told by the next who came"
    assert [each.info.status for each in runs_of(tracker, job)] == ["FINISHED", "FINISHED"]


def test_a_step_can_be_left_out_of_the_tracking_store(new_job: Callable[..., Job], machine: Machine, tracker: Tracker) -> None:
    output = run_step(
        job := new_job(),
        machine,
        StepSpec(name="build_boards", body="steps.bodies.build_boards", is_archived=False),
        settings={},
        inputs={},
        work=lambda work: None,
    )
    assert tracker.holder(output) is None
    [child] = runs_of(tracker, job)
    assert "manifest.json" in {file.path for file in tracker.client.list_artifacts(child.info.run_id)}
