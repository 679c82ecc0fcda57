"""Fixtures for tests of the commands: a home, a command line, a tiny policy."""

from collections.abc import Callable
from pathlib import Path

import pytest
from doubles import saved_policy


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "CHESS_GRPO_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CHESS_GRPO_DEVICE", "cpu")
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return saved_policy(tmp_path / "policy", 1)


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
