"""`chess-grpo doctor --batch` asks AWS what a run there would meet, changes nothing, and names what it may not ask."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from grpo.settings.tree import Settings, preset_names, read_settings
from steps.preflight.batch import OBJECT_RIGHTS, Clients, ask_batch, machine_sizes

REGION: Final = "us-east-1"
ROLE: Final = "arn:aws:iam::123456789012:role/job"
REGISTRY: Final = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/chess-grpo"


class Account:
    """An account in moto; what IAM answers is scripted, since moto simulates no policies."""

    def __init__(self) -> None:
        boto3.client("s3").create_bucket(Bucket="bucket")
        secret = boto3.client("secretsmanager").create_secret(Name="tracking", SecretString="{}")["ARN"]
        ecr = boto3.client("ecr")
        ecr.create_repository(repositoryName="chess-grpo")
        for tag in ("cpu-1", "gpu-1"):
            manifest = {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"digest": f"sha256:{tag}"},
            }
            ecr.put_image(repositoryName="chess-grpo", imageManifest=json.dumps(manifest), imageTag=tag)
        self._make_queue("cpu", "m7i")
        self._make_queue("gpu", "g6")
        self.trusted = "ecs-tasks.amazonaws.com"
        self.decisions = dict.fromkeys((*OBJECT_RIGHTS, "s3:ListBucket", "secretsmanager:GetSecretValue"), "allowed")
        self.denied: str | None = None
        self.variables = {
            "METAFLOW_BATCH_JOB_QUEUE": "cpu",
            "METAFLOW_DATASTORE_SYSROOT_S3": "s3://bucket/metaflow",
            "METAFLOW_ECS_S3_ACCESS_IAM_ROLE": ROLE,
            "METAFLOW_BATCH_CONTAINER_IMAGE": f"{REGISTRY}:cpu-1",
            "CHESS_GRPO_BATCH_GPU_QUEUE": "gpu",
            "CHESS_GRPO_BATCH_GPU_IMAGE": f"{REGISTRY}:gpu-1",
            "CHESS_GRPO_SECRETS": secret,
            "MLFLOW_TRACKING_URI": "http://mlflow.internal:5000",
        }

    def findings(self, settings: str = "laptop") -> dict[str, tuple[bool, str]]:
        checks = ask_batch(read_settings(settings), self.variables, self.clients)
        return {check.what: (check.is_fine, check.detail) for check in checks}

    @property
    def clients(self) -> Clients:
        iam = boto3.client("iam")
        stub = Stubber(iam)
        trust = {"Statement": [{"Principal": {"Service": self.trusted}}]}
        role = {"Path": "/", "RoleName": "job", "RoleId": "AROA" + "A" * 17, "Arn": ROLE, "CreateDate": "2026-01-01T00:00:00Z"}
        if self.denied == "GetRole":
            stub.add_client_error("get_role", "AccessDenied")
        else:
            stub.add_response("get_role", {"Role": {**role, "AssumeRolePolicyDocument": json.dumps(trust)}})
        for actions in (OBJECT_RIGHTS, ("s3:ListBucket",), ("secretsmanager:GetSecretValue",)):
            if self.denied == "SimulatePrincipalPolicy":
                stub.add_client_error("simulate_principal_policy", "AccessDenied")
            rows = [{"EvalActionName": action, "EvalDecision": self.decisions[action]} for action in actions]
            stub.add_response("simulate_principal_policy", {"EvaluationResults": rows})
        stub.activate()
        return lambda service: iam if service == "iam" else boto3.client(service)

    def _make_queue(self, name: str, family: str) -> None:
        role = boto3.client("iam").create_role(RoleName=f"batch-{name}", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        profile = boto3.client("iam").create_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Arn"]
        ec2 = boto3.client("ec2")
        machines = {
            "type": "SPOT",
            "minvCpus": 0,
            "maxvCpus": 16,
            "instanceTypes": [family],
            "instanceRole": profile,
            "subnets": [ec2.describe_subnets()["Subnets"][0]["SubnetId"]],
            "securityGroupIds": [ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]],
        }
        batch = boto3.client("batch")
        batch.create_compute_environment(
            computeEnvironmentName=name, type="MANAGED", state="ENABLED", serviceRole=role, computeResources=machines
        )
        order = [{"order": 1, "computeEnvironment": name}]
        batch.create_job_queue(jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=order)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield Account()


def test_an_account_that_has_all_passes_with_what_was_found(account: Account) -> None:
    found = account.findings()
    assert {what for what, (is_fine, _) in found.items() if not is_fine} == set()
    assert found["queue cpu"][1] == "SPOT of m7i, at most 16 vCPUs; fits boards, games, others"
    assert found["queue gpu"][1] == "SPOT of g6, at most 16 vCPUs; fits training"
    assert found["jobs' role"][1].startswith(
        "role/job may s3:GetObject, s3:PutObject, s3:DeleteObject on bucket/metaflow/*; s3:ListBucket on bucket; secretsmanager:GetSecret"
    )
    assert found["CHESS_GRPO_BATCH_GPU_IMAGE"][1] == f"{REGISTRY}:gpu-1 is there"


@pytest.mark.parametrize(
    ("change", "what", "words"),
    [
        (
            {"CHESS_GRPO_BATCH_GPU_QUEUE": ""},
            "queue cpu",
            "no machine of m7i offers what resources.training requests (4 vCPUs, 14,000 MiB, 1",
        ),
        ({"METAFLOW_BATCH_JOB_QUEUE": "cpus"}, "queue cpus", "there is none in this account and region"),
        ({"METAFLOW_DATASTORE_SYSROOT_S3": "s3://buckets/metaflow"}, "datastore", "ListObjectsV2: The specified bucket does not exist"),
        (
            {"METAFLOW_BATCH_CONTAINER_IMAGE": ""},
            "METAFLOW_BATCH_CONTAINER_IMAGE",
            "not set: Metaflow would take an image without Stockfish",
        ),
        ({"METAFLOW_BATCH_CONTAINER_IMAGE": f"{REGISTRY}:cpu-2"}, "METAFLOW_BATCH_CONTAINER_IMAGE", "DescribeImages: "),
        ({"CHESS_GRPO_SECRETS": "trackings"}, "secret trackings", "DescribeSecret: Secrets Manager can't find"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(account: Account, change: dict[str, str], what: str, words: str) -> None:
    account.variables |= change
    is_fine, detail = account.findings()[what]
    assert not is_fine
    assert detail.startswith(words)


def test_a_queue_for_gpus_in_metaflows_profile_is_no_queue_because_a_run_does_not_read_it(account: Account, tmp_path: Path) -> None:
    queue = account.variables.pop("CHESS_GRPO_BATCH_GPU_QUEUE")
    (tmp_path / "config.json").write_text(json.dumps({"CHESS_GRPO_BATCH_GPU_QUEUE": queue, "METAFLOW_BATCH_JOB_QUEUE": "not read"}))
    account.variables["METAFLOW_HOME"] = str(tmp_path)
    assert account.findings()["queue cpu"][1].startswith("no machine of m7i offers what resources.training requests")
    account.variables |= {"CHESS_GRPO_BATCH_GPU_QUEUE": queue}
    assert account.findings()["queue gpu"][0]


def test_a_step_that_no_machine_can_hold_is_named(account: Account) -> None:
    assert account.findings("resources.training.memory_mib = 16_384")["queue gpu"][0], "a larger g6 has it"
    is_fine, detail = account.findings("resources.games.num_cpus = 32")["queue cpu"]
    assert not is_fine
    assert detail == "it has at most 16 vCPUs at a time, fewer than resources.games.num_cpus"


def test_a_queue_that_is_turned_off_is_named(account: Account) -> None:
    boto3.client("batch").update_compute_environment(computeEnvironment="gpu", state="DISABLED")
    assert account.findings()["queue gpu"][1].startswith("gpu is DISABLED and VALID")


def test_a_role_that_no_container_can_take_or_that_lacks_a_right_is_named(account: Account) -> None:
    account.decisions["s3:PutObject"] = "implicitDeny"
    account.decisions["s3:ListBucket"] = "explicitDeny"
    assert account.findings()["jobs' role"] == (False, "role/job may not s3:PutObject on bucket/metaflow/*; s3:ListBucket on bucket")
    account.trusted = "ec2.amazonaws.com"
    assert account.findings()["jobs' role"] == (
        False,
        "its trust policy does not name ecs-tasks.amazonaws.com, so that no container can take it",
    )


@pytest.mark.parametrize("call", ["GetRole", "SimulatePrincipalPolicy"])
def test_what_this_user_may_not_ask_fails_nothing_and_is_said(account: Account, call: str) -> None:
    account.denied = call
    is_fine, detail = account.findings()["jobs' role"]
    assert is_fine
    assert detail.startswith(f"not checked: you may not call {call}; it needs s3:GetObject, s3:PutObject")


def test_nothing_is_created_or_written(account: Account) -> None:
    account.findings()
    assert boto3.client("batch").describe_job_definitions()["jobDefinitions"] == []
    assert boto3.client("batch").list_jobs(jobQueue="cpu")["jobSummaryList"] == []
    assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket="bucket")


def test_without_a_configuration_the_page_is_named() -> None:
    [check] = ask_batch(Settings(), {"METAFLOW_HOME": "/nowhere"})
    assert not check.is_fine
    assert check.detail.startswith("Metaflow is not configured for AWS Batch: METAFLOW_BATCH_JOB_QUEUE, ")


SMALLEST: Final = {
    ("m7i", "boards"): "m7i.large",
    ("m7i", "others"): "m7i.large",
    ("m7i", "games"): "m7i.xlarge",
    ("c7i", "games"): "c7i.xlarge",
    ("g6", "training"): "g6.xlarge",
}
"""Family, kind of task -> the smallest machine with as many processors, into which the task shall fit."""


def test_each_default_fits_the_smallest_machine_with_its_processors(account: Account) -> None:
    # The sizes are EC2's own (DescribeInstanceTypes), of which moto has a copy; Batch offers a part of the memory.
    sizes = {family: machine_sizes([family], boto3.client) for family, _ in SMALLEST}
    for preset in preset_names():
        resources = read_settings(f'preset = "{preset}"').resources
        for (family, kind), smallest in SMALLEST.items():
            assert next(size.name for size in sizes[family] if size.fits(getattr(resources, kind))) == smallest, (preset, kind)
