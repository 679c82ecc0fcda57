"""Command `chess-grpo ui`."""

import os
import socket
import sys
from typing import Final
from urllib.parse import urlsplit

import click

from grpo.settings.tree import ConfigError
from steps.cli.options import MAX_PORT
from steps.run.machine import Machine, sqlite_file

_HOST: Final = "127.0.0.1"
# No telemetry, no workers, no warning about MLflow's own code.
_QUIET: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PYTHONWARNINGS": "ignore:starlette.middleware.wsgi is deprecated",
}


@click.command()
@click.option("--port", type=click.IntRange(1, MAX_PORT), default=5000, metavar="N", help="Port (default 5000).")
def command(port: int) -> int:
    """Start the MLflow UI on the runs in CHESS_GRPO_HOME; only this machine can open the page.

    MLFLOW_TRACKING_URI may name another database, or a server, whose page's address is printed.
    """
    machine = Machine.here()
    is_server = urlsplit(machine.tracking_uri).scheme in ("http", "https")
    from steps.track.client import TrackingStore
    from steps.track.outages import failures_of

    store, file = TrackingStore(machine.tracking_uri), sqlite_file(machine.tracking_uri)
    if not store.exists:
        click.echo(f"{file} is new: the page is empty until a run starts (`make run CONFIG=smoke`)")
    # `store.experiment` creates a new store's tables.
    with failures_of(machine.shown_uri, "the runs"):
        experiment = store.experiment
    server = machine.shown_uri.rstrip("/") if is_server else f"http://{_HOST}:{port}"
    # Without `workflowType`, MLflow 3 opens a page for language models.
    runs_page = f"{server}/#/experiments/{experiment}/runs?workflowType=machine_learning"
    if is_server:
        click.echo(f"The tracking server has its own UI. All runs:\n{runs_page}")
        return 0
    try:
        socket.create_server((_HOST, port)).close()
    except OSError as error:
        raise ConfigError(f"--port {port}: {error.strerror}; name another port") from None
    click.echo(f"MLflow UI on {file or machine.shown_uri}, ready in half a minute; Ctrl-C ends it. All runs:\n{runs_page}")
    # Other users see arguments, and the address may hold a password.
    environment = {**os.environ, **_QUIET, "MLFLOW_BACKEND_STORE_URI": machine.tracking_uri}
    arguments = [sys.executable, "-m", "mlflow", "ui", "--host", _HOST, "--port", str(port), "--workers", "1"]
    os.execve(sys.executable, arguments, environment)  # noqa: S606  # The UI replaces this process and gets its signals.
    raise AssertionError("this process is the UI now")
