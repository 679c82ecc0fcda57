"""Fixtures for tests of several rooms: engines, real and scripted; a tracking store; an S3."""

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from scripted_engine import ScriptedEngine

from steps.run.machine import Machine, sqlite_address

# Several groups of tests share the cores: a second thread waits for the first in a busy loop, and a step of a tiny network takes ten times
# the processor time. Processes that tests start inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CHESS_GRPO_THREADS", "1")
# Processes that tests start share what one has compiled, also where the user's shell wants no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples each time, however slow the machine is at the moment.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give proofs and soaks two hours each, more than pyproject.toml allows every other test."""
    for item in items:
        if item.get_closest_marker("prove") or item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(7_200))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Take back the threads that a test before has asked torch for, as a step on its machine does."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def stockfish() -> str:
    path = os.environ.get("CHESS_GRPO_STOCKFISH") or shutil.which("stockfish") or "/usr/games/stockfish"
    if shutil.which(path) is None:
        pytest.skip(f"no Stockfish at {path}: install it (apt-get install stockfish) or set CHESS_GRPO_STOCKFISH")
    return path


@pytest.fixture(scope="session")
def give_tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Return what gives a folder an `mlflow.db` with its tables and nothing of ours in them: making them takes seconds, a copy nothing."""
    from mlflow.tracking import MlflowClient

    made = tmp_path_factory.mktemp("tables") / "mlflow.db"
    MlflowClient(f"sqlite:///{made}").search_experiments()

    def give(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, folder)
        return folder

    return give


@pytest.fixture
def here(tmp_path: Path, give_tables: Callable[[Path], Path]) -> Machine:
    """Return a machine with an SQLite tracking store of its own, and no engine."""
    home = give_tables(tmp_path / "home")
    return Machine(stockfish="none", home=home, tracking_uri=sqlite_address(home / "mlflow.db"), device="cpu", num_threads=1)


@pytest.fixture(scope="session")
def _quick_clients() -> None:
    """Share the descriptions of AWS services among sessions: most of a client's start is their search and their megabytes of JSON."""
    import botocore.session

    botocore.session.create_loader = functools.cache(botocore.session.create_loader)


@pytest.fixture
def aws(_quick_clients: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a client of an S3 in this process, which has one bucket."""
    from moto import mock_aws

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="shop")
        yield client


@pytest.fixture(autouse=True)
def _late_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sound engine start late: a busy machine may take longer than the preflight's patience."""
    monkeypatch.setattr("grpo.engine.identity.START_SECONDS", 120.0)


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., ScriptedEngine]:
    """Return a maker of scripted engines; see `ScriptedEngine` for what may be asked of them."""
    made: list[ScriptedEngine] = []

    def make(*faults: dict[str, Any], **options: Any) -> ScriptedEngine:
        folder = tmp_path / f"scripted-{len(made)}"
        folder.mkdir()
        made.append(ScriptedEngine(folder, *faults, **options))
        return made[-1]

    return make
