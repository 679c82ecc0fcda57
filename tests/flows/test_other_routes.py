"""Metaflow's other routes: the flow compiles for Argo, Step Functions and Airflow, with every step's resources and variables.

What runs the result is not here; docs/aws.md says what that leaves unproven.
"""

import ast
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from real_flow import FLOW

CANARY: Final = "canary-in-a-coal-mine"
CONFIDENTIAL: Final = ("MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "MLFLOW_FLASK_SERVER_SECRET_KEY")
GIVEN: Final = {
    # What the stack's outputs set.
    "METAFLOW_DATASTORE_SYSROOT_S3": "s3://bucket/metaflow",
    "METAFLOW_DATATOOLS_S3ROOT": "s3://bucket/metaflow/data",
    "METAFLOW_BATCH_JOB_QUEUE": "cpu",
    "METAFLOW_BATCH_CONTAINER_IMAGE": "registry/cpu:1",
    "METAFLOW_ECS_S3_ACCESS_IAM_ROLE": "arn:aws:iam::123456789012:role/job",
    "CHESS_GRPO_BATCH_GPU_QUEUE": "gpu",
    "CHESS_GRPO_BATCH_GPU_IMAGE": "registry/gpu:1",
    "CHESS_GRPO_SECRETS": "arn:aws:secretsmanager:us-east-1:123456789012:secret:tracking",
    "MLFLOW_TRACKING_URI": "http://mlflow.chess-grpo.internal:5000",
    # What each route wants besides.
    "METAFLOW_KUBERNETES_CONTAINER_IMAGE": "registry/cpu:1",
    "METAFLOW_KUBERNETES_NAMESPACE": "chess",
    "METAFLOW_SFN_IAM_ROLE": "arn:aws:iam::123456789012:role/step-functions",
    "METAFLOW_SFN_DYNAMO_DB_TABLE": "foreach",
}
FORWARDED: Final = {
    "MLFLOW_TRACKING_URI": GIVEN["MLFLOW_TRACKING_URI"],
    "CHESS_GRPO_SECRETS": GIVEN["CHESS_GRPO_SECRETS"],
    "CHESS_GRPO_SHARED": "s3://bucket/metaflow/chess-grpo",
}
SETTINGS: Final = """preset = "smoke"
resources.num_retries = 2
resources.training.num_gpus = 1
resources.training.num_cpus = 3
resources.training.memory_mib = 9000
resources.training.max_minutes = 90
resources.boards.num_gpus = 0
resources.boards.num_cpus = 2
resources.boards.memory_mib = 5000
resources.boards.max_minutes = 20
"""
STEPS: Final = tuple(
    node.name
    for node in ast.walk(ast.parse(FLOW.read_text()))
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(decorator, ast.Name) and decorator.id == "step" for decorator in node.decorator_list)
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Return what compiles the flow by a command and returns what it printed; S3, IAM and Batch are stand-ins in this process."""
    from moto.server import ThreadedMotoServer

    folder = tmp_path_factory.mktemp("routes")
    aws = ThreadedMotoServer(port=0, verbose=False)
    aws.start()
    try:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CHESS_GRPO_", "METAFLOW_", "MLFLOW_"))}
        endpoint = f"http://127.0.0.1:{aws.get_host_and_port()[1]}"
        account = {"AWS_ACCESS_KEY_ID": "testing", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint}
        given = {**kept, **GIVEN, **dict.fromkeys(CONFIDENTIAL, CANARY), **account}
        given |= {"METAFLOW_S3_ENDPOINT_URL": endpoint, "METAFLOW_USER": "tester", "HOME": str(folder)}
        with pytest.MonkeyPatch.context() as patch:
            for name in (*account, "AWS_SECRET_ACCESS_KEY"):
                patch.setenv(name, given[name])
            patch.delenv("AWS_PROFILE", raising=False)
            _make_queues()
            boto3.client("s3").create_bucket(Bucket="bucket")

            def compile_by(*command: str) -> str:
                words = [sys.executable, str(FLOW), "--no-pylint", "--config-value", "settings", SETTINGS, *command]
                done = subprocess.run(words, cwd=folder, env=given, capture_output=True, text=True, check=False, timeout=900)
                assert done.returncode == 0, done.stderr
                assert CANARY not in done.stdout + done.stderr
                return done.stdout

            yield compile_by
    finally:
        aws.stop()


def _make_queues() -> None:
    """Make the queues, which Step Functions' route looks at while it compiles."""
    role = boto3.client("iam").create_role(RoleName="batch", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    network = boto3.client("ec2")
    [subnet] = network.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"]
    [group] = network.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [subnet["VpcId"]]}])["SecurityGroups"]
    client = boto3.client("batch")
    profile = boto3.client("iam").create_instance_profile(InstanceProfileName="machine")["InstanceProfile"]["Arn"]
    made = client.create_compute_environment(
        computeEnvironmentName="machines",
        type="MANAGED",
        serviceRole=role,
        computeResources={
            "type": "SPOT",
            "allocationStrategy": "SPOT_PRICE_CAPACITY_OPTIMIZED",
            "minvCpus": 0,
            "maxvCpus": 4,
            "instanceTypes": ["c7i"],
            "subnets": [subnet["SubnetId"]],
            "securityGroupIds": [group["GroupId"]],
            "instanceRole": profile,
        },
    )["computeEnvironmentArn"]
    for name in ("cpu", "gpu"):
        client.create_job_queue(
            jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": made}]
        )


def check_step(step: str, variables: dict[str, Any], num_gpus: object) -> None:
    """What every route has to hand on of a step."""
    trains = step in ("pretrain", "finetune")
    assert FORWARDED.items() <= variables.items()
    assert variables["CHESS_GRPO_DEVICE"] == ("cuda" if trains else "cpu")
    assert not variables.keys() & set(CONFIDENTIAL)
    assert str(num_gpus or 0) == ("1" if trains else "0")


def test_argo_runs_every_step_with_its_resources_tries_and_variables(compiled: Callable[..., str]) -> None:
    templates = json.loads(compiled("argo-workflows", "create", "--only-json"))["spec"]["templates"]
    steps = {template["name"].replace("-", "_"): template for template in templates}
    for step in STEPS:
        container = steps[step]["container"]
        variables = {entry["name"]: entry["value"] for entry in container["env"]}
        check_step(step, variables, container["resources"]["limits"]["nvidia.com/gpu"])
        assert steps[step]["retryStrategy"]["limit"] == 2
    assert steps["finetune"]["container"]["resources"]["requests"]["cpu"] == "3.0"
    assert steps["finetune"]["container"]["resources"]["requests"]["memory"] == "9000.0M"
    assert steps["build_boards"]["activeDeadlineSeconds"] == 20 * 60


def test_step_functions_run_every_step_and_leave_no_secret_in_the_bucket(compiled: Callable[..., str]) -> None:
    machine = json.loads(compiled("--branch", "new", "step-functions", "create", "--only-json"))
    states = dict(machine["States"])
    for state in machine["States"].values():  # A fan-out's steps lie within its map.
        states |= (state.get("Iterator") or state.get("ItemProcessor") or {}).get("States", {})
    client = boto3.client("batch")
    assert {"Name": "SFN_STATE_MACHINE", "Value": "chess_grpo.test.new.ChessGrpo"} in states["start"]["Parameters"]["ContainerOverrides"][
        "Environment"
    ]
    for step in STEPS:
        job = states[step]["Parameters"]
        wanted = {entry["Type"]: entry["Value"] for entry in job["ContainerOverrides"]["ResourceRequirements"]}
        check_step(step, {entry["Name"]: entry.get("Value") for entry in job["ContainerOverrides"]["Environment"]}, wanted.get("GPU"))
        kind = "gpu" if "GPU" in wanted else "cpu"
        assert job["JobQueue"] == kind
        assert job["RetryStrategy"]["Attempts"] == 3, "the first try, and two more"
        [definition] = client.describe_job_definitions(jobDefinitions=[job["JobDefinition"]])["jobDefinitions"]
        assert definition["containerProperties"]["image"] == f"registry/{kind}:1"
    assert states["finetune"]["Parameters"]["Timeout"]["AttemptDurationSeconds"] == 90 * 60
    bucket = boto3.client("s3")
    keys = [entry["Key"] for entry in bucket.list_objects_v2(Bucket="bucket")["Contents"]]
    contents = {key: bucket.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}
    packages = 0
    for key, content in contents.items():
        assert CANARY.encode() not in _unpacked(content), key
        packages += b"class ChessGrpo(FlowSpec)" in _unpacked(content)
    assert packages, "no code package was looked into"


@pytest.mark.prove
def test_airflow_runs_every_step_with_its_resources_tries_and_variables(compiled: Callable[..., str], tmp_path: Path) -> None:
    compiled("airflow", "create", str(tmp_path / "dag.py"))
    dag = (tmp_path / "dag.py").read_text()
    [config] = [node.value for node in ast.parse(dag).body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONFIG"]
    operators = ast.literal_eval(config)["states"]
    assert set(operators) == set(STEPS)
    for step, operator in operators.items():
        arguments = operator["operator_args"]
        variables = {entry["name"]: entry["value"] for entry in arguments["env_vars"]}
        check_step(step, variables, arguments["resources"]["limits"]["nvidia.com/gpu"])
        assert arguments["retries"] == 2
    assert operators["finetune"]["operator_args"]["execution_timeout"] == {"seconds": 90 * 60}
    assert CANARY not in dag


def _unpacked(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
