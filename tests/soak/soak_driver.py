"""Runs whole small pipelines in processes of their own, each killed, starved or misled as a test says.

It is a process of `forking.py`. What a forked process gives back, as Metaflow does, is the artifact of each step: a file below
`artifacts`, which a later process goes on from.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE), str(TREE / "tests" / "steps")]

import great_expectations  # noqa: E402, F401
import mlflow.tracking  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
from forking import at, serve  # noqa: E402

import data_checks.dataset  # noqa: E402, F401
import grpo.base.files  # noqa: E402
import grpo.engine.pool  # noqa: E402
import grpo.engine.process  # noqa: E402
import grpo.policy.checkpoints  # noqa: E402
import steps.run.store  # noqa: E402
import steps.run.work  # noqa: E402
import steps.task  # noqa: E402
import steps.track.mlflow_model  # noqa: E402
import steps.training_loop  # noqa: E402
from grpo.base.errors import PlainError  # noqa: E402
from grpo.engine.process import EngineProcess  # noqa: E402
from grpo.settings.tree import read_settings, split_settings  # noqa: E402
from steps import end, start  # noqa: E402
from steps.run.processes import LAUNCHER, own_token  # noqa: E402
from steps.run.records import Attempt, Runs  # noqa: E402
from steps.run.step import step_of  # noqa: E402
from steps.task import parts, run  # noqa: E402

NO_RETRY, RESUMABLE = 202, 75
CODE = {"commit": "soak", "is_dirty": False, "lock": "soak"}
NAMES = {
    "build_boards": "part",
    "join_boards": "boards",
    "check_boards": "checks",
    "pretrain": "pretrained",
    "calibrate": "calibrated",
    "baseline": "baseline_report",
    "finetune": "finetuned",
    "screen": "screened",
    "confirm": "confirmed",
    "select": "selected",
    "report": "reported",
}
"""Step -> what the flow calls its output."""
FAN_OUTS = {"build_boards": "boards", "confirm": "selection"}
JOINS = {"join_boards": "build_boards", "select": "confirm"}
for step in NAMES:  # Imports what steps import late.
    step_of(step)
_SEEN: Counter[str] = Counter()


def whole_run(place: Path, settings: str, metaflow_run: str, *, until: str = "") -> None:
    """Do the steps of the flow in its order, but for those whose artifact is there already, and for those after `until`."""
    artifacts = place / metaflow_run
    artifacts.mkdir(parents=True, exist_ok=True)

    def once(name: str, work: Callable[[], Any]) -> Any:
        path = artifacts / f"{name}.json"
        if not path.exists():
            _say(f"begins {name}")
            path.with_suffix(".new").write_text(json.dumps(work()))
            path.with_suffix(".new").rename(path)
        return json.loads(path.read_text())

    given = {"settings": read_settings(settings).model_dump(mode="json"), "keys": split_settings(settings)[1]}
    flow = SimpleNamespace(job=once("start", lambda: start.start(given, CODE, run=metaflow_run, is_fresh=False, resume_from="")))
    fanned: dict[str, list[Any]] = {}
    for name, output in NAMES.items():
        step = step_of(name)
        if name in FAN_OUTS:
            fanned[name] = []
            for part in parts(flow.job, FAN_OUTS[name]):
                task = SimpleNamespace(**vars(flow), input=part)
                fanned[name].append(once(f"{name}-{part['number']}", lambda step=step, task=task: run(step, task)))
            continue
        joined = fanned[JOINS[name]] if name in JOINS else ()
        setattr(flow, output, once(name, lambda step=step, joined=joined: run(step, flow, joined)))
        if name == until:
            return
    once("end", lambda: end.end(flow))


def _say(text: str) -> None:
    print(f"soak: {text}", flush=True)


# Failpoints: the calls before or after which a run can be killed, counted in an undisturbed run.

_PLACES: dict[str, tuple[Any, str]] = {
    "a checkpoint": (steps.training_loop, "save_checkpoint"),
    "a checkpoint's tensors": (grpo.policy.checkpoints, "write_tensors"),
    "a line of the journal": (steps.run.work, "append_line"),
    "an output's manifest": (steps.run.store, "write_manifest"),
    "a folder's name": (os, "rename"),
    "a file's way to the disk": (grpo.base.files, "_sync"),
    "a folder's end": (grpo.base.files, "remove_folder"),
    "an optimiser's step": (torch.optim.Adam, "step"),
    "an engine's start": (EngineProcess, "__init__"),
    "an engine's end": (EngineProcess, "kill"),
    "a run's beginning": (Runs, "begin_run"),
    "an attempt's beginning": (Runs, "begin"),
    "an attempt's end": (Attempt, "end"),
    "a child run": (mlflow.tracking.MlflowClient, "create_run"),
    "metrics and tags": (mlflow.tracking.MlflowClient, "log_batch"),
    "an artifact": (mlflow.tracking.MlflowClient, "log_artifact"),
    "a run's end": (mlflow.tracking.MlflowClient, "set_terminated"),
    "a registered version": (mlflow.tracking.MlflowClient, "create_model_version"),
    "an alias": (mlflow.tracking.MlflowClient, "set_registered_model_alias"),
    "a step's version": (steps.task, "step_version"),
}


def _at(failpoint: str, nth: int, deed: Callable[[], None]) -> None:
    when, _, place = failpoint.partition(" ")
    at(nth, *_PLACES[place], deed, is_after=when == "after")


def _count_all() -> None:
    for place, (holder, name) in _PLACES.items():
        _count(place, holder, name)


def _count(place: str, holder: Any, name: str) -> None:
    whole = getattr(holder, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        _SEEN[place] += 1
        return whole(*arguments, **named)

    setattr(holder, name, wrapped)


def _end_by(number: int) -> None:
    _say(f"ended at its failpoint by signal {number}")
    os.kill(os.getpid(), number)
    if number == signal.SIGKILL:
        time.sleep(60)


# The disk: a tmpfs of this process's own mount namespace, made narrower or wider without taking memory.


def resize(place: Path, free: int | None) -> int:
    """Leave so many bytes free on the disk, or plenty; return what is free."""
    while True:
        size = 8 << 30 if free is None else shutil.disk_usage(place).used + free
        # Refused when a run has written more meanwhile.
        if not subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], stderr=subprocess.DEVNULL, check=False).returncode:
            return shutil.disk_usage(place).free


def do(job: dict[str, Any]) -> None:
    """Do one whole run, or what is left of it, as the job says."""
    os.environ.update(job.get("environment", {}))
    os.environ[LAUNCHER] = own_token()  # As the flow does.
    if "silent_seconds" in job:
        grpo.engine.process.SILENT_SECONDS = job["silent_seconds"]
    if job.get("counts"):
        _count_all()
    if "failpoint" in job:
        _at(job["failpoint"], job["nth"], lambda: _end_by(job["signal"]))
    started = time.monotonic()
    whole_run(Path(job["artifacts"]), job["settings"], job["run"], until=job.get("until", ""))
    _say(json.dumps({"seconds": time.monotonic() - started, "seen": _SEEN}))


def _job(job: dict[str, Any]) -> None:
    try:
        do(job)
    except PlainError as error:
        _say(f"plain {type(error).__name__}: {error}")
        sys.exit(RESUMABLE if error.may_pass else NO_RETRY)


if __name__ == "__main__":
    random.seed(0)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()  # Imports what torch imports late.
    serve(_job, {"resize": lambda job: resize(Path(job["place"]), job["free"])})
