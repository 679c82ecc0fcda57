"""Checks of the AWS account for tasks on AWS Batch. The checks run in parallel and take about ten seconds."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from steps.batch.destination import GPU_IMAGE, GPU_QUEUE, reachable, secret_names
from steps.job.preflight import PassingError, PreflightCheck, PreflightError, tried
from steps.run.machine import SECRETS

_CONNECT_SECONDS: Final = 2
_READ_SECONDS: Final = 4
# Error codes that only warn, because the jobs' role may have a right that this account lacks.
_DENIED: Final = ("AccessDeniedException", "UnauthorizedOperation")
_PAGE: Final = "(docs/aws.md)"


def batch_checks(environment: Mapping[str, str]) -> list[PreflightCheck]:
    import boto3.session  # noqa: F401 - The threads must not import boto3 at the same time.
    from metaflow import metaflow_config

    def image() -> str:
        value = _set("METAFLOW_BATCH_CONTAINER_IMAGE", metaflow_config.BATCH_CONTAINER_IMAGE, "an image with the steps' packages")
        return ", ".join(filter(None, (value, environment.get(GPU_IMAGE))))

    checks: dict[str, Callable[[], str]] = {
        "batch tracking": lambda: reachable(environment),
        "batch credentials": _credentials,
        "batch bucket": lambda: _bucket(metaflow_config.DATASTORE_SYSROOT_S3, metaflow_config.S3_ENDPOINT_URL),
        "batch queues": lambda: _queues(metaflow_config.BATCH_JOB_QUEUE, environment),
        "batch role": lambda: _set(
            "METAFLOW_ECS_S3_ACCESS_IAM_ROLE", metaflow_config.ECS_S3_ACCESS_IAM_ROLE, "the jobs' role, an output of Metaflow's stack"
        ),
        "batch image": image,
        "batch secrets": lambda: _secrets(environment),
    }
    with ThreadPoolExecutor(len(checks)) as threads:
        return list(threads.map(tried, checks.keys(), checks.values()))


def _client(service: str, **options: Any) -> Any:
    import boto3.session
    from botocore.config import Config

    times = Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries={"total_max_attempts": 1})
    return boto3.session.Session().client(service, config=times, **options)


def _credentials() -> str:
    with _in_words("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and AWS_DEFAULT_REGION"):
        return str(_client("sts").get_caller_identity()["Arn"])


def _bucket(root: str | None, endpoint: str | None) -> str:
    root = _set("METAFLOW_DATASTORE_SYSROOT_S3", root, "s3://BUCKET/PREFIX of Metaflow's stack")
    name, _, prefix = root.removeprefix("s3://").partition("/")
    with _in_words(f"correct METAFLOW_DATASTORE_SYSROOT_S3={root}, or let the account list and write the bucket"):
        options = {"endpoint_url": endpoint} if endpoint else {}
        _client("s3", **options).list_objects_v2(Bucket=name, Prefix=prefix, MaxKeys=1)
    return root


def _queues(default: str | None, environment: Mapping[str, str]) -> str:
    own = _set("METAFLOW_BATCH_JOB_QUEUE", default, "a job queue of AWS Batch")
    named = {own: "METAFLOW_BATCH_JOB_QUEUE"} | {name: GPU_QUEUE for name in [environment.get(GPU_QUEUE)] if name}
    with _in_words("let the account call batch:DescribeJobQueues"):
        described = _client("batch").describe_job_queues(jobQueues=list(named))["jobQueues"]
    states = {
        key: f"{queue['state']} and {queue['status']}" for queue in described for key in (queue["jobQueueName"], queue["jobQueueArn"])
    }
    works = ("ENABLED and VALID", "ENABLED and UPDATING")
    if wrong := [f"{named[name]}={name} is {state}" for name in named if (state := states.get(name, "not there")) not in works]:
        raise PreflightError(f"{'; '.join(wrong)}: a queue must be ENABLED, and VALID or UPDATING {_PAGE}")
    return ", ".join(named)


def _secrets(environment: Mapping[str, str]) -> str:
    for name in (names := secret_names(environment)):
        with _in_words(f"correct {SECRETS}, or create the secret {name}"):
            _client("secretsmanager").describe_secret(SecretId=name)
    return ", ".join(names) or f"none named in {SECRETS}"


def _set(name: str, value: str | None, what: str) -> str:
    if not value:
        raise PreflightError(f"{name} is not set: give {what} {_PAGE}")
    return value


@contextmanager
def _in_words(remedy: str) -> Iterator[None]:
    """Turn an AWS error into a PreflightError, or into a PassingError if this account has no right to ask."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in _DENIED:
            raise PassingError(f"this account has no right to ask ({error}); the jobs' role may have the right") from None
        raise PreflightError(f"{error}: {remedy} {_PAGE}") from None
    except (BotoCoreError, ValueError) as error:
        raise PreflightError(f"{error}: {remedy} {_PAGE}") from None
