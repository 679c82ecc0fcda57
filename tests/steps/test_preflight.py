"""What would fail in an hour fails in seconds, with the remedy."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.config import Settings, read_settings
from steps.machine import Machine
from steps.preflight import preflight, preflight_table


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Machine.here()


def failures(machine: Machine, settings: Settings | None = None) -> dict[str, str]:
    findings, _ = preflight(settings or read_settings("test"), machine)
    return {finding.what: finding.detail for finding in findings if not finding.is_fine}


def test_a_healthy_machine_has_no_failure_and_a_known_engine(machine: Machine) -> None:
    findings, engine = preflight(read_settings("test"), machine)
    assert [finding.what for finding in findings] == ["stockfish", "disk", "tracking", "device"]
    assert all(finding.is_fine for finding in findings), preflight_table(findings)
    assert engine is not None
    assert engine.name.startswith("Stockfish")


def test_an_absent_stockfish_is_named_with_the_remedy(machine: Machine) -> None:
    found = failures(replace(machine, stockfish="/nowhere/stockfish"))
    assert found.keys() == {"stockfish"}
    assert "/nowhere/stockfish" in found["stockfish"]
    assert "apt-get install stockfish" in found["stockfish"]


@pytest.mark.parametrize("program", ["cat", "true"])
def test_a_program_that_is_no_engine_is_refused(machine: Machine, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine._START_SECONDS", 0.5)
    assert "not a usable UCI engine" in failures(replace(machine, stockfish=f"/bin/{program}"))["stockfish"]


def test_a_file_that_is_not_executable_is_refused(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "stockfish"
    path.write_text("#!/bin/sh\n")
    path.chmod(stat.S_IRUSR)
    assert "apt-get install stockfish" in failures(replace(machine, stockfish=str(path)))["stockfish"]


def test_a_home_that_cannot_be_made_is_named_with_the_remedy(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = failures(replace(machine, home=tmp_path / "file" / "home"))
    assert "CHESS_GRPO_HOME" in found["disk"]


def test_too_little_disk_is_named_with_what_is_needed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.preflight._FREE_BYTES", 1 << 60)
    assert "needed" in failures(machine)["disk"]


def test_a_tracking_store_that_does_not_open_is_named_with_the_remedy(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = failures(replace(machine, tracking_uri=f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}"))
    assert "MLFLOW_TRACKING_URI" in found["tracking"]


@pytest.mark.parametrize(("device", "word"), [("tpu", "cpu"), ("cuda", "no GPU")])
def test_a_device_that_is_not_there_is_refused(machine: Machine, device: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert word in failures(replace(machine, device=device))["device"]


def test_an_absent_or_empty_pgn_is_named_before_any_work(machine: Machine, tmp_path: Path) -> None:
    def of(path: Path) -> dict[str, str]:
        return failures(machine, read_settings(f'preset = "test"\nboards.source = "pgn"\nboards.path = "{path}"'))

    assert "No such file" in of(tmp_path / "absent.pgn")["boards.path"]
    empty = tmp_path / "empty.pgn"
    empty.write_text("")
    assert "holds no games" in of(empty)["boards.path"]
    assert "Is a directory" in of(tmp_path)["boards.path"]


def test_the_table_marks_each_line_and_aligns_them(machine: Machine) -> None:
    findings, _ = preflight(read_settings("test"), replace(machine, stockfish="/nowhere"))
    lines = preflight_table(findings).splitlines()
    assert [line.split()[0] for line in lines] == ["FAIL", "ok", "ok", "ok"]
    assert len({line.index(finding.detail) for line, finding in zip(lines, findings, strict=True)}) == 1


def test_machine_facts_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", "/opt/sf")
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path))
    monkeypatch.setenv("CHESS_GRPO_THREADS", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker")
    machine = Machine.here()
    assert (machine.stockfish, machine.home, machine.num_threads, machine.tracking_uri) == ("/opt/sf", tmp_path, 1, "http://tracker")
    assert os.environ.get("CHESS_GRPO_DEVICE") is None or machine.device == os.environ["CHESS_GRPO_DEVICE"]
