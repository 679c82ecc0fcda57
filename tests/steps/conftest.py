"""What the tests of the steps share: files that whole datasets can be built of."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_games import random_pgn


@pytest.fixture(scope="session")
def games_text() -> str:
    """Return 60 random games that reach all phases."""
    return random_pgn(60)


@pytest.fixture
def console(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return what types a command line, and returns exit code, output and error output."""
    from steps.cli.main import main

    def typed(*words: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([str(word) for word in words])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return typed
