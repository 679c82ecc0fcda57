"""A flow that is started by a Python without the packages says so in one line, with the command to type."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("flow", ["chess_grpo", "chess_grpo_nodes"])
def test_a_python_without_the_packages_says_what_to_type(flow: str) -> None:
    # -S: no site-packages; -E: no PYTHONPATH.
    words = [f"flows/{flow}.py", "--config-value", "settings", 'preset = "smoke"', "run", "--with", "batch"]
    done = subprocess.run([sys.executable, "-S", "-E", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{sys.executable} has no package metaflow, pydantic, chess, numpy. `make setup` in the checkout installs")
    assert f".venv/bin/python flows/{flow}.py --config-value settings 'preset = \"smoke\"' run --with batch" in line
