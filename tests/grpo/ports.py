"""A port for a server that a test starts."""

import secrets
import socket

_CLAIMS: list[socket.socket] = []
"""One per port: a Unix socket without a file, whose name nobody else can take while this process lives."""


def free_port() -> int:
    """Return a port that nobody listens on, below those of nodes and of outgoing connections, and that no other test gets meanwhile."""
    while True:
        port = 10_000 + secrets.randbelow(10_000)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0chess-grpo port {port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _CLAIMS.append(claim)
        return port
