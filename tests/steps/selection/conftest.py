"""Inputs of selections, and of the measurements before them."""

from pathlib import Path

import pytest
from made_selection import write_inputs


@pytest.fixture(scope="session")
def inputs(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("inputs"), stockfish)
