"""Metaflow's part of a run: decorators for tasks on other machines, tags, and the flow's command with its signals."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from metaflow import FlowMutator, Run, current, get_metadata
from metaflow.exception import MetaflowException
from metaflow.metaflow_config import DATASTORE_SYSROOT_S3

from grpo.base.errors import PlainError
from grpo.settings.tree import Settings, TaskResources
from grpo.settings.types import S3_SCHEME
from steps.batch.destination import batch_place, forwarded, place_of, secret_names
from steps.batch.spot_notice import sigterm_on_spot_notice
from steps.job.task import IN_LOG
from steps.run.commands import option_values, pasteable, resume_command
from steps.run.launch import launch_of
from steps.run.machine import STORE, TASK, Machine, is_container
from steps.run.processes import LAUNCHER, own_token
from steps.run.records import Runs
from steps.run.step import step_of
from steps.run.store import Store
from steps.run.versions import CODE, describe_code
from steps.track.trackers import launcher_sending

_MAX_MINUTES: Final = {"training": 2_880, "games": 720, "others": 720}  # By `Step.resources`; limits the cost of a hang.
_NUM_RETRIES: Final = 3  # Per task; none after the exit code `processes.NO_RETRY` (another try cannot help).


def name_store() -> None:
    """Give CHESS_GRPO_STORE a default, a folder below Metaflow's in S3, if tasks run on other machines."""
    if place_of(sys.argv, os.environ) and DATASTORE_SYSROOT_S3 and not os.environ.get(STORE):
        os.environ[STORE] = f"{DATASTORE_SYSROOT_S3.rstrip('/')}/chess-grpo"


class Deployment(FlowMutator):  # type: ignore[misc]
    """Decorates each step of a run on AWS Batch or Kubernetes with the settings' `resources`.

    A run on this machine gets only a token, which shows whether the launcher (process of `run` or `resume`) still lives.
    """

    def mutate(self, mutable_flow: Any) -> None:
        """Metaflow calls this method after it has read the settings."""
        if not (place := place_of(sys.argv, os.environ)):
            if {"run", "resume"} & set(sys.argv[1:]):
                os.environ[LAUNCHER] = own_token()
            return
        if not is_container(os.environ):
            # Containers have no git, so the launcher describes the code.
            os.environ.setdefault(CODE, json.dumps(describe_code()))
        config = next(value for name, value in mutable_flow.configs if name == "settings")
        resources = Settings.model_validate(config.to_dict()["settings"]).resources
        for name, step in mutable_flow.steps:
            kind = "others" if name in ("start", "end") else step_of(name).resources
            task: TaskResources = getattr(resources, kind)
            step.add_decorator("resources", deco_kwargs={"cpu": task.num_cpus, "memory": task.memory_mib, "gpu": task.num_gpus})
            step.add_decorator("retry", deco_kwargs={"times": _NUM_RETRIES, "minutes_between_retries": 0})
            step.add_decorator("timeout", deco_kwargs={"minutes": _MAX_MINUTES[kind]})
            step.add_decorator("environment", deco_kwargs={"vars": forwarded(os.environ, task, place)})
            if sources := secret_names(os.environ):
                step.add_decorator("secrets", deco_kwargs={"sources": [f"aws-secrets-manager.{name}" for name in sources]})
            if place != "batch":
                continue
            # After `--with batch` Metaflow would ignore this decorator without OVERRIDE. A task adds the decorator again, because child
            # processes get no decorators, and the decorator starts the spot monitor.
            existing = {key: value for *_, attributes in step.get_decorator_specs("batch") for key, value in attributes.items()}
            step.add_decorator("batch", deco_kwargs={**existing, **batch_place(task, os.environ)}, duplicates=step.OVERRIDE)


@contextmanager
def as_task() -> Iterator[None]:
    """Name the task in the variable CHESS_GRPO_TASK, and send this process SIGTERM on a spot interruption."""
    os.environ[TASK] = f"{current.run_id}/{current.step_name}/{current.task_id}"
    with sigterm_on_spot_notice(current.get("spot_termination_notice")):
        yield


def tag_run(settings: Mapping[str, Any], verdict: str = "") -> None:
    launch = launch_of(settings)
    tags = [f"preset:{launch.preset}", f"seed:{launch.seed}", *([f"verdict:{verdict}"] if verdict else [])]
    try:
        Run(f"{current.flow_name}/{current.run_id}", _namespace_check=False).add_tags(tags)
    except MetaflowException as error:
        print(f"{current.step_name}: WARNING: the run did not get the tags {', '.join(tags)}: {error}", file=sys.stderr, flush=True)


def main(flow: Any) -> None:
    """Run the flow's command. If the run fails, print the cause and the command that resumes the run."""
    if not {"run", "resume"} & set(sys.argv[1:]):
        flow()
        return
    machine, arguments = Machine.here(), sys.argv[1:]
    if "resume" in arguments:
        _refuse_unknown_origin(flow.__name__, arguments, machine)
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signal_number) is not signal.SIG_IGN:
            signal.signal(signal_number, _stop)
    try:
        with launcher_sending(machine, lambda: current.run_id):
            flow()
    except SystemExit as ended:
        if ended.code:
            _explain(machine)
        raise


def _refuse_unknown_origin(flow: str, arguments: Sequence[str], machine: Machine) -> None:
    origin = "".join(option_values(arguments, "--origin-run-id")[-1:])
    try:
        if origin:
            Run(f"{flow}/{origin}", _namespace_check=False)
    except MetaflowException:
        store = Store.of(machine)
        newest = ", ".join(run.name for run in Runs(store).all()[:3]) or "none"
        raise SystemExit(
            f"resume: Metaflow has no run {origin!r} ({get_metadata()}). Metaflow keeps a local run in .metaflow of the folder where the"
            f" run was started: go there, or correct the id. Newest runs of {store}: {newest} (`chess-grpo runs` lists all)"
        ) from None


def _explain(machine: Machine) -> None:
    """Print the failed step, and the command that resumes the run.

    After a PlainError (an error without `IN_LOG`), the command starts a new run, because the cause may be a setting, which `resume` keeps.
    With `--fresh`, which repeats all steps, the message names `resume` too.
    """
    runs, places, start_command = Runs(Store.of(machine)), option_values(sys.argv), pasteable(shlex.join(["python", *sys.argv]))
    run_ids = (str(current.run_id), *option_values(sys.argv, "--origin-run-id"))
    # `close` ends attempts that are still recorded as running.
    known = [runs.close(run) for run_id in run_ids if (run := runs.get(run_id)) is not None]
    message = ""
    if run := next((run for run in known if run.failure is not None and run.error), None):
        if "resume" in sys.argv:
            start_command = pasteable(run.facts["command"] + "".join(f" --with {place}" for place in places))
        resuming = pasteable(resume_command(run.name, places))
        message = f"{run.failed_step}: {run.error}\nTo resume: {resuming}"
        if run.failure is not None and run.failure.status == "failed" and not run.error.endswith(IN_LOG):
            note = f" (with equal settings, `{resuming}` keeps the finished steps)" if "--fresh" in start_command else ""
            message = f"{run.failed_step} failed for the reason above. Mend it and start again: {start_command}{note}"
    elif current.run_id and not known and "resume" not in sys.argv:
        cause = "The run has not begun; the reason is above"
        if place_of(sys.argv, os.environ) and not machine.store.startswith(S3_SCHEME):
            cause = f"{STORE}={machine.store} has no record of the run: jobs reach this folder only through a mounted volume"
        message = f"{cause}. Mend the cause and start again: {start_command}"
    if message:
        print(f"\n{message}", file=sys.stderr, flush=True)


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Print the command that resumes the run, and exit.

    The exit sends the tasks SIGTERM (`end_with_parent`), on which `finetune` saves a checkpoint.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    with suppress(PlainError):  # If the store fails, the command `runs` shows a lost process, not a stop.
        if current.run_id and (run := Runs(Store.of(Machine.here())).get(str(current.run_id))) is not None:
            run.set_stopped()
    message = (
        "Stopped. Finished steps are kept, and finetune resumes from a checkpoint; any other unfinished step begins again. To resume:"
        f" {pasteable(resume_command(current.run_id, option_values(sys.argv)))}"
        if current.run_id
        else "Stopped before the run began."
    )
    # The signal may have interrupted `print`, which is not reentrant.
    os.write(sys.stdout.fileno(), f"\n{message}\n".encode())
    os.kill(os.getpid(), number)
