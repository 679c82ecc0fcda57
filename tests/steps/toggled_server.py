"""An MLflow server that fails on demand, always on the same port.

A thread answers by MLflow's own handlers over a SQLite store. It starts in a second and answers in 10 ms, so a test can make each call of a
run fail. The store survives a stop.
"""

import hashlib
import io
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from ports import free_port

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]

_STORES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")


class Fault(StrEnum):
    """Faults of a call."""

    DROPPED = "dropped"
    """The connection is closed before anything is done."""
    LOST = "lost"
    """The server does the call, and closes the connection before the answer."""
    ERROR = "500"
    SILENT = "silent"
    """Nothing is done and nothing is answered, until the server stops or `release` is called."""


class ToggledServer:
    """An MLflow server in a thread of this process; one at a time, for MLflow's handlers are global."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        """Serve what is kept in this folder (`mlflow.db`, `files`); an `mlflow.db` that is there is taken as it is."""
        self.folder, self.host, self.port = folder, host, free_port()
        self.calls: list[str] = []
        """Calls that arrived, as `METHOD path?query #hash of the body`: a repeated call has an equal entry."""
        self.fault: Callable[[int, str], Fault | None] = lambda number, call: None
        """Asked of each call, by its number from 0 and what is in `calls`, what shall happen to it."""
        self.token = ""
        """Calls without this bearer token are refused, as by a proxy; empty lets all in."""
        self._released = threading.Event()
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._counting = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's use of Starlette, in what a search imports.
            import mlflow.server
            import mlflow.server.fastapi_app
            from mlflow.server import handlers
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *_: Any) -> None:
                """Say nothing."""

        stores = {name: os.environ[name] for name in _STORES if name in os.environ}
        os.environ |= {
            "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{self.folder / 'mlflow.db'}",
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self.folder / "files"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        }
        handlers._tracking_store = handlers._model_registry_store = handlers._artifact_repo = None
        handlers._get_tracking_store()  # It makes its tables now, and not when it is first asked.
        handlers._get_model_registry_store()
        # MLflow names the stores of its server to the whole process: here others have their own.
        mlflow.tracking._tracking_service.utils._tracking_uri = None
        mlflow.tracking._model_registry.utils._registry_uri = None
        for name in _STORES:
            os.environ.pop(name, None)
        os.environ.update(stores)
        self._released.clear()
        self._server = make_server(self.host, self.port, self._toggled(mlflow.server.app), threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._server is None:
            return
        self.release()
        self._server.shutdown()
        self._server.server_close()
        assert self._thread is not None
        self._thread.join()
        self._server = self._thread = None
        for name in [name for name in os.environ if name.startswith("_MLFLOW_SERVER_")]:
            del os.environ[name]

    def release(self) -> None:
        """Let calls that are silent end."""
        self._released.set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _toggled(self, app: Wsgi) -> Wsgi:
        def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
            place = f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
            call = f"{environ['REQUEST_METHOD']} {place} #{hashlib.sha256(body).hexdigest()[:12]}"
            with self._counting:
                number = len(self.calls)
                self.calls.append(call)
            if self.token and environ.get("HTTP_AUTHORIZATION") != f"Bearer {self.token}":
                start("401 Unauthorized", [("Content-Type", "text/html")])
                return [b"<html>who are you?</html>"]
            fault = self.fault(number, call)
            if fault == Fault.ERROR:
                start(f"{fault} fault", [("Content-Type", "text/html"), ("Retry-After", "60")])
                return [b"<html>sorry</html>"]
            if fault == Fault.SILENT:
                self._released.wait()
            if fault in (Fault.DROPPED, Fault.SILENT):
                _hang_up(environ)
            if fault == Fault.LOST:
                for _ in app(environ, lambda *_: None):
                    pass
                _hang_up(environ)
            return app(environ, start)

        return answer


def _hang_up(environ: dict[str, Any]) -> None:
    connection = environ["werkzeug.socket"]
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError
