"""One job of the stand-in, as AWS Batch runs it: queued, run in one container per node, ended with a status reason."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.batch_standin.container import Container, Image

if TYPE_CHECKING:
    from moto.batch.models import Job as MotoJob

SPOT_NOTICE: Final = "/tmp/spot_termination_notice"  # noqa: S108 - Metaflow's place for it, on the container's own disk.
_POLL_SECONDS: Final = 0.05
_NO_GPU: Final = {"CHESS_GRPO_DEVICE": "cpu"}
"""For jobs that request a GPU: they are sent where they belong, and compute on this machine's processors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """What one container of a job is asked to be: the job's definition with the overrides it was submitted with."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    resources: Mapping[str, str]
    """VCPU, MEMORY (MiB) and perhaps GPU. Recorded; the stand-in's machine is not divided."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where jobs run."""

    image: Image
    folder: Path
    """For logs, in `logs/`, and what containers need on this side."""
    slots: threading.Semaphore
    """As many jobs run at once."""
    grace_seconds: float
    """Between SIGTERM and SIGKILL."""
    instance: Mapping[str, str]
    """Variables that every container has from the instance that it runs on; `{job}` in them is its job's id."""


class BatchJob:
    """A job that was submitted: what tests and demonstrations ask of it, and do to it."""

    def __init__(self, moto_job: "MotoJob", place: Place) -> None:
        """Take up a job that moto has accepted."""
        self._job = moto_job
        self._place = place
        self._containers: list[Container] = []
        self._lock = threading.Lock()
        self._is_lost = False
        self.id: str = moto_job.job_id
        self.name: str = moto_job.job_name
        self.nodes = node_specs(moto_job)
        self.resources = self.nodes[0].resources
        self.timeout_seconds: int | None = moto_job._get_attempt_duration()
        suffixes = [f"-node-{index}" if len(self.nodes) > 1 else "" for index in range(len(self.nodes))]
        self.logs = tuple(place.folder / "logs" / f"{self.name}-{self.id[:8]}{suffix}.log" for suffix in suffixes)
        self.variables: list[Mapping[str, str]] = []
        """What each node's container was given in the last attempt, beside the image's own."""
        self.num_attempts = int(moto_job.container_overrides.get("retryStrategy", {}).get("attempts", 1))
        """As many times Batch may start it."""
        self.queue: str = moto_job.job_queue.name

    @property
    def step(self) -> str:
        """The step of the flow, or nothing for a job that is not Metaflow's."""
        return self._parameter("step_name")

    @property
    def run_id(self) -> str:
        """Metaflow's run; it puts `sfn-` before the name of a state machine's execution."""
        return f"{'sfn-' if 'SFN_STATE_MACHINE' in self.nodes[0].variables else ''}{self._parameter('run_id')}"

    @property
    def task_id(self) -> str:
        """Metaflow's task; in a state machine it is named after its job."""
        return self._parameter("task_id") or self.id

    @property
    def attempt(self) -> int:
        """Metaflow's attempt of this task, from 0: a job of its own for each, or in state machines one job that Batch tries again."""
        return int(self._parameter("retry_count") or 0) + max(len(self._job.attempts) - 1, 0)

    @property
    def status(self) -> str:
        """Batch's word for it: SUBMITTED, RUNNABLE, STARTING, RUNNING, SUCCEEDED or FAILED."""
        return str.__str__(self._job.status or "")  # Moto has an enumeration for some of them.

    @property
    def is_over(self) -> bool:
        """Whether it has ended, its containers too."""
        return self._job.job_stopped

    @property
    def status_reason(self) -> str | None:
        """Why it ended, in Batch's words."""
        return self._job.job_stopped_reason

    @property
    def exit_code(self) -> int | None:
        """The main node's exit code; None when it was lost with its machine."""
        return self._job.exit_code

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return (self._job.job_stopped_at - self._job.job_started_at).total_seconds() if self.is_over else 0.0

    def log(self, node: int = 0) -> str:
        """Return what a node's container has printed so far."""
        path = self.logs[node]
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def lose(self, node: int | None = None) -> bool:
        """Let the machine of a node, or of all, vanish with everything on it; False when the job has ended already.

        A main node takes the job with it; the loss of another is for the job itself to notice, as in AWS.
        """
        with self._lock:
            if self._job.job_stopped or not self._containers:
                return False
            lost = self._containers if node is None else [self._containers[node]]
            if self._containers[0] in lost:
                self._is_lost = True
            for container in lost:
                container.kill()
            return True

    def notice(self, node: int | None = None) -> bool:
        """Send containers a spot interruption notice as Metaflow's monitor does: by a file on their disk."""
        with self._lock:
            containers = self._containers if node is None else self._containers[node : node + 1]
            return {container.write(SPOT_NOTICE, datetime.now().isoformat()) for container in containers} == {True}

    def run(self) -> None:
        """Run it to its end, each attempt in new containers; in moto's thread of this job."""
        while not self._job.job_stopped:
            self._attempt()

    def _attempt(self) -> None:
        job = self._job
        job.status = "RUNNABLE"
        while not self._place.slots.acquire(timeout=_POLL_SECONDS):
            if job.stop:
                self._end(None, job.job_stopped_reason or "")
                return
        try:
            if job.stop:
                self._end(None, job.job_stopped_reason or "")
                return
            job.status = "STARTING"
            self._start()
            job.job_started_at = datetime.now()
            job._start_attempt()
            job.status = "RUNNING"
            self._follow()
        finally:
            with self._lock:
                for container in self._containers:
                    container.kill()
                self._containers = []
                if job.status in ("STARTING", "RUNNING"):
                    job._mark_stopped(success=False)
            self._place.slots.release()

    def _start(self) -> None:
        attempt = len(self._job.attempts) + 1
        with self._lock:
            self._is_lost, self.variables = False, []
            for index, node in enumerate(self.nodes):
                variables = {**self._given(index, attempt), **node.variables, **(_NO_GPU if "GPU" in node.resources else {})}
                self.variables.append(variables)
                folder = self._place.folder / "containers" / f"{self.id[:8]}-{index}-{attempt}"
                image, log = self._place.image, self.logs[index]
                self._containers.append(Container(image, folder, command=node.command, variables=variables, log=log))

    def _given(self, index: int, attempt: int) -> dict[str, str]:
        """Return what Batch and ECS put into a container."""
        queue = self._job.job_queue
        variables = {
            **{name: value.format(job=self.id) for name, value in self._place.instance.items()},
            "AWS_EXECUTION_ENV": "AWS_ECS_EC2",
            "AWS_BATCH_JOB_ID": self.id if len(self.nodes) == 1 else f"{self.id}#{index}",
            "AWS_BATCH_JOB_ATTEMPT": str(attempt),
            "AWS_BATCH_CE_NAME": queue.environments[0].name,
            "AWS_BATCH_JQ_NAME": queue.name,
        }
        if self._job.job_definition.type == "multinode":
            variables |= {
                "AWS_BATCH_JOB_NODE_INDEX": str(index),
                "AWS_BATCH_JOB_NUM_NODES": str(len(self.nodes)),
                "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
            }
            if index > 0:
                variables["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "127.0.0.1"
        return variables

    def _follow(self) -> None:
        job, main = self._job, self._containers[0]
        limit = float("inf") if self.timeout_seconds is None else time.monotonic() + self.timeout_seconds
        while True:
            code = main.exit_code()
            if self._is_lost:
                self._end(None, f"Host EC2 (instance i-{self.id[:8]}) terminated.")
                return
            if code is not None:
                self._stop()
                self._end(code, "Essential container in task exited")
                return
            is_late = time.monotonic() > limit
            if job.stop or is_late:
                reason = "Job attempt duration exceeded timeout" if is_late else job.job_stopped_reason or ""
                self._stop()
                self._end(main.wait(), reason, is_failed=True)
                return
            time.sleep(_POLL_SECONDS)

    def _stop(self) -> None:
        """Ask all containers to end, and end them when they have not."""
        for container in self._containers:
            container.terminate()
        until = time.monotonic() + self._place.grace_seconds
        while any(container.exit_code() is None for container in self._containers) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        for container in self._containers:
            container.kill()

    def _end(self, code: int | None, reason: str, *, is_failed: bool = False) -> None:
        job = self._job
        with self._lock:
            job.exit_code, job.job_stopped_reason = code, reason
            if job.latest_attempt is not None:
                job.latest_attempt["statusReason"] = reason
                if code is not None:
                    job.latest_attempt["container"]["exitCode"] = code
            # By Batch's documentation a job is not tried again when it was terminated or timed out.
            if code != 0 and not is_failed and not job.stop and len(job.attempts) < self.num_attempts:
                job.status, job.job_stopped_at = "RUNNABLE", datetime.now()
                job._stop_attempt()
            else:
                job._mark_stopped(success=code == 0 and not is_failed)

    def _parameter(self, name: str) -> str:
        return str(self._job.parameters.get(f"metaflow.{name}", ""))


def node_specs(job: "MotoJob") -> tuple[NodeSpec, ...]:
    """Return what each container of a job is asked to be, by node."""
    definition, overrides = job.job_definition, job.container_overrides
    if definition.type == "container":
        return (_node_spec(definition.container_properties or {}, overrides),)
    properties = definition.node_properties or {}
    num_nodes = int(properties["numNodes"])
    containers: list[Mapping[str, Any]] = [{}] * num_nodes
    changes: list[Mapping[str, Any]] = [{}] * num_nodes
    for row in properties["nodeRangeProperties"]:
        for index in _target_nodes(row["targetNodes"], num_nodes):
            containers[index] = row["container"]
    for row in overrides.get("nodePropertyOverrides", []):
        for index in _target_nodes(row["targetNodes"], num_nodes):
            changes[index] = row["containerOverrides"]
    return tuple(_node_spec(container, change) for container, change in zip(containers, changes, strict=True))


def _node_spec(properties: Mapping[str, Any], overrides: Mapping[str, Any]) -> NodeSpec:
    def pairs(key: str, name: str) -> dict[str, str]:
        rows: Sequence[Mapping[str, str]] = [*properties.get(key, []), *overrides.get(key, [])]
        return {row[name]: row["value"] for row in rows}

    command = overrides.get("command") or properties.get("command", [])
    return NodeSpec(command=tuple(command), variables=pairs("environment", "name"), resources=pairs("resourceRequirements", "type"))


def _target_nodes(text: str, num_nodes: int) -> range:
    """Return the nodes that `3`, `1:`, `:2` or `1:3` stands for."""
    first, colon, last = text.partition(":")
    start = int(first or 0)
    return range(start, (int(last) if last else num_nodes - 1) + 1) if colon else range(start, start + 1)
