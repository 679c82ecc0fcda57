"""The jobs of `forking.py`: a tiny fine-tuning, or the flow's steps in the flow's order. A test can kill each job at a given place.

`jobs.py finetune` and `jobs.py flow` import what their jobs need, and then serve. A job of the flow replaces Metaflow: artifacts, fan-out,
join and resumed runs; it draws no cards. `real_flow.run_flow` starts the flow as people do.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any, Final
from unittest.mock import MagicMock

from forking import Job, at, let_clock_jump, serve

_ROOT: Final = Path(__file__).resolve().parents[2]
FAILPOINTS: Final = {
    "a look at the first rollout": "steps.common.training_loop:LiveDiagnosis.refuse",
    "a minibatch's update": "torch.nn.utils:clip_grad_norm_",
    "a measurement": "steps.common.training_loop:TrainingLoop._with_measurements",
    "a line of the journal": "steps.run.work:append_line",
    "a checkpoint": "steps.common.training_loop:save_checkpoint",
    "a checkpoint's tensors": "grpo.policy.checkpoints:write_tensors",
    "a checkpoint's deletion": "steps.common.training_loop:remove_folder",
    "a training's report": "steps.common.training_loop:weights_hash",
    "a training's last copy": "steps.common.training_loop:copy_folder",
    "an output's manifest": "steps.run.store:write_manifest",
    "a finished output's progress": "steps.run.store:remove_folder",
    "a folder's name": "os:rename",
    "a file's way to the disk": "grpo.base.files:_sync",
    "a folder's end": "grpo.base.files:remove_folder",
    "an optimizer's step": "torch.optim:Adam.step",
    "an engine's start": "grpo.engine.process:EngineProcess.__init__",
    "an engine's end": "grpo.engine.process:EngineProcess.kill",
    "a run's beginning": "steps.run.records:Runs.begin_run",
    "an attempt's beginning": "steps.run.records:Runs.begin",
    "an attempt's end": "steps.run.records:Attempt.end",
    "a child run": "mlflow.tracking:MlflowClient.create_run",
    "metrics and tags": "mlflow.tracking:MlflowClient.log_batch",
    "an artifact": "mlflow.tracking:MlflowClient.log_artifact",
    "a run's end": "mlflow.tracking:MlflowClient.set_terminated",
    "a registered version": "mlflow.tracking:MlflowClient.create_model_version",
    "an alias": "mlflow.tracking:MlflowClient.set_registered_model_alias",
    "a step's version": "steps.job.task:step_version",
}
"""Calls before or after which a job can be killed: module, and function or method."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def pause() -> None:
    """Wait for a signal; one that is only noted lets the process go on."""
    told, teller = os.pipe()
    os.set_blocking(teller, False)
    signal.set_wakeup_fd(teller)  # It misses no signal, however early it comes.
    os.write(1, b"paused\n")  # In one piece: who reads it sends a signal, whose line must not come amid this one.
    os.read(told, 1)
    signal.set_wakeup_fd(-1)


def pause_twice() -> None:
    pause()
    pause()


DEEDS: Final = {"kill": kill, "terminate": terminate, "pause": pause, "pause twice": pause_twice}


def place_of(failpoint: str) -> tuple[Any, str]:
    module, _, name = FAILPOINTS[failpoint].partition(":")
    holder, _, name = name.rpartition(".")
    place = import_module(module)
    return (getattr(place, holder) if holder else place), name


def arm(job: Job) -> None:
    """Let the job's deed be done before, after or within the nth call of its failpoint."""
    when, _, failpoint = job["failpoint"].partition(" ")
    deed: Callable[[], None] = DEEDS[job.get("deed", "kill")]

    def tear(path: Path, line: str) -> None:
        with path.open("a") as file:
            file.write(line[: len(line) // 2])
        deed()

    within: dict[str, Callable[..., object]] = {
        "a line of the journal": tear,
        "a checkpoint's deletion": lambda *_: at(1, shutil, "rmtree", lambda *_: deed()),
    }
    at(job["nth"], *place_of(failpoint), within[failpoint] if when == "within" else lambda *_: deed(), is_after=when == "after")


# A tiny fine-tuning.


def finetune(job: Job) -> None:
    """Make the output of a tiny fine-tuning of the job's `kind`, with its changes of `[grpo]`, in its `home`, or go on with it."""
    import tiny_training
    import torch
    from doubles import MadeUpValues

    import grpo.train.self_play
    import steps.common.training_loop as loop
    import steps.finetune
    from steps.batch.spot_notice import sigterm_on_spot_notice

    torch.set_num_threads(1)
    loop.NUM_CHECKPOINTS_KEPT = 3
    grpo.train.self_play.MAX_PLIES = 8
    steps.finetune.value_tables = lambda boards, *_, **__: MadeUpValues()(boards)
    if "failpoint" in job:
        arm(job)
    if "limit" in job:
        nth, size = job["limit"]
        at(nth, loop, "save_checkpoint", lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    given = tiny_training.settings(job["kind"], **job.get("grpo", {}))
    with sigterm_on_spot_notice(Path(job["notice"])) if "notice" in job else contextlib.nullcontext():
        tiny_training.finetune(Path(job["home"]), Path(job["prepared"]), given, say=lambda text: print(text, flush=True))


# The flow's steps.


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


def run_flow(job: Job) -> None:
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
        arm(job)
    current._update_env({"card": defaultdict(MagicMock)})
    given = {"settings": ConfigValue(_parse(job["settings"])), "fresh": False, "resume_from": ""} | job.get("parameters", {})
    (artifacts := Path("artifacts", job["run"])).mkdir(parents=True, exist_ok=True)
    run_steps(ChessGrpo, job["run"], given, artifacts)


def resize(job: Mapping[str, Any]) -> int:
    """Leave so many bytes free on a disk of this process's own mount namespace, or plenty; return what is free. It takes no memory."""
    place, free = job["place"], job["free"]
    while True:
        size = 8 << 30 if free is None else shutil.disk_usage(place).used + free
        # Refused when a run has written more meanwhile.
        if not subprocess.run(["mount", "-o", f"remount,size={size}", place], stderr=subprocess.DEVNULL, check=False).returncode:
            return shutil.disk_usage(place).free


IMPORTS: Final = {
    "finetune": (
        "tiny_training",
        "grpo.train.self_play",
        "grpo.policy.networks.afterstates",
        "steps.language.finetune",
        "steps.batch.spot_notice",
        "pyarrow.dataset",
        "scipy.stats",
    ),
    "flow": ("chess_grpo", "steps.job.task", "great_expectations", "mlflow.tracking", "torch._dynamo"),
}

if __name__ == "__main__":
    sys.path[:0] = [str(_ROOT), str(_ROOT / "flows"), str(_ROOT / "tests" / "grpo")]
    kind = sys.argv[1]
    for name in IMPORTS[kind]:
        import_module(name)
    import torch

    # These import what torch, transformers and steps import late.
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()
    if kind == "flow":
        for name in import_module("steps").STEPS:
            import_module(f"steps.{name}")
    else:
        small, policy = import_module("small_language"), import_module("grpo.language.model.policy")
        policy.LanguagePolicy.load(small.pretrained_folder(), torch.device("cpu"))
    serve({"finetune": finetune, "flow": run_flow}[kind], {"resize": resize})
