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
FILES = sorted(ROOT.glob("tests/**/test_*.py"))
FOLDERS = {f"tests/{path.relative_to(ROOT).parts[1]}" for path in FILES}
PROOFS, SOAK = "tests/proofs", "tests/soak"
HEAVY = {PROOFS, SOAK}
"""All that is in them is of `make prove` or of `make soak`."""


def run(folder: Path, failing: str = "nothing", mark: str = "") -> tuple[int, list[list[str]]]:
    """Return exit status and the words of each pytest, from a python that only says them."""
    stub = folder / "python"
    stub.write_text(STUB.format(failing=failing))
    stub.chmod(0o755)
    done = subprocess.run([ROOT / "infra" / "test.sh", stub, mark], capture_output=True, text=True, check=False)
    return done.returncode, [line.removeprefix("ran: ").split() for line in done.stdout.splitlines()]


def files_of(words: list[str]) -> list[Path]:
    """Return the files of tests that a pytest with these words runs."""
    ignored = [ROOT / word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    paths = [ROOT / word for word in words[2:] if word.startswith("tests/")]
    return [file for path in paths for file in FILES if file.is_relative_to(path) and not any(map(file.is_relative_to, ignored))]


def test_every_test_is_run_once(tmp_path: Path) -> None:
    status, commands = run(tmp_path)
    assert status == 0
    assert all(words[:2] == ["-m", "pytest"] for words in commands)
    is_heavy = [path for path in FILES if any(path.is_relative_to(ROOT / folder) for folder in HEAVY)]
    assert sorted(file for words in commands for file in files_of(words)) == [path for path in FILES if path not in is_heavy]
    _, proofs = run(tmp_path, mark="prove")
    assert all(words[-2:] == ["-m", "prove"] for words in proofs)
    assert sorted(file for words in proofs for file in files_of(words)) == [file for file in FILES if not file.is_relative_to(ROOT / SOAK)]
    testpaths = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    assert set(testpaths) >= FOLDERS - {SOAK}
    assert f"-m pytest {SOAK} -m soak" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("failing", ["tests/flows", "tests/grpo", "tests/steps", "tests/steps/cli", "tests/docs"])
def test_one_failure_anywhere_is_a_failure(failing: str, tmp_path: Path) -> None:
    status, commands = run(tmp_path, failing)
    assert status != 0
    assert len(commands) == len(run(tmp_path)[1]), "the others are run all the same, and shown"


def test_flows_have_a_process_of_their_own(tmp_path: Path) -> None:
    assert ["-m", "pytest", "tests/flows"] in run(tmp_path)[1]
