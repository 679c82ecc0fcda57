"""One process of a machine among several that train together: what it needs, and its part.

As a program: a further process of a machine with several GPUs; reads what to do from its standard input, and ends when that ends.
"""

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn, TypedDict

from grpo.base.errors import PlainError
from grpo.learning.distributed import Rendezvous, joined_processes
from grpo.settings.tree import Settings
from steps.bodies.training_loop import RESUMABLE_EXIT, Terminated, terminable
from steps.kinds.lookup import kind_of
from steps.runtime.device import torch_device
from steps.runtime.exit_codes import NO_RETRY
from steps.runtime.machine import Machine
from steps.step_io.work import Work
from steps.store.versions import ROOT

FINAL_EXIT: Final = NO_RETRY
"""The exit code of a process for which another try would end the same way."""
SECONDS_TO_LEAVE: Final = 120
"""For a process that was told to end, before it is ended where it stands: it may wait within a sum for one who does not come any more, or
copy its last checkpoint away."""


class WorkerTask(TypedDict):
    """What a process needs to train, on this machine: plain data."""

    settings: dict[str, Any]
    boards: str
    """Folder of the joined dataset."""
    pretrained: str
    """Folder of the pretrained policy."""
    checkpoint: str
    """Folder of the checkpoint of another run to go on from; empty for none."""
    facts: dict[str, Any]
    """Written into each checkpoint."""


def train(
    task: WorkerTask,
    machine: Machine,
    work: Work,
    meeting: Rendezvous,
    *,
    num_here: int,
    on_assessed: Callable[[Mapping[str, Any]], None] | None,
    on_error: Callable[[], None],
) -> None:
    """Train as one of the processes that meet there, of which so many are on this machine."""
    import torch

    device, num_threads = torch_device(machine), max(1, machine.num_threads // num_here)
    torch.set_num_threads(num_threads)
    with joined_processes(device, meeting) as processes, _told_of_errors(on_error):
        settings = Settings.model_validate(task["settings"])
        kind_of(settings).finetune(
            settings,
            boards=Path(task["boards"]),
            pretrained=Path(task["pretrained"]),
            checkpoint=Path(task["checkpoint"]) if task["checkpoint"] else None,
            facts=task["facts"],
            machine=machine,
            num_engines=num_threads,
            device=device,
            work=work,
            on_assessed=on_assessed,
            processes=processes,
        )


@contextmanager
def _told_of_errors(on_error: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        on_error()
        raise


def with_root(path: str) -> str:
    """Return a Python path on which this project is found, and all that is on this one."""
    return os.pathsep.join(part for part in (str(ROOT), path) if part)


def leave_at_once(why: str, code: int) -> NoReturn:
    """End this process where it stands."""
    print(f"{why}: it leaves at once, and the next try goes on from the last checkpoint", file=sys.stderr, flush=True)
    os._exit(code)


def _leave_with_parent() -> None:
    while os.read(0, 1):  # Not through sys.stdin, whose lock, held while it waits, would abort the interpreter's end.
        pass
    with suppress(ProcessLookupError):
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(SECONDS_TO_LEAVE)
    leave_at_once("the node's first process is gone", RESUMABLE_EXIT)


def main() -> int:
    """Train as one more process of a node."""
    order = json.loads(sys.stdin.readline())
    meeting = Rendezvous(address=order["address"], port=order["port"], rank=order["rank"], size=order["size"])
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        with terminable(), tempfile.TemporaryDirectory() as folder:
            work, num_here = Work(Path(folder), ()), order["num_here"]
            train(order["task"], Machine.here(), work, meeting, num_here=num_here, on_assessed=None, on_error=lambda: None)
    except Terminated:
        return RESUMABLE_EXIT
    except PlainError as error:
        print(f"process {meeting.rank}: {error}", file=sys.stderr, flush=True)
        return RESUMABLE_EXIT if error.may_pass else FINAL_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
