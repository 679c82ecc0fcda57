"""What would fail in an hour fails in seconds, with the remedy."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

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


def test_an_absent_stockfish_is_named_with_the_remedy(machine: Machine) -> None:
    found = failures(replace(machine, stockfish="/nowhere/stockfish"))
    assert found.keys() == {"stockfish"}
    assert "/nowhere/stockfish" in found["stockfish"]
    assert "apt-get install stockfish" in found["stockfish"]


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


def test_a_home_that_cannot_be_made_is_named_with_the_remedy(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = failures(replace(machine, home=tmp_path / "file" / "home"))
    assert "CHESS_GRPO_HOME" in found["disk"]


def test_a_tracking_store_that_is_away_is_told_and_stops_nothing(machine: Machine) -> None:
    [check] = [each for each in preflight(tiny_settings(), replace(machine, tracking_uri="http://127.0.0.1:1")) if each.what == "tracking"]
    assert check.is_fine
    assert "Connection refused" in check.detail


def test_an_address_with_a_password_is_refused_and_not_shown(machine: Machine) -> None:
    found = failures(replace(machine, tracking_uri="http://me:hunter2@tracker"))
    assert "MLFLOW_TRACKING_PASSWORD" in found["tracking"]
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(("device", "word"), [("tpu", "cpu"), ("cuda", "no GPU")])
def test_a_device_that_is_not_there_is_refused(machine: Machine, device: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert word in failures(replace(machine, device=device))["device"]


@pytest.mark.parametrize("key", ["files", "exclude"])
def test_what_cannot_be_a_source_is_named_before_any_work(key: str, machine: Machine, tmp_path: Path) -> None:
    good = tmp_path / "good.pgn"
    good.write_text('[Event "?"]\n\n1. e4 *\n')

    def of(path: Path) -> str:
        given = {"files": str(good)} | {key: str(path)}
        text = "\n".join(f'boards.{name} = "{value}"' for name, value in given.items())
        found = failures(machine, tiny_settings(text))
        assert found.keys() == {f"boards.{key}"}
        return found[f"boards.{key}"]

    assert of(tmp_path / "absent.pgn").startswith(f"{tmp_path}/absent.pgn: no file found; give a file")
    (tmp_path / "games.docx").write_text("games")
    assert "cannot tell by its suffix what it is" in of(tmp_path / "games.docx")
    (tmp_path / "empty.pgn").write_text("")
    assert of(tmp_path / "empty.pgn") == "empty.pgn: empty; give files with games or positions"
    (tmp_path / "page.pgn.zst").write_text("<!DOCTYPE html> not found")
    assert of(tmp_path / "page.pgn.zst").startswith(f"{tmp_path}/page.pgn.zst: ")


def test_a_doctor_reads_the_games_and_says_whether_they_suffice_and_for_which_preset(machine: Machine, tmp_path: Path) -> None:
    games = random_pgn(40)
    (tmp_path / "games.pgn").write_text(games)

    def read(**changes: int) -> Settings:
        given = {"files": [str(tmp_path / "games.pgn")], "num_units": 1, **changes}
        return Settings.model_validate({"boards": given, "grpo": {"states_per_step": 64, "self_play_states": 200}})

    def boards(**changes: int) -> tuple[bool, str]:
        return next((check.is_fine, check.detail) for check in examine(read(**changes), machine) if check.what == "boards")

    is_fine, detail = boards(num_train=90, num_validation=9, num_heldout=9)
    assert is_fine, detail
    assert detail.startswith("all 108 wanted are in the first ")
    is_fine, detail = boards(num_train=900, num_validation=300, num_heldout=300)
    assert is_fine
    assert re.search(r"train \d+ of 900, .* A run goes on with these", detail)
    assert "boards" not in [check.what for check in examine(read(), replace(machine, stockfish="/nowhere"))], "it is told once"
    (tmp_path / "games.pgn").write_text(games[: len(games) // 20])
    is_fine, detail = boards()
    assert not is_fine
    assert "At least 10 of each split and phase are needed" in detail


def test_a_book_that_is_too_small_is_found_before_any_game_and_a_large_one_is_fine(machine: Machine, tmp_path: Path) -> None:
    boards = some_boards(300)
    small, large = tmp_path / "small.epd", tmp_path / "large.epd"
    small.write_text("".join(f"{board.epd()}\n" for board in boards[:5]))
    large.write_text("".join(f"{board.epd()}\n" for board in boards))

    def with_book(path: Path) -> Settings:
        return tiny_settings(f'evaluation.opening_book = "{path}"')

    assert failures(machine, with_book(large)) == {}
    assert " distinct openings are needed, but only 5 are available" in failures(machine, with_book(small))["evaluation.opening_book"]
    assert failures(machine, with_book(tmp_path / "none.epd")).keys() == {"evaluation.opening_book"}


def test_the_flow_starts_and_draws_cards_without_torch_and_tracker() -> None:
    # Each task of a flow, and each drawing of a card, imports the flow's file; the steps' modules come when one of them is called.
    flow = Path(__file__).resolve().parents[2] / "flows"
    script = f"import sys; sys.path.insert(0, {str(flow)!r}); import chess_grpo; print({{'torch', 'mlflow'}} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == ["set()"]


KEY = "0123456789" * 4


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


def found(machine: Machine) -> dict[str, tuple[bool, str]]:
    return {finding.what: (finding.is_fine, finding.detail) for finding in examine(read_settings("smoke"), machine)}


def test_a_machine_is_looked_at_and_left_as_it_was_and_no_key_is_printed(
    untouched: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    lines = found(replace(untouched, store=str(tmp_path / "store")))
    assert {what for what, (is_fine, _) in lines.items() if not is_fine} <= {"packages"}, "a developer's packages may be newer"
    assert {"python", "packages", "settings", "stockfish", "disk", "tracking", "device", "store", "network", "W&B"} == lines.keys()
    assert KEY not in str(lines)
    assert list(tmp_path.iterdir()) == []


def test_packages_that_differ_from_the_lock_are_named_with_both_versions(
    untouched: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "requirements-run.lock"
    lock.write_text(f"numpy=={version('numpy')}\npydantic==0.1\n")
    monkeypatch.setattr(checks, "LOCK", lock)
    is_fine, detail = found(untouched)["packages"]
    assert not is_fine
    assert f"pydantic {version('pydantic')}, not 0.1" in detail


def test_the_exit_code_says_whether_all_is_fine(
    untouched: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_installed", lambda name: None)
    assert main(["doctor", "--config", "smoke", "--set", "seed=3"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--set", "sed=3"]) == 1
    said = capsys.readouterr().out
    assert "unknown key sed" in said
    assert "  ok    stockfish" in said, "the others are looked at all the same"
