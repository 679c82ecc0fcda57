"""The rooms: one concern a folder, nothing in their `__init__`, no public name with two meanings, and the page that says where is what."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("grpo", "steps", "data_checks")
ONE_SCREEN = 25
SAME_EVERYWHERE = {"SPEC", "add_commands", "main"}
"""What a step is, what adds a command to the parser, what a program begins with: one meaning each, in many modules."""
FOLDERS = sorted({path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")})
NAMED = re.compile(r"`(?:(?:prove|soak) )?([\w/]+\.py)::(test_\w+)`")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_room_is_one_screen_of_files_and_its_init_one_sentence(folder: Path) -> None:
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= ONE_SCREEN
    [sentence] = ast.parse((folder / "__init__.py").read_text()).body
    assert isinstance(sentence, ast.Expr)
    assert isinstance(sentence.value, ast.Constant)


def test_each_public_name_is_defined_once() -> None:
    defined = defaultdict(set)
    for folder in FOLDERS:
        for path in folder.glob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    defined[node.name].add(name_of(path))
                elif isinstance(node, ast.Assign | ast.AnnAssign):
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        if isinstance(target, ast.Name):
                            defined[target.id].add(name_of(path))
    several = {name: paths for name, paths in defined.items() if len(paths) > 1 and not name.startswith("_")}
    assert {name: paths for name, paths in several.items() if name not in SAME_EVERYWHERE} == {}


@pytest.mark.parametrize("package", ["grpo", "steps"])
def test_tests_mirror_the_rooms(package: str) -> None:
    rooms = {path.relative_to(ROOT / package) for path in FOLDERS if path.is_relative_to(ROOT / package)}
    folders = {path.parent.relative_to(ROOT / "tests" / package) for path in (ROOT / "tests" / package).rglob("test_*.py")}
    assert folders <= rooms


def test_the_page_of_facts_names_twenty_files_that_are_there() -> None:
    files = re.findall(r"^\| .+\? \| `([\w/.]+)` \|$", (ROOT / "docs" / "where.md").read_text(), re.MULTILINE)
    assert len(files) == len(set(files)) == 20
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_the_guarantees_name_tests_that_are_there() -> None:
    found = NAMED.findall((ROOT / "docs" / "guarantees.md").read_text())
    assert len(found) > 40
    assert [f"{file}::{name}" for file, name in found if f"def {name}(" not in (ROOT / "tests" / file).read_text()] == []
