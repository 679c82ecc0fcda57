"""The user's command with `--with batch`, on the stand-in: a run with a lost machine, and a second one that finds its outputs."""

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from batch_standin import BatchJob, StandIn, batch_standin
from canary import files_with, holds
from presets import TEST
from real_flow import FLOW
from toggled_server import ToggledServer

from grpo.match.verdict import Verdict

pytestmark = pytest.mark.prove  # Two runs of some fifteen jobs.
CANARY = "canary-d1b54a32d192ed03"
SECRET = "chess-grpo/tracking"
SETTINGS = f'preset = "{TEST}"\nresources.training.num_gpus = 1'
STEPS = ["start", "build_boards", "join_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "screen", "confirm"]
STEPS += ["select", "report", "end"]


@dataclass(frozen=True)
class Launched:
    """A finished run: its jobs in their order, and what the command printed."""

    jobs: list[BatchJob]
    printed: str


class Stage:
    """Stand-in and tracking server, and the launcher's secrets."""

    def __init__(self, folder: Path, standin: StandIn, tracking: ToggledServer) -> None:
        self.folder, self.standin = folder, standin
        # Another name of this machine than those that `run --with batch` refuses.
        address = tracking.address.replace("127.0.0.1", "127.0.0.2")
        secrets = dict.fromkeys(("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY"), CANARY)
        standin.put_secret(SECRET, secrets)
        self.variables = {**secrets, "MLFLOW_TRACKING_URI": address, "CHESS_GRPO_SECRETS": SECRET, "CHESS_GRPO_BATCH_GPU_QUEUE": "gpu"}

    def launch(self, name: str, *, loses_finetune: bool = False) -> Launched:
        """Run the command in an empty folder to its end, and lose the machine of `finetune` once its first checkpoint is shared."""
        cwd, before = self.folder / name, len(self.standin.jobs)
        cwd.mkdir()
        command = [sys.executable, str(FLOW), "--config-value", "settings", SETTINGS, "run", "--with", "batch"]
        with (cwd / "printed.log").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=cwd, env=self.standin.environment(**self.variables), stdout=output, stderr=subprocess.STDOUT
            )
            while process.poll() is None:
                if loses_finetune and any(
                    key.endswith("/index.json") for key in self.standin.keys("metaflow/chess-grpo/progress/finetune/")
                ):
                    [job] = (job for job in self.standin.jobs if job.step == "finetune")
                    job.kill()
                    loses_finetune = False
                time.sleep(0.2)
        printed = (cwd / "printed.log").read_text()
        assert process.returncode == 0, printed[-4000:]
        assert not loses_finetune, "finetune ended before its machine could be lost"
        return Launched(self.standin.jobs[before:], printed)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, stockfish: str) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("batch")
    (folder / "mlflow").mkdir()
    with batch_standin(folder / "standin") as standin, ToggledServer(folder / "mlflow", host="0.0.0.0") as tracking:
        yield Stage(folder, standin, tracking)


@pytest.fixture(scope="module")
def first(stage: Stage) -> Launched:
    return stage.launch("first", loses_finetune=True)


def test_every_step_is_a_job_and_the_lost_one_goes_on_from_its_progress(first: Launched) -> None:
    assert [step for step, _ in itertools.groupby(job.step for job in first.jobs)] == STEPS
    assert re.search(r"Verdict: (\w[\w ]*)", first.printed)[1].strip() in set(Verdict)  # type: ignore[index]
    lost, retried = (job for job in first.jobs if job.step == "finetune")
    assert {job.status for job in first.jobs if job is not lost} == {"SUCCEEDED"}
    assert (lost.status, lost.attempt, retried.attempt) == ("FAILED", 0, 1)
    assert "resuming from step" in retried.log()


def test_a_job_has_its_own_variables_and_the_archive_and_nothing_of_the_launcher(stage: Stage, first: Launched) -> None:
    shared = "s3://chess-grpo-stand-in/metaflow/chess-grpo"
    assert {job.variables["CHESS_GRPO_STORE"] for job in first.jobs} == {shared}
    # The tasks' code is in the folder of their job, and not in the checkout.
    assert all((job.folder / "metaflow" / "steps" / "batch" / "deployment.py").exists() for job in first.jobs)
    assert not any((job.folder / "metaflow" / "tests").exists() for job in first.jobs)
    assert sorted(path.name for path in (stage.folder / "first").iterdir()) == [".metaflow", "printed.log"]
    cards = {part for key in stage.standin.keys("metaflow/mf.cards/") if key.endswith(".html") for part in key.split("/")}
    assert {"check_boards", "finetune", "select", "report"} <= cards


def test_a_second_run_finds_what_the_first_has_made(stage: Stage, first: Launched) -> None:
    before = stage.standin.objects("metaflow/chess-grpo/outputs/finetune/")
    second = stage.launch("second")
    assert stage.standin.objects("metaflow/chess-grpo/outputs/finetune/") == before
    for step in ("pretrain", "finetune"):
        [job] = (job for job in second.jobs if job.step == step)
        assert "reusing version" in job.log()


def test_a_secret_of_the_launcher_is_found_nowhere(stage: Stage, first: Launched) -> None:
    assert [key for key, content in stage.standin.objects().items() if holds(content, CANARY)] == []
    assert files_with(stage.folder, CANARY) == []
    assert CANARY not in repr([(job.command, job.variables) for job in first.jobs])
    assert CANARY in repr(stage.standin.client("secretsmanager").get_secret_value(SecretId=SECRET))
