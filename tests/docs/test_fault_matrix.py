"""The page of faults names tests that are there, that run, and that run when the page says so."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
NAMED = re.compile(r"`(?:(prove|soak) )?([\w/]+\.py)::(test_\w+)`")


@dataclass(frozen=True)
class Row:
    """A fault, and what is said of it."""

    fault: str
    what_happens: str
    tests: tuple[tuple[str, str, str], ...]
    """When it runs (empty in the normal suite), file below `tests/`, name."""
    left: str
    """What of the list is no test's name."""


def read_rows() -> list[Row]:
    """Return the page's faults, each a paragraph that begins with its name in bold, and a list of its tests."""
    rows = []
    for text in re.split(r"^\*\*(?=.)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        fault, _, rest = re.split(r"^## ", text, flags=re.MULTILINE)[0].partition(".**")
        what_happens, _, tests = rest.partition("\n- ")
        left = NAMED.sub("", tests).replace("- ", "").strip()
        rows.append(Row(" ".join(fault.split()), what_happens.strip(), tuple(NAMED.findall(tests)), left))
    return rows


ROWS = read_rows()


@cache
def marks_of(file: str) -> dict[str, set[str]]:
    """Return test -> pytest's marks of every test function of a file; not those of single cases."""
    module = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    of_all: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            of_all = marks_in(node.value.elts if isinstance(node.value, ast.List) else [node.value])
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {node.name: of_all | marks_in(node.decorator_list) for node in functions}


def marks_in(decorators: Sequence[ast.expr]) -> set[str]:
    """Return the names of all `pytest.mark.NAME`, but for a skip where there is no Linux."""
    texts = [ast.unparse(node).removeprefix("pytest.mark.") for node in decorators if "pytest.mark." in ast.unparse(node)]
    return {text.partition("(")[0] for text in texts if not text.startswith("skipif(sys.platform != 'linux'")}


def test_the_page_is_read_whole() -> None:
    assert len(ROWS) > 50
    assert len({row.fault for row in ROWS}) == len(ROWS)
    assert sum(len(row.tests) for row in ROWS) == PAGE.read_text(encoding="utf-8").count("::test_")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
def test_every_fault_has_tests_that_are_there_and_run_when_it_says_so(row: Row) -> None:
    assert row.what_happens
    assert not row.left, f"no test: {row.left}"
    assert row.tests
    assert not row.tests or any(not when for when, _, _ in row.tests), "a quick form of each"
    for when, file, name in row.tests:
        assert (ROOT / "tests" / file).is_file(), f"no file {file}"
        assert name in marks_of(file), f"no {name} in {file}"
        marks = marks_of(file)[name]
        assert not marks & {"skip", "skipif", "xfail"}, f"{name} may be skipped"
        assert marks & {"prove", "soak"} == {when} - {""}, f"{name} runs otherwise"
