"""A stand-in for AWS Batch: moto's S3, Secrets Manager and Batch, with each job a process in an empty folder with only its own variables.

A package that is missing in the archive, a variable that is not forwarded and a relative path of the launcher make a job fail here as in
the cloud. Jobs share this machine's disk, network and processors, and none has a GPU.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

REGION = "eu-central-1"
BUCKET = "chess-grpo-stand-in"
QUEUES = ("cpu", "gpu")
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": REGION}


class BatchJob:
    """A job that was submitted."""

    def __init__(self, job: Any, standin: "StandIn") -> None:
        properties, overrides = job.job_definition.container_properties, job.container_overrides

        def pairs(key: str, name: str) -> dict[str, str]:
            return {row[name]: row["value"] for row in [*properties.get(key, []), *overrides.get(key, [])]}

        self._job, self._standin = job, standin
        self._process: subprocess.Popen[bytes] | None = None
        self.command: list[str] = overrides.get("command") or properties["command"]
        self.variables = pairs("environment", "name")
        self.resources = pairs("resourceRequirements", "type")
        self.queue: str = job.job_queue.name
        self.folder = standin.folder / "jobs" / job.job_id
        self.log_file = standin.folder / "logs" / f"{job.job_id}.log"

    def parameter(self, name: str) -> str:
        """Return what Metaflow says of it: `step_name`, `run_id`, `retry_count`."""
        return str(self._job.parameters[f"metaflow.{name}"])

    @property
    def step(self) -> str:
        return self.parameter("step_name")

    @property
    def attempt(self) -> int:
        return int(self.parameter("retry_count"))

    @property
    def status(self) -> str:
        return str.__str__(self._job.status or "")

    def log(self) -> str:
        """Return what it has printed so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def run(self) -> None:
        """Run it to its end; in moto's thread of this job."""
        job = self._job
        job.status = "RUNNABLE"
        with self._standin.slots:
            self.folder.mkdir(parents=True)
            given = {"AWS_BATCH_JOB_ID": job.job_id, "AWS_BATCH_JOB_ATTEMPT": "1", "AWS_EXECUTION_ENV": "AWS_ECS_EC2"}
            given |= {"AWS_BATCH_CE_NAME": self.queue, "AWS_BATCH_JQ_NAME": self.queue, "HOME": str(self.folder)}
            no_gpu = {"CHESS_GRPO_DEVICE": "cpu"} if "GPU" in self.resources else {}
            with self.log_file.open("wb") as log:
                # The shell ends with this process, and the task with its shell.
                self._process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *self.command],
                    cwd=self.folder,
                    env={**self._standin.image, **KEYS, **given, **self.variables, **no_gpu},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            job.status = "RUNNING"
            while self._process.poll() is None:
                if job.stop:
                    self.kill()
                time.sleep(0.05)
            job.exit_code = self._process.returncode
            job._mark_stopped(success=job.exit_code == 0)

    def kill(self) -> None:
        """End it at once, as when its machine is lost."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class StandIn:
    """A running stand-in."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.jobs: list[BatchJob] = []
        self.slots = threading.Semaphore(2)
        self.image = {**_image(folder), "AWS_ENDPOINT_URL": address, "METAFLOW_SKIP_INSTALL_DEPENDENCIES": "1"}

    def environment(self, **more: str) -> dict[str, str]:
        """Return what the command that launches a flow has in its environment."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CHESS_", "METAFLOW_", "MLFLOW_"))}
        return {
            **inherited,
            **KEYS,
            "AWS_ENDPOINT_URL": self.address,
            "METAFLOW_HOME": str(self.folder),
            "METAFLOW_USER": "tester",
            "METAFLOW_S3_ENDPOINT_URL": self.address,
            "METAFLOW_DATASTORE_SYSROOT_S3": f"s3://{BUCKET}/metaflow",
            "METAFLOW_DATATOOLS_S3ROOT": f"s3://{BUCKET}/metaflow/data",
            "METAFLOW_DEFAULT_METADATA": "local",
            "METAFLOW_BATCH_JOB_QUEUE": QUEUES[0],
            "METAFLOW_ECS_S3_ACCESS_IAM_ROLE": "role",
            **more,
        }

    def client(self, service: str) -> Any:
        """Return a client of an AWS service, with no say of the user's own profile."""
        import boto3.session

        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": REGION}
        return boto3.session.Session(**keys).client(service, endpoint_url=self.address)

    def put_secret(self, name: str, values: Mapping[str, str]) -> None:
        """Keep variables in the Secrets Manager, as Metaflow's @secrets reads them."""
        self.client("secretsmanager").create_secret(Name=name, SecretString=json.dumps(dict(values)))

    def keys(self, prefix: str = "") -> list[str]:
        """Return the names of what is in the bucket."""
        pages = self.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [row["Key"] for page in pages for row in page.get("Contents", [])]

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return key -> content of what is in the bucket."""
        s3 = self.client("s3")
        return {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in self.keys(prefix)}


@contextmanager
def batch_standin(folder: Path) -> Iterator[StandIn]:
    """Give a stand-in that lasts as long as the block, as do its jobs. One at a time in a process."""
    from moto.batch.models import Job
    from moto.server import ThreadedMotoServer

    for name in ("logs", "jobs"):
        (folder / name).mkdir(parents=True)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    with patch.dict(os.environ), patch("werkzeug.serving.WSGIRequestHandler.log_request"):
        for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
            os.environ.pop(name, None)
        server.start()
        host, port = server.get_host_and_port()
        standin = StandIn(folder, f"http://{host}:{port}")
        _make_account(standin)

        def run(job: Any) -> None:
            standin.jobs.append(BatchJob(job, standin))
            standin.jobs[-1].run()

        try:
            with patch.object(Job, "run", run):
                yield standin
        finally:
            for job in standin.jobs:
                job._job.terminate("the stand-in ends")
                job._job.join()
            server.stop()


def _image(folder: Path) -> dict[str, str]:
    """Make an environment with the packages installed here, but not the checkout; return the variables of an image that has it."""
    environment = folder / "image"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
    # The packages come by one .pth file. Python does not read those that lie beside them: an editable install stays unseen.
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    engine = os.environ.get("CHESS_GRPO_STOCKFISH")
    places = [str(environment / "bin"), *([str(Path(engine).parent)] if engine else []), "/usr/local/bin:/usr/bin:/bin:/usr/games"]
    return {"PATH": ":".join(places), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}


def _make_account(standin: StandIn) -> None:
    """Make a bucket, and the queues with what they need."""
    standin.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    iam, ec2, batch = (standin.client(service) for service in ("iam", "ec2", "batch"))
    role = iam.create_role(RoleName="role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    profile = iam.create_instance_profile(InstanceProfileName="instance")["InstanceProfile"]["Arn"]
    machines = {
        "type": "SPOT",
        "minvCpus": 0,
        "maxvCpus": 64,
        "instanceTypes": ["optimal"],
        "instanceRole": profile,
        "subnets": [ec2.describe_subnets()["Subnets"][0]["SubnetId"]],
        "securityGroupIds": [ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]],
    }
    for name in QUEUES:
        batch.create_compute_environment(
            computeEnvironmentName=name, type="MANAGED", state="ENABLED", serviceRole=role, computeResources=machines
        )
        order = [{"order": 1, "computeEnvironment": name}]
        batch.create_job_queue(jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=order)
