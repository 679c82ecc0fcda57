"""The exact user command with `--with batch`, on the stand-in for AWS Batch: run once on the preset `test`, read by many small tests."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from real_flow import ROOT

from grpo.evaluation.verdict import Verdict
from grpo.settings.tree import read_settings
from infra import batch_demo
from infra.batch_demo import SECRET, Launched, Result, Stage
from infra.batch_standin import BatchJob, StandIn, batch_standin, refusal
from infra.canary import objects_with, secrets_with
from infra.mlflow_server import mlflow_server

TOYS = ROOT / "tests" / "flows" / "batch_toy" / "flows"
CANARY = "canary-d1b54a32d192ed03"
SETTINGS = 'preset = "test"'
LAST_STEPS = ["check_boards", "pretrain", "calibrate", "baseline", "finetune", "select", "report", "end"]

pytestmark = pytest.mark.skipif(bool(refusal()), reason=refusal())


# A stand-in is one at a time in a process: tests that start their own come before `stage` is set up.


def run_toy(
    standin: StandIn, cwd: Path, flow: str, *arguments: str, watch: Callable[[list[BatchJob]], None], variables: Mapping[str, str]
) -> tuple[str, Any]:
    """Run a toy flow to its end; return what it printed, and what its last step found."""
    command = [sys.executable, str(TOYS / flow), "--datastore", "s3", "run", "--with", "batch", *arguments]
    with (cwd / "printed.log").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=standin.environment(METAFLOW_USER="tester", **variables), stdout=output, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            watch(standin.jobs())
            time.sleep(0.05)
    printed = (cwd / "printed.log").read_text(errors="replace")
    assert process.returncode == 0, printed
    [line] = [line for line in standin.jobs("end")[0].log().splitlines() if line.startswith("found ")]
    return printed, json.loads(line.removeprefix("found "))


@pytest.mark.prove  # A job takes Metaflow some ten starts of Python.
def test_metaflow_sees_the_archive_and_nothing_else_and_tries_a_lost_machines_task_again(tmp_path: Path) -> None:
    on_launcher = tmp_path / "file"
    on_launcher.write_text("here")

    def lose_first_try(jobs: list[BatchJob]) -> None:
        for job in jobs:
            if not job.is_over and "working on 2, attempt 0" in job.log():
                job.lose()

    with batch_standin(tmp_path / "standin") as standin:
        standin.put_secret("toy/password", {"TOY_PASSWORD": CANARY})
        arguments = ("--on-launcher", str(on_launcher))
        variables = {"NOT_FORWARDED": "here", "PYTHONPATH": str(TOYS.parent)}
        printed, found = run_toy(standin, tmp_path, "toy_flow.py", *arguments, watch=lose_first_try, variables=variables)
        tries = [(job.attempt, job.status, job.exit_code) for job in standin.jobs("work")]
    assert found == {
        "total": 6,
        "attempts": [0, 1],
        "package": "ModuleNotFoundError",
        "checkout": "ModuleNotFoundError",
        "file": "FileNotFoundError",
        "variable": "KeyError",
        "forwarded": "by value",
        "secret": hashlib.sha256(CANARY.encode()).hexdigest(),
        "folder": "/metaflow",
        "home": [],
    }
    assert sorted(tries) == [(0, "FAILED", None), (0, "SUCCEEDED", 0), (1, "SUCCEEDED", 0)]
    assert "Task is starting (retry)" in printed


@pytest.mark.prove
def test_metaflow_runs_a_step_in_two_nodes_at_once(tmp_path: Path) -> None:
    with batch_standin(tmp_path / "standin", has_metadata_service=True) as standin:
        variables = {"METAFLOW_BATCH_JOB_QUEUE": "on-demand"}
        _, found = run_toy(standin, tmp_path, "nodes_flow.py", watch=lambda _: None, variables=variables)
        [job] = standin.jobs("train")
    assert found == [[node, 2, "127.0.0.1", f"{job.id}#{node}"] for node in range(2)]


@pytest.mark.prove  # Three whole runs.
def test_the_demonstration_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["batch_demo", "--preset", "test", "--folder", str(tmp_path / "demo")])
    assert batch_demo.main() == 0, capsys.readouterr().out


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("batch")
    engine = os.environ.get("CHESS_GRPO_STOCKFISH")
    with (
        batch_standin(folder / "standin", engine=Path(engine) if engine else None) as standin,
        mlflow_server(folder / "mlflow") as tracking,
    ):
        standin.put_secret(SECRET, {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": CANARY, "WANDB_API_KEY": CANARY})
        yield Stage(folder=folder, standin=standin, tracking=tracking, settings=SETTINGS, canary=CANARY)


@pytest.fixture(scope="module")
def launched(stage: Stage) -> Launched:
    return stage.launch("plain")


@pytest.fixture(scope="module")
def result(stage: Stage, launched: Launched) -> Result:
    return stage.result(launched)


@pytest.mark.prove  # A run of some fifteen jobs.
def test_the_command_comes_to_a_verdict_which_it_prints(launched: Launched, result: Result) -> None:
    assert result.verdict in {verdict.value for verdict in Verdict}
    assert f"Verdict: {result.verdict}" in launched.printed


@pytest.mark.prove  # A run of some fifteen jobs.
def test_every_step_is_a_job_that_succeeded_at_once(launched: Launched) -> None:
    assert [job.status for job in launched.jobs] == ["SUCCEEDED"] * len(launched.jobs)
    assert launched.num_retries == 0
    steps = list(dict.fromkeys(job.step for job in launched.jobs))
    assert [step for step in steps if step in LAST_STEPS] == LAST_STEPS
    assert sum(job.step == "build_boards" for job in launched.jobs) == read_settings(SETTINGS).boards.num_tasks


@pytest.mark.prove  # A run of some fifteen jobs.
def test_each_job_asks_for_what_the_settings_say_of_its_kind(launched: Launched) -> None:
    resources = read_settings(SETTINGS).resources
    kinds = {"build_boards": resources.boards, "finetune": resources.training, "baseline": resources.games, "report": resources.others}
    jobs = {job.step: job for job in launched.jobs}
    for step, task in kinds.items():
        assert jobs[step].resources["VCPU"] == str(task.num_cpus)
        assert jobs[step].resources["MEMORY"] == str(task.memory_mib)
        assert jobs[step].timeout_seconds == task.max_minutes * 60
        assert jobs[step].variables[0]["CHESS_GRPO_THREADS"] == str(task.num_cpus)


@pytest.mark.prove  # A run of some fifteen jobs.
def test_outputs_are_in_the_shared_store_and_nothing_of_them_on_the_launchers_disk(stage: Stage, launched: Launched) -> None:
    assert {job.variables[0]["CHESS_GRPO_SHARED"] for job in launched.jobs} == {f"{stage.standin.datastore}/chess-grpo"}
    keys = objects_of(stage.standin, "metaflow/chess-grpo/outputs/")
    assert {key.split("/")[3] for key in keys} >= {"join_boards", "pretrain", "finetune", "select", "report"}
    assert sorted(path.name for path in (stage.folder / launched.name).iterdir()) == [".metaflow", "printed.log", "run_id"]


@pytest.mark.prove  # A run of some fifteen jobs.
def test_cards_are_there(stage: Stage, launched: Launched) -> None:
    cards = {key.split("/")[-1].split("-")[0] for key in objects_of(stage.standin, "metaflow/mf.cards/") if key.endswith(".html")}
    assert cards, launched.printed[-3000:]
    steps = {part for key in objects_of(stage.standin, "metaflow/mf.cards/") for part in key.split("/")}
    assert {"check_boards", "finetune", "select", "report"} <= steps


@pytest.mark.prove  # A run of some fifteen jobs.
def test_the_code_package_holds_the_steps_and_nothing_of_what_surrounds_them(stage: Stage, launched: Launched) -> None:
    [package] = objects_with(stage.standin, "Metaflow decorators for steps on AWS Batch or Kubernetes")
    assert {job.variables[0]["METAFLOW_CODE_URL"] for job in launched.jobs} == {package}
    assert objects_with(stage.standin, "The whole AWS Batch stand-in") == []


@pytest.mark.prove  # A run of some fifteen jobs.
def test_a_secret_of_the_launcher_is_found_nowhere_but_in_the_secrets_manager(stage: Stage, result: Result) -> None:
    assert secrets_with(stage.standin, CANARY) == [SECRET]
    assert stage.leaks() == []


def objects_of(standin: StandIn, prefix: str) -> list[str]:
    pages = standin.client("s3").get_paginator("list_objects_v2").paginate(Bucket="chess-grpo-stand-in", Prefix=prefix)
    return [row["Key"] for page in pages for row in page.get("Contents", [])]
