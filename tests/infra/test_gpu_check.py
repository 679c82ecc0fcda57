"""`benchmarks/gpu_check.py` where there is no GPU: beside itself the CPU differs in nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.prove
def test_the_check_of_a_gpu_runs_on_the_cpu_too(stockfish: str) -> None:
    words = ["--preset", "smoke", "--boards", "300", "--steps", "2", "--matmul", "64"]
    variables = {"CHESS_GRPO_STOCKFISH": stockfish, "CHESS_GRPO_DEVICE": "cpu", "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu_check.py", *words], env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert "float32 beside the CPU's float32: loss +0.0e+00, gradients 0.0e+00 of their norm away" in said
    found = re.search(r"bfloat16 beside the CPU's float32: loss (\S+), gradients (\S+) of", said)
    assert found is not None
    assert 0 < float(found[2]) < 0.1
    assert re.search(r"GRPO, 2 steps: [\d,]+ states/s", said)
