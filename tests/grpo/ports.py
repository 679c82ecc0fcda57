"""A port for a server that a test starts."""

import secrets
import socket


def free_port() -> int:
    """Return a port that nobody listens on, below those of nodes and of outgoing connections, so that none takes it meanwhile."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := 10_000 + secrets.randbelow(10_000)))
            except OSError:
                continue
            return port
