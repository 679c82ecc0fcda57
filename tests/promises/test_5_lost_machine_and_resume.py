"""Promise 5: after a lost machine the retry goes on from the last saved progress; a run resumes from any name, also on an empty machine."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_run
import pytest
from doubles import CPU, MadeUpValues
from made_run import COUNT, STEPS, do_run, forked, hashes, kill_before, progress_left, rows_logged, run_of, status_of
from tiny_training import finetune, prepare, settings
from tracked_runs import CANDIDATE_AT, OTHER_AT, SETTINGS, TrackedRun

import steps as pipeline
import steps.finetune
from grpo.base.files import CorruptError, read_json, verified_manifest
from grpo.policy.checkpoints import checkpoint_folders, load_checkpoint
from grpo.policy.policy import NetworkPolicy
from steps.job.resume import Origin, ResumeError, find_origin, inherited_output, origin_checkpoint, resumed_settings
from steps.names import REPORT
from steps.pages.known import summary_of
from steps.run.machine import Machine
from steps.run.step import registered_steps
from steps.run.store import Store
from steps.run.work import read_history
from steps.track.publish import publish_all


def test_after_a_machine_was_lost_the_retry_on_an_empty_one_goes_on_from_the_last_saved_progress(
    runs_here: Machine, bucket: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run.before.append(kill_before("finetune", 3))
    assert status_of(forked(lambda: do_run("1"), CHESS_GRPO_HOME=tmp_path / "one")) == -signal.SIGKILL
    shutil.rmtree(tmp_path / "one")
    made_run.before.clear()
    capfd.readouterr()
    assert status_of(forked(lambda: do_run("1"), CHESS_GRPO_HOME=tmp_path / "two")) == 0
    assert [line for line in capfd.readouterr().out.splitlines() if line.split()[1:2] == ["from"]] == ["finetune from 3"]
    run = run_of("1")
    tries = [attempt.status for attempt in run.attempts if attempt.step == "finetune"]
    assert (run.status, tries) == ("finished", ["killed", "finished"])
    assert progress_left(tmp_path) == []
    assert set(publish_all(replace(runs_here, store=bucket)).values()) <= {""}
    assert rows_logged(runs_here.home) == [list(range(COUNT))] * len(STEPS)
    monkeypatch.setenv("CHESS_GRPO_STORE", str(tmp_path / "alone"))
    assert hashes(run) == hashes(do_run("2"))


@pytest.fixture
def registered(here: Machine, aws: object) -> Machine:
    machine = replace(here, store="s3://shop/store")
    run = TrackedRun(machine)
    run.select(is_origin=True)
    assert run.publish() == ""
    return machine


def test_an_empty_machine_resumes_from_peak_champion_run_and_step(registered: Machine, tmp_path: Path) -> None:
    for name, step in {"peak": CANDIDATE_AT, "champion": CANDIDATE_AT, "7": CANDIDATE_AT, f"7/{OTHER_AT}": OTHER_AT}.items():
        empty = replace(registered, home=tmp_path / f"empty-{name.replace('/', '-')}")
        origin, store = find_origin(name, "default", empty), Store.of(empty)
        assert (origin["run"], origin["step"], origin["settings"]) == ("7", step, SETTINGS)
        folder, _ = origin_checkpoint(origin, store)
        assert folder is not None
        assert folder.is_relative_to(empty.home)
        assert verified_manifest(folder)["step"] == step
        for each in registered_steps():
            assert store.open(origin["outputs"][each]).is_relative_to(empty.home)


def test_where_the_store_is_not_the_peak_comes_from_mlflow_whole_and_a_champion_says_what_works(
    registered: Machine, tmp_path: Path
) -> None:
    empty = replace(registered, home=tmp_path / "empty", store="")
    origin, store = find_origin("peak", "default", empty), Store.of(empty)
    assert (origin["run"], origin["step"], origin["settings"]) == ("7", CANDIDATE_AT, SETTINGS)
    assert origin["name"] == "default/peak", "the same command finds it where another preset has a peak too"
    assert origin["known"] == summary_of(TrackedRun(registered).run, Store.of(registered))
    assert origin["known"].keys() == {"data", "verdict", "findings"}
    folder, digest = origin_checkpoint(origin, store)
    assert folder is not None
    assert digest == verified_manifest(folder)["output_hash"]
    there = TrackedRun(registered)
    selected = there.run.output_of("select")
    assert selected is not None
    assert verified_manifest(folder) == verified_manifest(there.store.file(selected, "peak"))
    for each in registered_steps():
        assert {**origin["outputs"][each], "reused": False} == there.run.output_of(each)
        assert store.open(origin["outputs"][each]).is_dir()
    with pytest.raises(ResumeError, match="has no checkpoint in MLflow: resume from default/peak"):
        find_origin("champion", "default", empty)
    [cached] = (empty.home / "registered").glob("default-v1-*/policy/policy.safetensors")
    whole = cached.read_bytes()
    cached.write_bytes(b"damaged")
    find_origin("peak", "default", empty)
    assert cached.read_bytes() == whole, "fetched again"
    taken = {step: output for step in pipeline.STEPS[1:-1] if (output := inherited_output(origin, step)) is not None}
    assert taken == {
        step: {**origin["outputs"][step], "reused": True} for step in ("build_boards", "join_boards", "check_boards", "pretrain")
    }
    assert inherited_output(None, "pretrain") is None
    for path in (registered.home / "mlartifacts").rglob("policy.safetensors"):
        path.write_bytes(b"damaged")
    with pytest.raises(CorruptError, match="in MLflow are damaged"):
        find_origin("peak", "default", replace(empty, home=tmp_path / "another"))


def test_boards_moves_and_network_stay_the_origins_and_what_is_refused_is_told_with_the_command_that_works() -> None:
    origin = Origin(name="peak", run="7", step=CANDIDATE_AT, settings=SETTINGS, outputs={}, known={})
    assert resumed_settings(origin, {"grpo": {"learning_rate": 0.5, "states_per_step": 64}}).grpo.learning_rate == 0.5
    refused: dict[str, dict[str, Any]] = {
        "boards.num_train": {"boards": {"num_train": 3_000}},
        "policy.width": {"policy": {"width": 32}},
        "seed": {"seed": 5},
        "boards.files": {"boards": {"files": ["other.pgn"]}},
        "boards.exclude": {"boards": {"exclude": ["other.csv"]}},
    }
    for name, given in refused.items():
        with pytest.raises(ResumeError) as caught:
            resumed_settings(origin, {**given, "grpo": {"learning_rate": 0.5}})
        said = str(caught.value)
        assert f"{name}: origin " in said
        assert said.endswith("run --resume-from peak")
        assert "grpo.learning_rate = 0.5" in said.splitlines()[-1]


def test_training_goes_on_from_a_checkpoint_with_its_optimizer_unless_the_objective_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(prepared := tmp_path / "prepared")
    monkeypatch.setattr(steps.finetune, "value_tables", lambda boards, *_, **__: MadeUpValues()(boards))
    origin = checkpoint_folders(finetune(tmp_path / "origin", prepared, settings(num_steps=5)) / "checkpoints")[-1]
    said: dict[str, list[str]] = {"same": [], "other": []}
    for name, change, num_adam_steps in (("same", {"group_size": 6}, 2 * (5 + 3)), ("other", {"num_own_moves": 2}, 2 * 3)):
        given = settings(num_steps=3, learning_rate=1e-6, **change)
        folder = finetune(tmp_path / name, prepared, given, checkpoint=origin, say=said[name].append)
        history = read_history(folder)
        assert [record.step for record in history] == [5, 6, 7, 8]
        assert [record.step for record in history if "heldout/regret_best" in record.metrics] == [5, 7, 8], "each second step of its own"
        assert read_json(folder / REPORT)["first_step"] == 5
        _, state = load_checkpoint(checkpoint_folders(folder / "checkpoints")[-1], CPU, NetworkPolicy)
        assert {float(count) for key, count in state.tensors_of("optimizer.").items() if key.endswith(".step")} == {num_adam_steps}
    assert not any("optimizer" in line for line in said["same"])
    assert said["other"][0] == "the optimizer begins anew, because grpo.num_own_moves differs from the checkpoint's"
