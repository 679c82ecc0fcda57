"""The soak's fixtures, and its table: printed at the end, and written to the file that SOAK_TABLE names."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_engine import launcher
from soaking import ROWS, SEED, Driver, NewPlace, Place, Undisturbed, table


@pytest.fixture(scope="session")
def driver(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give the process that runs pipelines, with an engine that fails where a run asks for it."""
    folder = tmp_path_factory.mktemp("driver")
    driver = Driver(folder, CHESS_GRPO_STOCKFISH=str(launcher(folder, stockfish)))
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def new_place(driver: Driver, give_tables: Callable[[Path], Path]) -> NewPlace:
    """Return a maker of places whose tracking store has its tables already."""

    def make(folder: Path, elsewhere: Path | None = None) -> Place:
        place = Place(folder, elsewhere)
        give_tables(place.home if elsewhere is None else driver.seen(elsewhere))
        return place

    return make


@pytest.fixture(scope="session")
def undisturbed(driver: Driver, new_place: NewPlace, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return what a run without any fault gives."""
    place, started = new_place(tmp_path_factory.mktemp("undisturbed")), time.monotonic()
    assert driver.run(place) == 0, place.said()
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
