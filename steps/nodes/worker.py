"""One training process of a node.

Run as a program it is a further process of a machine with several GPUs. It reads its task from standard input and ends when that closes.
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
from steps.kinds.lookup import kind_of
from steps.runtime.device import torch_device
from steps.runtime.exit_codes import NO_RETRY, RESUMABLE
from steps.runtime.machine import Machine
from steps.runtime.sigterm import Terminated, terminable
from steps.step_io.work import Work
from steps.store.versions import ROOT

FINAL_EXIT: Final = NO_RETRY
"""The exit code of a process that failed with an error that is not retryable."""
SECONDS_TO_EXIT: Final = 120
"""Grace period of a process that got SIGTERM: it may be stuck in an all-reduce with a lost process, or upload its last checkpoint."""


class WorkerTask(TypedDict):
    """What a process needs to train on this machine, as plain data."""

    settings: dict[str, Any]
    boards: str
    """Folder of the joined dataset."""
    pretrained: str
    """Folder of the pretrained policy."""
    checkpoint: str
    """Folder of another run's checkpoint to resume from; empty for none."""
    facts: dict[str, Any]
    """Facts that are written into each checkpoint."""
    rungs: list[dict[str, Any]]
    """Opponents of the strength curve, from `steps.bodies.strength_curve`; empty for no curve."""


def train(
    task: WorkerTask,
    machine: Machine,
    work: Work,
    rendezvous: Rendezvous,
    *,
    num_here: int,
    on_assessed: Callable[[Mapping[str, Any]], None] | None,
    on_error: Callable[[], None],
) -> None:
    """Train as one of the processes of this rendezvous; `num_here` of them share this machine's cores."""
    import torch

    device, num_threads = torch_device(machine), max(1, machine.num_threads // num_here)
    torch.set_num_threads(num_threads)
    with joined_processes(device, rendezvous) as processes, _calling_on_error(on_error):
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
            rungs=task["rungs"],
        )


@contextmanager
def _calling_on_error(on_error: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        on_error()
        raise


def with_root(path: str) -> str:
    """Return this PYTHONPATH with the project's root put first."""
    return os.pathsep.join(part for part in (str(ROOT), path) if part)


def exit_now(why: str, code: int) -> NoReturn:
    """End this process immediately, without cleanup."""
    print(f"{why}: exiting now; a retry resumes from the last checkpoint", file=sys.stderr, flush=True)
    os._exit(code)


def _end_with_stdin() -> None:
    while os.read(0, 1):  # Not sys.stdin: its lock, held by a blocked read, would abort the interpreter's shutdown.
        pass
    with suppress(ProcessLookupError):
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(SECONDS_TO_EXIT)
    exit_now("the node's first process is gone", RESUMABLE)


def main() -> int:
    """Train as a further process of a node."""
    order = json.loads(sys.stdin.readline())
    rendezvous = Rendezvous(address=order["address"], port=order["port"], rank=order["rank"], size=order["size"])
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        with terminable(), tempfile.TemporaryDirectory() as folder:
            work, num_here = Work(Path(folder), ()), order["num_here"]
            train(order["task"], Machine.here(), work, rendezvous, num_here=num_here, on_assessed=None, on_error=lambda: None)
    except Terminated:
        return RESUMABLE
    except PlainError as error:
        print(f"process {rendezvous.rank}: {error}", file=sys.stderr, flush=True)
        return RESUMABLE if error.may_pass else FINAL_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
