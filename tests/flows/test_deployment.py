"""Tasks elsewhere are tried again only when that may help, and steps ask for what the settings say."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from metaflow.user_decorators.mutable_step import MutableStep

from grpo.base.errors import PlainError
from grpo.settings.tree import read_settings
from steps.batch import deployment
from steps.batch.deployment import Deployment, as_task, main
from steps.batch.destination import DestinationError
from steps.runtime.exit_codes import NO_RETRY, RESUMABLE
from steps.runtime.machine import ATTEMPT, SHARED, TASK, Machine
from steps.store.file_lock import BusyError
from steps.store.objects import SharedStoreError


class Task:
    """The task that this process plays."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def begin(self, attempt: int, task: str = "9", step: str = "finetune") -> Any:
        now = SimpleNamespace(run_id="7", step_name=step, task_id=task, retry_count=attempt, get=lambda name: None)
        self._patch.setattr(deployment, "current", now)
        return as_task(SimpleNamespace())

    def launcher(self, task: str = "9", step: str = "finetune", code: int = 1, kind: str = "batch") -> Any:
        """Return the exit code of the launcher's process of this task when Metaflow would end it with `code`."""
        self._patch.delenv("AWS_BATCH_JOB_ID", raising=False)
        self._patch.setattr(sys, "argv", ["flow.py", kind, "step", step, "sha", "url", "--run-id", "7", "--task-id", task, "--cpu", "2"])

        def flow() -> None:
            raise SystemExit(code)

        with pytest.raises(SystemExit) as end:
            main(flow)
        self._patch.setenv("AWS_BATCH_JOB_ID", "job")
        return end.value.code


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Task:
    """A task in a container."""
    for name in (TASK, ATTEMPT):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("AWS_BATCH_JOB_ID", "job")
    monkeypatch.setenv(SHARED, str(tmp_path / "shared"))
    return Task(monkeypatch)


def test_a_task_knows_which_it_is(task: Task) -> None:
    with task.begin(2):
        machine = Machine.here()
        assert (machine.task, machine.attempt) == ("7/finetune/9", 2)
        assert machine.writer.attempt == 2


@pytest.mark.parametrize("error", [ZeroDivisionError("by nought"), BusyError("somebody else is at it")])
def test_what_another_try_would_meet_again_is_not_tried_again(error: BaseException, task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)), task.begin(0):
        raise error
    assert task.launcher() == NO_RETRY
    assert task.launcher(kind="kubernetes") == NO_RETRY
    # Where somebody tries nevertheless, nothing is done.
    with pytest.raises(SystemExit) as end, task.begin(1):
        pytest.fail("it works")
    assert end.value.code == NO_RETRY
    # Of an error that is not ours nobody knows what its message holds: a password, perhaps.
    why = str(error) if isinstance(error, PlainError) else "ZeroDivisionError; its log has the traceback"
    assert f"not retried: {why}\n" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b"<html>", b"[" * 100_000])
def test_a_damaged_mark_of_a_final_error_forbids_another_try_too(damage: bytes, task: Task, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), task.begin(0):
        raise ZeroDivisionError
    [mark] = (path for path in (tmp_path / "shared").rglob("*.json"))
    mark.write_bytes(damage)
    with pytest.raises(SystemExit) as end, task.begin(1):
        pytest.fail("it works")
    assert end.value.code == NO_RETRY


@pytest.mark.parametrize("error", [SystemExit(RESUMABLE), KeyboardInterrupt(), SharedStoreError("S3 is away")])
def test_what_may_pass_is_tried_again(error: BaseException, task: Task) -> None:
    with pytest.raises(type(error)), task.begin(0):
        raise error
    assert task.launcher() == 1
    done = []
    with task.begin(1):
        done.append("work")
    assert done


def test_a_container_without_a_shared_store_is_told_what_is_missing(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED)
    with pytest.raises(DestinationError, match="CHESS_GRPO_SHARED"), task.begin(0):
        pytest.fail("it works")


def test_a_task_that_failed_for_good_says_nothing_of_others(task: Task) -> None:
    with pytest.raises(ValueError, match="x"), task.begin(0):
        raise ValueError("x")
    assert task.launcher(task="10") == task.launcher(step="pretrain") == 1
    assert task.launcher(code=0) == 0
    with task.begin(0, task="10"):
        pass


def test_on_this_machine_an_error_is_just_an_error(task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_BATCH_JOB_ID")
    with pytest.raises(ZeroDivisionError), task.begin(0):
        raise ZeroDivisionError
    assert not (tmp_path / "shared").exists()
    monkeypatch.setattr(sys, "argv", ["flow.py", "step", "finetune", "--run-id", "7", "--task-id", "9"])
    with pytest.raises(SystemExit) as end:
        main(lambda: sys.exit(1))
    assert end.value.code == 1


WITH: dict[str, Any] = {"shared_memory": 64, "queue": "default", "image": "default"}
"""What `--with batch` has put on each step before the flow's own decorators come."""


class Step:
    """Notes what is put on it; a decorator that is there already stays, as Metaflow has it, unless it is to be overridden."""

    OVERRIDE = MutableStep.OVERRIDE

    def __init__(self, *, has_batch: bool) -> None:
        self.put: dict[str, dict[str, Any]] = {}
        self._there = {"batch": WITH} if has_batch else {}

    def add_decorator(self, name: str, deco_kwargs: dict[str, Any] | None = None, duplicates: int = MutableStep.IGNORE) -> None:
        if not self.has_decorator(name) or duplicates == self.OVERRIDE:
            self.put[name] = deco_kwargs or {}

    def has_decorator(self, name: str) -> bool:
        return name in {**self._there, **self.put}

    def get_decorator_specs(self, name: str) -> list[tuple[str, str, list[Any], dict[str, Any]]]:
        return [(name, name, [], {**self._there, **self.put}[name])] if self.has_decorator(name) else []


def decorated(command: str, monkeypatch: pytest.MonkeyPatch, text: str = "laptop") -> dict[str, dict[str, dict[str, Any]]]:
    """Return step -> decorator -> what it says, for a command."""
    monkeypatch.setattr(sys, "argv", ["flow.py", *command.split()])
    has_batch = "--with batch" in command
    steps = {name: Step(has_batch=has_batch) for name in ("start", "build_boards", "pretrain", "finetune", "confirm")}
    settings = SimpleNamespace(to_dict=lambda: read_settings(text).model_dump(mode="json"))
    Deployment().mutate(SimpleNamespace(configs=[("code", None), ("settings", settings)], steps=steps.items()))
    return {name: step.put for name, step in steps.items()}


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("CHESS_GRPO_", "MLFLOW_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.internal")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")


def test_a_run_here_has_steps_as_they_are_written(launcher: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(map(str, decorated("run", monkeypatch).values())) == {"{}"}


def test_each_kind_of_step_asks_for_what_the_settings_say(launcher: None, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = decorated("run --with batch", monkeypatch, "resources.games.num_cpus = 16\nresources.num_retries = 1")
    assert steps["finetune"]["resources"] == steps["pretrain"]["resources"] == {"cpu": 4, "memory": 14_000, "gpu": 1}
    assert steps["build_boards"]["resources"] == {"cpu": 2, "memory": 4_096, "gpu": 0}
    assert steps["confirm"]["resources"]["cpu"] == 16
    assert steps["confirm"]["environment"]["vars"]["CHESS_GRPO_THREADS"] == "16"
    assert {name: step["timeout"]["minutes"] for name, step in steps.items()} == {
        "start": 60,
        "build_boards": 720,
        "pretrain": 2_880,
        "finetune": 2_880,
        "confirm": 720,
    }
    for step in steps.values():
        assert step["retry"] == {"times": 1, "minutes_between_retries": 0}
        assert step["environment"]["vars"]["MLFLOW_TRACKING_URI"] == "https://mlflow.internal"
        assert "secrets" not in step
        assert "batch" not in step
    assert "hunter2" not in str(steps)
    assert steps["finetune"]["environment"]["vars"]["CHESS_GRPO_DEVICE"] == "cuda"


def test_secrets_go_by_name_and_gpus_to_their_queue(launcher: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_SECRETS", "chess/tracking,chess/wandb")
    monkeypatch.setenv("CHESS_GRPO_BATCH_GPU_QUEUE", "gpus")
    monkeypatch.setenv("CHESS_GRPO_BATCH_GPU_IMAGE", "image:cuda")
    steps = decorated("run --with batch", monkeypatch)
    for step in steps.values():
        assert step["secrets"] == {"sources": ["aws-secrets-manager.chess/tracking", "aws-secrets-manager.chess/wandb"]}
    assert steps["finetune"]["batch"] == {"shared_memory": 64, "queue": "gpus", "image": "image:cuda"}
    # The launcher's process of one task, and Step Functions, have no `--with`.
    for command in ("batch step finetune sha url", "step-functions create"):
        assert decorated(command, monkeypatch)["finetune"]["batch"] == {"queue": "gpus", "image": "image:cuda"}
    assert "batch" not in steps["confirm"]
    assert "batch" not in decorated("run --with batch", monkeypatch, "smoke")["finetune"]
    assert "batch" not in decorated("argo-workflows create", monkeypatch)["finetune"]


def test_a_task_in_a_container_of_batch_has_batchs_decorator_however_it_came_there(launcher: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BATCH_JOB_ID", "job")
    assert {str(step.get("batch")) for step in decorated("step finetune", monkeypatch).values()} == {"{}"}
    monkeypatch.delenv("AWS_BATCH_JOB_ID")
    monkeypatch.setenv("METAFLOW_KUBERNETES_WORKLOAD", "1")
    assert not any("batch" in step for step in decorated("step finetune", monkeypatch).values())
