"""A person's game: what is understood, what is refused and with which moves instead, take-back, ends, and a page for this machine alone."""

import http.client
import io
import json
import re
from collections.abc import Callable, Sequence
from datetime import date

import chess
import chess.pgn
import pytest
from local_server import serving

from grpo.viewer.human_game import HumanGame, MoveError
from grpo.viewer.page_server import PlayServer


def scripted(*replies: str) -> Callable[[chess.Board], chess.Move | None]:
    """Return an opponent that plays these moves; at the end, and for an empty one, it resigns."""
    left = iter(replies)
    return lambda board: chess.Move.from_uci(reply) if (reply := next(left, "")) else None


def game(*replies: str, white: bool = True, fen: str = chess.STARTING_FEN) -> HumanGame:
    return HumanGame(scripted(*replies), opponent="it", person_is_white=white, fen=fen)


@pytest.mark.parametrize(
    ("fen", "text", "uci"),
    [
        (chess.STARTING_FEN, "e4", "e2e4"),
        ("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1", "0-0-0", "e1c1"),
        ("8/P6k/8/8/8/8/7K/8 w - - 0 1", "a8=N", "a7a8n"),
    ],
)
def test_moves_are_understood_in_san_and_uci(fen: str, text: str, uci: str) -> None:
    assert game("e7e5", fen=fen).parse(text).uci() == uci


@pytest.mark.parametrize(
    ("fen", "text", "near"),
    [
        (chess.STARTING_FEN, "e2e5", "e3"),
        (chess.STARTING_FEN, "Nf33", "Nf3"),
        ("4k3/8/8/8/8/5N2/8/1N2K3 w - - 0 1", "Nd2", "Nfd2"),
        ("8/P6k/8/8/8/8/7K/8 w - - 0 1", "a7a8", "a8=Q"),
    ],
)
def test_a_move_that_is_none_is_refused_with_the_nearest_legal_ones(fen: str, text: str, near: str) -> None:
    played = game("e7e5", fen=fen)
    with pytest.raises(MoveError, match=re.escape(near)):
        played.play(text)
    assert not played.board.move_stack


@pytest.mark.parametrize(
    ("played", "moves", "result", "end"),
    [
        (game("f2f3", "g2g4", "a2a3", white=False), "e5 Qh4", "0-1", "checkmate"),
        (game("g8f6", "f6g8", "g8f6", "f6g8"), "Nf3 Ng1 Nf3 Ng1", "1/2-1/2", "threefold repetition"),
        (game(""), "e4", "1-0", "black resigned"),
        (game(fen="7k/8/4Q1K1/8/8/8/8/8 w - - 0 1"), "Qf7", "1/2-1/2", "stalemate"),
    ],
)
def test_a_game_ends_by_the_rules_and_is_written_as_pgn(played: HumanGame, moves: str, result: str, end: str) -> None:
    for move in moves.split():
        assert not played.end
        played.play(move)
    assert (played.result, played.end) == (result, end)
    with pytest.raises(MoveError):
        played.resign()
    read = chess.pgn.read_game(io.StringIO(played.pgn(person="you", played_on=date(2026, 11, 23))))
    assert read is not None
    assert (read.headers["Result"], read.headers["Termination"], read.headers["Date"]) == (result, end, "2026.11.23")
    assert list(read.mainline_moves()) == played.board.move_stack


@pytest.mark.parametrize(
    ("fen", "message"),
    [
        ("8/8/8/8/8/8/8/K7 w - - 0 1", "is illegal (NO_BLACK_KING)"),
        ("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "is the end of a game (stalemate)"),
        ("7k/8/4Q1K1/8/8/8/8/8 w - - 100 99", "is the end of a game (fifty moves)"),
    ],
)
def test_a_position_in_which_nothing_can_be_played_is_refused_with_the_reason(fen: str, message: str) -> None:
    with pytest.raises(MoveError, match=re.escape(message)):
        game(fen=fen)


def test_the_page_offers_what_the_server_does_and_the_server_refuses_the_rest() -> None:
    def probabilities(boards: Sequence[chess.Board]) -> list[dict[str, float]]:
        return [{move.uci(): 1.0 for move in board.legal_moves} for board in boards]

    made = HumanGame(scripted("f2f3", "g2g4"), opponent="it", about="strong", person_is_white=False, probabilities=probabilities)
    server = PlayServer(lambda _: made, on_finished=lambda _: "")
    server.server_close()

    def act(wanted: dict[str, str]) -> None:
        server.act({**wanted, "numActions": server.facts()["numActions"]})

    offered = []
    for wanted in ({"do": "hint"}, {"do": "move", "uci": "e7e5"}, {"do": "undo"}):
        offered.append(made.facts()["actions"])
        act(wanted)
    assert offered == [["resign", "hint"], ["resign", "hint"], ["undo", "resign", "hint"]]
    assert made.facts()["about"] == "strong"
    act({"do": "resign"})
    assert made.facts()["actions"] == []
    for wanted in ({"do": "undo"}, {"do": "resign"}, {"do": "hint"}, {"do": "move", "uci": "e7e5"}):
        with pytest.raises(MoveError):
            act(wanted)
    assert game("e7e5").actions == ["resign"], "without probabilities there is no hint"


@pytest.mark.parametrize("wanted", [{"do": "move", "uci": "b1c3"}, {"do": "new", "color": "black"}, {"do": "undo"}, {"do": "resign"}])
def test_a_page_that_does_not_show_the_game_as_it_is_changes_nothing(wanted: dict[str, str]) -> None:
    finished: list[HumanGame] = []
    server = PlayServer(lambda _: game("e7e5", "b8c6", "a7a6"), on_finished=lambda played: finished.append(played) or "")
    server.server_close()
    first, old = server.game, server.facts()
    now = server.act({"do": "move", "uci": "e2e4", "numActions": old["numActions"]})
    said = server.act({**wanted, "numActions": old["numActions"]})
    assert said == {**now, "error": said["error"]}
    assert "was old" in said["error"]
    assert (server.game, finished) == (first, [])
    assert server.act({**wanted, "numActions": said["numActions"]})["error"] == ""


def test_a_game_that_ends_before_the_persons_first_move_is_finished_and_where_it_is_not_saved_the_page_says_so() -> None:
    finished: list[HumanGame] = []
    server = PlayServer(lambda _: game("", white=False), on_finished=lambda played: finished.append(played) or "not saved")
    server.server_close()
    assert [played.end for played in finished] == ["white resigned"]
    assert server.facts()["error"] == "not saved"
    server.act({"do": "new", "numActions": server.facts()["numActions"]})
    assert len(finished) == 2


def test_the_page_plays_for_who_has_its_address_and_is_not_there_for_anybody_else() -> None:
    finished: list[HumanGame] = []
    server = PlayServer(
        lambda white: game("e7e5", "d7d6", white=white is not False), on_finished=lambda played: finished.append(played) or ""
    )
    host, token = f"127.0.0.1:{server.server_port}", server.address.split("/")[3]

    def asked(method: str, path: str, body: object = None, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
        given = {"Host": host, "Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, path, None if body is None else json.dumps(body), given)
        reply = connection.getresponse()
        found = reply.status, reply.read().decode()
        connection.close()
        return found

    with serving(server):
        assert server.address == f"http://{host}/{token}/"
        assert asked("GET", f"/{token}/")[0] == 200
        move = {"do": "move", "uci": "e2e4", "numActions": 1}
        for refused in (
            asked("GET", "/"),
            asked("GET", f"/{token}/../etc"),
            asked("GET", f"/{token}/", Host=f"evil.example:{server.server_port}"),
            asked("POST", f"/{token}/act", move, Host="evil.example"),
            asked("POST", f"/{token}/act", move, Origin="http://evil.example"),
            asked("POST", f"/{token}/act", move, Content_Type="text/plain"),
            asked("POST", "/act", move),
        ):
            assert refused[0] == 404
        assert asked("POST", f"/{token}/act", Content_Length="-1")[0] == 400
        for nonsense in ({**move, "uci": "e2e5"}, {**move, "do": "fly"}, ["move"], 3):
            assert asked("POST", f"/{token}/act", nonsense)[0] == 400
        status, text = asked("POST", f"/{token}/act", move)
        assert (status, json.loads(text)["sans"]) == (200, ["e4", "e5"])
        assert json.loads(asked("POST", f"/{token}/act", {"do": "resign", "numActions": 2})[1])["result"] == "0-1"
        assert [game.end for game in finished] == ["white resigned"]
        assert json.loads(asked("POST", f"/{token}/act", {"do": "new", "color": "black", "numActions": 3})[1])["isPersonWhite"] is False
