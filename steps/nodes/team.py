"""Distributed GRPO on several machines (nodes): all train one policy; node 0 is the main node, which stores the output.

A node's first process is the step's own, as in a run on one machine; that of node 0 updates the cards and logs to MLflow. On a machine
with several GPUs it starts one process per further GPU. They train as processes of torchrun do (`grpo.learning.distributed`). torchrun
itself is not used, because it would hide a process's exit code, which tells Metaflow whether to retry. All nodes end together: a node that
ends says so over its connection (`steps.nodes.sockets`), and a node whose connection breaks counts as lost.
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
from steps.nodes import worker
from steps.nodes.sockets import Connection, Message, Node, NodeListener, NodesError, connect_to_main, free_port
from steps.nodes.worker import FINAL_EXIT, SECONDS_TO_EXIT, WorkerTask, exit_now, train, with_root
from steps.runtime.device import torch_device
from steps.runtime.exit_codes import RESUMABLE
from steps.runtime.machine import Machine
from steps.runtime.sigterm import Terminated, terminable
from steps.step_io.work import TerminalSink, Work
from steps.store.outputs import StepOutput

_SECONDS_TO_CONNECT: Final = 1_200
"""Time limit for all nodes to connect: Batch starts the others after node 0, and each pulls its image."""
_SECONDS_FOR_A_REASON: Final = 3


class NodeFailedError(PlainError, RuntimeError):
    """Another node failed with an error that is not retryable."""


@dataclass(frozen=True, slots=True)
class _Ending:
    why: str
    is_final: bool


class Team:
    """The nodes that train together, seen from one of them."""

    def __init__(self, node: Node, machine: Machine, num_processes: int, connections: Mapping[int, Connection]) -> None:
        """Store the connections; call `listen` next.

        Args:
            node: which machine this is.
            machine: its facts.
            num_processes: how many processes train here.
            connections: by node: on node 0 to all others, on another node to node 0.
        """
        self._node = node
        self._machine = machine
        self._num_here = num_processes
        self._connections = connections
        self._first_rank, self._size = 0, num_processes
        self._inboxes: dict[int, queue.SimpleQueue[Message]] = {index: queue.SimpleQueue() for index in connections}
        self._lock = threading.Lock()
        self._ending: _Ending | None = None
        self._is_leaving = False
        self._has_other_ended, self._left = threading.Event(), threading.Event()
        self._listeners = [threading.Thread(target=self._listen, args=pair, daemon=True) for pair in connections.items()]

    def listen(self) -> None:
        """Start to receive messages: from now on, when another node ends, this process ends too."""
        for listener in self._listeners:
            listener.start()

    @property
    def leads(self) -> bool:
        """Whether this is node 0, which stores the output."""
        return self._node.index == 0

    def met(self, facts: Mapping[str, str]) -> int:
        """Return the number of processes on all nodes together, after checking that all nodes have the same facts.

        Args:
            facts: the parts of the step's version that must be the same everywhere: inputs, engine and device.

        Raises NodeFailedError, on node 0, when they differ.
        """
        if not self.leads:
            self._connections[0].send({"is": "here", "facts": dict(facts), "num_processes": self._num_here})
            reply = self._next(0, "met")
            self._first_rank, self._size = reply["first_rank"], reply["size"]
            return self._size
        first_ranks = {}
        for index in sorted(self._connections):
            here = self._next(index, "here")
            differences = [
                f"{name}: {value} on node 0, {here['facts'][name]} there" for name, value in facts.items() if here["facts"][name] != value
            ]
            if differences:
                raise NodeFailedError(f"node {index} differs from node 0 ({'; '.join(differences)}): give the queue machines of one kind")
            first_ranks[index] = self._size
            self._size += here["num_processes"]
        for index, first_rank in first_ranks.items():
            self._connections[index].send({"is": "met", "first_rank": first_rank, "size": self._size})
        return self._size

    def finetune(self, task: WorkerTask, work: Work, on_assessed: Callable[[Mapping[str, Any]], None]) -> None:
        """Train with the others and fill the work's folder; called on node 0."""
        port = free_port(self._node.attempt) if self._size > 1 else 0
        for connection in self._connections.values():
            connection.send({"is": "train", "port": port})
        self._train(task, work, port, on_assessed)

    def help(self, task: Callable[[], WorkerTask]) -> StepOutput:
        """Train with node 0, unless it reuses an output, and return its output; called on the other nodes."""
        message = self._next(0, "train", "finished")
        if message["is"] == "train":
            with tempfile.TemporaryDirectory() as folder:
                terminal = TerminalSink(f"finetune, node {self._node.index}", (), lambda text: print(text, flush=True))
                self._train(task(), Work(Path(folder), (), terminal=terminal), message["port"], None)
            message = self._next(0, "finished")
        self._leave()
        return cast(StepOutput, message["output"])

    def finished(self, output: StepOutput) -> None:
        """Tell the others that the output is in the store, so that they can end."""
        self._leave()
        for connection in self._connections.values():
            connection.send({"is": "finished", "output": output})

    def _train(self, task: WorkerTask, work: Work, port: int, on_assessed: Callable[[Mapping[str, Any]], None] | None) -> None:
        rendezvous = Rendezvous(address=self._node.main_address, port=port, rank=self._first_rank, size=self._size)
        with self._further_processes(task, rendezvous):
            train(task, self._machine, work, rendezvous, num_here=self._num_here, on_assessed=on_assessed, on_error=self._note_leaving)

    @contextmanager
    def _further_processes(self, task: WorkerTask, rendezvous: Rendezvous) -> Iterator[None]:
        """Run the further processes of this machine while the block lasts; they end with it."""
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
            order = {"task": task, **asdict(rendezvous), "rank": rendezvous.rank + local_rank, "num_here": self._num_here}
            with suppress(OSError):  # It has ended already: `_watch` reports it.
                child.stdin.write(json.dumps(order) + "\n")
                child.stdin.flush()
            threading.Thread(target=self._watch, args=(child, local_rank), daemon=True).start()
        try:
            yield
            for child in children:
                child.wait(SECONDS_TO_EXIT)
        finally:
            for child in children:
                with suppress(OSError):
                    cast(Any, child.stdin).close()  # On which it ends.

    def _watch(self, child: "subprocess.Popen[str]", local_rank: int) -> None:
        if code := child.wait():
            is_final = code in (1, FINAL_EXIT)  # Python ends with 1 after a traceback.
            self._end(_Ending(f"process {local_rank} of node {self._node.index} ended with {code}", is_final))

    def _listen(self, index: int, connection: Connection) -> None:
        while (message := connection.read()) is not None:
            if message["is"] == "ended":
                self._end(_Ending(f"node {index} ended: {message['why']}", message["is_final"]))
                return
            self._inboxes[index].put(message)
            if message["is"] == "finished":
                return  # Node 0 is done and leaves.
        self._end(_Ending(f"node {index} is lost: its connection broke", is_final=False))

    def _next(self, index: int, *kinds: str) -> Message:
        """Wait for a node's next message."""
        while True:
            with suppress(queue.Empty):
                # With a time limit: an endless wait would not notice `_ending` in a thread that gets no signals.
                message = self._inboxes[index].get(timeout=1)
                assert message["is"] in kinds, message
                return message
            if self._ending is not None:
                raise NodesError(self._ending.why)

    def _end(self, ending: _Ending) -> None:
        """End this process because another has ended; SIGTERM lets it save a checkpoint."""
        with self._lock:
            if self._ending is None:
                self._ending = ending
            self._has_other_ended.set()
            # A process that is already leaving must not get a second SIGTERM, which would cut it short.
            if not self._is_leaving and callable(signal.getsignal(signal.SIGTERM)):
                os.kill(os.getpid(), signal.SIGTERM)
        if not self._left.wait(SECONDS_TO_EXIT):
            exit_now(f"{ending.why}; this process did not end in time", FINAL_EXIT if ending.is_final else RESUMABLE)

    def _note_leaving(self) -> None:
        """Record that this process is leaving, before the others notice: their end must not replace its own reason."""
        with self._lock:
            self._is_leaving = True

    def _leave(self) -> None:
        self._note_leaving()
        self._left.set()

    def end(self, error: BaseException | None) -> None:
        """Tell the others how this node ended; raise NodeFailedError when it ended because another failed for good.

        Any other error propagates.
        """
        self._note_leaving()
        is_final = isinstance(error, Exception) and not (isinstance(error, PlainError) and error.may_pass)
        if error is not None:
            own = _Ending(_why(error), is_final) if is_final or self._ending is None else self._ending
            for connection in self._connections.values():
                connection.send({"is": "ended", "why": own.why, "is_final": own.is_final})
            if not is_final and self._size > 1:
                # A failed all-reduce may be the first sign of another node's end; wait for the message that says why.
                self._has_other_ended.wait(_SECONDS_FOR_A_REASON)
            self._left.set()
            until = time.monotonic() + _SECONDS_FOR_A_REASON
            for connection in self._connections.values():
                connection.end_sending()
            for listener in self._listeners:
                listener.join(max(0.0, until - time.monotonic()))
        self._left.set()
        for connection in self._connections.values():
            connection.close()
        if error is not None and not is_final:
            self.raise_failure()
            if self._ending is not None:
                print(f"finetune, node {self._node.index}: {self._ending.why}", file=sys.stderr, flush=True)

    def raise_failure(self) -> None:
        """Raise NodeFailedError when another node failed for good."""
        if self._ending is not None and self._ending.is_final:
            raise NodeFailedError(self._ending.why) from None


@contextmanager
def joined_nodes(node: Node, machine: Machine, *, seconds_to_connect: float = _SECONDS_TO_CONNECT) -> Iterator[Team]:
    """Yield the team of all nodes once they are connected; however the block ends, all nodes end together.

    Args:
        node: which machine this is.
        machine: its facts.
        seconds_to_connect: how long to wait for the others.

    Raises NodesError, which is retryable, when a node does not connect or is lost; NodeFailedError when one failed for good. On SIGTERM
    the process exits with RESUMABLE_EXIT.
    """
    team: Team | None = None
    try:
        with terminable(), ExitStack() as stack:
            if node.index:
                connections = {0: connect_to_main(node.main_address, node.attempt, node.index, seconds=seconds_to_connect)}
            elif node.count > 1:
                listener = stack.enter_context(NodeListener.opened(node.main_address, node.attempt))
                connections = listener.accept_all(node.count, seconds=seconds_to_connect)
            else:
                connections = {}
            team = Team(node, machine, node.num_processes or _num_processes(machine), connections)
            try:
                team.listen()
                yield team
            except BaseException as error:
                team.end(error)
                raise
            team.end(None)
    except Terminated:
        if team is not None:  # Another node's failure may have arrived while this one was leaving.
            team.raise_failure()
        raise SystemExit(RESUMABLE) from None


def _num_processes(machine: Machine) -> int:
    import torch

    return torch.cuda.device_count() if torch_device(machine).type == "cuda" else 1


def _why(error: BaseException) -> str:
    if isinstance(error, PlainError):
        return str(error)
    if isinstance(error, (Terminated, SystemExit)):
        return "it got SIGTERM, or lost another node"
    return f"{type(error).__name__}; its own log has the traceback"  # Other messages may hold secrets.
