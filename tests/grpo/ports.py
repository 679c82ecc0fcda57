"""A port for a server that a test starts."""

import secrets
import socket

_CLAIMS: list[socket.socket] = []
"""One Unix socket per port, without a file: no other process can take its name while this process lives."""


def free_port() -> int:
    """Return a free port below those of nodes and of outgoing connections; no other test gets it while this process lives."""
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
