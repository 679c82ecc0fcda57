"""The soak's fixtures, and its table: printed at the end, and written to the file that SOAK_TABLE names."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_engine import launcher
from soaking import ROWS, SEED, Pipelines, Place, Undisturbed, table


@pytest.fixture(scope="session")
def pipelines(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    """Give the process that runs pipelines, with an engine that fails where a run asks for it."""
    folder = tmp_path_factory.mktemp("pipelines")
    pipelines = Pipelines(folder, CHESS_GRPO_STOCKFISH=str(launcher(folder, stockfish)))
    yield pipelines
    pipelines.close()


@pytest.fixture(scope="session")
def undisturbed(pipelines: Pipelines, give_tables: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    place, started = Place(tmp_path_factory.mktemp("undisturbed")), time.monotonic()
    give_tables(place.home)
    assert pipelines.run(place) == 0, place.said()
    return Undisturbed(place.hashes(), time.monotonic() - started)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    terminalreporter.section(f"soak, seed {SEED}")
    terminalreporter.write(table())
    if "SOAK_TABLE" in os.environ:
        path = Path(os.environ["SOAK_TABLE"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(table())
