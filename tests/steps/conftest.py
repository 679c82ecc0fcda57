"""What the tests of the steps share: files that whole datasets can be built of."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_games import as_epd, random_pgn


@pytest.fixture(scope="session")
def games_text() -> str:
    """Return 60 random games that reach all phases."""
    return random_pgn(60)


@pytest.fixture(scope="session")
def epd_text(games_text: str) -> str:
    """Return some 2,000 positions of them."""
    return as_epd(games_text)


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
