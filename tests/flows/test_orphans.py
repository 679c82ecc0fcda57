"""A flow whose scheduler is killed by force leaves no process behind, and keeps its checkpoints."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from forking import MARK, marked
from presets import TEST
from real_flow import FLOW

from grpo.base.files import verified_manifest
from grpo.policy.checkpoints import checkpoint_folders

BOUND_SECONDS = 60.0
"""On the busiest machine; what draws a card ends when it has imported what it needs to know that it shall."""

pytestmark = [pytest.mark.prove, pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")]


@pytest.fixture
def mark() -> Iterator[str]:
    """Give a mark for processes, of which none survives a failed test."""
    mark = uuid.uuid4().hex
    yield mark
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)


def test_nothing_is_left_of_a_flow_that_was_training_but_its_checkpoints(mark: str, tmp_path: Path) -> None:
    others = {name: value for name, value in os.environ.items() if not name.startswith(("CHESS_GRPO_HOME", "MLFLOW_"))}
    variables = {MARK: mark, "METAFLOW_USER": "tester", "CHESS_GRPO_HOME": str(tmp_path / "home"), "CHESS_GRPO_DEVICE": "cpu"}
    command = [sys.executable, str(FLOW), "--config-value", "settings", f'preset = "{TEST}"', "run"]
    with (tmp_path / "log").open("wb") as log:
        scheduler = subprocess.Popen(command, cwd=tmp_path, env=others | variables, stdout=log, stderr=subprocess.STDOUT)
    while not list((tmp_path / "home").glob("progress/finetune/*/checkpoints/step-*")):
        assert scheduler.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
    assert len(marked(mark)) > 1
    scheduler.kill()
    scheduler.wait()
    killed = time.monotonic()
    while left := marked(mark):
        assert time.monotonic() - killed < BOUND_SECONDS, left
        time.sleep(0.02)
    [checkpoints] = (tmp_path / "home").glob("progress/finetune/*/checkpoints")
    saved = checkpoint_folders(checkpoints)
    assert saved
    for folder in saved:
        verified_manifest(folder)
