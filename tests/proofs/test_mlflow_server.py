"""MLflow as its users have it: a server with accounts whose artifacts are in S3, and the champion served from a fresh environment."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from doubles import CPU, some_boards
from made_runs import machine_of
from moto.s3.models import s3_backends
from ports import free_port
from s3_server import s3_server
from tracked_runs import TrackedRun, counts, rows_of, told

from steps.common.policies.open import open_policy

pytestmark = pytest.mark.prove
PASSWORD = "correct horse battery"
CHAMPION = "models:/chess-policy-default@champion"
MLFLOW = (sys.executable, "-m", "mlflow")
COMPOSE = Path(__file__).resolve().parents[2] / "infra" / "compose.yaml"


@contextmanager
def started(*command: str | Path, port: str, log: Path, **variables: str) -> Iterator[str]:
    """Start a server with these variables alone, give its address when it answers, and end it with all its processes."""
    address, its = f"http://127.0.0.1:{port}", {"cwd": log.parent, "env": variables, "start_new_session": True}
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file, **its) as process:
        try:
            while True:
                assert process.poll() is None, log.read_text()
                with suppress(OSError), urlopen(f"{address}/health"):
                    break
                time.sleep(0.1)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def team_server(here: dict[str, str], port: str) -> list[str]:
    """Return the words after `mlflow` of the server of infra/compose.yaml, for this machine, with its files in S3."""
    given = here | {"${MLFLOW_HOST:?the name by which all reach the server}": f"127.0.0.1:{port}"}
    given |= {"${MLFLOW_ARTIFACTS:-/mlflow/artifacts}": "s3://shop/runs"}
    _, *words = yaml.safe_load(COMPOSE.read_text())["services"]["mlflow"]["command"]
    for written, instead in given.items():
        assert any(written in word for word in words)
        words = [word.replace(written, instead) for word in words]
    return [*words, "--workers", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackedRun]:
    """Give a run that belongs to a server which lets in one account; nothing of it is there yet."""
    folder, port = tmp_path_factory.mktemp("server"), str(free_port())
    # What `mlflow[auth]` adds to `mlflow`.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "auth", "Flask-WTF<2", "WTForms"]
    subprocess.run(install, check=True)
    command = [*MLFLOW, *team_server({"/mlflow/mlflow.db": f"{folder}/mlflow.db", "=5000": f"={port}", "=0.0.0.0": "=127.0.0.1"}, port)]
    secrets = {"MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD, "MLFLOW_FLASK_SERVER_SECRET_KEY": "key", "PYTHONPATH": str(folder / "auth")}
    with s3_server() as s3, pytest.MonkeyPatch.context() as patch:
        variables = {**os.environ, **s3, **secrets, "MLFLOW_S3_ENDPOINT_URL": s3["AWS_ENDPOINT_URL"]}
        with started(*command, port=port, log=folder / "log", **variables) as address:
            patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # The machine may be busy.
            patch.setattr("steps.track.client._SHORT", "60")
            patch.setenv("MLFLOW_TRACKING_URI", address)
            patch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
            (made := TrackedRun(machine_of(folder / "home", address))).select()
            yield made


def test_a_wrong_password_costs_nothing_and_the_champion_served_elsewhere_answers_as_the_policy(
    run: TrackedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load the model as docs/tracking.md does: only packages of `requirements.txt`, only variables of the account."""
    for password in ("", "wrong"):
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
        assert re.search(r"does not accept the account \(.*\): set MLFLOW_TRACKING_USERNAME and", run.publish())
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    assert run.publish() == ""
    found = told(run.machine.home.parent)
    assert {step: Counter(rows_of(found, step)) for step in counts(run)} == counts(run)
    assert found["aliases"] == {"chess-policy-default": {"peak": 1, "champion": 2}}
    policy, weights = run.store.file(run.run.output_of("select"), "champion"), "policy.safetensors"
    stored = s3_backends["123456789012"]["aws"].buckets["shop"].keys
    [kept] = [key.value for name, key in stored.items() if name.endswith(f"champion/artifacts/policy/{weights}")]
    assert kept == (policy / weights).read_bytes()
    subprocess.run([*MLFLOW, "artifacts", "download", "-u", f"{CHAMPION}/requirements.txt", "-d", tmp_path], check=True)
    scripts, port = tmp_path / "venv" / "bin", str(free_port())
    subprocess.run([sys.executable, "-m", "venv", scripts.parent], check=True)
    subprocess.run([scripts / "pip", "install", "--quiet", "-r", tmp_path / "requirements.txt"], check=True)
    account = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_TRACKING_")}
    serve = [scripts / "mlflow", "models", "serve", "-m", CHAMPION, "-p", port, "--env-manager", "local"]
    boards = some_boards(40)
    with started(*serve, port=port, log=tmp_path / "log", PATH=f"{scripts}:{os.defpath}", **account) as address:

        def answer(*fens: str) -> list[dict[str, Any]]:
            asked = json.dumps({"inputs": fens}).encode()
            with urlopen(Request(f"{address}/invocations", asked, {"Content-Type": "application/json"})) as response:
                return json.load(response)["predictions"]

        with pytest.raises(HTTPError, match="400") as refusal:
            answer(boards[0].fen(), "e4")
        assert "row 1: 'e4' is not a FEN" in json.load(refusal.value)["message"]
        answers = answer(*(board.fen() for board in boards))
    for row, expected in zip(answers, open_policy(policy, CPU).move_probabilities(boards), strict=True):
        assert dict(zip(row["moves"], row["probabilities"], strict=True)) == pytest.approx(expected, rel=1e-5, abs=1e-7)
