"""MLflow servers that fail on demand, always on the same port: one in a thread with a fault for each call, and the real one as a process.

`ToggledServer` answers by MLflow's own handlers over a real sqlite store, starts in a second and answers in 10 ms, so that each call of
a run can be made to fail in turn. `ServerProcess` is the process that `mlflow server` answers with; it takes seconds to start and can be
killed.
Both keep what they were told over a stop: tables and files are in the folder they are given, and `picture` returns what is there.
"""

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from ports import free_port

from grpo.base.files import sha256_file
from steps.track.client import EXPERIMENT

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]

_STORES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")


class Fault(StrEnum):
    """What can happen to a call."""

    DROPPED = "dropped"
    """The connection is closed before anything is done."""
    LOST = "lost"
    """It is done, and the connection is closed before the answer."""
    ERROR = "500"
    PAGE = "502"
    """A proxy answers in the server's place, with a page."""
    UNAUTHORISED = "401"
    SILENT = "silent"
    """Nothing is done and nothing is answered, until the server stops or `release` is called."""
    LATE = "late"
    """It is done at once, and answered only when the server stops or `release` is called."""


class ToggledServer:
    """An MLflow server in a thread of this process; one at a time, for MLflow's handlers are global."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """Serve what is kept in this folder (`mlflow.db`, `files`); an `mlflow.db` that is there is taken as it is."""
        self.folder = folder
        self.port = port or free_port()
        self.calls: list[str] = []
        """Of each call that arrived, `METHOD path?query #hash of its body`: a call that is made again has the same."""
        self.fault: Callable[[int, str], Fault | None] = lambda number, call: None
        """Asked of each call, by its number from 0 and what is in `calls`, what shall happen to it."""
        self._released = threading.Event()
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._counting = threading.Lock()

    @property
    def address(self) -> str:
        """Where it listens, or will."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Listen and answer."""
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
        os.environ.update(_places(self.folder))
        handlers._tracking_store = handlers._model_registry_store = handlers._artifact_repo = None
        handlers._get_tracking_store()  # It makes its tables now, and not when it is first asked.
        handlers._get_model_registry_store()
        # MLflow names the stores of its server to the whole process: here others have their own.
        for name in _STORES:
            os.environ.pop(name, None)
        os.environ.update(stores)
        self._released.clear()
        self._server = make_server("127.0.0.1", self.port, self._toggled(mlflow.server.app), threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Listen no more: connections are refused."""
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
        """Let calls that are silent or late end."""
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
            fault = self.fault(number, call)
            if fault in (Fault.ERROR, Fault.PAGE, Fault.UNAUTHORISED):
                start(f"{fault} fault", [("Content-Type", "text/html"), ("Retry-After", "60")])
                return [b"<html>sorry</html>"]
            if fault == Fault.SILENT:
                self._released.wait()
            if fault in (Fault.DROPPED, Fault.SILENT):
                _hang_up(environ)
            if fault in (Fault.LOST, Fault.LATE):
                for _ in app(environ, lambda *_: None):
                    pass
                if fault == Fault.LATE:
                    self._released.wait()
                _hang_up(environ)
            return app(environ, start)

        return answer


def _places(folder: Path) -> dict[str, str]:
    return {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder / 'mlflow.db'}",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "files"),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }


def _hang_up(environ: dict[str, Any]) -> None:
    connection = environ["werkzeug.socket"]
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError


class ServerProcess:
    """A process that can be killed: the one that answers where people run `mlflow server`."""

    def __init__(self, folder: Path, port: int | None = None, host: str = "127.0.0.1") -> None:
        """Serve what is kept in this folder, on this port or any that is free, each time it is started."""
        self.folder, self.host = folder, host
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens, or will."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it, and return when it answers."""
        # What `mlflow server` starts, without that command itself: it imports all of MLflow a second time, and job runners seven times.
        command = ["-m", "uvicorn", "--host", self.host, "--port", str(self.port), "--log-level", "warning"]
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command, "mlflow.server.fastapi_app:app"],
                stdout=log,
                stderr=log,
                env=environment | _places(self.folder),
                start_new_session=True,
            )
        for _ in range(6_000):
            assert self._process.poll() is None, (self.folder / "log").read_text()
            try:
                urllib.request.urlopen(f"{self.address}/health", timeout=5).close()
                return self
            except OSError:
                time.sleep(0.1)
        raise TimeoutError((self.folder / "log").read_text())

    def kill(self) -> None:
        """Kill it and all its workers, whatever they are doing."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def picture(folder: Path) -> dict[str, Any]:
    """Return what a server keeps in its folder of the experiment's runs, and its aliases and number of versions; it is not asked."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri := f"sqlite:///{folder / 'mlflow.db'}", registry_uri=uri)

    def metrics(run_id: str, name: str) -> list[str]:
        return sorted(f"{point.step} {point.value}" for point in client.get_metric_history(run_id, name))

    def is_told(path: Path) -> bool:
        return path.is_file() and "policies" not in path.parts  # Of models, some files have the time in them.

    def files(run_id: str) -> dict[str, str]:
        roots = list((folder / "files").glob(f"*/{run_id}/artifacts"))
        return {str(path.relative_to(root)): sha256_file(path) for root in roots for path in root.rglob("*") if is_told(path)}

    runs = [
        {
            "name": run.info.run_name,
            "status": run.info.status,
            "tags": {name: tag for name, tag in run.data.tags.items() if not name.startswith("mlflow.artifact")},
            "metrics": {name: metrics(run.info.run_id, name) for name in sorted(run.data.metrics)},
            "artifacts": files(run.info.run_id),
        }
        for run in client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    ]
    return {
        "runs": sorted(runs, key=lambda run: (run["name"], run["status"])),
        "num_versions": len(client.search_model_versions()),
        "aliases": sorted(name for model in client.search_registered_models() for name in model.aliases),
    }
