"""A small local HTTP server with JSON responses."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered with."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def json_server(answer: Callable[[str, str, Any], Answer]) -> Iterator[str]:
    """Give the address of a server that answers by calling `answer(method, path, body)`, one call at a time."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def _take(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                found = answer(self.command, self.path, json.loads(data) if data else None)
            body = json.dumps(found.body).encode()
            self.send_response(found.status)
            for name, value in {"Content-Type": "application/json", **found.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = _take  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
            return  # A container that was killed while it was answered.

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
