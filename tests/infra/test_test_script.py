"""`infra/test.sh` runs every test of the project, and fails when any of its processes does."""

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUB = """#!/usr/bin/env bash
echo "ran: $*"
case " $* " in *" {failing} "*) exit 1 ;; esac
"""
FOLDERS = {f"tests/{path.relative_to(ROOT).parts[1]}" for path in ROOT.glob("tests/**/test_*.py")}
PROOFS, SOAK = "tests/proofs", "tests/soak"
HEAVY = {PROOFS, SOAK}
"""All that is in them is of `make prove`, which looks where pytest looks by itself, or of `make soak`."""


def run(folder: Path, failing: str = "nothing") -> tuple[int, list[list[str]]]:
    """Return exit status and the words of each pytest, from a python that only says them."""
    stub = folder / "python"
    stub.write_text(STUB.format(failing=failing))
    stub.chmod(0o755)
    done = subprocess.run([ROOT / "infra" / "test.sh", stub], capture_output=True, text=True, check=False)
    return done.returncode, [line.removeprefix("ran: ").split() for line in done.stdout.splitlines()]


def test_every_folder_with_tests_is_run_once(tmp_path: Path) -> None:
    status, commands = run(tmp_path)
    assert status == 0
    assert all(words[:2] == ["-m", "pytest"] for words in commands)
    folders = [folder for words in commands for folder in words[2:]]
    assert len(folders) == len(set(folders))
    assert set(folders) == FOLDERS - HEAVY
    testpaths = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    assert set(testpaths) >= FOLDERS - {SOAK}
    assert f"-m pytest {SOAK} -m soak" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("failing", sorted(FOLDERS - HEAVY))
def test_one_failure_anywhere_is_a_failure(failing: str, tmp_path: Path) -> None:
    status, commands = run(tmp_path, failing)
    assert status == 1
    assert len(commands) == len(run(tmp_path)[1]), "the others are run all the same, and shown"


def test_flows_have_a_process_of_their_own(tmp_path: Path) -> None:
    assert ["-m", "pytest", "tests/flows"] in run(tmp_path)[1]
