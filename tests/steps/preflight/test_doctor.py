"""`chess-grpo doctor`: what is wrong is found with its remedy, and the machine is as it was."""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from ports import free_port

from grpo.settings.tree import read_settings
from steps.cli.main import main
from steps.preflight import doctor
from steps.preflight.doctor import examine
from steps.runtime.machine import Machine

KEY = "0123456789" * 4


@pytest.fixture
def machine(tmp_path: Path, stockfish: str, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which nothing was ever run, and no variable says anything."""
    for name in [name for name in os.environ if name.startswith(("METAFLOW_", "WANDB_", "MLFLOW_TRACKING", "CHESS_GRPO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))  # Where no lock is recorded.
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", stockfish)
    return Machine.here()


def found(machine: Machine) -> dict[str, tuple[bool, str]]:
    return {finding.what: (finding.is_fine, finding.detail) for finding in examine(read_settings("smoke"), machine)}


def test_a_machine_is_looked_at_and_left_as_it_was_and_no_key_is_printed(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    lines = found(replace(machine, shared=str(tmp_path / "shared")))
    assert {what for what, (is_fine, _) in lines.items() if not is_fine} <= {"packages"}, "a developer's packages may be newer"
    assert {"python", "packages", "settings", "stockfish", "disk", "tracking", "device", "shared store", "W&B"} == lines.keys()
    assert KEY not in str(lines)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_and_a_file_that_is_no_store_are_named(machine: Machine) -> None:
    is_fine, detail = found(replace(machine, tracking_uri="http://127.0.0.1:1"))["tracking"]
    assert not is_fine
    assert "does not open (Connection refused); unset MLFLOW_TRACKING_URI" in detail
    machine.home.mkdir()
    (machine.home / "mlflow.db").write_text("no database, but long enough to look at" * 10)
    assert not found(machine)["tracking"][0]


def test_packages_that_differ_from_the_lock_are_named_with_both_versions(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "requirements-run.lock"
    lock.write_text(f"numpy=={version('numpy')}\npydantic==0.1\n")
    monkeypatch.setitem(doctor.LOCKS, "lock", lock)
    is_fine, detail = found(machine)["packages"]
    assert not is_fine
    assert f"pydantic {version('pydantic')}, not 0.1" in detail


def test_the_exit_code_says_whether_all_is_fine(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda name: None)
    assert main(["doctor", "--config", "smoke", "--set", "seed=3"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--set", "sed=3"]) == 1
    said = capsys.readouterr().out
    assert "unknown key sed" in said
    assert "  ok    stockfish" in said, "the others are looked at all the same"


def test_the_ui_is_mlflows_on_the_store_of_this_home(
    machine: Machine, give_tables: Callable[[Path], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_tables(machine.home)
    started: list[tuple[list[str], dict[str, str]]] = []

    def become(path: str, words: list[str], environment: dict[str, str]) -> None:
        started.append((words, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    port = free_port()
    with pytest.raises(SystemExit):
        main(["ui", "--port", str(port)])
    [(words, environment)] = started
    assert words[1:4] == ["-m", "mlflow", "ui"]
    assert environment["MLFLOW_BACKEND_STORE_URI"] == machine.tracking_uri
    assert not any(machine.tracking_uri in word for word in words)
    assert f"http://127.0.0.1:{port}" in capsys.readouterr().out
