"""One training process of a node, started by `steps.nodes.launch` with a folder: it trains with those of all nodes.

The first of all reports to its node's step process, which has Metaflow's card, and gives it the output.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Final, NoReturn

from grpo.base.errors import PlainError
from grpo.base.files import read_json, replace_file
from grpo.learning.distributed import LostProcessError, joined_processes
from grpo.metrics.table import Record
from steps.runtime.device import torch_device
from steps.runtime.exit_codes import NO_RETRY, RESUMABLE
from steps.runtime.machine import Machine
from steps.runtime.parent_death import end_with_parent

TASK_FILE: Final = "task.json"
RECORDS: Final = "records"
_GRACE_SECONDS: Final = 30.0


class _StepProcess:
    """A sink that sends everything to the step process."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection

    def log(self, record: Record) -> None:
        self._connection.send(("log", record))

    def progress(self, done: int, total: int, unit: str) -> None:
        self._connection.send(("progress", done, total, unit))

    def assessed(self, found: Mapping[str, Any]) -> None:
        self._connection.send(("assessed", found))


def train(folder: Path) -> None:
    """Do the task in this folder together with the other processes."""
    from steps.pipeline.training import finetune, follow

    task = read_json(folder / TASK_FILE)
    arguments = task["job"], task["boards"], task["pretrained"]
    # Until it has joined, SIGTERM ends it at once: there is nothing to save yet.
    with joined_processes(torch_device(Machine.here())) as processes, reason_told():
        if not processes.is_first:
            follow(*arguments, processes=processes)
            return
        with Client(str(folder / RECORDS)) as connection:
            sink = _StepProcess(connection)
            output = finetune(*arguments, [sink], on_assessed=sink.assessed, processes=processes)
            connection.send(("finished", output))


def leave(body: Callable[[], None]) -> NoReturn:
    """Run a process's body and end the process with its exit code, without what Python and C++ libraries do at exit.

    There a thread of gloo or Arrow that still ran has aborted a process whose work was saved, and an abort counts as a lost machine.
    """
    try:
        code = exit_code(body)
    except SystemExit as end:
        code = int(end.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(body: Callable[[], None]) -> int:
    """Run a process's body and return its exit code."""
    try:
        with reason_told():
            body()
    except PlainError as error:
        return RESUMABLE if error.may_pass else NO_RETRY
    return 0


@contextmanager
def reason_told() -> Iterator[None]:
    """Write why the block failed to the file in which torch's agent looks for it.

    Inside of `joined_processes` that is before the connections close, so before another process can end for want of this one.
    """
    try:
        yield
    except LostProcessError:
        raise  # The lost one's own reason counts.
    except PlainError as error:
        _tell(str(error), is_final=not error.may_pass)
        raise
    except Exception as error:
        _tell(f"{type(error).__name__}; its own log has the traceback", is_final=True)  # Other messages may hold secrets.
        raise


def final_reason(folder: Path) -> str:
    """Return why a process whose agent keeps its logs in this folder failed for good, or an empty text."""
    told = (read_json(path) for path in sorted(folder.rglob("error.json")))
    return next((str(reason["message"]) for reason in told if reason.get("is_final")), "")


def _tell(why: str, *, is_final: bool) -> None:
    replace_file(Path(os.environ["TORCHELASTIC_ERROR_FILE"]), json.dumps({"message": why, "is_final": is_final}).encode())


if __name__ == "__main__":
    end_with_parent(grace_seconds=_GRACE_SECONDS)
    leave(lambda: train(Path(sys.argv[1])))
