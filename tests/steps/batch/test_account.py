"""One error lists all that a run on AWS Batch lacks; the account is moto's."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from metaflow import metaflow_config
from moto import mock_aws

from steps.batch.account import account_checks
from steps.batch.before_launch import prepare
from steps.batch.destination import DestinationError

LAUNCHER = Path(__file__).parents[3] / "infra" / "launcher.json"
RUN = ["run", "--with", "batch"]
USER = "launcher"
REGISTRY = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "eu-central-1"}
MANIFEST = '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}'
ROLE = "arn:aws:iam::123456789012:role/role"
CONFIGURED = {
    "DATASTORE_SYSROOT_S3": "s3://bucket/metaflow",
    "BATCH_JOB_QUEUE": "cpus",
    "ECS_S3_ACCESS_IAM_ROLE": ROLE,
    "BATCH_CONTAINER_IMAGE": f"{REGISTRY}/chess-grpo:cpu",
}
ENVIRONMENT = {
    "MLFLOW_TRACKING_URI": "https://mlflow.internal",
    "CHESS_GRPO_SECRETS": "chess/tracking",
    "CHESS_GRPO_BATCH_GPU_QUEUE": "cpus",
    "CHESS_GRPO_BATCH_GPU_IMAGE": f"{REGISTRY}/chess-grpo:cpu",
}


def policy(*actions: str) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": "*"}]})


def simulate_principal_policy(self: Any) -> Any:
    """IAM's simulator, which moto lacks, by moto's reading of the user's policies."""
    from moto.core.responses import ActionResult
    from moto.iam.access_control import IAMPolicy, PermissionResult

    user = self.backend.get_user(self._get_param("PolicySourceArn").rpartition("/")[2])
    policies = [IAMPolicy(text) for text in user.policies.values()]
    [resource] = self._get_param("ResourceArns")
    decisions = {
        name: "allowed"
        if any(each.is_action_permitted(name, resource) == PermissionResult.PERMITTED for each in policies)
        else "implicitDeny"
        for name in self._get_param("ActionNames")
    }
    return ActionResult({"EvaluationResults": [{"EvalActionName": name, "EvalDecision": said} for name, said in decisions.items()]})


@pytest.fixture
def account(_quick_clients: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An account with a user, a bucket, an image, a queue and a secret, and Metaflow's configuration of it."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "METAFLOW_"))]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for name, value in CONFIGURED.items():
        monkeypatch.setattr(metaflow_config, name, value)
    monkeypatch.setattr(metaflow_config, "DEFAULT_METADATA", "local")
    from moto.iam.responses import IamResponse
    from moto.servicequotas.models import ServiceQuotasBackend

    monkeypatch.setattr(IamResponse, "simulate_principal_policy", simulate_principal_policy, raising=False)
    monkeypatch.setattr(ServiceQuotasBackend, "get_service_quota", lambda *_, **__: {"Value": 4.0})
    with mock_aws():
        import boto3

        ecr = boto3.client("ecr")
        ecr.create_repository(repositoryName="chess-grpo")
        ecr.put_image(repositoryName="chess-grpo", imageManifest=MANIFEST, imageTag="cpu")
        boto3.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        boto3.client("secretsmanager").create_secret(Name="chess/tracking", SecretString="{}")
        iam = boto3.client("iam")
        iam.create_user(UserName=USER)
        iam.put_user_policy(UserName=USER, PolicyName="own", PolicyDocument=policy("*"))
        key = iam.create_access_key(UserName=USER)["AccessKey"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        role = iam.create_role(RoleName="role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        batch = boto3.client("batch")
        made = batch.create_compute_environment(computeEnvironmentName="machines", type="UNMANAGED", state="ENABLED", serviceRole=role)
        order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
        for name, state in (("cpus", "ENABLED"), ("off", "DISABLED")):
            batch.create_job_queue(jobQueueName=name, state=state, priority=1, computeEnvironmentOrder=order)
        yield


@pytest.mark.usefixtures("account")
def test_an_account_that_has_everything_passes() -> None:
    assert [(check.what, check.detail) for check in account_checks(ENVIRONMENT, "batch") if not check.is_fine or check.is_warning] == []
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
        ({"DATASTORE_SYSROOT_S3": "bucket/metaflow"}, {}, "batch bucket", "METAFLOW_DATASTORE_SYSROOT_S3=bucket/metaflow: .*s3://BUCKET"),
        ({"BATCH_JOB_QUEUE": "gone"}, {}, "batch queues", "METAFLOW_BATCH_JOB_QUEUE=gone is not there"),
        ({}, {"CHESS_GRPO_BATCH_GPU_QUEUE": "off"}, "batch queues", "CHESS_GRPO_BATCH_GPU_QUEUE=off is DISABLED"),
        ({"ECS_S3_ACCESS_IAM_ROLE": f"{ROLE}-gone"}, {}, "batch role", "NoSuchEntity.*METAFLOW_ECS_S3_ACCESS_IAM_ROLE"),
        ({"BATCH_CONTAINER_IMAGE": f"{REGISTRY}/chess-grpo:old"}, {}, "batch image", "ImageNotFound.*METAFLOW_BATCH_CONTAINER_IMAGE"),
        ({}, {"CHESS_GRPO_BATCH_GPU_IMAGE": f"{REGISTRY}/gone:gpu"}, "batch image", "RepositoryNotFound.*CHESS_GRPO_BATCH_GPU_IMAGE"),
        ({}, {"CHESS_GRPO_SECRETS": "absent"}, "batch secrets", "create the secret absent"),
    ],
)
@pytest.mark.usefixtures("account")
def test_what_the_account_does_not_have_is_named(
    change: dict[str, str], environment: dict[str, str], what: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(metaflow_config, name, value)
    [check] = [check for check in account_checks({**ENVIRONMENT, **environment}, "batch") if not check.is_fine]
    assert check.what == what
    assert re.search(reason, check.detail)


@pytest.mark.usefixtures("account")
def test_a_password_of_this_machine_is_not_sent_and_the_user_is_told() -> None:
    environment = {**ENVIRONMENT, "CHESS_GRPO_SECRETS": "", "MLFLOW_TRACKING_PASSWORD": "hunter2"}
    [note] = prepare(RUN, environment)
    assert "MLFLOW_TRACKING_PASSWORD" in note
    assert "hunter2" not in note
    assert list(prepare(RUN, {**environment, "CHESS_GRPO_SECRETS": "chess/tracking"})) == []


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    ("rights", "lacking"), [(("s3:ListBucket",), "PutObject|CreateMultipartUpload"), (("s3:PutObject",), "ListObjects")]
)
def test_a_bucket_that_may_not_be_listed_written_and_deleted_in_fails(rights: tuple[str, ...], lacking: str) -> None:
    import boto3
    from moto.core.authorization import enable_iam_authentication

    boto3.client("iam").put_user_policy(UserName=USER, PolicyName="own", PolicyDocument=policy(*rights))
    with enable_iam_authentication():
        [bucket] = [check for check in account_checks(ENVIRONMENT, "batch") if check.what == "batch bucket"]
    assert not bucket.is_fine
    assert re.search(f"AccessDenied.*{lacking}", bucket.detail)


@pytest.mark.usefixtures("account")
def test_the_policy_of_launchers_has_every_right_that_the_checks_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from botocore.client import BaseClient

    text = LAUNCHER.read_text().replace("BUCKET", "bucket").replace("ROLE", "role")
    boto3.client("iam").put_user_policy(UserName=USER, PolicyName="own", PolicyDocument=text)
    asked, call = set(), BaseClient._make_api_call

    def record(client: Any, operation: str, given: dict[str, Any]) -> Any:
        asked.add(f"{client.meta.service_model.signing_name}:{operation}".replace("ListObjectsV2", "ListBucket"))
        return call(client, operation, given)

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    checks = account_checks(ENVIRONMENT, "batch")
    assert [(check.what, check.detail) for check in checks if not check.is_fine or check.is_warning] == []
    assert len(asked) > 8
    # GetCallerIdentity needs no right.
    assert asked - set(re.findall(r"\w+:[A-Z]\w+", text)) == {"sts:GetCallerIdentity"}


@pytest.mark.usefixtures("account")
def test_the_checks_leave_nothing_in_the_bucket() -> None:
    import boto3

    account_checks(ENVIRONMENT, "batch")
    assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket="bucket")


@pytest.mark.usefixtures("account")
def test_rights_and_a_quota_that_are_too_small_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from moto.servicequotas.models import ServiceQuotasBackend

    boto3.client("iam").put_user_policy(
        UserName=USER, PolicyName="own", PolicyDocument=policy("s3:*", "batch:Describe*", "batch:SubmitJob")
    )
    monkeypatch.setattr(ServiceQuotasBackend, "get_service_quota", lambda *_, **__: {"Value": 0.0})
    checks = account_checks(ENVIRONMENT, "batch")
    assert all(check.is_fine for check in checks)
    rights, quota = (check.detail for check in checks if check.is_warning)
    assert "launcher lacks batch:RegisterJobDefinition, batch:TerminateJob, iam:PassRole (docs/aws.md)" in rights
    assert "0 vCPUs" in quota


@pytest.mark.parametrize("place", ["batch", "kubernetes"])
@pytest.mark.usefixtures("account")
def test_a_folder_as_the_store_and_a_gpu_without_a_queue_of_its_own_warn(place: str) -> None:
    environment = {**ENVIRONMENT, "CHESS_GRPO_STORE": "/home/me/store", "CHESS_GRPO_BATCH_GPU_QUEUE": ""}
    found = {check.what: check.detail for check in account_checks(environment, place) if check.is_warning}
    assert "CHESS_GRPO_STORE=/home/me/store is a folder" in found.pop(f"{place} store")
    assert ("CHESS_GRPO_BATCH_GPU_QUEUE" in found.pop("batch GPU")) if place == "batch" else not found
    assert not found


@pytest.mark.usefixtures("account")
def test_an_answer_that_is_not_awss_warns_of_rights_and_fails_for_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    from moto.iam.responses import IamResponse

    for name in ("simulate_principal_policy", "get_role"):
        monkeypatch.setattr(IamResponse, name, lambda _: (500, {}, "<!doctype html>"))
    checks = {check.what: check for check in account_checks(ENVIRONMENT, "batch")}
    assert checks["batch rights"].is_warning
    assert not checks["batch role"].is_fine


@pytest.mark.usefixtures("account")
def test_machines_that_are_off_are_named_with_their_queue_on() -> None:
    import boto3

    boto3.client("batch").update_compute_environment(computeEnvironment="machines", state="DISABLED")
    [check] = [check for check in account_checks(ENVIRONMENT, "batch") if not check.is_fine]
    assert (check.what, "machines, a compute environment, is DISABLED" in check.detail) == ("batch queues", True)


@pytest.mark.usefixtures("account")
def test_kubernetes_needs_a_server_a_bucket_secrets_and_an_image_but_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metaflow_config, "BATCH_JOB_QUEUE", None)
    [lacking] = [check for check in account_checks(ENVIRONMENT, "kubernetes") if not check.is_fine]
    assert "METAFLOW_KUBERNETES_CONTAINER_IMAGE is not set" in lacking.detail
    monkeypatch.setattr(metaflow_config, "KUBERNETES_CONTAINER_IMAGE", f"{REGISTRY}/chess-grpo:cpu")
    assert list(prepare(["run", "--with", "kubernetes"], dict(ENVIRONMENT))) == []
