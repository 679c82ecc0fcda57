"""The command `play`: the game that is kept, and a port that cannot be had."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import chess.pgn
import pytest
from made_documents import made_results

from grpo.viewer.page_server import PlayServer
from steps.cli import play
from steps.cli.play import PLAYED
from steps.track.find import FoundPolicy

Run = Callable[..., tuple[int, str, str]]


def test_a_finished_game_is_kept(console: Run, policy: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(server: PlayServer) -> None:
        for wanted in ({"do": "move", "uci": "g1f3"}, {"do": "resign"}, {"do": "new", "color": "black"}):
            server.act({**wanted, "numActions": server.facts()["numActions"]})
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


def test_a_finished_game_that_cannot_be_kept_is_printed_and_the_page_says_so(
    console: Run, policy: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / PLAYED).touch()  # No folder.
    shown: list[dict[str, object]] = []
    monkeypatch.setattr(PlayServer, "serve_forever", lambda server: shown.append(server.act({"do": "resign", "numActions": 1})))
    code, out, _ = console("play", policy)
    assert code == 0
    assert "0-1, white resigned. NOT SAVED (" in out
    game = chess.pgn.read_game(io.StringIO(out[out.index("[Event ") :]))
    assert game is not None
    assert game.headers["Termination"] == "white resigned"
    assert str(shown[0]["error"]).startswith("This game is not saved (")


@pytest.mark.parametrize(("step", "strength"), [(0, "It is the start of its run"), (100, "+191 Elo"), (7, "It played no game")])
def test_page_and_terminal_say_which_policy_of_which_run_plays_and_how_strong_it_is(
    step: int, strength: str, console: Run, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, object]] = []
    found, results = FoundPolicy(folder=policy, run="17", policy_step=step), made_results(tmp_path)
    monkeypatch.setattr(play, "find_policy", lambda *_: found)
    monkeypatch.setattr(play, "results_of", lambda *_: results)
    monkeypatch.setattr(PlayServer, "serve_forever", lambda server: shown.append(server.facts()))
    _, out, _ = console("play", "smoke/champion")
    assert shown[0]["opponent"] == f"smoke/champion (step {step} of run 17)"
    assert str(shown[0]["about"]).startswith(strength)
    assert f"{shown[0]['opponent']}: {shown[0]['about']}" in out
    console("play", policy)
    assert shown[1]["opponent"] == f"{found} ({found.weights_hash[:8]})", "a folder may have been changed since"
