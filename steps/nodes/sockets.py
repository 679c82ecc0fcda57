"""TCP connections between the nodes of one step: each node connects to node 0; they exchange short JSON messages and detect a lost node.

All nodes derive the candidate ports from the name of the attempt. So two runs on one machine use other ports, and a retry does not connect
to processes of the previous attempt. The candidates are below the ephemeral ports (Linux: from 32,768), so only another listener can hold
one. Node 0 then takes its next candidate, and the others try one after the other until a listener answers with the name.
"""

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from grpo.base.errors import PlainError

Message = dict[str, Any]

_LOOPBACK: Final = "127.0.0.1"
_FIRST_PORT: Final = 20_000
_NUM_PORTS: Final = 12_000
_NUM_CANDIDATES: Final = 8
_HANDSHAKE_SECONDS: Final = 5.0
"""Time limit for the first message of a new connection; a node waits three times as long for the answer."""
_SECONDS_BETWEEN_TRIES: Final = 0.2
_SECONDS_OF_SILENCE: Final = 60
"""TCP keepalive: a machine whose system does not answer for so long counts as lost."""


class NodesError(PlainError, RuntimeError):
    """The nodes did not all connect, or one of them is lost; a retry may succeed."""

    may_pass = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """This machine among the nodes of the step."""

    index: int
    count: int
    main_address: str
    """Address of node 0."""
    attempt: str
    """Name of the attempt: the same on all nodes, and unique among attempts and runs."""
    num_processes: int | None = None
    """How many processes train here; None for one per GPU, or one without a GPU."""


ONLY_NODE: Final = Node(index=0, count=1, main_address=_LOOPBACK, attempt="", num_processes=1)
"""A step on one machine, in one process."""


def candidate_ports(name: str) -> list[int]:
    """Return the ports at which node 0 may listen, in the order in which it tries them.

    >>> ports = candidate_ports("run 7, finetune, attempt 0")
    >>> len(set(ports)), all(20_000 <= port < 32_000 for port in ports)
    (8, True)
    """
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return [_FIRST_PORT + (start + number * 997) % _NUM_PORTS for number in range(_NUM_CANDIDATES)]


class Connection:
    """A connection between two nodes; each message is one line of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("r", encoding="utf-8")
        self._lock = threading.Lock()
        for option, value in (
            (socket.TCP_KEEPIDLE, _SECONDS_OF_SILENCE // 4),
            (socket.TCP_KEEPINTVL, _SECONDS_OF_SILENCE // 4),
            (socket.TCP_KEEPCNT, 3),
            (socket.TCP_USER_TIMEOUT, _SECONDS_OF_SILENCE * 1000),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, message: Message) -> bool:
        """Send a message; return whether the connection is still open."""
        try:
            with self._lock:
                self._connection.sendall(f"{json.dumps(message)}\n".encode())
        except OSError:
            return False
        return True

    def read(self, seconds: float | None = None) -> Message | None:
        """Wait for a message; None when the connection is closed, the message is invalid, or the time limit passes."""
        self._connection.settimeout(seconds)
        try:
            line = self._reader.readline()
            found = json.loads(line) if line.endswith("\n") else None
        except (OSError, ValueError):
            return None
        finally:
            self._connection.settimeout(None)
        return found if isinstance(found, dict) else None

    def end_sending(self) -> None:
        """Shut down the sending side: closing with unread input would discard sent messages that have not arrived yet."""
        with suppress(OSError):  # The other end closed first.
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection; a blocked `read` returns."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.close()
        self._connection.close()


def connect_to_main(address: str, name: str, node: int, *, seconds: float) -> Connection:
    """Return this node's connection to node 0.

    Args:
        address: address of node 0.
        name: name of the attempt, the same on all nodes.
        node: index of this node, from 1.
        seconds: how long to retry.

    Raises NodesError when node 0 does not answer.
    """
    until = time.monotonic() + seconds
    while True:
        for port in candidate_ports(name):
            if (connection := _handshake(address, port, name, node)) is not None:
                return connection
        if time.monotonic() > until:
            raise NodesError(
                f"node {node} found no node 0 at {address}, ports {', '.join(map(str, candidate_ports(name)))}, in {seconds:g} s: its"
                " machine did not start, or a firewall is between them (all TCP ports must be open between nodes)"
            )
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _handshake(address: str, port: int, name: str, node: int) -> Connection | None:
    try:
        connected = socket.create_connection((address, port), timeout=_HANDSHAKE_SECONDS)
    except OSError:
        return None
    connection = Connection(connected)
    if connection.send({"name": name, "node": node}) and connection.read(3 * _HANDSHAKE_SECONDS) == {"name": name}:
        return connection
    connection.close()
    return None


class NodeListener:
    """The socket at which node 0 accepts the connections of the other nodes."""

    def __init__(self, listener: socket.socket, name: str) -> None:
        self._listener = listener
        self._name = name

    @classmethod
    @contextmanager
    def opened(cls, address: str, name: str) -> Iterator[Self]:
        """Listen at the first free candidate port while the block lasts.

        Raises NodesError when all are in use.
        """
        # Listen on all interfaces unless all nodes are local: a machine may not own the address by which others reach it.
        listener = _listening(_LOOPBACK if address == _LOOPBACK else "", candidate_ports(name))
        with closing(listener):
            yield cls(listener, name)

    def accept_all(self, num_nodes: int, *, seconds: float) -> dict[int, Connection]:
        """Return node -> connection of all other nodes, once all are connected.

        Raises NodesError when some do not connect in time.
        """
        until, connections = time.monotonic() + seconds, dict[int, Connection]()
        while len(connections) < num_nodes - 1:
            self._listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                missing = [str(node) for node in range(1, num_nodes) if node not in connections]
                raise NodesError(
                    f"node 0 waited {seconds:g} s, but node {', '.join(missing)} did not connect: the machine did not start, or a firewall"
                    " is between them (all TCP ports must be open between nodes)"
                ) from None
            accepted.settimeout(None)
            connection = Connection(accepted)
            hello = connection.read(_HANDSHAKE_SECONDS)
            if hello is None or hello.get("name") != self._name or hello.get("node") not in range(1, num_nodes):
                connection.close()  # It does not belong to this attempt.
                continue
            if (before := connections.pop(hello["node"], None)) is not None:
                before.close()  # The node timed out and connected again.
            if connection.send({"name": self._name}):
                connections[hello["node"]] = connection
        return connections


def free_port(name: str) -> int:
    """Return a free port for the rendezvous of the processes of all nodes.

    Raises NodesError when all candidates are in use.
    """
    with closing(_listening("", candidate_ports(f"{name}, processes"))) as listener:
        return int(listener.getsockname()[1])


def _listening(address: str, ports: Sequence[int]) -> socket.socket:
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # A port in TIME_WAIT is free.
        try:
            listener.bind((address, port))
            listener.listen()
        except OSError:
            listener.close()
        else:
            return listener
    raise NodesError(f"ports {', '.join(map(str, ports))} are all in use on node 0: stop what listens there, or let the step be retried")
