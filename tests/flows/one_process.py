"""The real flow's steps, in the flow's own order, in one process: the start of a task costs some eight seconds of imports.

`python one_process.py` is a process of `forking.py`, so that imports are paid once for all runs. A run leaves the artifacts of its last
step as JSON. Metaflow is played here: artifacts, fan-out, join, order. Cards are drawn on nothing. The flow as people start it is
`real_flow.run_flow`.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parents[2]
INHERITED = tuple(os.environ)


class Task:
    """A step's `self`: artifacts, the flow's own methods, and where it goes on to."""

    def __init__(self, flow: type, artifacts: dict[str, Any]) -> None:
        self.__dict__.update({"input": None} | artifacts, _flow=flow, _next=None, _foreach=None)

    def __getattr__(self, name: str) -> MethodType:
        return MethodType(getattr(self._flow, name), self)

    def next(self, step: MethodType, foreach: str | None = None) -> None:
        self.__dict__.update(_next=step.__name__, _foreach=foreach)

    def merge_artifacts(self, inputs: Sequence["Task"], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        found = inputs[0].artifacts()
        names = include or found.keys() - set(exclude)
        # What the tasks made differently, Metaflow would ask about.
        assert all(task.artifacts()[name] == found[name] for task in inputs for name in names), "tasks of a fan-out differ"
        self.__dict__.update({name: found[name] for name in names})

    def artifacts(self) -> dict[str, Any]:
        """Return what goes on to the next step: all but a fan-out task's own item."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_") and name != "input"}


def run_steps(flow: type, artifacts: dict[str, Any], ran: Callable[[str], None]) -> Task:
    """Run from `start` to `end`; a fan-out's tasks one after the other, joined by the step that follows."""
    constant = dict(artifacts)
    task, name = Task(flow, constant), "start"
    while True:
        ran(name)
        getattr(task, name)()
        if task._next is None:
            return task
        name, before = task._next, task
        if task._foreach is None:
            task = Task(flow, before.artifacts())
            continue
        parts = [Task(flow, before.artifacts() | {"input": value}) for value in getattr(before, task._foreach)]
        for part in parts:
            ran(name)
            getattr(part, name)()
        task, name = Task(flow, constant), parts[0]._next
        ran(name)
        getattr(task, name)(parts)
        name, task = task._next, Task(flow, task.artifacts())


def main(job: Mapping[str, Any]) -> None:
    os.chdir(job["cwd"])
    for name in INHERITED:  # What imports have set stays.
        os.environ.pop(name, None)
    os.environ.update(job["environment"])
    from chess_grpo import ChessGrpo, _parse
    from metaflow import current
    from metaflow.user_configs.config_parameters import ConfigValue

    from steps.run.versions import describe_code

    run_id = f"one-process-{os.getpid()}"

    def ran(name: str) -> None:
        current._set_env(run_id=run_id, step_name=name, task_id="1", retry_count=0)
        print(f"one process: {name}", flush=True)

    current._update_env({"card": defaultdict(MagicMock)})
    given = {"fresh": False, "resume_from": "", **job["parameters"]}
    artifacts = {"settings": ConfigValue(_parse(json.dumps(job["settings"]))), "code": describe_code(), **given}
    end = run_steps(ChessGrpo, artifacts, ran)
    found = {name: value for name, value in end.artifacts().items() if name not in {"settings", "code", *given}}
    Path(job["artifacts"]).write_text(json.dumps({"run_id": run_id, "data": found}))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "flows"), str(ROOT / "tests" / "steps")]
    from steps import STEPS

    for module in ("chess_grpo", "steps.task", *(f"steps.{name}" for name in STEPS)):
        import_module(module)
    import_module("great_expectations")
    from forking import serve

    serve(main)
