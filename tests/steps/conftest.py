"""What the tests of the steps share: files that whole datasets can be built of."""

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
