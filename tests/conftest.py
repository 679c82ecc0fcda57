"""What the tests of several rooms share: engines, real and scripted."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from scripted_engine import ScriptedEngine

# Several groups of tests share the cores: a second thread waits for the first in a busy loop, and a step of a tiny network takes ten times
# the processor time. Processes that tests start inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CHESS_GRPO_THREADS", "1")

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
    """Return the path of a real Stockfish."""
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
