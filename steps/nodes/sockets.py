"""The lines between the machines of one step: from each to node 0, which listens; over them go a few words, and an end is noticed.

All know the port without a word: candidates follow from a name that only this attempt of this run's step has, so that two runs on one
machine differ, and a retry does not meet what is left of the attempt before. They lie below the ports that systems give to outgoing
connections (Linux: from 32,768), so that only another listener can hold one: node 0 then takes its next candidate, and the others ask at
one after the other until somebody answers by the name.
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
_SECONDS_FOR_A_WORD: Final = 5.0
"""How long whoever comes may take to say who it is; it waits three times as long for the answer."""
_SECONDS_BETWEEN_TRIES: Final = 0.2
_SECONDS_OF_SILENCE: Final = 60
"""After so long without an answer of its system, a machine is taken for lost."""


class NodesError(PlainError, RuntimeError):
    """The machines of the step do not come together, or one of them is lost: another try may do better."""

    may_pass = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """This machine among those of the step."""

    index: int
    count: int
    main_address: str
    """Of node 0."""
    attempt: str
    """Named alike on all nodes, and like no other attempt of this or another run."""
    num_processes: int | None = None
    """How many train here; None for one a GPU or, without any, one."""


ONLY_NODE: Final = Node(index=0, count=1, main_address=_LOOPBACK, attempt="", num_processes=1)
"""A step on one machine, in its one process."""


def candidate_ports(name: str) -> list[int]:
    """Return the ports at which node 0 may listen, in the order in which it tries them.

    >>> ports = candidate_ports("run 7, finetune, attempt 0")
    >>> len(set(ports)), all(20_000 <= port < 32_000 for port in ports)
    (8, True)
    """
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return [_FIRST_PORT + (start + number * 997) % _NUM_PORTS for number in range(_NUM_CANDIDATES)]


class Connection:
    """A connection between two nodes over which messages go, one a line of JSON."""

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
        """Send a message; return whether there is still somebody to send it to."""
        try:
            with self._lock:
                self._connection.sendall(f"{json.dumps(message)}\n".encode())
        except OSError:
            return False
        return True

    def read(self, seconds: float | None = None) -> Message | None:
        """Wait for a message; None when the other end is gone, says what is no message or, with a limit, nothing for so long."""
        self._connection.settimeout(seconds)
        try:
            line = self._reader.readline()
            found = json.loads(line) if line.endswith("\n") else None
        except (OSError, ValueError):
            return None
        finally:
            self._connection.settimeout(None)
        return found if isinstance(found, dict) else None

    def hang_up(self) -> None:
        """Say no more, so that what was said arrives: to close while something unread is here would take it back on its way."""
        with suppress(OSError):  # The other end was first.
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it, for a reader that waits too."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.close()
        self._connection.close()


def come(address: str, name: str, node: int, *, seconds: float) -> Connection:
    """Return this node's line to node 0.

    Args:
        address: of node 0.
        name: of the attempt, the same on all nodes.
        node: which one this is, from 1.
        seconds: how long to go on trying.

    Raises NodesError when node 0 was not found.
    """
    until = time.monotonic() + seconds
    while True:
        for port in candidate_ports(name):
            if (line := _asked(address, port, name, node)) is not None:
                return line
        if time.monotonic() > until:
            raise NodesError(
                f"node {node} found no node 0 at {address}, ports {', '.join(map(str, candidate_ports(name)))}, in {seconds:g} s: its"
                " machine did not start, or a firewall is between them (they need all TCP ports of each other)"
            )
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _asked(address: str, port: int, name: str, node: int) -> Connection | None:
    try:
        connection = socket.create_connection((address, port), timeout=_SECONDS_FOR_A_WORD)
    except OSError:
        return None
    line = Connection(connection)
    if line.send({"name": name, "node": node}) and line.read(3 * _SECONDS_FOR_A_WORD) == {"name": name}:
        return line
    line.close()
    return None


class Door:
    """Where node 0 listens for the others."""

    def __init__(self, listener: socket.socket, name: str) -> None:
        self._listener = listener
        self._name = name

    @classmethod
    @contextmanager
    def opened(cls, address: str, name: str) -> Iterator[Self]:
        """Listen at the first candidate that is free, while the block lasts.

        Raises NodesError when all are taken.
        """
        # Only a machine's other processes come to 127.0.0.1; a machine may know its own address by another name than the others do.
        listener = _listening(_LOOPBACK if address == _LOOPBACK else "", candidate_ports(name))
        with closing(listener):
            yield cls(listener, name)

    def gathered(self, num_nodes: int, *, seconds: float) -> dict[int, Connection]:
        """Return node -> line of all other nodes, when they are here.

        Raises NodesError when some are not in time.
        """
        until, lines = time.monotonic() + seconds, dict[int, Connection]()
        while len(lines) < num_nodes - 1:
            self._listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                missing = [str(node) for node in range(1, num_nodes) if node not in lines]
                raise NodesError(
                    f"node 0 has waited {seconds:g} s in vain for node {', '.join(missing)}: their machines did not start, or a firewall is"
                    " between them (they need all TCP ports of each other)"
                ) from None
            connection.settimeout(None)
            line = Connection(connection)
            hello = line.read(_SECONDS_FOR_A_WORD)
            if hello is None or hello.get("name") != self._name or hello.get("node") not in range(1, num_nodes):
                line.close()  # Somebody else's, who knocked at the wrong door.
                continue
            if (before := lines.pop(hello["node"], None)) is not None:
                before.close()  # It had no patience, and came again.
            if line.send({"name": self._name}):
                lines[hello["node"]] = line
        return lines


def free_port(name: str) -> int:
    """Return a candidate, of another name, that is free now: where the processes of all nodes will meet.

    Raises NodesError when all are taken.
    """
    with closing(_listening("", candidate_ports(f"{name}, processes"))) as listener:
        return int(listener.getsockname()[1])


def _listening(address: str, ports: Sequence[int]) -> socket.socket:
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # A port that somebody had a minute ago is free.
        try:
            listener.bind((address, port))
            listener.listen()
        except OSError:
            listener.close()
        else:
            return listener
    raise NodesError(f"all of ports {', '.join(map(str, ports))} are taken on node 0: end what listens there, or let it try again")
