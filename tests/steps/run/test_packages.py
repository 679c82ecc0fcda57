"""A flow that is started by a Python without the packages says so in one line, with the command to type."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_python_without_the_packages_says_what_to_type() -> None:
    # -S: no site-packages; -E: no PYTHONPATH.
    words = ["flows/chess_grpo.py", "--config-value", "settings", 'preset = "smoke"', "run", "--with", "batch"]
    done = subprocess.run([sys.executable, "-S", "-E", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{sys.executable} has no package metaflow, pydantic, chess, numpy. Run `make setup` in the checkout")
    assert ".venv/bin/python flows/chess_grpo.py --config-value settings 'preset = \"smoke\"' run --with batch" in line
