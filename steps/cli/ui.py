"""The command `chess-grpo ui`: the MLflow UI on the tracking store of this home."""

import argparse
import os
import socket
import sys
from typing import Final
from urllib.parse import urlsplit

from grpo.base.errors import PlainError
from steps.cli.parser import whole_number
from steps.runs.places import DEFAULT_PORT, HOST
from steps.runtime.machine import Machine, sqlite_file

_MAX_PORT: Final = 65_535
_QUIET: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Nothing but pages is wanted of it: neither news to its makers nor schedulers."""
_SERVED: Final = ("http", "https")


class PortError(PlainError, OSError):
    """The UI cannot listen where it was asked to; the message names another port."""


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `ui`."""
    ui = commands.add_parser(
        "ui",
        description="Start the MLflow UI on the tracking store of this home (CHESS_GRPO_HOME), for this machine alone; Ctrl-C ends it. If"
        " MLFLOW_TRACKING_URI names a server, that has a UI of its own, and its address is printed.",
    )
    ui.add_argument("--port", type=_port, default=DEFAULT_PORT, metavar="N", help=f"where to listen (default {DEFAULT_PORT})")
    ui.set_defaults(run=_ui)


def _ui(given: argparse.Namespace) -> int:
    machine = Machine.here()
    parts = urlsplit(machine.tracking_uri)
    if parts.scheme in _SERVED:
        print(
            f"The tracking store is a server, which has a UI of its own: {parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()}"
        )
        return 0
    _refuse_taken(given.port)
    if (file := sqlite_file(machine.tracking_uri)) is not None and not file.is_file():
        print(
            f"{file} is not there yet, and is made now: its page will be empty until a run has begun (`make run CONFIG=smoke`)", flush=True
        )
        _make_tables(machine)
    print(f"MLflow UI on {file or parts.scheme}: http://{HOST}:{given.port}  (it answers in half a minute; Ctrl-C ends it)", flush=True)
    # By a variable: an address with a password in it stays out of the list of processes.
    environment = {**os.environ, **_QUIET, "MLFLOW_BACKEND_STORE_URI": machine.tracking_uri}
    words = [sys.executable, "-m", "mlflow", "ui", "--host", HOST, "--port", str(given.port), "--workers", "1"]
    os.execve(sys.executable, words, environment)  # noqa: S606  # In this process's place: Ctrl-C and kills are its own.
    raise AssertionError("this process is the UI now")


def _refuse_taken(port: int) -> None:
    """Raise PortError when somebody listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # One that was just left counts as free, as for the UI itself.
        try:
            probe.bind((HOST, port))
        except OSError as error:
            why = "may not be used by you" if isinstance(error, PermissionError) else "is taken"
            raise PortError(
                f"port {port} of {HOST} {why} ({error.strerror}): if it is this UI, open http://{HOST}:{port}; else give another,"
                f" `chess-grpo ui --port {_free_port()}`"
            ) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _make_tables(machine: Machine) -> None:
    """Make an embedded store as a run would: with its tables made alone, and our experiment, whose files lie beside it."""
    from steps.tracking.client import TrackingStore

    _ = TrackingStore(machine, ()).experiment


def _port(text: str) -> int:
    if not 1 <= (number := whole_number(text)) <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text}: a port is a number from 1 to {_MAX_PORT}")
    return number
