"""What would fail in an hour fails in seconds, with the remedy."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from doubles import some_boards
from made_games import random_pgn
from presets import tiny_settings

from grpo.settings.tree import Settings, read_settings
from steps import preflight as checks
from steps.cli.main import main
from steps.preflight import PreflightError, examine, preflight, table
from steps.run.machine import Machine
from steps.start import start

KEY = "0123456789" * 4


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Path:
    return give_tables(tmp_path_factory.mktemp("machine") / "home")


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Machine.here()


def failures(machine: Machine, settings: Settings | None = None) -> dict[str, str]:
    found = preflight(settings or tiny_settings(), machine)
    return {check.what: check.detail for check in found if not check.is_fine}


def test_a_healthy_machine_has_no_failure_and_a_known_engine(machine: Machine) -> None:
    found = preflight(tiny_settings(), machine)
    assert [check.what for check in found] == ["stockfish", "disk", "tracking", "device", "network"]
    assert all(check.is_fine for check in found), table(found)
    assert found[0].detail.startswith("Stockfish")


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"stockfish": "/nowhere/stockfish"}, "stockfish", "apt-get install stockfish"),
        ({"home": Path("/dev/null/home")}, "disk", "CHESS_GRPO_HOME"),
        ({"tracking_uri": "http://me:hunter2@tracker"}, "tracking", "MLFLOW_TRACKING_PASSWORD"),
        ({"device": "cuda"}, "device", "no GPU"),
    ],
)
def test_what_a_machine_lacks_is_named_with_the_remedy(
    changes: dict[str, Any], what: str, remedy: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = failures(replace(machine, **changes))
    assert found.keys() == {what}
    assert remedy in found[what]
    assert "hunter2" not in found[what]


def test_a_run_that_lacks_something_ends_in_start_and_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(home))
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", "/nowhere/stockfish")
    given = {"settings": tiny_settings().model_dump(mode="json"), "keys": {}}
    with pytest.raises(PreflightError, match=r"cannot start:\n.*no engine at '/nowhere/stockfish'"):
        start(given, {}, run="1", is_fresh=False, resume_from="")
    assert not (home / "runs").exists()


@pytest.mark.parametrize("program", ["cat", "true"])
def test_a_program_that_is_no_engine_is_refused(machine: Machine, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.identity.START_SECONDS", 0.5)
    assert "not a usable UCI engine" in failures(replace(machine, stockfish=f"/bin/{program}"))["stockfish"]


def test_a_tracking_store_that_is_away_is_told_and_stops_nothing(machine: Machine) -> None:
    [check] = [each for each in preflight(tiny_settings(), replace(machine, tracking_uri="http://127.0.0.1:1")) if each.what == "tracking"]
    assert check.is_fine
    assert "Connection refused" in check.detail


@pytest.mark.parametrize("key", ["files", "exclude"])
@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("absent.pgn", None, "no file found"),
        ("games.docx", "games", "cannot tell by its suffix"),
        ("empty.pgn", "", "empty"),
        ("page.pgn.zst", "<!DOCTYPE html> not found", "page.pgn.zst: "),
    ],
)
def test_what_cannot_be_a_source_is_named_before_any_work(
    key: str, name: str, content: str | None, complaint: str, machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "good.pgn").write_text('[Event "?"]\n\n1. e4 *\n')
    if content is not None:
        (tmp_path / name).write_text(content)
    given = {"files": "good.pgn"} | {key: name}
    found = failures(machine, tiny_settings("\n".join(f'boards.{each} = "{tmp_path / value}"' for each, value in given.items())))
    assert found.keys() == {f"boards.{key}"}
    assert name in found[f"boards.{key}"]
    assert complaint in found[f"boards.{key}"]


def test_a_doctor_reads_the_games_and_says_whether_they_suffice_and_for_which_preset(machine: Machine, tmp_path: Path) -> None:
    games = random_pgn(40)
    (tmp_path / "games.pgn").write_text(games)

    def boards(**changes: int) -> tuple[bool, str]:
        given = {"files": [str(tmp_path / "games.pgn")], "num_units": 1, **changes}
        settings = Settings.model_validate({"boards": given, "grpo": {"states_per_step": 64, "self_play_states": 200}})
        return next((check.is_fine, check.detail) for check in examine(settings, machine) if check.what == "boards")

    is_fine, detail = boards(num_train=90, num_validation=9, num_heldout=9)
    assert is_fine, detail
    assert "all 108 wanted" in detail
    is_fine, detail = boards(num_train=900, num_validation=300, num_heldout=300)
    assert is_fine
    assert re.search(r"train \d+ of 900, .* A run goes on with these", detail)
    (tmp_path / "games.pgn").write_text(games[: len(games) // 20])
    is_fine, detail = boards()
    assert not is_fine
    assert "At least 10 of each split and phase are needed" in detail


def test_a_book_that_is_too_small_is_found_before_any_game_and_a_large_one_is_fine(machine: Machine, tmp_path: Path) -> None:
    boards = some_boards(300)

    def found(count: int) -> dict[str, str]:
        path = tmp_path / f"{count}.epd"
        path.write_text("".join(f"{board.epd()}\n" for board in boards[:count]))
        return failures(machine, tiny_settings(f'evaluation.opening_book = "{path}"'))

    assert found(300) == {}
    assert "only 5 are available" in found(5)["evaluation.opening_book"]


def test_the_flow_starts_and_draws_cards_without_torch_and_tracker() -> None:
    # Each task of a flow, and each drawing of a card, imports the flow's file; the steps' modules come when one of them is called.
    flow = Path(__file__).resolve().parents[2] / "flows"
    script = f"import sys; sys.path.insert(0, {str(flow)!r}); import chess_grpo; print({{'torch', 'mlflow'}} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == ["set()"]


@pytest.fixture
def untouched(tmp_path: Path, stockfish: str, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which nothing was ever run, and no variable says anything."""
    for name in [name for name in os.environ if name.startswith(("METAFLOW_", "WANDB_", "MLFLOW_TRACKING", "CHESS_GRPO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))  # Where no lock is recorded.
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", stockfish)
    return Machine.here()


def test_a_machine_is_looked_at_and_left_as_it_was_and_no_key_is_printed_and_packages_are_named_that_differ_from_the_lock(
    untouched: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    lock = tmp_path_factory.mktemp("lock") / "requirements-run.lock"
    lock.write_text(f"numpy=={version('numpy')}\npydantic==0.1\n")
    monkeypatch.setattr(checks, "LOCK", lock)
    found = {check.what: check for check in examine(read_settings("smoke"), replace(untouched, store=str(tmp_path / "store")))}
    assert found.keys() == {"python", "packages", "settings", "stockfish", "disk", "tracking", "device", "store", "network"}
    assert {what for what, check in found.items() if not check.is_fine} == {"packages"}
    assert f"pydantic {version('pydantic')}, not 0.1" in found["packages"].detail
    assert KEY not in str(found)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("untouched")
def test_the_exit_code_says_whether_all_is_fine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_installed", lambda name: None)
    assert main(["doctor", "--config", "smoke", "--set", "seed=3"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--set", "sed=3"]) == 1
    said = capsys.readouterr().out
    assert "unknown key sed" in said
    assert "  ok    stockfish" in said, "the others are looked at all the same"
