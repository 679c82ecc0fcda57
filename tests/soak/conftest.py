"""The soak's fixtures, and its table: printed at the end, and written to the file that SOAK_TABLE names."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from soaking import ROWS, SEED, Driver, Place, fresh_place, table


@dataclass(frozen=True)
class Undisturbed:
    """What a run without any fault gave."""

    hashes: dict[str, str]
    seconds: float
    counts: dict[str, int]
    place: Place


@pytest.fixture(scope="session")
def driver(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give the process that runs pipelines."""
    driver = Driver(tmp_path_factory.mktemp("driver"), CHESS_GRPO_STOCKFISH=stockfish)
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an sqlite tracking store with its tables and nothing in them."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    code = "import sys; from mlflow.tracking import MlflowClient; MlflowClient(sys.argv[1]).search_experiments()"
    subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{path}"],
        check=True,
        capture_output=True,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        cwd=path.parent,
    )
    return path


@pytest.fixture(scope="session")
def undisturbed(driver: Driver, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return what a run without any fault gives."""
    place = fresh_place(tmp_path_factory.mktemp("undisturbed"), template)
    status = driver.run(place, counts=True)
    assert status == 0, place.said()
    seconds, counts = place.seconds_and_counts()
    return Undisturbed(place.hashes(), seconds, counts, place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, and keep it."""
    if not ROWS:
        return
    terminalreporter.section(f"soak, seed {SEED}")
    terminalreporter.write(table())
    if "SOAK_TABLE" in os.environ:
        path = Path(os.environ["SOAK_TABLE"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(table())
