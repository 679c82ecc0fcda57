"""The command `match`: what it prints and writes of games, and what it refuses before any game."""

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from doubles import CPU
from made_games import games_in
from scripted_engine import ScriptedEngine

from grpo.language.model.policy import load_model
from grpo.settings.language import LanguageConfig

Run = Callable[..., tuple[int, str, str]]
KINDS = ("pgn", "html")


def test_a_match_is_printed_and_written_and_repeats_with_its_seed(
    stockfish: str, console: Run, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The day may end between the two matches.
    monkeypatch.setattr("steps.cli.match.datetime", SimpleNamespace(now=lambda zone: datetime(2026, 11, 25, tzinfo=zone)))
    short = ("--set", "evaluation.max_plies=10")
    match = ("match", f"{policy}@0.5", "stockfish:nodes=1,random=.5", "--pairs", "2", "--set", "seed=7", *short)
    code, out, _ = console(*match, *(word for kind in KINDS for word in (f"--{kind}", tmp_path / f"one.{kind}")))
    assert code == 0
    for said in ("as played", "adjudicated", "ends", "2 distinct openings, two games each"):
        assert said in out
    assert len(re.findall(r"^  (?:as played|adjudicated) +0\.\d{3} \[.*\] = [+-]\d+ Elo \[.*\], 2 pairs$", out, flags=re.MULTILINE)) == 2
    games = games_in((tmp_path / "one.pgn").read_text())
    assert len(games) == 4
    assert {game.headers["White"] for game in games} == {f"{policy}@0.5", "stockfish:nodes=1,random=.5"}
    assert len({game.headers["FEN"] for game in games}) == 2
    console(*match, *(word for kind in KINDS for word in (f"--{kind}", tmp_path / f"again.{kind}")))
    for kind in KINDS:
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"again.{kind}").read_bytes()


def test_a_language_model_plays_and_its_answers_are_counted(stockfish: str, console: Run, tmp_path: Path) -> None:
    small = {"small_width": 16, "small_num_layers": 1, "max_answer_tokens": 16, "max_questions": 2}
    (folder := tmp_path / "untaught").mkdir()
    load_model(LanguageConfig.model_validate(small), seed=0, device=CPU).save(folder)
    code, said, _ = console("match", folder, "random", "--pairs", "2")
    assert code == 0
    assert "8 answers for 4 moves: " in said, "it names no legal move, and is asked twice"


def test_an_engine_that_names_no_legal_move_loses_its_game_and_repeated_searches_are_counted(
    console: Run, stockfish: str, scripted: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    faults = [{"kind": "crash", "nth": 2}, *({"kind": "illegal best move", "nth": number} for number in (4, 5, 6))]
    engine = f"uci:{scripted(*faults).path}:nodes=5"
    code, out, err = console("match", engine, "random", "--pairs", "1", "--set", "evaluation.max_plies=8", "--pgn", tmp_path / "games.pgn")
    assert code == 0
    assert "4 answers" not in out
    assert re.search(r"answers +.*: 1 unreadable, 3 illegal, 3 asked again, 1 games forfeited", out)
    assert "lost 1" in out
    assert re.search(rf"game [12]: {engine} loses: .*: a1a1 is not legal", err)
    assert "no legal move named" in (tmp_path / "games.pgn").read_text()


def test_a_folder_that_may_not_be_written_is_refused_before_any_game(console: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    code, out, err = console("match", "random", "random", "--pgn", tmp_path / "a.pgn")
    assert (code, out) == (1, "")
    assert f"{tmp_path}" in err
    assert "match: " not in err


def test_what_cannot_be_is_refused_before_any_game(console: Run, tmp_path: Path) -> None:
    there = tmp_path / "there.pgn"
    there.write_text("mine")
    for words, complaint in (
        (("stokfish:nodes=1",), "is not a player"),
        (("random", "--pgn", there), "already exists"),
        (("random", "--pgn", tmp_path / "none" / "a.pgn"), "there is no folder"),
        (("random", "--set", "evaluation.max_plys=3"), "unknown key evaluation.max_plys"),
    ):
        code, out, err = console("match", "random", *words)
        assert (code, out) == (1, "")
        assert complaint in err
        assert "match: " not in err, "none was begun"
    assert there.read_text() == "mine"
