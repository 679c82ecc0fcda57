"""Work in forked processes: each has what this one has and imports nothing again, one thread of torch, and engines of its own."""

import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from grpo.base.errors import PlainError
from grpo.base.processes import signal_when_parent_ends

_T = TypeVar("_T")
Tell = Callable[[int], None]
"""Is told how much is done."""


class ForkError(PlainError, RuntimeError):
    """A forked process ended without a result."""

    may_pass = True


def num_forks(wanted: int) -> int:
    """Return how many processes may share work: one where torch has begun to use a GPU, which a forked process cannot."""
    torch = sys.modules.get("torch")
    return 1 if torch is not None and torch.cuda.is_initialized() else wanted


def in_processes(tasks: Sequence[Callable[[Tell], _T]], tell: Tell) -> list[_T]:
    """Return what the tasks return, each run in a process of its own; a single one in this process.

    Args:
        tasks: each is given a function to tell how much of it is done.
        tell: is told the sum over all tasks.

    Raises the PlainError of a task, ForkError where a process ended by itself.
    """
    if len(tasks) == 1:
        return [tasks[0](tell)]
    context, processes, waiting = get_context("fork"), list[Any](), dict[Any, int]()
    done, results = [0] * len(tasks), dict[int, Any]()
    try:
        for number, task in enumerate(tasks):
            ours, theirs = context.Pipe(duplex=False)
            waiting[ours] = number
            processes.append(context.Process(target=_run, args=(task, theirs), daemon=True))
            processes[-1].start()
            theirs.close()  # Before the next fork: a pipe ends when nobody has it open for writing.
        while waiting:
            for pipe in connection.wait([*waiting]):
                assert isinstance(pipe, Connection)
                number = waiting[pipe]
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    processes[number].join()
                    code = processes[number].exitcode
                    raise ForkError(
                        f"a process that shares this work ended with exit code {code} (-9: killed, perhaps for memory)"
                    ) from None
                if isinstance(message, int):
                    done[number] = message
                    tell(sum(done))
                elif isinstance(message, PlainError):
                    raise message
                else:
                    results[number] = message[0]
                    del waiting[pipe]
                    pipe.close()
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
        for pipe in waiting:
            pipe.close()
    return [results[number] for number in range(len(tasks))]


def _run(task: Callable[[Tell], Any], pipe: Connection) -> None:
    """Run a task in a forked process, which ends with its parent."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # The parent gets them too: it finishes its step, or kills this process.
    signal_when_parent_ends(signal.SIGKILL)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # The threads of the parent's pool are not here.
    try:
        pipe.send((task(pipe.send),))
    except PlainError as error:
        pipe.send(error)
