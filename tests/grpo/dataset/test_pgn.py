"""Games of PGN files: what can be used is read, and each other game is rejected for a reason and costs no other."""

import io
from typing import Any

import chess
import chess.pgn
import pytest
from made_games import HEADER, PLANTED, random_pgn, with_planted_games

from grpo.dataset.games import Game, Reason, Rejection
from grpo.dataset.pgn import dropped_by, read_games, time_control
from grpo.dataset.streams import MAX_LINE
from grpo.settings.tree import BoardsConfig, TimeControl

GAMES = random_pgn(20)


def entries(text: str | bytes) -> list[Game | Rejection]:
    return list(read_games(io.BytesIO(text.encode() if isinstance(text, str) else text), "x.pgn"))


def shown(text: str | bytes) -> list[tuple[int, str] | Reason]:
    return [(len(entry.moves), entry.result) if isinstance(entry, Game) else entry.reason for entry in entries(text)]


def test_a_game_is_what_python_chess_reads() -> None:
    stream = io.StringIO(GAMES)
    found = entries(GAMES)
    assert len(found) == 20
    for number, game in enumerate(found):
        expected = chess.pgn.read_game(stream)
        board = expected.board()
        for before, move in zip(game.boards, game.moves, strict=True):
            assert before.fen() == board.fen()
            assert not before.move_stack
            board.push(move)
        assert game.moves == tuple(expected.mainline_moves())
        assert (game.result, game.date, game.offset) == (expected.headers["Result"], expected.headers["UTCDate"], number)
        assert (game.white_rating, game.black_rating) == (1_000 + number, 1_500 if number % 2 else None)
        assert all(game.is_label)


def test_a_game_that_cannot_be_used_costs_no_other() -> None:
    found = entries(with_planted_games(GAMES))
    good = [entry for entry in entries(GAMES) if isinstance(entry, Game)]
    games = [entry for entry in found if isinstance(entry, Game)]
    assert [game.game_id for game in games] == [*(game.game_id for game in good), good[0].game_id]
    assert [entry.reason.value for entry in found if isinstance(entry, Rejection)] == [reason for reason, _ in PLANTED]


def test_an_error_inside_python_chess_costs_one_game(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_san(board: chess.Board, san: str) -> chess.Move:
        if san == "d4":
            raise IndexError("out of range")
        return chess.Board.parse_san(board, san)

    monkeypatch.setattr("chess.pgn.BaseVisitor.parse_san", lambda _, board, san: parse_san(board, san))
    assert shown(HEADER + "\n1. d4 d5 2. c4 *\n\n" + HEADER + "\n1. e4 e5 *\n") == [Reason.ILLEGAL_MOVE, (2, "*")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEADER.replace("\n", "\n% escape\n") + "\n1. e4 e5\n% escape\n2. Nf3 *\n", [(3, "*")]),
        (HEADER + "\n1. e4 e5 1-0" + HEADER + "\n1. d4 *\n", [(2, "1-0"), (1, "*")]),
        (HEADER + "\n1. e4 e5 {oh\n\n" + HEADER + "\n1. d4 *\n", [(2, "*"), (1, "*")]),  # A comment that is not closed.
        (HEADER.replace('"*"', '"0.5-0.5"') + "\n1. e4 e5 0.5-0.5\n", [(2, "1/2-1/2")]),
        ("\ufeff" + HEADER + "\r\n1. e4 (1. d4 d5 (1... Nf6)) 1... e5 $1 ; good\r\n2. Nf3! {yes} *\r\n", [(3, "*")]),
        ("1. e4 e5 *\n\n1. d4 d5 2. c4 *\n", [(2, "*"), (3, "*")]),
        (HEADER.replace('"a"', '"Müller"').encode("latin-1") + b"\n1. e4 *\n", [(1, "*")]),
        (HEADER + "\n1.e4 d5 2 e5 f5! 3. exf6 e.p. (3. Nf3 $1 +-) e7-e5+/= 4. Ng1f3?! h6± 5. Be2 a6 6. 0-0 b6 7. Re1# ½-½\n", [(13, "*")]),
        ((HEADER + "\n1. e4± e5 ½-½\n").encode("latin-1"), [(2, "*")]),
        *((HEADER + f"\n1. e4 e5 {result}\n", [(2, "*")]) for result in ("1:0", "0:1", "1/2", "0.5-0.5", "1\u20130", "0\u20131", "+-")),
        (HEADER.replace("*", "1-0").replace("]\n", " ]\n").replace("[", "[ ") + '[FEN ""]\n\n1. e4 e5\n', [(2, "1-0")]),
        (HEADER + "\n1. e4 (0:05) d5 (0:00:07) 2. e5 f5 3. exf6ep (3. Nf3 (3. c4 c6)) 3... gxf6 *\n", [(6, "*")]),
        ("", []),
    ],
)
def test_what_is_unusual_and_clear_is_read(text: str | bytes, expected: list[tuple[int, str]]) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    "gap", ["\n\n", "\n \n\t\n\n", "\n% escape\n\n; note\n\n", "\n{intro}\n\n", "\n{an\n\nintro}\n\n{more}\n\n", "\n\n[Round]\n\n"]
)
@pytest.mark.parametrize("indent", ["", " \t"])
def test_a_game_keeps_its_tags_whatever_stands_before_its_moves(gap: str, indent: str) -> None:
    text = "".join(f"{HEADER}{tag}\n{gap}1. e4 e5 *\n\n" for tag in ('[Variant "Chess960"]', '[WhiteElo "2500"]'))
    variant, game = entries(indent + text.replace("\n", f"\n{indent}"))
    assert isinstance(variant, Rejection)
    assert isinstance(game, Game)
    assert (variant.reason, len(game.moves), game.white_rating) == (Reason.VARIANT, 2, 2_500)


COMMENTED = HEADER + '\n1. e4 e5 {copied from\n[Event "there"]\n[Site "?"]\n\n1. d4 d5} 2. Nf3 {and [Event "so"]} 2... Nc6 1-0\n\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (COMMENTED + HEADER + "\n1. d4 *\n", [(4, "1-0"), (1, "*")]),
        # Not closed: another comment begins before it is, or none is closed.
        (HEADER + "\n1. e4 {oh\n\n" + HEADER + "\n1. d4 {yes} d5 *\n\n" + COMMENTED, [(1, "*"), (2, "*"), (4, "1-0")]),
        (HEADER + "\n1. e4 e5 {a {b} 2. Nf3 ; {\n2... Nc6 *\n", [(4, "*")]),
        ('[Event "X"] [WhiteElo "2400"] [Result "0-1"]\n\n1. e4 e5 2. Nf3 0-1\n', [(3, "0-1")]),
        ('[Event "Y"]\n[Result "0-1"] 1. d4 d5 0-1\n\n[Event "Z"][Result "1-0"]\n1. c4 1-0\n', [(2, "0-1"), (1, "1-0")]),
        ('[Event "a "fine" game"]\n[Result "1-0"] ; he resigned\n[White "x"]\n\n1. e4 1-0\n', [(1, "1-0")]),
        (f"{HEADER}\n\n{HEADER}\n1. e4 *\n", [Reason.NO_MOVES, (1, "*")]),
        # Tags other than Event, with no blank line before them.
        ('[White "a"]\n\n1. e4 *\n[White "b"]\n[Black "c"]\n\n1. d4 d5 *\n', [(1, "*"), (2, "*")]),
        # A game on each line, or from a result to the next first move.
        ("1. e4 e5 1-0\n1.d4 d5 *\nc4 c5 ½-½ {agreed}\n; note\n1 Nf3 Nf6 0-1\n", [(2, "1-0"), (2, "*"), (2, "*"), (2, "0-1")]),
        (HEADER + "\n1. e4 e5 (1... c5\n1-0 {or so}\n) 2. Nf3 1-0 {not\n1. d4 d5 0-1\n1. c4}\n", [(3, "1-0")]),
        ("1. e4 e5 (1... c5)\n1.d4 {yes\n1. c4} d5\n2. c4\n1 Nf3 Nf6\n", [(2, "*"), (3, "*"), (2, "*")]),
        # Text before the moves costs no tags.
        (HEADER + '[Variant "Atomic"]\n\n{a {b} c}\n1. e4 e5 *\n', [Reason.VARIANT]),
        (HEADER + '[Variant "Atomic"]\n\n1-0\n1. e4 e5 *\n', [Reason.VARIANT]),
        (HEADER + "\n1. e4 {oh} (\n1. d4 d5 (1... Nf6)\n) \n1. ... e5\n1... {said} *\n", [(2, "*")]),
        (HEADER.replace("\n", "\r") + "\r1. e4 e5\r2. Nf3 *\r\r" + HEADER.replace("\n", "\r") + "\r1. d4 *\r", [(3, "*"), (1, "*")]),
    ],
)
def test_games_end_where_their_text_ends_whatever_stands_in_comments_and_behind_tags(
    text: str, expected: list[tuple[int, str] | Reason]
) -> None:
    assert shown(text) == expected


# En dash, non-breaking hyphen, dash that is no UTF-8, Cyrillic letters.
CASTLES = ("O\u2013O", "0\u20130", "O\u2011O", "O\ufffdO", "\u041e-\u041e", "o-o", "OO", "00")


@pytest.mark.parametrize(
    "moves",
    [
        *("2. Sf3 d6 3. Sc3 f5", "2. Cf3 d6 3. d4 f5 4. Cc3 a6", "2. Pf3 Pc6 3. Lc4 Lc5", "2. ♘f3 d6", "2. P@f3 d6"),
        *("2. \ufffdf3 \ufffdc6 3. d3 d6", "2. d4 d6 3. de de 4. Nf3 Nc6", "2. d4 d6 3. d:e d:e 4. Nf3 Nc6"),
        *(f"2. Nf3 Nf6 3. Bc4 Bc5 4. {castle} {castle} 5. d3 d6" for castle in CASTLES),
    ],
)
def test_what_is_not_english_notation_never_becomes_other_moves(moves: str) -> None:
    game = HEADER + f"\n1. e4 e5 {moves} *\n"
    assert shown(game) == [Reason.ILLEGAL_MOVE]
    assert shown(
        game.replace(moves, f"2. Nf3 {{not {moves}}} ; nor {moves}\n2... exd4?! 3. O-O".replace("exd4", "d6").replace("O-O", "Bb5+"))
    ) == [(5, "*")]


@pytest.mark.parametrize("tags", ["", f"{HEADER}\n"])
@pytest.mark.parametrize("rest", ["2. Nf3 Nc6 *", "{yes} 12 Nf3 *", "Nf3 Nc6 3. d4 *"])
def test_moves_from_the_middle_of_a_game_are_no_game_from_the_initial_position(rest: str, tags: str) -> None:
    assert shown(f"{HEADER}\n1. e4 e5\n\n{tags}{rest}\n\n{HEADER}\nd4 1-0\n") == [(2, "*"), Reason.ILLEGAL_MOVE, (1, "1-0")]
    assert shown(f'[FEN "{chess.STARTING_FEN}"]\n\n12. d4 *\n') == [(1, "*")]


@pytest.mark.parametrize("moves", ["1. e4 e5 1-0 1. d4 d5 0-1", "1. e4 e5 * 2. Nf3 *", "1. e4 e5 (1... c5 2. Nf3 *", "1. e4 e5) 2. Nf3 *"])
def test_moves_after_a_result_or_a_parenthesis_without_its_other_are_not_guessed(moves: str) -> None:
    assert shown(f"{HEADER}\n{moves}\n\n{HEADER}\n1. d4 1-0 (1. c4)\n") == [Reason.ILLEGAL_MOVE, (1, "1-0")]


LONG = "x" * MAX_LINE


@pytest.mark.parametrize(
    "middle",
    [
        HEADER + f"\n1. e4 {{{LONG}}} e5 *\n\n",  # A line.
        HEADER + "\n1. e4 {\n" + "a comment of many lines\n\n" * (MAX_LINE // 20) + "} e5 *\n\n",
        HEADER + "\n" + "Nf3 Nf6 2. Ng1 Ng8\n" * (MAX_LINE // 15) + "*\n\n",
        HEADER + f'[Annotator "{LONG}"]\n[TimeControl "60"]\n\n1. e4 e5 *\n\n',
    ],
)
def test_a_line_or_a_game_that_is_too_long_is_rejected_and_costs_no_other(middle: str) -> None:
    game = HEADER + "\n1. e4 e5 2. Nf3 *\n\n"
    found = entries(game + middle + game)
    assert [entry.reason if isinstance(entry, Rejection) else len(entry.moves) for entry in found] == [3, Reason.TOO_LONG, 3]
    assert [entry.offset for entry in found] == [0, 1, 2]


def test_only_the_games_of_a_unit_are_read_and_those_that_a_filter_drops_are_counted() -> None:
    data = random_pgn(6, max_plies=8).encode()
    units = [list(read_games(io.BytesIO(data), "x.pgn", is_mine=lambda number, unit=unit: number % 2 == unit)) for unit in (0, 1)]
    assert [[game.offset for game in unit] for unit in units] == [[0, 2, 4], [1, 3, 5]]
    read = read_games(io.BytesIO(data), "x.pgn", filters=BoardsConfig(files="x", min_rating=1_003))
    dropped = [entry for entry in read if isinstance(entry, Rejection)]
    assert {entry.offset for entry in dropped} >= {0, 1, 2}
    assert {(entry.reason, entry.detail) for entry in dropped} == {(Reason.FILTERED, "min_rating")}


def test_the_identity_of_a_game_is_of_players_date_and_moves() -> None:
    one = HEADER + "\n1. e4 e5 *\n\n"
    ids = [entry.game_id for entry in entries(one + one + one.replace('"a"', '"c"') + one.replace("e5", "c5")) if isinstance(entry, Game)]
    assert [ids.index(each) for each in ids] == [0, 0, 2, 3]


@pytest.mark.parametrize(("text", "expected"), [("2020.??.??", "2020.??.??"), ("2021.13.01", None), ("????.??.??", None)])
def test_a_date_that_is_unknown_is_none(text: str, expected: str | None) -> None:
    [game] = entries(HEADER.replace("2020.01.02", text) + "\n1. e4 *\n")
    assert game.date == expected


GOOD = {"WhiteElo": "2300", "BlackElo": "2400", "TimeControl": "300+3"}
LEAST = {"min_rating": 2_300}
BLITZ = {"time_controls": [TimeControl.BLITZ]}


@pytest.mark.parametrize(
    ("filters", "tags", "expected"),
    [
        (LEAST, {}, None),
        (LEAST, {"WhiteElo": "2299"}, "min_rating"),
        (LEAST, {"BlackElo": "?"}, "min_rating"),
        (BLITZ, {"TimeControl": "600+0"}, "time_controls"),
        (BLITZ, {"TimeControl": "?"}, None),
        (LEAST | BLITZ, {"WhiteElo": "", "TimeControl": "600+0"}, "min_rating"),
    ],
)
def test_a_filter_drops_what_it_says_and_the_first_is_named(filters: dict[str, Any], tags: dict[str, str], expected: str | None) -> None:
    assert dropped_by(GOOD | tags, BoardsConfig(files="x", **filters)) == expected


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("29+0", TimeControl.ULTRABULLET),
        ("60+3", TimeControl.BLITZ),  # 60 + 40 * 3 = 180
        ("900+15", TimeControl.CLASSICAL),  # 1,500
        ("40/300+3:60", TimeControl.BLITZ),
        ("1/86400", TimeControl.CORRESPONDENCE),
        ("", None),
        ("9" * 5_000, None),
    ],
)
def test_a_time_control_has_the_class_of_lichess(tag: str, expected: TimeControl | None) -> None:
    assert time_control(tag) == expected
