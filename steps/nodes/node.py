"""One machine among several that train one policy."""

import hashlib
from dataclasses import dataclass
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_FIRST_PORT: Final = 20_000
_NUM_PORTS: Final = 12_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """This machine among the nodes of the step."""

    index: int
    count: int
    main_address: str
    """Address of node 0; the loopback address when all nodes are processes of one machine."""
    attempt: str
    """Name of the attempt: the same on all nodes, and unique among attempts and runs."""
    num_processes: int | None = None
    """How many processes train here; None for one per GPU, or one without a GPU."""

    @property
    def is_local(self) -> bool:
        """Whether all nodes are on this machine."""
        return self.main_address == LOOPBACK

    @property
    def name(self) -> str:
        """The attempt's name as a hash."""
        return hashlib.sha256(self.attempt.encode()).hexdigest()[:16]

    @property
    def port(self) -> int:
        """Where node 0 listens: for other runs and attempts nearly always another port, below the ephemeral ones (Linux: from 32,768).

        >>> 20_000 <= Node(index=0, count=2, main_address="10.0.0.1", attempt="run 7, finetune, attempt 0").port < 32_000
        True
        """
        return _FIRST_PORT + int(self.name, 16) % _NUM_PORTS

    @property
    def address(self) -> str:
        """Where this node reaches node 0; a machine may not own the address by which others reach it."""
        return self.main_address if self.index else LOOPBACK

    @property
    def others(self) -> tuple[int, ...]:
        """Indexes of the other nodes."""
        return tuple(index for index in range(self.count) if index != self.index)
