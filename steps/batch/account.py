"""Checks of the AWS account for tasks on AWS Batch or Kubernetes."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from grpo.settings.types import S3_SCHEME
from steps.batch.destination import GPU_IMAGE, GPU_QUEUE, reachable, secret_names
from steps.job.preflight import PassingError, PreflightCheck, PreflightError, tried
from steps.run.machine import SECRETS, STORE, store_place

_CONNECT_SECONDS: Final = 2
_READ_SECONDS: Final = 10
# Error codes that only warn.
_DENIED: Final = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_PAGE: Final = "(docs/aws.md)"
_WORKS: Final = ("ENABLED and VALID", "ENABLED and UPDATING")
_RIGHTS: Final = (
    "batch:SubmitJob",
    "batch:RegisterJobDefinition",
    "batch:TerminateJob",
    "batch:DescribeJobs",
    "batch:DescribeJobDefinitions",
)
_ECR: Final = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)(?::([^@]+))?(?:@(.+))?")
_GPU_SPOT: Final = {"ServiceCode": "ec2", "QuotaCode": "L-3819A6DF"}  # In vCPUs.
_MIN_GPU_CPUS: Final = 4  # vCPUs of the smallest machines of g4dn, g5 and g6.


def account_checks(environment: Mapping[str, str], place: str) -> list[PreflightCheck]:
    """Check what tasks need at `place`, "batch" or "kubernetes". Writes and deletes an empty object in the bucket."""
    import boto3.session  # noqa: F401 - The threads must not import boto3 at the same time.
    from metaflow import metaflow_config

    checks: dict[str, Callable[[], str]] = {
        "tracking": lambda: reachable(environment),
        "credentials": _caller,
        "bucket": lambda: _bucket(metaflow_config.DATASTORE_SYSROOT_S3, metaflow_config.S3_ENDPOINT_URL),
        "secrets": lambda: _secrets(environment),
        "store": lambda: _store(environment),
    }
    if place == "batch":
        role = metaflow_config.ECS_S3_ACCESS_IAM_ROLE
        checks |= {
            "image": lambda: _images(
                "METAFLOW_BATCH_CONTAINER_IMAGE", metaflow_config.BATCH_CONTAINER_IMAGE, environment.get(GPU_IMAGE, "")
            ),
            "queues": lambda: _queues(metaflow_config.BATCH_JOB_QUEUE, environment),
            "role": lambda: _role(role),
            "rights": lambda: _rights(metaflow_config.BATCH_JOB_QUEUE, role),
            "GPU": lambda: _gpu(environment),
        }
        if environment.get(GPU_QUEUE):
            checks["GPU quota"] = _gpu_quota
    else:
        checks["image"] = lambda: _images("METAFLOW_KUBERNETES_CONTAINER_IMAGE", metaflow_config.KUBERNETES_CONTAINER_IMAGE)
    with ThreadPoolExecutor(len(checks)) as threads:
        return list(threads.map(tried, [f"{place} {what}" for what in checks], checks.values()))


def _client(service: str, **options: Any) -> Any:
    import boto3.session
    from botocore.config import Config

    times = Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries={"total_max_attempts": 1})
    return boto3.session.Session().client(service, config=times, **options)


def _caller() -> str:
    with _in_words("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and AWS_DEFAULT_REGION"):
        return str(_client("sts").get_caller_identity()["Arn"])


def _bucket(root: str | None, endpoint: str | None) -> str:
    root = _set("METAFLOW_DATASTORE_SYSROOT_S3", root, "s3://BUCKET/PREFIX of Metaflow's stack")
    if not root.startswith(S3_SCHEME):
        raise PreflightError(f"METAFLOW_DATASTORE_SYSROOT_S3={root}: give s3://BUCKET/PREFIX {_PAGE}")
    name, _, prefix = root.removeprefix(S3_SCHEME).partition("/")
    # A refusal is a fault, because the launcher itself writes to the bucket.
    with _in_words(
        f"correct METAFLOW_DATASTORE_SYSROOT_S3={root}, or let the account list the bucket, and write and delete in it", denied=()
    ):
        s3 = _client("s3", **({"endpoint_url": endpoint} if endpoint else {}))
        s3.list_objects_v2(Bucket=name, Prefix=prefix, MaxKeys=1)
        key = f"{prefix.rstrip('/')}/chess-grpo/probe/doctor-{os.urandom(4).hex()}".lstrip("/")
        s3.put_object(Bucket=name, Key=key, Body=b"")
        s3.delete_object(Bucket=name, Key=key)
    return f"{root}: listed, written, deleted"


def _images(variable: str, image: str | None, gpu_image: str = "") -> str:
    """Check images in ECR; images in other registries are not checked."""
    variables = {_set(variable, image, "an image with the steps' packages"): variable} | ({gpu_image: GPU_IMAGE} if gpu_image else {})
    for address, name in variables.items():
        if match := _ECR.fullmatch(address):
            registry, region, repository, tag, digest = match.groups()
            with _in_words(f"correct {name}={address}, or push the image"):
                image_id = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
                _client("ecr", region_name=region).describe_images(registryId=registry, repositoryName=repository, imageIds=[image_id])
    return ", ".join(variables)


def _queues(default: str | None, environment: Mapping[str, str]) -> str:
    queue_name = _set("METAFLOW_BATCH_JOB_QUEUE", default, "a job queue of AWS Batch")
    variables = {queue_name: "METAFLOW_BATCH_JOB_QUEUE"} | {name: GPU_QUEUE for name in [environment.get(GPU_QUEUE)] if name}
    with _in_words("let the account call batch:DescribeJobQueues and batch:DescribeComputeEnvironments"):
        batch = _client("batch")
        described = batch.describe_job_queues(jobQueues=list(variables))["jobQueues"]
        names = [order["computeEnvironment"] for queue in described for order in queue["computeEnvironmentOrder"]]
        environments = batch.describe_compute_environments(computeEnvironments=names)["computeEnvironments"] if names else []
    states = {
        key: f"{queue['state']} and {queue['status']}" for queue in described for key in (queue["jobQueueName"], queue["jobQueueArn"])
    }
    wrong = [f"{variables[name]}={name} is {state}" for name in variables if (state := states.get(name, "not there")) not in _WORKS]
    wrong += [
        f"{description['computeEnvironmentName']}, a compute environment, is {state} ({description.get('statusReason', 'no reason given')})"
        for description in environments
        if (state := f"{description['state']} and {description['status']}") not in _WORKS
    ]
    if wrong:
        raise PreflightError(f"{'; '.join(wrong)}: each must be ENABLED, and VALID or UPDATING {_PAGE}")
    return ", ".join(variables)


def _role(role: str | None) -> str:
    role = _set("METAFLOW_ECS_S3_ACCESS_IAM_ROLE", role, "the jobs' role, an output of Metaflow's stack")
    with _in_words(f"correct METAFLOW_ECS_S3_ACCESS_IAM_ROLE={role}"):
        _client("iam").get_role(RoleName=role.rpartition("/")[2])
    return role


def _rights(queue: str | None, role: str | None) -> str:
    """Ask IAM's simulator. A refusal only warns, because the simulator knows no request's region or tags."""
    if (caller := _caller()).endswith(":root"):
        return "root may do everything"
    # arn:aws:sts::ACCOUNT:assumed-role/ROLE/SESSION; the simulator takes the role.
    source = re.sub(r":sts:(.*):assumed-role/([^/]+)/.*", r":iam:\1:role/\2", caller)
    _, partition, _, _, account, _ = caller.split(":", 5)
    if queue and not queue.startswith("arn:"):
        queue = f"arn:{partition}:batch:{_client('batch').meta.region_name}:{account}:job-queue/{queue}"
    answers: list[Mapping[str, str]] = []
    with _unanswered(f"IAM's simulator does not say what {source} may do"):
        for actions, resource in ((_RIGHTS, "*"), (("batch:SubmitJob",), queue or "*"), (("iam:PassRole",), role or "*")):
            request = {"PolicySourceArn": source, "ActionNames": list(actions), "ResourceArns": [resource]}
            answers += _client("iam").simulate_principal_policy(**request)["EvaluationResults"]
    if lacking := [answer["EvalActionName"] for answer in answers if answer["EvalDecision"] != "allowed"]:
        raise PassingError(f"by IAM's simulator {source} lacks {', '.join(lacking)} {_PAGE}")
    return f"{source} may submit jobs"


def _gpu(environment: Mapping[str, str]) -> str:
    if missing := [name for name in (GPU_QUEUE, GPU_IMAGE) if not environment.get(name)]:
        raise PassingError(
            f"{' and '.join(missing)} not set, so tasks with a GPU go where all others go: set both, or resources.training.num_gpus = 0"
            f" {_PAGE}"
        )
    return f"{GPU_QUEUE}, {GPU_IMAGE}"


def _gpu_quota() -> str:
    with _unanswered("AWS does not say the quota of spot machines with a GPU"):
        value = _client("service-quotas").get_service_quota(**_GPU_SPOT)["Quota"]["Value"]
    quota = f"{value:.0f} vCPUs of spot machines with a GPU"
    if value < _MIN_GPU_CPUS:
        raise PassingError(
            f"{quota}, and the smallest has {_MIN_GPU_CPUS}: raise the quota `All G and VT Spot Instance Requests`, or set"
            f" resources.training.num_gpus = 0 {_PAGE}"
        )
    return quota


def _secrets(environment: Mapping[str, str]) -> str:
    for name in (names := secret_names(environment)):
        with _in_words(f"correct {SECRETS}, or create the secret {name}"):
            _client("secretsmanager").describe_secret(SecretId=name)
    return ", ".join(names) or f"none named in {SECRETS}"


def _store(environment: Mapping[str, str]) -> str:
    if (place := store_place(environment)) and not place.startswith(S3_SCHEME):
        raise PassingError(
            f"{STORE}={place} is a folder, which jobs share only through a mounted volume: unset it, or give s3://BUCKET/PREFIX {_PAGE}"
        )
    return place or "a folder of the bucket"


def _set(name: str, value: str | None, what: str) -> str:
    if not value:
        raise PreflightError(f"{name} is not set: give {what} {_PAGE}")
    return value


@contextmanager
def _in_words(remedy: str, *, denied: tuple[str, ...] = _DENIED) -> Iterator[None]:
    """Turn an AWS error into a PreflightError, or a PassingError for a code in `denied`."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in denied:
            raise PassingError(f"this account may not ask ({error}); the jobs' role may") from None
        raise PreflightError(f"{error}: {remedy} {_PAGE}") from None
    except (BotoCoreError, ResponseParserError, ValueError) as error:  # ValueError: a malformed endpoint.
        raise PreflightError(f"{error}: {remedy} {_PAGE}") from None


@contextmanager
def _unanswered(words: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise PassingError(f"{words} ({error})") from None
