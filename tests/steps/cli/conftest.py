"""What the tests of the commands share: a home of their own, and a tiny policy."""

from pathlib import Path

import pytest
from doubles import CPU, TINY

from grpo.policy.policy import new_policy


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the commands, where they work on the CPU."""
    for name in ("MLFLOW_TRACKING_URI", "CHESS_GRPO_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CHESS_GRPO_DEVICE", "cpu")
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Return the folder of a tiny policy."""
    (folder := tmp_path / "policy").mkdir()
    new_policy(TINY, seed=1, device=CPU).save(folder)
    return folder
