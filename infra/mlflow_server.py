"""Starts a local MLflow server for tests and demos: SQLite and artifacts in one folder, stopped at the end of a block."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from grpo.base.errors import PlainError
from infra.batch_standin.container import OWN_PROCESSES

DATABASE: Final = "mlflow.db"
ARTIFACTS: Final = "artifacts"
_QUIET: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
_SECONDS_TO_START: Final = 600  # Half a minute on an idle machine.
_TRIES: Final = 3  # A port is free when it is chosen; another process may take it first.


class ServerError(PlainError, RuntimeError):
    """The server did not start; the message has the end of its log."""


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Yield the address of a server with all data in a folder; it takes half a minute to start. Raises ServerError when it does not."""
    folder.mkdir(parents=True, exist_ok=True)
    places = ["--backend-store-uri", f"sqlite:///{folder / DATABASE}", "--artifacts-destination", str(folder / ARTIFACTS)]
    with _served(places, folder / "server.log") as address:
        yield address


@contextmanager
def mlflow_ui(store: str, log: Path) -> Iterator[str]:
    """Yield the address of the UI on an existing store, as `make ui` starts it. Raises ServerError when it does not start."""
    with _served(["--backend-store-uri", store], log) as address:
        yield address


@contextmanager
def _served(places: list[str], log: Path) -> Iterator[str]:
    for _ in range(_TRIES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        process = _start(port, places, log)
        try:
            if _answers(process, address):
                yield address
                return
        finally:
            process.kill()
            process.wait()
    said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise ServerError(f"the MLflow server at {address} did not start; its log, {log}, ends with:\n{said}")


def _start(port: int, places: list[str], log: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")} | _QUIET
    with log.open("ab") as output:
        return subprocess.Popen(
            [*OWN_PROCESSES, *command, *places],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _answers(process: "subprocess.Popen[bytes]", address: str) -> bool:
    """Return whether it came to answer; one whose port somebody else took in between has ended."""
    until = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()  # noqa: S310 - Our own.
        except OSError:
            time.sleep(0.3)
        else:
            return True
    return False
