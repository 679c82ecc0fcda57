"""The real flow's steps, in the flow's own order, in one process, which a test can kill or starve: a task's start costs seconds of imports.

It is a process of `forking.py`, so that imports are paid once for all runs. Metaflow is played here: artifacts, fan-out, join, order, and a
run that goes on with what its tasks have left. Cards are drawn on nothing. The flow as people start it is `real_flow.run_flow`.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any, Final
from unittest.mock import MagicMock

_ROOT: Final = Path(__file__).resolve().parents[2]
FAILPOINTS: Final = {
    "a checkpoint": ("steps.common.training_loop", "save_checkpoint"),
    "a checkpoint's tensors": ("grpo.policy.checkpoints", "write_tensors"),
    "a line of the journal": ("steps.run.work", "append_line"),
    "an output's manifest": ("steps.run.store", "write_manifest"),
    "a folder's name": ("os", "rename"),
    "a file's way to the disk": ("grpo.base.files", "_sync"),
    "a folder's end": ("grpo.base.files", "remove_folder"),
    "an optimizer's step": ("torch.optim", "Adam.step"),
    "an engine's start": ("grpo.engine.process", "EngineProcess.__init__"),
    "an engine's end": ("grpo.engine.process", "EngineProcess.kill"),
    "a run's beginning": ("steps.run.records", "Runs.begin_run"),
    "an attempt's beginning": ("steps.run.records", "Runs.begin"),
    "an attempt's end": ("steps.run.records", "Attempt.end"),
    "a child run": ("mlflow.tracking", "MlflowClient.create_run"),
    "metrics and tags": ("mlflow.tracking", "MlflowClient.log_batch"),
    "an artifact": ("mlflow.tracking", "MlflowClient.log_artifact"),
    "a run's end": ("mlflow.tracking", "MlflowClient.set_terminated"),
    "a registered version": ("mlflow.tracking", "MlflowClient.create_model_version"),
    "an alias": ("mlflow.tracking", "MlflowClient.set_registered_model_alias"),
    "a step's version": ("steps.job.task", "step_version"),
}
"""Calls before or after which a run can be killed: module and function, or class and method."""


class Task:
    """A step's `self`: artifacts, the flow's own methods, and where it goes on to."""

    def __init__(self, flow: type, constant: Mapping[str, Any], artifacts: Mapping[str, Any]) -> None:
        self.__dict__.update({"input": None, **constant, **artifacts}, _flow=flow, _constant=constant, _next=None, _foreach=None)

    def __getattr__(self, name: str) -> MethodType:
        return MethodType(getattr(self._flow, name), self)

    def next(self, *steps: MethodType, foreach: str | None = None) -> None:
        self.__dict__.update(_next=[step.__name__ for step in steps], _foreach=foreach)

    def merge_artifacts(self, inputs: Sequence["Task"], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        for name, value in (item for task in inputs for item in task.artifacts().items()):
            if name not in exclude and (not include or name in include):
                # What the tasks made differently, Metaflow would ask about.
                assert self.__dict__.setdefault(name, value) == value, "tasks of a fan-out differ"

    def artifacts(self) -> dict[str, Any]:
        """Return what goes on to the next step: all but what every task has, and a fan-out task's own item."""
        return {name: value for name, value in self.__dict__.items() if name not in {"input", *self._constant} and name[0] != "_"}


def run_steps(flow: type, run: str, constant: Mapping[str, Any], folder: Path) -> None:
    """Run from `start` to `end`, tasks of a fan-out and branches one by one, but for tasks that have left their artifacts in the folder."""
    from metaflow import current

    def done(name: str, artifacts: Mapping[str, Any], *inputs: list[Task], number: int | str = "") -> Task:
        task, path = Task(flow, constant, artifacts), folder / f"{name}{number}.json"
        if path.exists():
            task.__dict__.update(json.loads(path.read_text()))
            return task
        print(f"begins {name}", flush=True)
        current._set_env(run_id=run, step_name=name, task_id="1", retry_count=0)
        getattr(task, name)(*inputs)
        path.with_suffix(".new").write_text(json.dumps(task.artifacts() | {"_next": task._next, "_foreach": task._foreach}))
        path.with_suffix(".new").rename(path)
        return task

    task = done("start", {})
    while task._next:
        first, *others = task._next
        if task._foreach is not None:
            items = enumerate(getattr(task, task._foreach))
            parts = [done(first, task.artifacts() | {"input": item}, number=number) for number, item in items]
        elif others:
            parts = [done(name, task.artifacts()) for name in task._next]
        else:
            task = done(first, task.artifacts())
            continue
        task = done(parts[0]._next[0], {}, parts)


def do(job: dict[str, Any]) -> None:
    """Do one whole run, or what is left of it, as the job says."""
    os.chdir(job["cwd"])
    os.environ.update(job["environment"])
    from chess_grpo import ChessGrpo, _parse
    from metaflow import current
    from metaflow.user_configs.config_parameters import ConfigValue

    from steps.run.processes import LAUNCHER, own_token

    os.environ[LAUNCHER] = own_token()  # As the flow does.
    if "clock" in job:
        let_clock_jump(job["clock"], Path(os.environ["CHESS_GRPO_HOME"], "progress"))
    for constant, value in job.get("constants", {}).items():
        module, _, name = constant.rpartition(".")
        setattr(import_module(module), name, value)
    if "failpoint" in job:
        when, _, failpoint = job["failpoint"].partition(" ")
        module, name = FAILPOINTS[failpoint]
        *holder, name = name.split(".")
        place = getattr(import_module(module), holder[0]) if holder else import_module(module)
        at(job["nth"], place, name, lambda: _end_by(job["signal"]), is_after=when == "after")
    current._update_env({"card": defaultdict(MagicMock)})
    given = {"settings": ConfigValue(_parse(job["settings"])), "fresh": False, "resume_from": ""} | job.get("parameters", {})
    (artifacts := Path("artifacts", job["run"])).mkdir(parents=True, exist_ok=True)
    run_steps(ChessGrpo, job["run"], given, artifacts)


def _end_by(number: int) -> None:
    print(f"ended at its failpoint by signal {number}", flush=True)
    os.kill(os.getpid(), number)
    if number == 9:
        time.sleep(60)


def resize(job: Mapping[str, Any]) -> int:
    """Leave so many bytes free on a disk of this process's own mount namespace, or plenty; return what is free. It takes no memory."""
    place, free = job["place"], job["free"]
    while True:
        size = 8 << 30 if free is None else shutil.disk_usage(place).used + free
        # Refused when a run has written more meanwhile.
        if not subprocess.run(["mount", "-o", f"remount,size={size}", place], stderr=subprocess.DEVNULL, check=False).returncode:
            return shutil.disk_usage(place).free


if __name__ == "__main__":
    sys.path[:0] = [str(_ROOT), str(_ROOT / "flows"), str(_ROOT / "tests" / "steps")]
    from steps import STEPS

    for name in (
        "chess_grpo",
        "steps.job.task",
        *(f"steps.{step}" for step in STEPS),
        "great_expectations",
        "mlflow.tracking",
        "torch._dynamo",
    ):
        import_module(name)
    import torch
    from forking import at, let_clock_jump, serve

    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()  # Imports what torch imports late.
    serve(do, {"resize": resize})
