"""Which nodes train together, whether each is alive, and why they ended: what torch's elastic agent does not tell one node of another.

Node 0's step process holds a `torch.distributed.TCPStore`, where the agents of all nodes and their training processes meet. The step
processes write there that they are alive and how they ended. Node 0 alone judges why, so that all nodes give the same reason.
"""

import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final, Self

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]  # Public all the same.

from grpo.base.errors import PlainError
from grpo.base.files import parse_json_object
from steps.nodes.node import LOOPBACK, Node

_SECONDS_A_TRY: Final = 10.0
_SECONDS_BETWEEN_LOOKS: Final = 0.2
_SECONDS_BETWEEN_BEATS: Final = 2.0
_SECONDS_OF_SILENCE: Final = 60.0
"""A node of which nothing is heard for so long counts as lost: a machine that vanishes closes no connection."""
_SECONDS_FOR_REASONS: Final = 15.0
"""How long node 0 waits at the end for the other nodes to say how they ended."""
_SECONDS_TO_LEAVE: Final = 5.0
_STOP: Final = "stop"
_VERDICT: Final = "verdict"
_LEFT: Final = "left"
_NODE_0_IS_LOST: Final = "node 0 is lost: it does not answer"


class NodesError(PlainError, RuntimeError):
    """The nodes did not all come, or one of them was lost or reclaimed; a retry may succeed."""

    may_pass = True


class NodeFailedError(PlainError, RuntimeError):
    """A node failed with an error that is not retryable."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a node ended."""

    why: str = ""
    """Empty when it ended well, or only because another node did not."""
    is_final: bool = False
    """Whether no retry can help."""

    @classmethod
    def read(cls, text: bytes) -> Self:
        """Return what `text` says."""
        return cls(**parse_json_object(text, "a node's ending"))

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    def of_node(self, index: int) -> "Ending":
        """Return it with the node's index in its reason."""
        return Ending(f"node {index} ended: {self.why}", self.is_final) if self.why else self


class Membership:
    """The nodes of one attempt, seen from one of them."""

    def __init__(self, node: Node, store: TCPStore) -> None:
        """Use the store of node 0; `met` opens it."""
        self._node = node
        self._store = PrefixStore(f"nodes of {node.name}", store)
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self.was_stopped = False
        """Whether this process got SIGTERM because another node ended or was lost."""

    @classmethod
    def met(cls, node: Node, *, seconds: float) -> Self:
        """Return the membership once all nodes are here.

        Raises NodesError when one does not come in time, or when another program has node 0's port.
        """
        until = time.monotonic() + seconds
        met = cls(node, _opened_store(node) if node.index == 0 else _found_store(node, until, seconds))
        try:
            met._store.set(_alive(node.index), "here")
            while missing := [index for index in node.others if not met._has(_alive(index))]:
                if time.monotonic() > until:
                    raise NodesError(
                        f"node {node.index} waited {seconds:g} s, but node {', '.join(map(str, missing))} did not come: the machine did not"
                        " start, or a firewall is between them (all TCP ports must be open between nodes)"
                    )
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        except DistError:
            raise NodesError(_NODE_0_IS_LOST) from None
        return met

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Send this process SIGTERM, once, when another node fails or is lost while the block lasts."""
        threading.Thread(target=self._watch, name="nodes", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._is_over.set()

    def settle(self, own: Ending | None) -> None:
        """Tell the other nodes how this one ended, None for well; after a bad end raise what node 0 finds to be the reason.

        Raises NodeFailedError when a node failed with an error that is not retryable, NodesError when one was lost or reclaimed.
        """
        verdict = (own or Ending()).of_node(self._node.index)
        try:
            self._store.set(_ended(self._node.index), (own or Ending()).text())
            if self._node.index == 0:
                verdict = self._judged(own)
            elif own is not None:
                if not own.is_final and self._wait(2 * _SECONDS_FOR_REASONS, lambda: self._has(_VERDICT)):
                    verdict = Ending.read(self._store.get(_VERDICT))
                self._store.add(_LEFT, 1)
        except DistError:
            pass  # After a good end node 0 need not be there any more.
        if own is None:
            return
        if verdict.is_final:
            raise NodeFailedError(verdict.why)
        raise NodesError(verdict.why or _NODE_0_IS_LOST)

    def _judged(self, own: Ending | None) -> Ending:
        """Return, on node 0, why the nodes ended, when all have or are lost; tell it to those that wait for it."""
        if own is not None:
            self._store.set(_STOP, "")
        self._wait(_SECONDS_FOR_REASONS, lambda: len(self._endings()) == self._node.count)
        endings = self._endings()
        silent = [index for index in self._node.others if index not in endings]
        whys = sorted((not ending.is_final, index) for index, ending in endings.items() if ending.why)
        if whys:  # A final error first: it forbids a retry.
            index = whys[0][1]
            verdict = endings[index].of_node(index)
        elif silent:
            verdict = Ending(f"node {', '.join(map(str, silent))} is lost or hangs: it did not say how it ended")
        else:
            verdict = Ending("a process was lost, and no node knows why")
        if own is not None:
            self._store.set(_VERDICT, verdict.text())
            self._wait(_SECONDS_TO_LEAVE, lambda: self._store.add(_LEFT, 0) >= len(endings) - 1)
        return verdict

    def _watch(self) -> None:
        heard: dict[int, tuple[bytes, float]] = {}
        for beat in itertools.count():
            try:
                self._store.set(_alive(self._node.index), f"{beat}")
                must_stop = self._is_one_lost(heard) if self._node.index == 0 else self._has(_STOP)
            except DistError:
                must_stop = True  # Node 0 is gone.
            with self._lock:
                if must_stop and not self._is_over.is_set():
                    self.was_stopped = True
                    os.kill(os.getpid(), signal.SIGTERM)
            if must_stop or self._is_over.wait(_SECONDS_BETWEEN_BEATS):
                return

    def _is_one_lost(self, heard: dict[int, tuple[bytes, float]]) -> bool:
        """Return, on node 0, whether another node ended badly or was silent for too long; `heard` is its last beat, and when."""
        endings, now = self._endings(), time.monotonic()
        for index in self._node.others:
            beat = self._store.get(_alive(index))
            if index in endings or index not in heard or heard[index][0] != beat:
                heard[index] = beat, now
        return any(ending.why for ending in endings.values()) or any(now - since > _SECONDS_OF_SILENCE for _, since in heard.values())

    def _endings(self) -> dict[int, Ending]:
        there = [index for index in range(self._node.count) if self._has(_ended(index))]
        return {index: Ending.read(self._store.get(_ended(index))) for index in there}

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def _wait(self, seconds: float, is_so: Callable[[], bool]) -> bool:
        until = time.monotonic() + seconds
        while not (found := is_so()) and time.monotonic() < until:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return found


def _opened_store(node: Node) -> TCPStore:
    """Return node 0's store, which the agent and the processes of this machine use too."""
    try:
        # Our own socket: a TCPStore listens on all interfaces, and asks nobody who they are.
        listener = socket.create_server((LOOPBACK if node.is_local else "", node.port))
    except OSError as error:
        raise NodesError(f"port {node.port} of node 0 cannot be used ({error}): stop what listens there; a retry uses another") from None
    return TCPStore(LOOPBACK, node.port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach())


def _found_store(node: Node, until: float, seconds: float) -> TCPStore:
    while True:
        try:
            socket.create_connection((node.address, node.port), timeout=_SECONDS_A_TRY).close()  # A TCPStore's own tries see no signals.
            return TCPStore(node.address, node.port, wait_for_workers=False, timeout=timedelta(seconds=_SECONDS_A_TRY))
        except (OSError, DistError):
            if time.monotonic() > until:
                raise NodesError(
                    f"node {node.index} found no node 0 at {node.address}, port {node.port}, in {seconds:g} s: its machine did not start,"
                    " or a firewall is between them (all TCP ports must be open between nodes)"
                ) from None
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _alive(index: int) -> str:
    return f"alive {index}"


def _ended(index: int) -> str:
    return f"ended {index}"
