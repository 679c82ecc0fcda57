"""The flow's state machine for Step Functions, executed by moto's interpreter; its jobs are recorded and not run.

They run in the proof of the AWS page (tests/infra/test_aws_page.py).
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_flow import FLOW

from infra.batch_standin import BatchJob, StandIn, batch_standin, refusal
from infra.batch_standin.standin import FAN_OUTS

SIZES = {"start": 2, "screen": 3}
"""Steps behind which the flow fans out, with as many tasks."""
STEPS = [
    *("start", "build_boards", "build_boards", "join_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "screen"),
    *("confirm", "confirm", "confirm", "select", "report", "end"),
]


def executed(standin: StandIn, folder: Path) -> str:
    """Deploy the flow, start it with a parameter, and return the name of its execution when that has succeeded."""
    tracking = {"MLFLOW_TRACKING_URI": "http://mlflow.internal:5000", "CHESS_GRPO_BATCH_GPU_QUEUE": "gpu-spot"}
    settings = 'preset = "smoke"\nresources.training.num_gpus = 1\nresources.num_retries = 2'
    command = [sys.executable, str(FLOW), "--no-pylint", "--config-value", "settings", settings, "step-functions"]
    for words in (["create"], ["trigger", "--resume-from", "peak"]):
        environment = standin.environment(METAFLOW_USER="tester", **tracking)
        done = subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    states = standin.client("stepfunctions")
    [machine] = states.list_state_machines()["stateMachines"]
    assert machine["name"] == "chess_grpo.user.tester.ChessGrpo"
    [execution] = states.list_executions(stateMachineArn=machine["stateMachineArn"])["executions"]
    while (found := states.describe_execution(executionArn=execution["executionArn"]))["status"] == "RUNNING":
        time.sleep(0.1)
    assert found["status"] == "SUCCEEDED", found
    return str(found["name"])


@pytest.mark.prove  # The flow is compiled, and each of sixteen states polls its job.
@pytest.mark.skipif(bool(refusal()), reason=refusal())
def test_every_state_is_entered_in_order_and_its_job_has_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with batch_standin(tmp_path / "standin", has_metadata_service=True) as standin:

        def recorded(job: BatchJob) -> None:
            if job.step in SIZES:  # The task writes it for the state machine.
                size = {"NS": [str(index) for index in range(SIZES[job.step])]}
                standin.client("dynamodb").put_item(TableName=FAN_OUTS, Item={"pathspec": {"S": job.id}, "for_each_cardinality": size})
            job._job._mark_stopped(success=True)

        monkeypatch.setattr(BatchJob, "run", recorded)
        name = executed(standin, tmp_path)
        jobs = standin.jobs()
    assert [job.step for job in jobs] == STEPS
    assert {job.run_id for job in jobs} == {f"sfn-{name}"}
    variables = {job.step: job.nodes[0].variables for job in jobs}
    ids = {job.step: job.id for job in jobs}
    assert {each["METAFLOW_RUN_ID"] for each in variables.values()} == {name}
    assert json.loads(variables["start"]["METAFLOW_PARAMETERS"])["resume-from"] == "peak"
    for before, fan_out, join in (("start", "build_boards", "join_boards"), ("screen", "confirm", "select")):
        parts = [job.nodes[0].variables for job in jobs if job.step == fan_out]
        assert sorted(part["METAFLOW_SPLIT_INDEX"] for part in parts) == [str(index) for index in range(SIZES[before])]
        assert {part["METAFLOW_PARENT_TASK_ID"] for part in parts} == {ids[before]}
        assert variables[join]["METAFLOW_SPLIT_PARENT_TASK_ID"] == ids[before]
    assert variables["pretrain"]["METAFLOW_PARENT_TASK_ID"] == ids["check_boards"]
    for job in jobs:
        trains = job.step in ("pretrain", "finetune")
        assert job.nodes[0].variables["CHESS_GRPO_DEVICE"] == ("cuda" if trains else "cpu")
        assert (job.queue, job.num_attempts) == ("gpu-spot" if trains else "cpu-spot", 3)
