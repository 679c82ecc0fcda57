"""`chess-grpo doctor --stale`: what nobody uses any more is listed and, if asked, deleted; what is used stays."""

import os
import time
from pathlib import Path

import pytest

from steps.cli.main import main
from steps.preflight.stale import stale_files
from steps.runtime.machine import Machine
from steps.store.outputs import Store
from steps.tracking.journal import JournalFolder

MONTH = 30 * 86_400
STALE = {
    "outputs/finetune/v1.set-aside-1",
    "in_progress/finetune/v2",
    "values/values-1.sqlite",
    "outbox/run/1-step.refused",
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose home holds one of everything, a month ago."""
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path))
    for name in ("outputs/finetune/v1.set-aside-1/a", "in_progress/finetune/v2/a", "values/values-1.sqlite"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1234")
    with Store(tmp_path).writing("finetune", "v1", {}) as folder:
        (folder / "a").write_text("1234")
    (tmp_path / "outbox" / "run").mkdir(parents=True)
    (tmp_path / "outbox/run/1-step.refused").write_text("{}\n")
    then = time.time() + MONTH
    monkeypatch.setattr("steps.preflight.stale.time.time", lambda: then)
    return Machine.here()


def listed(machine: Machine, *, num_days: float = 29) -> set[str]:
    return {str(each.path.relative_to(machine.home)) for each in stale_files(machine, num_days=num_days)}


def test_what_is_not_used_is_listed_with_its_size_and_deleted_only_if_asked(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--stale", "29"]) == 0
    assert listed(machine) == STALE
    assert main(["doctor", "--stale", "29", "--delete"]) == 0
    printed = capsys.readouterr().out
    for name in STALE:
        assert printed.count(str(machine.home / name)) == 2
        assert not (machine.home / name).exists()
    assert Store(machine.home).find("finetune", "v1") is not None
    assert listed(machine) == set()


def test_what_was_used_since_is_not_listed(machine: Machine) -> None:
    assert listed(machine, num_days=31) == set()
    os.utime(machine.home / "in_progress/finetune/v2/a", (time.time(), time.time()))
    assert listed(machine) == STALE - {"in_progress/finetune/v2"}


def test_progress_that_a_process_holds_is_not_deleted(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(machine.home).progressing("finetune", "v2", is_fresh=False):
        assert main(["doctor", "--stale", "-1", "--delete"]) == 0
        assert (machine.home / "in_progress/finetune/v2/a").exists()
    assert "4 not used" in capsys.readouterr().out


def test_an_output_that_a_waiting_record_may_name_is_not_listed(machine: Machine) -> None:
    JournalFolder(machine.home).begin("run", "step").close()
    assert listed(machine) == STALE - {"outputs/finetune/v1.set-aside-1"}


def test_nothing_is_deleted_unless_an_age_is_given(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--delete"]) == 1
    assert "--stale 30 --delete" in capsys.readouterr().err
    assert listed(machine) == STALE
