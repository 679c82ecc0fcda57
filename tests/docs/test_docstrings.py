"""Examples in docstrings are true."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("data_checks", "grpo", "steps")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_are_true(module: str) -> None:
    result = doctest.testmod(import_module(module))
    assert result.failed == 0 < result.attempted
