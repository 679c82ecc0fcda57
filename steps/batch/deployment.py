"""Metaflow decorators for steps on AWS Batch or Kubernetes: resources, retries, time-outs, environment, secrets; no useless retries."""

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from metaflow import FlowMutator, Run, current
from metaflow.exception import MetaflowException
from metaflow.metaflow_config import DATASTORE_SYSROOT_S3

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, parse_json_object
from grpo.settings.tree import ResourcesConfig, Settings, TaskResources
from steps.batch.destination import DestinationError, batch_place, destination, forwarded, secret_names
from steps.batch.spot_notice import sigterm_on_spot_notice
from steps.runtime.commands import pasteable, resume_command
from steps.runtime.exit_codes import NO_RETRY
from steps.runtime.machine import ATTEMPT, BATCH_JOB, SHARED, TASK
from steps.store.objects import Objects, SharedStoreError, objects_at

_KINDS: Final = {
    "build_boards": "boards",
    "pretrain": "training",
    "finetune": "training",
    "calibrate": "games",
    "baseline": "games",
    "screen": "games",
    "confirm": "games",
    "select": "games",
}
_FINAL: Final = "final"
_SECONDS_BEFORE_BATCH: Final = 180  # Batch counts from the job's start, Metaflow from the step's, after the code is downloaded.
_SECRETS_BACKEND: Final = "aws-secrets-manager"


def name_shared_store() -> None:
    """Set CHESS_GRPO_SHARED, when tasks run in containers and it is unset, to a folder beside Metaflow's own data."""
    if destination(sys.argv, os.environ) is not None and DATASTORE_SYSROOT_S3 and not os.environ.get(SHARED):
        os.environ[SHARED] = f"{DATASTORE_SYSROOT_S3.rstrip('/')}/chess-grpo"


class Deployment(FlowMutator):  # type: ignore[misc]
    """Decorates each step with the settings' `resources`. A run on this machine is left unchanged."""

    def mutate(self, mutable_flow: Any) -> None:
        """Add the decorators; Metaflow calls this before the run."""
        target = destination(sys.argv, os.environ)
        if target is None:
            return
        settings = next(value for name, value in mutable_flow.configs if name == "settings")
        resources = Settings.model_validate(settings.to_dict()).resources
        for name, step in mutable_flow.steps:
            task: TaskResources = getattr(resources, _KINDS.get(name, "others"))
            self._put(step, task, resources, target)

    def _put(self, step: Any, task: TaskResources, resources: ResourcesConfig, target: str) -> None:
        step.add_decorator("resources", deco_kwargs={"cpu": task.num_cpus, "memory": task.memory_mib, "gpu": task.num_gpus})
        step.add_decorator("retry", deco_kwargs={"times": resources.num_retries, "minutes_between_retries": 0})
        step.add_decorator("timeout", deco_kwargs={"minutes": task.max_minutes})
        step.add_decorator("environment", deco_kwargs={"vars": forwarded(os.environ, task)})
        if sources := secret_names(os.environ):
            step.add_decorator("secrets", deco_kwargs={"sources": [f"{_SECRETS_BACKEND}.{name}" for name in sources]})
        if target in ("batch", "step-functions"):
            if place := batch_place(task, os.environ):
                # `--with batch` has put its decorator on the step already: without OVERRIDE it would stay, and ours be ignored.
                others = [attributes for *_, attributes in step.get_decorator_specs("batch")]
                step.add_decorator("batch", deco_kwargs={**(others[0] if others else {}), **place}, duplicates=step.OVERRIDE)
        elif target == "container" and BATCH_JOB in os.environ:
            step.add_decorator("batch")  # Metaflow hands on `--with batch`, and not what is added here: its spot monitor would be missing.


@contextmanager
def as_task(flow: Any) -> Iterator[None]:
    """Set the task's environment variables, send SIGTERM on a spot interruption, and stop retries of errors that are not retryable."""
    _register_task(flow)
    _time_out_before_batch()
    os.environ[TASK] = f"{current.run_id}/{current.step_name}/{current.task_id}"
    os.environ[ATTEMPT] = str(current.retry_count or 0)
    with _no_useless_retry(), sigterm_on_spot_notice(current.get("spot_termination_notice")):
        yield


def _time_out_before_batch() -> None:
    """Make Metaflow's time-out fire before that of AWS Batch, which the launcher could not tell from a lost machine."""
    if destination(sys.argv, os.environ) == "container" and threading.current_thread() is threading.main_thread():
        left = signal.alarm(0)  # Seconds left; 0 when there is no time-out.
        if left:
            signal.alarm(max(left - _SECONDS_BEFORE_BATCH, left // 2, 1))


def tag_run(tags: Sequence[str]) -> None:
    """Add tags to Metaflow's run, by which its client finds runs; where its metadata takes none, say so and go on."""
    try:
        Run(f"{current.flow_name}/{current.run_id}", _namespace_check=False).add_tags(tags)
    except MetaflowException as error:
        print(f"{current.step_name}: WARNING: the run did not get the tags {', '.join(tags)}: {error}", file=sys.stderr, flush=True)


def _register_task(flow: Any) -> None:
    """Register run and task with Metaflow's local metadata of this container, so that cards render without a metadata service.

    Metaflow registers them only where the run is launched. The process that renders cards would find no run on the container's empty disk.
    """
    if destination(sys.argv, os.environ) != "container":
        return
    decorators = getattr(getattr(flow, current.step_name, None), "decorators", ())
    metadata = next((decorator.metadata for decorator in decorators if decorator.name == "batch" and hasattr(decorator, "metadata")), None)
    if metadata is None or metadata.TYPE != "local":
        return
    run, step = current.run_id, current.step_name
    for level in (("flow", None, None, None), ("run", run, None, None), ("step", run, step, None), ("task", run, step, current.task_id)):
        metadata._ensure_meta(*level)


@contextmanager
def _no_useless_retry() -> Iterator[None]:
    """Mark a task in a container as not retryable when the block fails by an error that a retry would meet again.

    Batch reports only "failed" to the launcher, so the marker is an object in the shared store. A scheduler that ignores it and retries
    (Argo, Step Functions) starts a task that ends at once.
    """
    if destination(sys.argv, os.environ) != "container":
        yield
        return
    if not os.environ.get(SHARED):
        raise DestinationError(f"{SHARED} is not set, and this container's disk is not persistent: set it where the run is launched")
    objects, key = objects_at(os.environ[SHARED]), _key(current.run_id, current.step_name, current.task_id)
    if current.retry_count and (found := objects.get(key)):
        print(f"{current.step_name}: not retried: {_why_final(found.data)}", file=sys.stderr, flush=True)
        raise SystemExit(NO_RETRY)
    try:
        yield
    except Exception as error:
        if not (isinstance(error, PlainError) and error.may_pass):
            _mark_final(objects, key, str(error) if isinstance(error, PlainError) else f"{type(error).__name__}; its log has the traceback")
        raise


def main(flow: Any) -> None:
    """Run the flow's command; the launcher of a container's task that is not retryable ends with NO_RETRY."""
    if {"run", "resume"} & set(sys.argv[1:]):
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _stop)
    try:
        flow()
    except SystemExit as end:
        if end.code == 1 and _failed_for_good(sys.argv):
            raise SystemExit(NO_RETRY) from None
        raise


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Print how to go on, and end at once; the kernel ends the tasks, which save what they have (`steps.runtime.parent_death`)."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    said = (
        f"Stopped. Nothing is lost; go on: {pasteable(resume_command(current.run_id))}"
        if current.run_id
        else "Stopped before the run began."
    )
    # The signal may have come in the middle of a write, which a buffered file cannot take twice.
    os.write(sys.stdout.fileno(), f"\n{said}\n".encode())
    os.kill(os.getpid(), number)


def _failed_for_good(arguments: Sequence[str]) -> bool:
    """Return whether this process is the launcher of one task in a container, `batch step NAME ...`, and the task is marked final."""
    if not any(pair in {("batch", "step"), ("kubernetes", "step")} for pair in itertools.pairwise(arguments)):
        return False
    place = os.environ.get(SHARED)
    if not place:
        return False
    step = arguments[arguments.index("step") + 1]
    run, task = (arguments[arguments.index(option) + 1] for option in ("--run-id", "--task-id"))
    return objects_at(place).get(_key(run, step, task)) is not None


def _key(run: str, step: str, task: str) -> str:
    return f"{_FINAL}/{run}/{step}/{task}.json"


def _why_final(data: bytes) -> str:
    """Return the reason in a marker; a damaged one forbids the retry as well."""
    try:
        return str(parse_json_object(data, "its marker in the shared store").get("why"))
    except CorruptError as error:
        return str(error)


def _mark_final(objects: Objects, key: str, why: str) -> None:
    try:
        objects.put(key, json.dumps({"why": why}).encode())
    except SharedStoreError as error:
        print(f"WARNING: the task will be retried although a retry cannot help: {error}", file=sys.stderr, flush=True)
