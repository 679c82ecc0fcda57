"""A web server of this machine, for as long as a block lasts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class LocalServer(ThreadingHTTPServer):
    """A server whose clients may go without waiting for an answer: its threads must not print that into a later test."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with serving(server := LocalServer(("127.0.0.1", 0), handler)):
        yield f"http://127.0.0.1:{server.server_port}"
