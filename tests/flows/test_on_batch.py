"""The user's command with `--with batch`, on the stand-in: a run with a lost machine."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from batch_standin import BUCKET, StandIn, batch_standin
from canary import files_with, holds
from presets import TEST
from real_flow import FLOW
from toggled_server import ToggledServer

from steps import STEPS

pytestmark = pytest.mark.prove  # Some fifteen jobs.
CANARY = "canary-d1b54a32d192ed03"
SECRET = "chess-grpo/tracking"
SETTINGS = f'preset = "{TEST}"\nresources.training.num_gpus = 1'
SHARED = "metaflow/chess-grpo"


def lose_finetune(standin: StandIn) -> bool:
    """Kill the job of `finetune` once its first checkpoint is shared, and return whether that was now."""
    if not any(key.endswith("/index.json") for key in standin.keys(f"{SHARED}/progress/finetune/")):
        return False
    [job] = (job for job in standin.jobs if job.step == "finetune")
    job.kill()
    return True


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory, stockfish: str) -> Iterator[StandIn]:
    """The stand-in on which the command has run, from a folder `cwd` beside that of the stand-in."""
    folder = tmp_path_factory.mktemp("batch")
    for name in ("mlflow", "cwd"):
        (folder / name).mkdir()
    secrets = dict.fromkeys(("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY"), CANARY)
    with batch_standin(folder / "standin") as standin, ToggledServer(folder / "mlflow", host="0.0.0.0") as tracking:
        standin.client("secretsmanager").create_secret(Name=SECRET, SecretString=json.dumps(secrets))
        # Another name of this machine than those that `run --with batch` refuses.
        ours = {"MLFLOW_TRACKING_URI": tracking.address.replace("127.0.0.1", "127.0.0.2"), "CHESS_GRPO_SECRETS": SECRET}
        environment = {**standin.environment, **secrets, **ours, "CHESS_GRPO_BATCH_GPU_QUEUE": "gpu"}
        command = [sys.executable, str(FLOW), "--config-value", "settings", SETTINGS, "run", "--with", "batch"]
        is_lost = False
        with (folder / "cwd" / "printed.log").open("wb") as output:
            process = subprocess.Popen(command, cwd=folder / "cwd", env=environment, stdout=output, stderr=subprocess.STDOUT)
            while process.poll() is None:
                is_lost = is_lost or lose_finetune(standin)
                time.sleep(0.2)
        printed = (folder / "cwd" / "printed.log").read_text()
        assert process.returncode == 0, printed[-4000:]
        assert "Verdict: " in printed
        assert is_lost, "finetune ended before its machine could be lost"
        yield standin


def test_every_step_is_a_job_and_the_lost_one_goes_on_from_its_progress(launched: StandIn) -> None:
    assert [step for step, _ in itertools.groupby(job.step for job in launched.jobs)] == list(STEPS)
    lost, retried = (job for job in launched.jobs if job.step == "finetune")
    assert {job.status for job in launched.jobs if job is not lost} == {"SUCCEEDED"}
    assert (lost.status, lost.attempt, retried.attempt) == ("FAILED", 0, 1)
    assert "resuming from step" in retried.log.read_text()


def test_a_job_has_its_own_variables_and_the_archive_and_nothing_of_the_launcher(launched: StandIn) -> None:
    assert {job.variables["CHESS_GRPO_STORE"] for job in launched.jobs} == {f"s3://{BUCKET}/{SHARED}"}
    # The tasks' code is in the folder of their job, and not in the checkout.
    assert all((job.folder / "metaflow" / "steps" / "batch" / "deployment.py").exists() for job in launched.jobs)
    assert not any((job.folder / "metaflow" / "tests").exists() for job in launched.jobs)
    assert sorted(path.name for path in (launched.folder.parent / "cwd").iterdir()) == [".metaflow", "printed.log"]


def test_a_secret_of_the_launcher_is_found_nowhere(launched: StandIn) -> None:
    s3 = launched.client("s3")
    assert not [key for key in launched.keys("metaflow") if holds(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read(), CANARY)]
    assert files_with(launched.folder.parent, CANARY) == []
    assert CANARY not in repr([(job.command, job.variables) for job in launched.jobs])
