"""The demonstration's MLflow server answers, and nothing of it outlives who started it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.batch_standin import refusal

DRIVER = """
import sys, time, urllib.request
from pathlib import Path
from infra.mlflow_server import mlflow_server
with mlflow_server(Path(sys.argv[1])) as address:
    print(urllib.request.urlopen(address + "/health").read().decode(), flush=True)
    sys.stdin.readline()
"""

pytestmark = [pytest.mark.prove, pytest.mark.skipif(bool(refusal()), reason=refusal())]  # It takes half a minute to start.


def processes_of(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            # The server's own processes have the place of its database in their variables.
            if str(folder / "mlflow.db").encode() in path.read_bytes() + path.with_name("environ").read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_a_server_goes_with_who_started_it_though_killed(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "OK\n"
        assert len(processes_of(folder)) >= 2
        process.kill()
        process.wait()
    until = time.monotonic() + 300
    while processes_of(folder):
        assert time.monotonic() < until
        time.sleep(0.1)
