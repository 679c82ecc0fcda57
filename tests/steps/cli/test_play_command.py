"""The command `play` in a terminal: what is typed, what is shown, and the game that is kept."""

import io
import re
import socket
from collections.abc import Callable
from pathlib import Path

import chess.pgn
import pytest

from steps.cli.play import PLAYED

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def play(console: Run, policy: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what types lines into a game against a tiny policy and returns exit code and output."""

    def run(*arguments: str, typed: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed.replace(" ", "\n") + "\n"))
        return console("play", policy, *arguments)

    return run


def test_a_game_in_the_terminal_is_shown_move_by_move_and_kept_when_it_ends(play: Run, home: Path) -> None:
    code, out, _ = play(typed="e2e5 hint e4 undo flip Nf3 resign")
    assert code == 0
    assert "8 ♜ ♞ ♝ ♛ ♚ ♝ ♞ ♜" in out
    assert "1 ♖ ♘ ♗ ♔ ♕ ♗ ♘ ♖" in out, "flipped"
    assert "e2e5 names no legal move" in out
    assert "last moves: e4 " in out
    [file] = (home / PLAYED).iterdir()
    game = chess.pgn.read_game(io.StringIO(file.read_text()))
    assert game is not None
    assert (game.headers["White"], game.headers["Result"], game.headers["Termination"]) == ("you", "0-1", "white resigned")
    assert next(iter(game.mainline_moves())).uci() == "g1f3"


def test_black_sees_the_first_move_and_an_end_of_the_input_keeps_nothing(play: Run, home: Path) -> None:
    code, out, _ = play("--color", "black", "--temperature", "1", typed="help")
    assert code == 0
    assert "last moves: " in out
    assert "not saved" in out
    assert not (home / PLAYED).exists()
    _, out, _ = play("--fen", "7k/8/4Q1K1/8/8/8/8/8 w - - 0 1", typed="Qe8")
    assert "1-0, checkmate. Saved:" in out


def test_a_port_that_cannot_be_had_is_named(play: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for number in (port, 99_999):
            code, out, err = play("--page", "--port", str(number), typed="")
            assert (code, out) == (1, "")
            assert re.search(rf"--port {number}: .+; name another, or leave --port out", err)
