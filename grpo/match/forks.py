"""Work in forked processes, which start at once, because they need not import modules."""

import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from grpo.base.errors import PlainError
from grpo.base.processes import signal_when_parent_ends

_T = TypeVar("_T")
Tell = Callable[[int], None]  # Takes the amount done so far, such as a number of games.


class ForkError(PlainError, RuntimeError):
    """A forked process ended without a result."""

    may_pass = True  # A retry may succeed.


def num_forks(wanted: int) -> int:
    """Return `wanted`, or 1 if torch uses a GPU, which a forked process cannot use."""
    torch = sys.modules.get("torch")
    return 1 if torch is not None and torch.cuda.is_initialized() else wanted


def in_processes(tasks: Sequence[Callable[[Tell], _T]], tell: Tell) -> list[_T]:
    """Run each task in a forked process and return the results in order. A single task runs in this process.

    A task gets a `Tell` for its own progress; `tell` gets the sum. Raises a task's PlainError, or ForkError.
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
            theirs.close()  # The next process would inherit `theirs`, and keep the pipe open after a death.
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
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)  # The terminal signals forks too, but only the parent reacts.
    signal_when_parent_ends(signal.SIGKILL)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # The threads of torch's pool exist only in the parent.
    try:
        pipe.send((task(pipe.send),))  # An int would be progress.
    except PlainError as error:
        pipe.send(error)
