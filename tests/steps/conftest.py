"""What the tests of the steps share: engines, and files that whole datasets can be built of."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_games import as_epd, random_pgn
from scripted_engine import ScriptedEngine


@pytest.fixture(scope="session")
def stockfish() -> str:
    """Return the path of a real Stockfish."""
    path = os.environ.get("CHESS_GRPO_STOCKFISH") or shutil.which("stockfish") or "/usr/games/stockfish"
    if shutil.which(path) is None:
        pytest.skip(f"no Stockfish at {path}: install it (apt-get install stockfish) or set CHESS_GRPO_STOCKFISH")
    return path


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., ScriptedEngine]:
    """Return a maker of scripted engines."""

    def make(*faults: dict[str, Any], **options: Any) -> ScriptedEngine:
        folder = tmp_path / f"scripted-{len(list(tmp_path.glob('scripted-*')))}"
        folder.mkdir()
        return ScriptedEngine(folder, *faults, **options)

    return make


@pytest.fixture(scope="session")
def games_text() -> str:
    """Return 60 random games that reach all phases."""
    return random_pgn(60)


@pytest.fixture(scope="session")
def epd_text(games_text: str) -> str:
    """Return some 2,000 positions of them."""
    return as_epd(games_text)
