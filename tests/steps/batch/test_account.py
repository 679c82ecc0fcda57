"""One error lists all that a run on AWS Batch lacks; the account is moto's."""

import os
import re
from collections.abc import Iterator

import pytest
from metaflow import metaflow_config
from moto import mock_aws

from steps.batch.account import batch_checks
from steps.batch.before_launch import prepare
from steps.batch.destination import DestinationError

RUN = ["run", "--with", "batch"]
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "eu-central-1"}
ROLE = "arn:aws:iam::123456789012:role/role"
CONFIGURED = {
    "DATASTORE_SYSROOT_S3": "s3://bucket/metaflow",
    "BATCH_JOB_QUEUE": "cpus",
    "ECS_S3_ACCESS_IAM_ROLE": ROLE,
    "BATCH_CONTAINER_IMAGE": "registry/chess-grpo:cpu",
}
ENVIRONMENT = {"MLFLOW_TRACKING_URI": "https://mlflow.internal", "CHESS_GRPO_SECRETS": "chess/tracking"}


@pytest.fixture
def account(_quick_clients: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An account with a bucket, a queue and a secret, and Metaflow's configuration of it."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "METAFLOW_"))]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for name, value in CONFIGURED.items():
        monkeypatch.setattr(metaflow_config, name, value)
    monkeypatch.setattr(metaflow_config, "DEFAULT_METADATA", "local")
    with mock_aws():
        import boto3

        boto3.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        boto3.client("secretsmanager").create_secret(Name="chess/tracking", SecretString="{}")
        role = boto3.client("iam").create_role(RoleName="role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        batch = boto3.client("batch")
        made = batch.create_compute_environment(computeEnvironmentName="machines", type="UNMANAGED", state="ENABLED", serviceRole=role)
        order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
        for name, state in (("cpus", "ENABLED"), ("off", "DISABLED")):
            batch.create_job_queue(jobQueueName=name, state=state, priority=1, computeEnvironmentOrder=order)
        yield


@pytest.mark.usefixtures("account")
def test_an_account_that_has_everything_passes() -> None:
    assert [(check.what, check.detail) for check in batch_checks(ENVIRONMENT) if not check.is_fine or check.is_warning] == []
    assert list(prepare(RUN, environment := dict(ENVIRONMENT))) == []
    assert environment["METAFLOW_DEFAULT_DATASTORE"] == "s3"


@pytest.mark.usefixtures("account")
def test_all_that_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CONFIGURED:
        monkeypatch.setattr(metaflow_config, name, None)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(DestinationError) as refusal:
        list(prepare(RUN, {"CHESS_GRPO_SECRETS": "absent"}))
    for name in ("MLFLOW_TRACKING_URI", "METAFLOW_BATCH_JOB_QUEUE", "METAFLOW_ECS_S3_ACCESS_IAM_ROLE", "METAFLOW_BATCH_CONTAINER_IMAGE"):
        assert name in str(refusal.value)
    for name in ("METAFLOW_DATASTORE_SYSROOT_S3", "must specify a region", "CHESS_GRPO_SECRETS"):
        assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "environment", "what", "reason"),
    [
        ({"DATASTORE_SYSROOT_S3": "s3://other/metaflow"}, {}, "batch bucket", "NoSuchBucket.*METAFLOW_DATASTORE_SYSROOT_S3"),
        ({"BATCH_JOB_QUEUE": "gone"}, {}, "batch queues", "METAFLOW_BATCH_JOB_QUEUE=gone is not there"),
        ({}, {"CHESS_GRPO_BATCH_GPU_QUEUE": "off"}, "batch queues", "CHESS_GRPO_BATCH_GPU_QUEUE=off is DISABLED"),
        ({}, {"CHESS_GRPO_SECRETS": "absent"}, "batch secrets", "create the secret absent"),
    ],
)
@pytest.mark.usefixtures("account")
def test_what_the_account_does_not_have_is_named(
    change: dict[str, str], environment: dict[str, str], what: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(metaflow_config, name, value)
    [check] = [check for check in batch_checks({**ENVIRONMENT, **environment}) if not check.is_fine]
    assert check.what == what
    assert re.search(reason, check.detail)


@pytest.mark.usefixtures("account")
def test_a_password_of_this_machine_is_not_sent_and_the_user_is_told() -> None:
    environment = {"MLFLOW_TRACKING_URI": "https://mlflow.internal", "MLFLOW_TRACKING_PASSWORD": "hunter2"}
    [note] = prepare(RUN, environment)
    assert "MLFLOW_TRACKING_PASSWORD" in note
    assert "hunter2" not in note
    assert list(prepare(RUN, {**environment, "CHESS_GRPO_SECRETS": "chess/tracking"})) == []
