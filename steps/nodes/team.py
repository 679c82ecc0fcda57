"""GRPO on several machines: each runs this for its own part of the processes, which all train one policy; node 0 leads and stores.

A node's first process is the step's own, as in a run on one machine: node 0's draws the cards and feeds the tracker. On a machine with
several GPUs the others are started beside it. They train as processes that torchrun started do (`grpo.learning.distributed`); torchrun
itself is not between them and Metaflow, for it would hide with which code a process ended, and that no other try would mend it. All nodes
end together: who ends says so over its line (`steps.nodes.sockets`), and whose line breaks has ended.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from grpo.base.errors import PlainError
from grpo.learning.distributed import Rendezvous
from steps.bodies.training_loop import RESUMABLE_EXIT, Terminated, terminable
from steps.nodes import worker
from steps.nodes.sockets import Connection, Door, Message, Node, NodesError, come, free_port
from steps.nodes.worker import FINAL_EXIT, SECONDS_TO_LEAVE, WorkerTask, leave_at_once, train, with_root
from steps.runtime.device import torch_device
from steps.runtime.machine import Machine
from steps.step_io.work import TerminalSink, Work
from steps.store.outputs import StepOutput

_SECONDS_TO_COME: Final = 1_200
"""For all machines to be there: Batch starts the others after node 0, and each loads its image."""
_SECONDS_FOR_A_REASON: Final = 3


class NodeFailedError(PlainError, RuntimeError):
    """Another machine of the step failed by an error that another try would meet again."""


@dataclass(frozen=True, slots=True)
class _Ending:
    why: str
    is_final: bool


class Team:
    """The machines that train together, as one of them sees it."""

    def __init__(self, node: Node, machine: Machine, num_processes: int, lines: Mapping[int, Connection]) -> None:
        """Know the others; `listen` to them next.

        Args:
            node: which machine this is.
            machine: its facts.
            num_processes: how many of them train here.
            lines: by node: of node 0 to all others, of another to node 0.
        """
        self._node = node
        self._machine = machine
        self._num_here = num_processes
        self._lines = lines
        self._first_rank, self._size = 0, num_processes
        self._inboxes: dict[int, queue.SimpleQueue[Message]] = {index: queue.SimpleQueue() for index in lines}
        self._lock = threading.Lock()
        self._ending: _Ending | None = None
        self._is_leaving = False
        self._told, self._left = threading.Event(), threading.Event()
        self._listeners = [threading.Thread(target=self._listen, args=pair, daemon=True) for pair in lines.items()]

    def listen(self) -> None:
        """Hear from now on what the others say: from now on their end is this process's too."""
        for listener in self._listeners:
            listener.start()

    @property
    def leads(self) -> bool:
        """Whether this is node 0, which stores the output."""
        return self._node.index == 0

    def met(self, facts: Mapping[str, str]) -> int:
        """Return how many processes there are on all machines together, after holding what the machines have against each other.

        Args:
            facts: what a step's version names: inputs, engine and device must be the same everywhere.

        Raises NodeFailedError, on node 0, when they are not.
        """
        if not self.leads:
            self._lines[0].send({"is": "here", "facts": dict(facts), "num_processes": self._num_here})
            place = self._next(0, "met")
            self._first_rank, self._size = place["first_rank"], place["size"]
            return self._size
        places = {}
        for index in sorted(self._lines):
            here = self._next(index, "here")
            differences = [
                f"{name}: {value} on node 0, {here['facts'][name]} there" for name, value in facts.items() if here["facts"][name] != value
            ]
            if differences:
                raise NodeFailedError(
                    f"node {index} would not train as node 0 does ({'; '.join(differences)}): give the queue machines of one kind"
                )
            places[index] = self._size
            self._size += here["num_processes"]
        for index, first_rank in places.items():
            self._lines[index].send({"is": "met", "first_rank": first_rank, "size": self._size})
        return self._size

    def finetune(self, task: WorkerTask, work: Work, on_assessed: Callable[[Mapping[str, Any]], None]) -> None:
        """Train with the others and fill the work's folder: node 0's part."""
        port = free_port(self._node.attempt) if self._size > 1 else 0
        for line in self._lines.values():
            line.send({"is": "train", "port": port})
        self._train(task, work, port, on_assessed)

    def help(self, task: Callable[[], WorkerTask]) -> StepOutput:
        """Train with node 0, if it does, and return its output: the other nodes' part."""
        message = self._next(0, "train", "finished")
        if message["is"] == "train":
            with tempfile.TemporaryDirectory() as folder:
                terminal = TerminalSink(f"finetune, node {self._node.index}", (), lambda text: print(text, flush=True))
                self._train(task(), Work(Path(folder), (), terminal=terminal), message["port"], None)
            message = self._next(0, "finished")
        self._leave()
        return cast(StepOutput, message["output"])

    def finished(self, output: StepOutput) -> None:
        """Tell the others that the output is in the store: node 0 needs them no more."""
        self._leave()
        for line in self._lines.values():
            line.send({"is": "finished", "output": output})

    def _train(self, task: WorkerTask, work: Work, port: int, on_assessed: Callable[[Mapping[str, Any]], None] | None) -> None:
        meeting = Rendezvous(address=self._node.main_address, port=port, rank=self._first_rank, size=self._size)
        with self._beside(task, meeting):
            train(task, self._machine, work, meeting, num_here=self._num_here, on_assessed=on_assessed, on_error=self._set_out)

    @contextmanager
    def _beside(self, task: WorkerTask, meeting: Rendezvous) -> Iterator[None]:
        """Have the further processes of this machine at work while the block lasts; they end with it."""
        children = []
        for local_rank in range(1, self._num_here):
            child = subprocess.Popen(
                [sys.executable, "-m", worker.__name__],
                stdin=subprocess.PIPE,
                text=True,
                env={**os.environ, "LOCAL_RANK": str(local_rank), "PYTHONPATH": with_root(os.environ.get("PYTHONPATH", ""))},
            )
            children.append(child)
            assert child.stdin is not None
            order = {"task": task, **asdict(meeting), "rank": meeting.rank + local_rank, "num_here": self._num_here}
            with suppress(OSError):  # It ended already: its watcher says so.
                child.stdin.write(json.dumps(order) + "\n")
                child.stdin.flush()
            threading.Thread(target=self._watch, args=(child, local_rank), daemon=True).start()
        try:
            yield
            for child in children:
                child.wait(SECONDS_TO_LEAVE)
        finally:
            for child in children:
                with suppress(OSError):
                    cast(Any, child.stdin).close()  # It ends itself.

    def _watch(self, child: "subprocess.Popen[str]", local_rank: int) -> None:
        if code := child.wait():
            is_final = code in (1, FINAL_EXIT)  # 1 is Python's for an error with a traceback.
            self._end(_Ending(f"process {local_rank} of node {self._node.index} ended with {code}", is_final))

    def _listen(self, index: int, line: Connection) -> None:
        while (message := line.read()) is not None:
            if message["is"] == "ended":
                self._end(_Ending(f"node {index} ended: {message['why']}", message["is_final"]))
                return
            self._inboxes[index].put(message)
            if message["is"] == "finished":
                return  # Node 0 leaves, and that is no loss.
        self._end(_Ending(f"node {index} is lost: its line broke", is_final=False))

    def _next(self, index: int, *kinds: str) -> Message:
        """Wait for a node's next message."""
        while True:
            with suppress(queue.Empty):
                # In pieces: a wait without end would not hear, in a thread that gets no signals, that all is over.
                message = self._inboxes[index].get(timeout=1)
                assert message["is"] in kinds, message
                return message
            if self._ending is not None:
                raise NodesError(self._ending.why)

    def _end(self, ending: _Ending) -> None:
        """End this process, with a checkpoint if it can, because another has ended."""
        with self._lock:
            if self._ending is None:
                self._ending = ending
            self._told.set()
            # Whoever was told to end already is on its way; a second time would cut it short.
            if not self._is_leaving and callable(signal.getsignal(signal.SIGTERM)):
                os.kill(os.getpid(), signal.SIGTERM)
        if not self._left.wait(SECONDS_TO_LEAVE):
            leave_at_once(f"{ending.why}; this process waited for it in vain", FINAL_EXIT if ending.is_final else RESUMABLE_EXIT)

    def _set_out(self) -> None:
        """Take note, before the others notice, that this process is on its way out: their end shall not take the place of its reason."""
        with self._lock:
            self._is_leaving = True

    def _leave(self) -> None:
        self._set_out()
        self._left.set()

    def end(self, error: BaseException | None) -> None:
        """Tell the others how it ended here; raise NodeFailedError when it did because another failed for good.

        An end for another reason goes its own way.
        """
        self._set_out()
        is_final = isinstance(error, Exception) and not (isinstance(error, PlainError) and error.may_pass)
        if error is not None:
            own = _Ending(_why(error), is_final) if is_final or self._ending is None else self._ending
            for line in self._lines.values():
                line.send({"is": "ended", "why": own.why, "is_final": own.is_final})
            if not is_final and self._size > 1:
                # A sum that failed may be all that came of another's end so far; it says why when it has left the others' sum.
                self._told.wait(_SECONDS_FOR_A_REASON)
            self._left.set()
            until = time.monotonic() + _SECONDS_FOR_A_REASON
            for line in self._lines.values():
                line.hang_up()
            for listener in self._listeners:
                listener.join(max(0.0, until - time.monotonic()))
        self._left.set()
        for line in self._lines.values():
            line.close()
        if error is not None and not is_final:
            self.refuse_to_go_on()
            if self._ending is not None:
                print(f"finetune, node {self._node.index}: {self._ending.why}", file=sys.stderr, flush=True)

    def refuse_to_go_on(self) -> None:
        """Raise NodeFailedError when another failed for good."""
        if self._ending is not None and self._ending.is_final:
            raise NodeFailedError(self._ending.why) from None


@contextmanager
def joined_nodes(node: Node, machine: Machine, *, seconds_to_come: float = _SECONDS_TO_COME) -> Iterator[Team]:
    """Give the team of all machines, when they are here; whichever way the block ends, they end together.

    Args:
        node: which machine this is.
        machine: its facts.
        seconds_to_come: how long to wait for the others.

    Raises NodesError when they do not come or one is lost, which another try may mend, NodeFailedError when one failed for good; ends the
    process with RESUMABLE_EXIT when it was told to end.
    """
    team: Team | None = None
    try:
        with terminable(), ExitStack() as stack:
            if node.index:
                lines = {0: come(node.main_address, node.attempt, node.index, seconds=seconds_to_come)}
            elif node.count > 1:
                door = stack.enter_context(Door.opened(node.main_address, node.attempt))
                lines = door.gathered(node.count, seconds=seconds_to_come)
            else:
                lines = {}
            team = Team(node, machine, node.num_processes or _num_processes(machine), lines)
            try:
                team.listen()
                yield team
            except BaseException as error:
                team.end(error)
                raise
            team.end(None)
    except Terminated:
        if team is not None:  # Told by another, in the moment in which this one left.
            team.refuse_to_go_on()
        raise SystemExit(RESUMABLE_EXIT) from None


def _num_processes(machine: Machine) -> int:
    import torch

    return torch.cuda.device_count() if torch_device(machine).type == "cuda" else 1


def _why(error: BaseException) -> str:
    if isinstance(error, PlainError):
        return str(error)
    if isinstance(error, (Terminated, SystemExit)):
        return "it was told to end, or lost another"
    return f"{type(error).__name__}: {error}; its own log has the traceback"
