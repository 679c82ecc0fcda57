"""A step's output comes from the store if its version is there, else from its body; each try is recorded with what came of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from doubles import saved_policy
from made_runs import facts_of
from ports import free_port
from safetensors.torch import load_file, save_file

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, sha256_text, write_manifest
from grpo.policy.files import WEIGHTS
from steps.job import task
from steps.job.resume import Job, Origin
from steps.job.task import _Task, run
from steps.names import CHECKPOINTS
from steps.run.kinds import Variant
from steps.run.machine import Machine
from steps.run.processes import RESUMABLE
from steps.run.records import Run, Runs
from steps.run.step import OfRun, Step, StepOutput
from steps.run.store import Store
from steps.run.versions import describe_code
from steps.run.work import Work


class CountingStep(Step):
    def variant(self, kind: str) -> Variant:
        return Variant(module=__name__)


STEP = CountingStep(name="check_boards", says="Counts.", inputs=("join_boards",))
devices: list[str] = []
"""Device of each call's machine."""
calls: list[str] = []
"""Words that the body has read from its input."""
fails: list[BaseException] = []
"""Raised by the next calls, one each."""


def body(work: Work) -> None:
    devices.append(work.machine.device)
    calls.append((work.inputs["join_boards"] / "boards.txt").read_text())
    if fails:
        raise fails.pop()
    (work.folder / "report.json").write_text("{}")


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()
    devices.clear()
    fails.clear()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store of an empty home, whose tracking server is away for good."""
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("CHESS_GRPO_TASK", raising=False)
    return Store.of(Machine.here())


def boards_in(store: Store, content: str = "boards") -> StepOutput:
    with store.making("join_boards", sha256_text(content)[:24]) as making, making.filling({}) as folder:
        (folder / "boards.txt").write_text(content)
    assert making.output is not None
    return making.output


def flow_of(store: Store, name: str = "run-1", *, boards: str = "boards", fresh: str = "") -> SimpleNamespace:
    facts = facts_of(name, Machine.here())
    Runs(store).begin_run(facts)
    job = Job(run=name, settings=facts["settings"], code={**facts["code"], "fresh": fresh}, origin=None, usual={})
    return SimpleNamespace(job=job, join_boards_output=boards_in(store, boards), input=None)


def recorded(store: Store, name: str = "run-1") -> Run:
    found = Runs(store).get(name)
    assert found is not None
    return found


def test_what_the_store_has_is_not_computed_again_and_both_runs_have_it_on_record(store: Store) -> None:
    first = run(STEP, flow_of(store))
    second = run(STEP, flow_of(store, "run-2"))
    assert calls == ["boards"]
    assert (first["reused"], second["reused"]) == (False, True)
    assert first["output_hash"] == second["output_hash"]
    for name in ("run-1", "run-2"):
        assert recorded(store, name).output_of("check_boards") is not None


@pytest.mark.parametrize(("asked", "num_gpus", "device"), [("auto", 0, "cpu"), ("auto", 1, "auto"), ("cuda", 0, "cuda")])
def test_a_step_looks_for_a_gpu_only_if_its_resources_ask_for_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, asked: str, num_gpus: int, device: str
) -> None:
    monkeypatch.setenv("CHESS_GRPO_DEVICE", asked)
    flow = flow_of(store)
    flow.job["settings"]["resources"]["games"]["num_gpus"] = num_gpus
    run(replace(STEP, resources="games"), flow)
    assert devices == [device]


def test_what_a_run_resumes_from_is_taken_over_and_its_checkpoint_and_a_part_are_in_the_version(store: Store) -> None:
    def checkpoint(content: str) -> StepOutput:
        with store.making("finetune", content) as making, making.filling({}) as folder:
            (place := folder / CHECKPOINTS / "step-00000002").mkdir(parents=True)
            (place / "weights").write_text(content)
            write_manifest(place, {})
        assert making.output is not None
        return making.output

    def flow(name: str, *, boards: dict[str, StepOutput], content: str, number: int = 0) -> SimpleNamespace:
        found = flow_of(store, name)
        outputs = {"finetune": checkpoint(content), **boards}
        found.job["origin"] = Origin(name="peak", run="7", step=2, settings={}, outputs=outputs, known={})
        found.input = {"number": number, "count": 2}
        return found

    theirs = {STEP.name: boards_in(store, "theirs")}
    assert run(STEP, flow("run-1", boards=theirs, content="one")) == {**theirs[STEP.name], "reused": True}
    assert calls == []
    assert recorded(store, "run-1").attempts[-1].version == theirs[STEP.name]["version"]
    (store.open(theirs[STEP.name]) / "boards.txt").write_text("damaged")
    with pytest.raises(CorruptError):
        run(STEP, flow("run-1", boards=theirs, content="one"))
    taking = replace(STEP, name="finetune", of_run=(OfRun.CHECKPOINT,))
    flows = [
        flow(f"run-{content}-{number}", boards={}, content=content, number=number) for content in ("two", "three") for number in (0, 1)
    ]
    assert len({_Task(taking, each, ()).version.version for each in flows}) == 4


@pytest.mark.parametrize(("extra", "is_played"), [({}, True), ({"looks_ahead": torch.ones(1)}, False)])
def test_champion_that_this_code_cannot_open_is_not_played_with_a_warning(
    extra: dict[str, torch.Tensor],
    is_played: bool,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = saved_policy(tmp_path / "policy", 1) / WEIGHTS
    save_file(load_file(weights) | extra, weights)
    found = SimpleNamespace(folder=tmp_path / "policy", weights_hash="abc")
    monkeypatch.setattr(task, "named_policy", lambda *_, **__: SimpleNamespace(run=None, fetch=lambda _: found))
    champion = _Task(replace(STEP, of_run=(OfRun.CHAMPION,)), flow_of(store), ()).champion
    assert champion == ((found.folder, "abc") if is_played else (None, "cannot be played"))
    assert ("so it remains champion" in capsys.readouterr().out) != is_played


def test_a_step_that_is_told_to_end_is_killed_and_not_failed(store: Store) -> None:
    fails.append(SystemExit(RESUMABLE))
    with pytest.raises(SystemExit):
        run(STEP, flow_of(store))
    assert [attempt.status for attempt in recorded(store).attempts] == ["killed"]


def test_a_fresh_run_computes_what_the_store_has(store: Store) -> None:
    run(STEP, flow_of(store))
    fresh = flow_of(store, "run-2", fresh="run-2")
    assert not run(STEP, fresh)["reused"]
    assert run(STEP, fresh)["reused"], "what the run itself has made is fresh"
    assert len(calls) == 2


def test_an_output_names_the_code_that_made_it_and_not_that_of_the_runs_first_launch(store: Store) -> None:
    flow = flow_of(store)
    flow.job["code"]["commit"] = "the commit of the first launch"
    assert store.manifest(run(STEP, flow))["code"] == {**describe_code(), "fresh": ""}


def test_a_step_that_fails_is_recorded_with_cause_and_command_and_the_next_try_ends_it(store: Store) -> None:
    fails.append(PlainError("no boards of endgames"))
    flow = flow_of(store)
    with pytest.raises(PlainError):
        run(STEP, flow)
    failed = recorded(store)
    assert failed.failed_step == "check_boards"
    assert failed.error == "no boards of endgames"
    run(STEP, flow)
    assert [attempt.status for attempt in recorded(store).attempts] == ["failed", "finished"]


def test_an_error_that_may_hold_a_secret_is_recorded_by_its_kind_alone(store: Store) -> None:
    fails.append(ValueError("password=hunter2"))
    with pytest.raises(ValueError, match="hunter2"):
        run(STEP, flow_of(store))
    error = recorded(store).error
    assert "ValueError" in error
    assert "hunter2" not in error
