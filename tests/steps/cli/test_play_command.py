"""The command `play`: the game that is kept, and a port that cannot be had."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import chess.pgn
import pytest

from grpo.match.page_server import PlayServer
from steps.cli.play import PLAYED

Run = Callable[..., tuple[int, str, str]]


def test_a_finished_game_is_kept(console: Run, policy: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(server: PlayServer) -> None:
        for wanted in ({"do": "move", "uci": "g1f3"}, {"do": "resign"}, {"do": "new", "color": "black"}):
            server.act(wanted)
        assert server.game.board.move_stack, "White has moved"

    monkeypatch.setattr(PlayServer, "serve_forever", act)
    code, out, _ = console("play", policy, "--temperature", "1")
    assert code == 0
    assert re.search(r"Play here: http://127\.0\.0\.1:\d+/", out)
    assert "0-1, white resigned. Saved:" in out
    [file] = (home / PLAYED).iterdir()
    game = chess.pgn.read_game(io.StringIO(file.read_text()))
    assert game is not None
    assert (game.headers["White"], game.headers["Result"], game.headers["Termination"]) == ("you", "0-1", "white resigned")
    assert next(iter(game.mainline_moves())).uci() == "g1f3"
