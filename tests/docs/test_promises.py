"""The page of promises names files that are there, and tests that are there and run when it says so."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = re.compile(r"`(?:(prove|soak) )?([\w/]+\.py)::(test_\w+)`")
ROWS = [line.split(" | ") for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if TESTS.search(line)]


def marks_of(file: str, test: str) -> set[str]:
    """Return the names of pytest's marks of a test function and of its module."""
    module = ast.parse((ROOT / "tests" / file).read_text())
    [function] = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == test]
    of_module = [node for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
    texts = [ast.unparse(node) for node in (*function.decorator_list, *of_module)]
    return {mark for text in texts for mark in re.findall(r"pytest\.mark\.(\w+)", text)}


def test_the_page_is_read_whole() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_each_promise_has_a_quick_test_or_a_heavy_one_that_runs_when_it_says_so(row: list[str]) -> None:
    assert (ROOT / "docs" / re.findall(r"\]\((.*?)\)", row[1])[0]).resolve().is_file()
    for when, file, test in TESTS.findall(row[2]):
        marks = marks_of(file, test)
        assert marks & {"prove", "soak"} == {when} - {""}
        assert not marks & {"skip", "xfail"}
