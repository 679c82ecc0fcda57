"""Checks of AWS Batch: what Metaflow is configured with, and answers of AWS itself to calls that change nothing (`doctor --batch`)."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from grpo.base.files import CorruptError, parse_json_object
from grpo.reading.s3 import split_address
from grpo.settings.tree import ResourcesConfig, Settings, TaskResources
from steps.batch.destination import GPU_IMAGE, GPU_QUEUE, DestinationError, batch_place, prepare, secret_names
from steps.preflight.checks import PreflightCheck

OFFERED: Final = 0.925
"""Share of a machine's nominal memory that AWS Batch is sure to offer to jobs: what Karpenter, which has the same problem, counts on by
default (VM_MEMORY_OVERHEAD_PERCENT = 0.075). Batch's user guide, "Compute resource memory management", gives no number."""
_QUEUE: Final = "METAFLOW_BATCH_JOB_QUEUE"
_IMAGE: Final = "METAFLOW_BATCH_CONTAINER_IMAGE"
_ROOT: Final = "METAFLOW_DATASTORE_SYSROOT_S3"
_ROLE: Final = "METAFLOW_ECS_S3_ACCESS_IAM_ROLE"
_REQUIRED: Final[Mapping[str, str]] = {
    _QUEUE: "the queue that tasks are sent to",
    _ROOT: "where artifacts and the code package go",
    _ROLE: "the role by which a task reaches them",
}
"""Metaflow settings that `run --with batch` requires; infra/stack.yaml outputs their values."""
OBJECT_RIGHTS: Final = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
_TASKS: Final = "ecs-tasks.amazonaws.com"
_DENIED: Final = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403")
_FAMILY: Final = re.compile(r"[a-z]+\d[a-z0-9-]*(\.[a-z0-9-]+)?")
"""Of machines, or one type; neither `optimal` nor `default_x86_64`."""
_ECR: Final = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[\w-]+)\.amazonaws\.com[\w.]*/(?P<name>[^:@]+)(?P<version>[:@].+)?")

Clients = Callable[[str], Any]
"""Name of an AWS service -> boto3 client."""


def metaflow_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return Metaflow's configuration file with the environment over it. Raises OSError or CorruptError for an unreadable file."""
    path = profile_path(environment)
    return {**(parse_json_object(path.read_bytes(), path) if path.is_file() else {}), **environment}


def profile_path(environment: Mapping[str, str]) -> Path:
    """Return where Metaflow's configuration file is, if there is one."""
    home = Path(environment.get("METAFLOW_HOME") or "~/.metaflowconfig").expanduser()
    profile = environment.get("METAFLOW_PROFILE")
    return home / (f"config_{profile}.json" if profile else "config.json")


def batch_configured(environment: Mapping[str, str]) -> Iterator[PreflightCheck]:
    """Check what `run --with batch` needs, if Metaflow is configured for AWS Batch."""
    try:
        configured = metaflow_settings(environment)
    except (OSError, CorruptError) as error:
        yield _failed("batch", f"Metaflow's configuration cannot be read ({error}); fix it or run `metaflow configure aws`")
        return
    if not any(configured.get(name) for name in _REQUIRED):
        return
    if missing := [f"{name} ({meaning})" for name, meaning in _REQUIRED.items() if not configured.get(name)]:
        yield _failed("batch", f"not set: {', '.join(missing)}; infra/stack.yaml prints them (docs/aws.md)")
        return
    try:
        notes = prepare(["run", "--with", "batch"], dict(environment))
    except DestinationError as error:
        yield _failed("batch", f"`run --with batch` would be refused: {error}")
        return
    yield _fine("batch", "; ".join([f"queue {configured[_QUEUE]}", *notes]))


def ask_batch(settings: Settings, environment: Mapping[str, str], clients: Clients | None = None) -> Iterator[PreflightCheck]:
    """Ask AWS whether `run --with batch` would find what it needs: nothing is created, written or started.

    A call that this user may not make is a check that passes and says so, with what it could not find out.

    Args:
        settings: what each kind of task requests.
        environment: this process's variables.
        clients: gives boto3's clients; by default those of the environment's account and region.
    """
    if any(not check.is_fine for check in batch_configured(environment)):
        return  # Those checks are in the table, too.
    configured = metaflow_settings(environment)
    if missing := [name for name in _REQUIRED if not configured.get(name)]:
        yield _failed("batch", f"Metaflow is not configured for AWS Batch: {', '.join(missing)} are not set (docs/aws.md)")
        return
    identity = _answer("AWS account", lambda: _identity(clients))
    if isinstance(identity, PreflightCheck):
        yield _failed(identity.what, f"{identity.detail}; log in: `aws sso login` or `aws configure`, AWS_PROFILE, AWS_DEFAULT_REGION")
        return
    services, who = identity
    yield _fine("AWS account", who)
    for queue, tasks in _sent(settings.resources, configured[_QUEUE], environment).items():
        yield _queue(queue, tasks, services)
    yield _datastore(configured, services)
    yield from _job_role(configured, environment, services)
    for name in secret_names(environment):
        found = _answer(f"secret {_short(name)}", partial(services("secretsmanager").describe_secret, SecretId=name))
        yield found if isinstance(found, PreflightCheck) else _fine(f"secret {_short(name)}", "is there")
    yield _image(_IMAGE, configured.get(_IMAGE), services)
    if settings.resources.training.num_gpus:
        yield _image(GPU_IMAGE, batch_place(settings.resources.training, environment).get("image") or configured.get(_IMAGE), services)


def _identity(clients: Clients | None) -> tuple[Clients, str]:
    """Return the clients, and who they are for AWS in which region."""
    if clients is None:
        import boto3.session

        clients = boto3.session.Session().client
    return clients, f"{clients('sts').get_caller_identity()['Arn']} in {clients('batch').meta.region_name}"


def _sent(resources: ResourcesConfig, queue: str, environment: Mapping[str, str]) -> dict[str, dict[str, TaskResources]]:
    """Return queue -> kind of task -> its resources; `queue` is the one that Metaflow is configured with."""
    sent: dict[str, dict[str, TaskResources]] = {}
    for kind in ("boards", "training", "games", "others"):
        task: TaskResources = getattr(resources, kind)
        sent.setdefault(batch_place(task, environment).get("queue", queue), {})[kind] = task
    return sent


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A size of machine."""

    name: str
    num_cpus: int
    memory_mib: int
    """Nominal."""
    num_gpus: int

    def fits(self, task: TaskResources) -> bool:
        """Return whether a task fits into what AWS Batch offers of an empty machine."""
        fits = task.num_cpus <= self.num_cpus and task.num_gpus <= self.num_gpus
        return fits and task.memory_mib <= int(self.memory_mib * OFFERED)


def _queue(name: str, tasks: Mapping[str, TaskResources], clients: Clients) -> PreflightCheck:
    """Check that a queue works and has machines of the size that these tasks request."""
    what, batch = f"queue {_short(name)}", clients("batch")
    queues = _answer(what, lambda: batch.describe_job_queues(jobQueues=[name])["jobQueues"])
    if isinstance(queues, PreflightCheck):
        return queues
    if not queues:
        return _failed(what, "there is none in this account and region: check AWS_DEFAULT_REGION and the queue's name")
    arns = [each["computeEnvironment"] for each in queues[0]["computeEnvironmentOrder"]]
    found = _answer(what, lambda: batch.describe_compute_environments(computeEnvironments=arns)["computeEnvironments"])
    if isinstance(found, PreflightCheck):
        return found
    for each, known in [(queues[0], "the queue"), *((environment, environment["computeEnvironmentName"]) for environment in found)]:
        if each["state"] != "ENABLED" or each["status"] != "VALID":
            return _failed(what, f"{known} is {each['state']} and {each['status']} ({each.get('statusReason') or 'no reason given'})")
    resources = [environment["computeResources"] for environment in found if "computeResources" in environment]
    if not resources:
        return _fine(what, "its machines are not managed by Batch: not checked")
    kinds = ", ".join(dict.fromkeys(each["type"] for each in resources))
    most = max(each["maxvCpus"] for each in resources)
    if larger := [kind for kind, task in tasks.items() if task.num_cpus > most]:
        return _failed(what, f"it has at most {most} vCPUs at a time, fewer than resources.{larger[0]}.num_cpus")
    families = list(dict.fromkeys(family for each in resources for family in each.get("instanceTypes", ())))
    if not families or not all(map(_FAMILY.fullmatch, families)):
        return _fine(what, f"{kinds}, at most {most} vCPUs; which machines Batch chooses is not known here")
    sizes = _answer(what, lambda: machine_sizes(families, clients))
    if isinstance(sizes, PreflightCheck):
        return _fine(what, f"{kinds} of {', '.join(families)}, at most {most} vCPUs; sizes {sizes.detail}")
    for kind, task in tasks.items():
        if not any(size.fits(task) for size in sizes):
            asked = f"{task.num_cpus} vCPUs, {task.memory_mib:,} MiB, {task.num_gpus} GPUs"
            return _failed(
                what,
                f"no machine of {', '.join(families)} offers what resources.{kind} requests ({asked}): request less, or name another queue"
                + (f" in {GPU_QUEUE}" if task.num_gpus else ""),
            )
    return _fine(what, f"{kinds} of {', '.join(families)}, at most {most} vCPUs; fits {', '.join(tasks)}")


def machine_sizes(families: Sequence[str], clients: Clients) -> list[Size]:
    """Return the sizes of families (`m7i`) or of single types (`m7i.large`) of machines, smallest first."""
    names = [family if "." in family else f"{family}.*" for family in families]
    pages = clients("ec2").get_paginator("describe_instance_types").paginate(Filters=[{"Name": "instance-type", "Values": names}])
    rows = [row for page in pages for row in page["InstanceTypes"]]
    return sorted(
        (
            Size(
                name=row["InstanceType"],
                num_cpus=row["VCpuInfo"]["DefaultVCpus"],
                memory_mib=row["MemoryInfo"]["SizeInMiB"],
                num_gpus=sum(gpu["Count"] for gpu in row.get("GpuInfo", {}).get("Gpus", ())),
            )
            for row in rows
        ),
        key=lambda size: (size.num_cpus, size.memory_mib, size.name),
    )


def _datastore(configured: Mapping[str, Any], clients: Clients) -> PreflightCheck:
    bucket, prefix = split_address(configured[_ROOT].rstrip("/"))
    found = _answer("datastore", lambda: clients("s3").list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/", MaxKeys=1))
    return found if isinstance(found, PreflightCheck) else _fine("datastore", f"{configured[_ROOT]} can be listed")


def _job_role(configured: Mapping[str, Any], environment: Mapping[str, str], clients: Clients) -> Iterator[PreflightCheck]:
    """Check that containers can take the jobs' role, and simulate what the steps do with it."""
    role, what, iam = str(configured[_ROLE]), "jobs' role", clients("iam")
    bucket, prefix = split_address(configured[_ROOT].rstrip("/"))
    partition = role.split(":")[1] if role.startswith("arn:") else "aws"
    needed: list[tuple[tuple[str, ...], str]] = [
        (OBJECT_RIGHTS, f"arn:{partition}:s3:::{bucket}/{prefix}/*"),
        (("s3:ListBucket",), f"arn:{partition}:s3:::{bucket}"),
        *((("secretsmanager:GetSecretValue",), name) for name in secret_names(environment) if name.startswith("arn:")),
    ]
    shown = "; ".join(f"{', '.join(actions)} on {_short(resource)}" for actions, resource in needed)
    found = _answer(what, lambda: iam.get_role(RoleName=role.rpartition("/")[2])["Role"])
    if isinstance(found, PreflightCheck):
        yield PreflightCheck(what=what, is_fine=found.is_fine, detail=f"{found.detail}; it needs {shown}")
        return
    if _TASKS not in str(found["AssumeRolePolicyDocument"]):
        yield _failed(what, f"its trust policy does not name {_TASKS}, so that no container can take it")
        return
    lacking: list[str] = []
    for actions, resource in needed:
        results = _answer(
            what, partial(iam.simulate_principal_policy, PolicySourceArn=found["Arn"], ActionNames=list(actions), ResourceArns=[resource])
        )
        if isinstance(results, PreflightCheck):
            yield PreflightCheck(what=what, is_fine=results.is_fine, detail=f"{results.detail}; it needs {shown}")
            return
        lacking += [
            f"{row['EvalActionName']} on {_short(resource)}" for row in results["EvaluationResults"] if row["EvalDecision"] != "allowed"
        ]
    yield _failed(what, f"{_short(role)} may not {'; '.join(lacking)}") if lacking else _fine(what, f"{_short(role)} may {shown}")


def _image(variable: str, image: str | None, clients: Clients) -> PreflightCheck:
    if not image:
        return _failed(
            variable, "not set: Metaflow would take an image without Stockfish and this project's packages; build one (docs/images.md)"
        )
    if (match := _ECR.fullmatch(image)) is None:
        return _fine(variable, f"{image} is in no registry of AWS: not checked")
    version = match["version"] or ":latest"
    key = "imageDigest" if version.startswith("@") else "imageTag"
    found = _answer(
        variable,
        lambda: clients("ecr").describe_images(registryId=match["account"], repositoryName=match["name"], imageIds=[{key: version[1:]}]),
    )
    return found if isinstance(found, PreflightCheck) else _fine(variable, f"{image} is there")


def _answer(what: str, call: Callable[[], Any]) -> Any:
    """Return what AWS answers, or the check that this call makes of its refusal."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call()
    except ClientError as error:
        if error.response["Error"]["Code"] in _DENIED:
            return _fine(what, f"not checked: you may not call {error.operation_name}")
        return _failed(what, f"{error.operation_name}: {error.response['Error'].get('Message') or error.response['Error']['Code']}")
    except BotoCoreError as error:
        return _failed(what, str(error))


def _short(name: str) -> str:
    """Return the last part of an ARN."""
    return name.rpartition(":")[2] if name.startswith("arn:") else name


def _fine(what: str, detail: str) -> PreflightCheck:
    return PreflightCheck(what=what, is_fine=True, detail=detail)


def _failed(what: str, detail: str) -> PreflightCheck:
    return PreflightCheck(what=what, is_fine=False, detail=detail)
