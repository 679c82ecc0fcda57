"""What another try would not mend is tried once, however many tries there are."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from presets import TEST
from real_flow import FLOW, FlowRun, inherited

from grpo.base.errors import PlainError
from grpo.base.files import StorageError
from grpo.engine.identity import EngineMissingError
from steps.run.objects import StoreError


@pytest.mark.parametrize(("error", "code"), [(EngineMissingError("no engine"), 202), (StorageError("full"), 202), (StoreError("503"), 75)])
def test_the_exit_code_says_whether_another_try_may_help(error: PlainError, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    from flows.chess_grpo import plainly

    def body(flow: object) -> None:
        raise error

    # A task tells its processes which it is; here there is none.
    with patch.dict(os.environ), pytest.raises(SystemExit) as caught:
        plainly(body)(None)
    assert caught.value.code == code
    assert capsys.readouterr().err == f"body: {error}\n"


@pytest.mark.prove  # Metaflow's own rule, and the start of a flow.
def test_what_another_try_would_not_mend_is_tried_once(first_run: FlowRun, tmp_path: Path) -> None:
    # A home whose tracking store has its tables: making them takes seconds.
    variables = inherited() | {"CHESS_GRPO_STOCKFISH": "/bin/true", "CHESS_GRPO_DEVICE": "cpu", "CHESS_GRPO_HOME": str(first_run.home)}
    command = [sys.executable, str(FLOW), "--config-value", "settings", f'preset = "{TEST}"', "run"]
    command += ["--with", "retry:times=3,minutes_between_retries=0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=variables)
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert told.count("start: cannot start:") == 1, told
    assert "retry" not in told
    assert "/bin/true is not a usable UCI engine" in told
    assert "Traceback" not in told
