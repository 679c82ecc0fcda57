"""Steps on Batch and Kubernetes ask for what the settings say; on this machine they are left alone."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_runs import MadeRun, machine_of, make_run
from metaflow.user_decorators.mutable_step import MutableStep

from grpo.settings.tree import read_settings
from steps.batch import deployment
from steps.batch.deployment import Deployment
from steps.job.task import IN_LOG
from steps.run.commands import resume_command
from steps.run.processes import LAUNCHER
from steps.run.records import Run, Status, _Marks
from steps.run.store import Store
from steps.run.versions import CODE

WITH = {"shared_memory": 64, "queue": "default", "image": "default"}
"""Attributes that `--with batch` puts on each step before the flow's own decorators."""


class Step:
    OVERRIDE = MutableStep.OVERRIDE

    def __init__(self) -> None:
        self.put: dict[str, dict[str, Any]] = {}

    def add_decorator(self, name: str, deco_kwargs: dict[str, Any], duplicates: int = MutableStep.IGNORE) -> None:
        assert (name == "batch") == (duplicates == self.OVERRIDE)
        self.put[name] = deco_kwargs

    def get_decorator_specs(self, name: str) -> list[tuple[str, str, list[Any], dict[str, Any]]]:
        return [(name, name, [], WITH)]


def decorated(command: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, dict[str, Any]]]:
    """Return step -> decorator -> what it says, for a command."""
    for name in [name for name in os.environ if name.startswith(("CHESS_GRPO_", "MLFLOW_", "AWS_"))]:
        monkeypatch.delenv(name)
    for name, value in {"MLFLOW_TRACKING_URI": "https://mlflow.internal", "MLFLOW_TRACKING_PASSWORD": "hunter2"}.items():
        monkeypatch.setenv(name, value)
    for name in (LAUNCHER, CODE):  # A run sets them.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("CHESS_GRPO_SECRETS", "chess/tracking,chess/wandb")
    monkeypatch.setenv("CHESS_GRPO_BATCH_GPU_QUEUE", "gpus")
    monkeypatch.setattr(sys, "argv", ["flow.py", *command.split()])
    steps = {name: Step() for name in ("start", "finetune", "confirm")}
    text = "resources.games.num_cpus = 16"
    settings = SimpleNamespace(to_dict=lambda: {"settings": read_settings(text).model_dump(mode="json")})
    Deployment().mutate(SimpleNamespace(configs=[("code", None), ("settings", settings)], steps=steps.items()))
    return {name: step.put for name, step in steps.items()}


def test_on_batch_each_kind_of_step_asks_for_what_the_settings_say_and_a_run_here_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(map(str, decorated("run", monkeypatch).values())) == {"{}"}
    steps = decorated("run --with batch", monkeypatch)
    assert steps["finetune"]["resources"] == {"cpu": 4, "memory": 14_000, "gpu": 1}
    assert steps["finetune"]["batch"] == {**WITH, "queue": "gpus"}
    assert steps["confirm"]["resources"]["cpu"] == 16
    assert steps["confirm"]["batch"] == WITH
    assert {name: step["timeout"]["minutes"] for name, step in steps.items()} == {"start": 720, "finetune": 2_880, "confirm": 720}
    on_kubernetes = decorated("run --with kubernetes", monkeypatch)
    for name, step in on_kubernetes.items():
        assert "batch" not in step
        assert {key: value for key, value in steps[name].items() if key not in ("batch", "environment")}.items() <= step.items()
    assert {step["environment"]["vars"][LAUNCHER] for step in on_kubernetes.values()} == {"kubernetes"}
    for step in steps.values():
        assert step["retry"] == {"times": 3, "minutes_between_retries": 0}
        assert step["environment"]["vars"]["MLFLOW_TRACKING_URI"] == "https://mlflow.internal"
        assert step["secrets"] == {"sources": ["aws-secrets-manager.chess/tracking", "aws-secrets-manager.chess/wandb"]}
    assert "hunter2" not in str(steps)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a maker of what a command of the flow says at the end of a run that failed in `finetune`."""

    def say(command: str, error: str, *, ends: Status = "failed", until: str = "finetune", run_id: str = "7") -> str:
        machine = machine_of(tmp_path)
        make_run(machine, MadeRun(name="7", until=until, ends=ends, error=error, launcher="gone"))
        monkeypatch.setattr(deployment, "current", SimpleNamespace(run_id="8" if command.startswith("resume") else run_id))
        monkeypatch.setattr(sys, "argv", ["flows/chess_grpo.py", *command.split()])
        deployment._explain(machine)
        return capsys.readouterr().err

    return say


@pytest.mark.parametrize(
    ("command", "repeated"),
    [
        ("run --with batch --resume-from peak", "chess_grpo.py run --with batch --resume-from peak"),
        ("resume --origin-run-id=7 --with=batch", "run --with batch"),
    ],
)
def test_a_run_that_fails_by_its_settings_says_which_command_to_repeat_and_not_its_reason_again(
    command: str, repeated: str, ended: Callable[..., str]
) -> None:
    said = ended(command, "too few boards")
    assert said.strip().endswith(repeated)
    assert "finetune failed for the reason above" in said
    assert "too few boards" not in said
    assert " resume " not in said
    if command.startswith("run"):
        assert "resume --origin-run-id 7 --with batch` keeps the finished steps" in ended(f"{command} --fresh", "too few boards")


@pytest.mark.parametrize(("error", "ends"), [(f"KeyError: {IN_LOG}", "failed"), ("its process is gone", "killed")])
def test_a_run_that_can_go_on_says_the_command_with_the_places_with_which_it_was_started(
    error: str, ends: Status, ended: Callable[..., str]
) -> None:
    said = ended("run --with batch:cpu=4", error, ends=ends)
    assert f"finetune: {error}" in said
    assert said.strip().endswith("resume --origin-run-id 7 --with batch:cpu=4")


def test_a_run_whose_store_is_a_folder_of_another_machine_is_not_said_to_be_unbegun(ended: Callable[..., str]) -> None:
    said = ended("run --with batch", "", run_id="9")
    assert "CHESS_GRPO_STORE" in said
    assert "not begun" not in said
    assert "The run has not begun" in ended("run", "", run_id="9")


@pytest.mark.parametrize("place", ["batch", "kubernetes"])
def test_a_run_that_a_service_ran_is_resumed_there(place: str, tmp_path: Path) -> None:
    here = make_run(machine_of(tmp_path), MadeRun(name="7", until="finetune", ends="failed", error="x"))
    assert here.places == (), "no service ran it"
    run = Run(Store("s3://bucket/runs", tmp_path), {**here.facts, "launcher": place}, frozenset(), _Marks())
    assert run.status == "running", "nobody here knows whether it has ended"
    assert resume_command(run.name, run.places).endswith(f"--origin-run-id 7 --with {place}")
