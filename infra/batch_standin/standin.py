"""The whole AWS Batch stand-in: moto's server with a bucket, roles, compute environments and queues, and the client settings."""

import functools
import json
import logging
import os
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from infra.batch_standin.agent import CREDENTIALS, METADATA, answer_container
from infra.batch_standin.container import make_image, require_containers
from infra.batch_standin.jobs import BatchJob, Place
from infra.batch_standin.json_server import json_server
from infra.batch_standin.metadata_service import MetadataService
from infra.batch_standin.state_machines import executed_state_machines

REGION: Final = "eu-central-1"
BUCKET: Final = "chess-grpo-stand-in"
QUEUES: Final = {"cpu-spot": "SPOT", "gpu-spot": "SPOT", "on-demand": "EC2"}
"""Queues by name, with the kind of machines behind each."""
FAN_OUTS: Final = "fan-outs"
"""The table in which Metaflow's state machines keep the sizes of fan-outs."""
_MAX_PAYLOAD: Final = 30 * 1024  # Of a SubmitJob, by Batch's quotas.
_PROFILES: Final = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_IMAGE_VARIABLES: Final = {"METAFLOW_SKIP_INSTALL_DEPENDENCIES": "1"}


class StandIn:
    """A running stand-in."""

    def __init__(self, folder: Path, address: str, settings: Mapping[str, str]) -> None:
        """Use `batch_standin`."""
        self.folder = folder
        """Logs of all jobs are in its `logs`."""
        self.address = address
        self.settings = settings
        """What the command that launches a flow has in its environment."""
        self._jobs: list[BatchJob] = []
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def datastore(self) -> str:
        """The address of Metaflow's data in S3."""
        return self.settings["METAFLOW_DATASTORE_SYSROOT_S3"]

    def environment(self, **more: str) -> dict[str, str]:
        """Return our own environment with the client settings, without other clouds' or Metaflow's settings in it."""
        others = ("AWS_", "METAFLOW_")
        return {**{name: value for name, value in os.environ.items() if not name.startswith(others)}, **self.settings, **more}

    def client(self, service: str) -> Any:
        """Return a boto3 client of one of its services."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = _client(service, self.address)
            return self._clients[service]

    def jobs(self, step: str | None = None) -> list[BatchJob]:
        """Return all jobs so far, or those of a step, in the order in which they came."""
        with self._lock:
            return [job for job in self._jobs if step is None or job.step == step]

    def put_secret(self, name: str, values: Mapping[str, str]) -> None:
        """Keep variables in the Secrets Manager, as Metaflow's @secrets reads them."""
        self.client("secretsmanager").create_secret(Name=name, SecretString=json.dumps(dict(values)))

    def accept(self, job: BatchJob) -> None:
        """Remember a job; for moto's threads."""
        with self._lock:
            self._jobs.append(job)


@contextmanager
def batch_standin(
    folder: Path,
    *,
    num_jobs: int = 2,
    has_metadata_service: bool = False,
    hidden: tuple[Path, ...] = (),
    image_variables: Mapping[str, str] | None = None,
    engine: Path | None = None,
    grace_seconds: float = 2.0,
) -> Iterator[StandIn]:
    """Give a stand-in that lasts as long as the block; no process of its jobs outlives it. One at a time in a process.

    Args:
        folder: for logs and the image.
        num_jobs: as many run at once; one of several nodes counts once.
        has_metadata_service: with Metaflow's metadata service, which jobs of several nodes need; else metadata stay on the launcher's disk.
        hidden: folders of the launcher that would be seen because they lie in one of the system's.
        image_variables: what the image sets beside what every image must.
        engine: a Stockfish outside the system's folders.
        grace_seconds: between SIGTERM and SIGKILL; 30 in ECS.

    Raises ContainerError when this machine has no containers.
    """
    require_containers()
    folder = folder.resolve()
    for name in ("logs", "containers", "metaflow"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack, patch.dict(os.environ):
        for name in _PROFILES:
            os.environ.pop(name, None)  # Moto looks for it when it is imported.
        address = stack.enter_context(_moto_server())
        roles, queue = _make_account(address)
        agent = stack.enter_context(json_server(lambda method, path, _: answer_container(REGION, roles["job"], method, path)))
        service = stack.enter_context(json_server(MetadataService().answer)) if has_metadata_service else None
        standin = StandIn(folder, address, _settings(folder, address, roles, queue, service))
        variables = {**_IMAGE_VARIABLES, **(image_variables or {})}
        instance = {
            "AWS_ENDPOINT_URL": address,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent}{CREDENTIALS}{{job}}",
            "ECS_CONTAINER_METADATA_URI_V4": f"{agent}{METADATA}{{job}}",
        }
        image = make_image(folder, hidden=(Path.cwd(), Path.home(), *hidden), variables=variables, engine=engine)
        slots = threading.Semaphore(num_jobs)
        place = Place(image=image, folder=folder, slots=slots, grace_seconds=grace_seconds, instance=instance)
        stack.enter_context(executed_state_machines(address))
        stack.enter_context(_own_jobs(standin, place))
        yield standin


@contextmanager
def _moto_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logger = logging.getLogger("werkzeug")
    level = logger.level
    logger.setLevel(logging.ERROR)  # It would print a line for every request.
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    try:
        yield address
    finally:
        request = urllib.request.Request(f"{address}/moto-api/reset", method="POST")  # noqa: S310 - Our own.
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310
        server.stop()
        if server._server is not None:
            server._server.server_close()
        logger.setLevel(level)


def _client(service: str, address: str) -> Any:
    import boto3.session
    import botocore.session

    # The user's own profile and files have no say here.
    nothing = {name: (None, None, value, None) for name, value in {"profile": None, "config_file": os.devnull}.items()}
    session = boto3.session.Session(
        aws_access_key_id="launcher",
        aws_secret_access_key="of-the-launcher",  # noqa: S106 - Moto asks for any.
        region_name=REGION,
        botocore_session=botocore.session.Session(session_vars=nothing),
    )
    return session.client(service, endpoint_url=address)


def _make_account(address: str) -> tuple[dict[str, str], str]:
    """Make what the stack would: bucket, roles, compute environments, queues, table. Return the roles by name, and the first queue."""
    _client("s3", address).create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    iam, ec2, batch = (_client(service, address) for service in ("iam", "ec2", "batch"))
    roles = {}
    for name, service in {"batch-service": "batch", "instance": "ec2", "job": "ecs-tasks", "machines": "states"}.items():
        principal = {"Service": f"{service}.amazonaws.com"}
        trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}]}
        roles[name] = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    profile = iam.create_instance_profile(InstanceProfileName="instance")["InstanceProfile"]["Arn"]
    iam.add_role_to_instance_profile(InstanceProfileName="instance", RoleName="instance")
    network = {
        "subnets": [ec2.describe_subnets()["Subnets"][0]["SubnetId"]],
        "securityGroupIds": [ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]],
    }
    for name, kind in QUEUES.items():
        machines = {"type": kind, "minvCpus": 0, "maxvCpus": 64, "instanceTypes": ["optimal"], "instanceRole": profile, **network}
        # The newer allocation strategies need no spot fleet role.
        batch.create_compute_environment(
            computeEnvironmentName=name, type="MANAGED", state="ENABLED", serviceRole=roles["batch-service"], computeResources=machines
        )
        order = [{"order": 1, "computeEnvironment": name}]
        batch.create_job_queue(jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=order)
    _client("dynamodb", address).create_table(
        TableName=FAN_OUTS,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "pathspec", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pathspec", "KeyType": "HASH"}],
    )
    return roles, next(iter(QUEUES))


def _settings(folder: Path, address: str, roles: Mapping[str, str], queue: str, service: str | None) -> dict[str, str]:
    metadata = {"METAFLOW_DEFAULT_METADATA": "local"}
    if service is not None:
        metadata = {"METAFLOW_DEFAULT_METADATA": "service", "METAFLOW_SERVICE_URL": service, "METAFLOW_SERVICE_INTERNAL_URL": service}
    return {
        "AWS_ACCESS_KEY_ID": "launcher",
        "AWS_SECRET_ACCESS_KEY": "of-the-launcher",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": address,
        "METAFLOW_HOME": str(folder / "metaflow"),
        "METAFLOW_S3_ENDPOINT_URL": address,
        "METAFLOW_DATASTORE_SYSROOT_S3": f"s3://{BUCKET}/metaflow",
        "METAFLOW_DATATOOLS_S3ROOT": f"s3://{BUCKET}/metaflow/data",
        "METAFLOW_BATCH_JOB_QUEUE": queue,
        "METAFLOW_ECS_S3_ACCESS_IAM_ROLE": roles["job"],
        "METAFLOW_SFN_IAM_ROLE": roles["machines"],
        "METAFLOW_EVENTS_SFN_ACCESS_IAM_ROLE": roles["machines"],
        "METAFLOW_SFN_DYNAMO_DB_TABLE": FAN_OUTS,
        **metadata,
    }


@contextmanager
def _own_jobs(standin: StandIn, place: Place) -> Iterator[None]:
    """Let moto's jobs run as containers of ours, and end all of them at the end."""
    from moto.batch.exceptions import ClientException
    from moto.batch.models import Job
    from moto.batch.responses import BatchResponse

    describe, submit = Job.describe, BatchResponse.submitjob
    threads: list[Job] = []

    def run(job: Job) -> None:
        threads.append(job)
        ours = BatchJob(job, place)
        standin.accept(ours)
        ours.run()

    @functools.wraps(describe)
    def described(job: Job) -> dict[str, Any]:
        found = describe(job)
        if job.job_definition.type == "multinode":
            del found["container"]  # Batch says how it ended in `attempts`.
        else:
            found["container"].update({} if job.exit_code is None else {"exitCode": job.exit_code})
        return found

    @functools.wraps(submit)
    def submitted(response: BatchResponse) -> str:
        body = json.loads(response.body)
        if len(response.body) > _MAX_PAYLOAD:
            raise ClientException(f"the job's payload has {len(response.body):,} bytes; at most {_MAX_PAYLOAD:,} are allowed")
        if "nodeOverrides" in body:
            # Moto does not know them; a job of several nodes has no other overrides.
            body["containerOverrides"] = body.pop("nodeOverrides")
            if QUEUES.get(body["jobQueue"].rpartition("/")[2]) == "SPOT":
                raise ClientException("Multi-node parallel jobs aren't supported on compute environments that use Spot Instances")
        if "retryStrategy" in body:
            body.setdefault("containerOverrides", {})["retryStrategy"] = body["retryStrategy"]  # Moto drops it.
        response.body = json.dumps(body)
        return submit(response)

    with patch.object(Job, "run", run), patch.object(Job, "describe", described), patch.object(BatchResponse, "submitjob", submitted):
        try:
            yield
        finally:
            for job in threads:
                job.terminate("The stand-in ends.")
            for ours in standin.jobs():
                ours.lose()
            for job in threads:
                job.join()
