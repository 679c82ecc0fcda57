"""A stand-in for AWS Batch: moto's AWS, with each job a process in an empty folder with only its own variables.

A package that is missing in the archive, a variable that is not forwarded and a relative path of the launcher make a job fail here as in
the cloud. Jobs share this machine's disk, network and processors, and none has a GPU.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

BUCKET = "chess-grpo-stand-in"
ACCOUNT = "123456789012"
REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": REGION}


class BatchJob:
    def __init__(self, job: Any, standin: "StandIn") -> None:
        properties, overrides = job.job_definition.container_properties, job.container_overrides
        rows = [*properties.get("environment", []), *overrides.get("environment", [])]
        self._job = job
        self._process: subprocess.Popen[bytes] | None = None
        self.command: list[str] = overrides.get("command") or properties["command"]
        self.variables = {row["name"]: row["value"] for row in rows}
        self.queue: str = job.job_queue.name
        self.image: str = overrides.get("image") or properties["image"]
        self.step, self.attempt = job.parameters["metaflow.step_name"], int(job.parameters["metaflow.retry_count"])
        self.folder = standin.folder / "jobs" / job.job_id
        self.log = standin.folder / "logs" / f"{job.job_id}.log"

    @property
    def status(self) -> str:
        return str.__str__(self._job.status or "")

    def run(self, standin: "StandIn") -> None:
        """Run it to its end; in moto's thread of this job."""
        job = self._job
        job.status = "RUNNABLE"
        with standin.slots:
            self.folder.mkdir(parents=True)
            given = {"AWS_BATCH_JOB_ID": job.job_id, "AWS_BATCH_JOB_ATTEMPT": "1", "AWS_EXECUTION_ENV": "AWS_ECS_EC2"}
            given |= {"AWS_BATCH_CE_NAME": "ce", "AWS_BATCH_JQ_NAME": self.queue, "HOME": str(self.folder)}
            with self.log.open("wb") as log:
                # The shell ends with this process, and the task with its shell.
                self._process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *self.command],
                    cwd=self.folder,
                    env={**standin.image, **KEYS, **given, **self.variables, "CHESS_GRPO_DEVICE": "cpu"},
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
    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.jobs: list[BatchJob] = []
        self.slots = threading.Semaphore(2)
        self.image = {**_image(folder), "AWS_ENDPOINT_URL": address, "METAFLOW_SKIP_INSTALL_DEPENDENCIES": "1"}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CHESS_", "METAFLOW_", "MLFLOW_"))}
        self.environment = {
            **inherited,
            **KEYS,
            "AWS_ENDPOINT_URL": address,
            "METAFLOW_HOME": str(folder),
            "METAFLOW_USER": "tester",
            "METAFLOW_S3_ENDPOINT_URL": address,
        }
        """Environment of a user's commands: Metaflow's configuration is in the stand-in's folder."""

    def client(self, service: str) -> Any:
        """Return a client of an AWS service, with no say of the user's own profile."""
        import boto3.session

        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": REGION}
        return boto3.session.Session(**keys).client(service, endpoint_url=self.image["AWS_ENDPOINT_URL"])

    def network(self) -> dict[str, str]:
        """Return the network of the account as outputs of Metaflow's stack."""
        first, second, *_ = self.client("ec2").describe_subnets()["Subnets"]
        return {"VPCId": first["VpcId"], "Subnet1Id": first["SubnetId"], "Subnet2Id": second["SubnetId"]}

    def keys(self, prefix: str) -> list[str]:
        pages = self.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [row["Key"] for page in pages for row in page.get("Contents", [])]


@contextmanager
def batch_standin(folder: Path) -> Iterator[StandIn]:
    """Give a stand-in that lasts as long as the block, as do its jobs. One at a time in a process."""
    from moto.batch.models import ComputeEnvironment, Job
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
        standin.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        role = standin.client("iam").create_role(RoleName="role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        make = ComputeEnvironment.create_from_cloudformation_json

        def run(job: Any) -> None:
            standin.jobs.append(BatchJob(job, standin))
            standin.jobs[-1].run(standin)

        def with_role(name: str, resource: dict[str, Any], *given: Any, **named: Any) -> Any:
            # moto wants a role that AWS makes itself, where there is none.
            resource["Properties"].setdefault("ServiceRole", role)
            return make(name, resource, *given, **named)

        try:
            with patch.object(Job, "run", run), patch.object(ComputeEnvironment, "create_from_cloudformation_json", with_role):
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
