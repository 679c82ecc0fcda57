"""Games of PGN streams: however a stream is cut or damaged, each game comes out whole, or with its place and its reason."""

import io
import os
import random
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import chess
import chess.pgn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grpo.reading.pgn
import grpo.reading.pgn_split
from grpo.reading.games import Game, Reason, Rejection, SourceError
from grpo.reading.pgn import PgnGame, SeenGames, read_games, read_pgn_games

MIB = 1 << 20
NUM_FILLINGS = 18
TAGS = '[Event "e"]\n[Site "s"]\n[Date "2020.01.02"]\n[White "a"]\n[Black "b"]\n[Result "*"]\n\n'
MATE = "1. f3 e5 2. g4 Qh4#"
OTHER_FEN = "7k/8/5KQ1/8/8/8/8/8 w - - 0 1"


def read(text: str | bytes, **options: object) -> list[Game | Rejection]:
    """Return what one chunk gives."""
    return list(read_games([text if isinstance(text, bytes) else text.encode()], "file.pgn", **options))


def the_game(text: str | bytes) -> Game:
    [game] = read(text)
    assert isinstance(game, Game), game
    return game


def the_rejection(text: str | bytes) -> Rejection:
    [rejection] = read(text)
    assert isinstance(rejection, Rejection), rejection
    assert len(rejection.detail) <= 120
    return rejection


def outcomes(text: str | bytes, **options: object) -> list[str]:
    """Return for each game its moves, or its reason."""
    return [
        str(item.reason) if isinstance(item, Rejection) else " ".join(move.uci() for move in item.moves) for item in read(text, **options)
    ]


def moves_of(movetext: str) -> str:
    """Return the moves, or the reason, of a game with this movetext."""
    [outcome] = outcomes(TAGS + movetext)
    return outcome


def random_game(rng: random.Random, *, comments: list[str], fen: str | None = None) -> chess.pgn.Game:
    """Return a game of random legal moves with comments, glyphs, clocks and variations."""
    game = chess.pgn.Game({"Event": "e", "White": f"w{rng.random()}", "Black": "b", "Date": "2020.01.02", "Result": "*"})
    if fen is not None:
        game.setup(fen)
    node: chess.pgn.GameNode = game
    for _ in range(rng.randrange(1, 50)):
        legal = list(node.board().legal_moves)
        if not legal:
            break
        node = node.add_variation(rng.choice(legal), nags=[rng.randrange(1, 140)] if rng.random() < 0.2 else [])
        if rng.random() < 0.3:
            node.set_clock(rng.randrange(10_000))
        if comments and rng.random() < 0.3:
            node.comment = (node.comment + " " + rng.choice(comments)).strip()
        while node.parent is not None and len(node.parent.variations) < min(3, len(legal)) and rng.random() < 0.2:
            other = rng.choice([move for move in legal if not node.parent.has_variation(move)])
            side = node.parent.add_variation(other, comment=rng.choice([*comments, "("]))
            replies = list(side.board().legal_moves)
            if replies:
                side.add_variation(rng.choice(replies), starting_comment=")")
    return game


def written(game: chess.pgn.Game, columns: int | None) -> str:
    return game.accept(chess.pgn.StringExporter(columns=columns))


# One case for each reason


REASONS: dict[Reason, list[str | bytes]] = {
    Reason.NOT_A_GAME: ["hello", "1-0", "Games of my club\n1. e4 e5 1-0", '<html>\n<a href="x">', "Event [x]\n[y]\n", b"P\0K\0"],
    Reason.TOO_LONG: [
        TAGS + "1. e4 " + "(" * 101 + ")" * 101,
        TAGS + "N" * 256,
        TAGS + "1. e4 (" + "N" * 256 + ")",
        TAGS + "1. Nf3 Nf6 2. Ng1 Ng8 " * 301,
        TAGS + "1. e4 {" + "x" * MIB + "} *",
    ],
    Reason.NUL_BYTES: [TAGS + "1. e4 \0 e5 *", '[White "\0"]\n\n1. e4 *'],
    Reason.UNREADABLE_TAG: [
        '[White "x\n[Black "y"]\n\n1. e4 *',
        '[White "x"\n\n1. e4 *',
        '[Event "e"]\n[White x]\n\n1. e4 *',
        '[Event "e"]\n[]\n\n1. e4 *',
        '[Result "*"] 1. e4 *\n',
        f'[FEN "{chess.STARTING_FEN}"]\n[FEN "{OTHER_FEN}"]\n\n1. e4 *',
    ],
    Reason.VARIANT: [f'[Variant "{name}"]\n\n1. e4 *' for name in ("Atomic", "Crazyhouse", "Three-check", "?", "Шахматы")],
    Reason.CHESS960: [
        '[Variant "Chess960"]\n\n1. e4 *',
        '[Variant "Fischerandom"]\n\n1. e4 *',
        '[FEN "nrbkqbrn/pppppppp/8/8/8/8/PPPPPPPP/NRBKQBRN w GBgb - 0 1"]\n\n1. e4 *',
    ],
    Reason.IMPOSSIBLE_START: [
        '[FEN "rubbish"]\n\n1. e4 *',
        '[FEN ""]\n\n1. e4 *',
        '[SetUp "1"]\n\n1. e4 *',
        '[FEN "8/8/8/8/8/8/8/K7 w - - 0 1"]\n\n1. Ka2 *',  # one king
        '[FEN "8/8/8/8/8/8/8/Kk6 w - - 0 1"]\n\n1. Ka2 *',  # touching kings
        f'[FEN "k7/8/8/8/8/8/8/K7 w - - {"9" * 5_000} 1"]\n\n1. Ka2 *',
    ],
    Reason.UNREADABLE_MOVE: [
        TAGS + f"1. {token} e5 *" for token in ("Qxx9", "e9", "}", "$", "ne4", "e4*", "O-O-", "1-1", "[%clk", "K", "1_0", "é4")
    ],
    Reason.ILLEGAL_MOVE: [TAGS + f"1. {token} *" for token in ("e5", "1e4", "O-O", "Ke2", "e2e5", "exd3", "Nd2")],
    Reason.AMBIGUOUS_MOVE: [TAGS + "1. Nf3 a6 2. d3 b6 3. Nd2 *"],
    Reason.NULL_MOVE: [TAGS + f"1. e4 {token} 2. d4 *" for token in ("--", "Z0", "0000", "@@@@", "<>", "1...--")],
    Reason.UNCLOSED_COMMENT: [TAGS + "1. e4 {good e5 *", TAGS + "1. e4 {good e5 2. Nf3 {fine} Nc6 *", TAGS + "1. e4 (1. d4 {x) *"],
    Reason.UNBALANCED_VARIATION: [TAGS + "1. e4 (1. d4 e5 *", TAGS + "1. e4 d5) 2. d4 *", TAGS + "1. e4 (1. d4 {)} *"],
    Reason.TEXT_AFTER_RESULT: [TAGS + "1. e4 * e5", TAGS + "1. e4 * *", TAGS + "1. e4 *\n2. d4 d5 *", TAGS + "1. e4 * (1. d4)"],
    Reason.NO_MOVES: [TAGS, TAGS + "*", TAGS + "{a comment} 1-0", TAGS + "1. "],
    Reason.UNKNOWN_RESULT: ['[Result "2-0"]\n\n1. e4 *', '[Result "?"]\n\n1. e4 *'],
    Reason.CONTRADICTING_RESULTS: ['[Result "1-0"]\n\n1. e4 0-1', '[Result "1/2"]\n\n1. e4 1-0'],
    Reason.RESULT_AGAINST_BOARD: [
        f'[Result "1-0"]\n\n{MATE} 1-0',
        f'[Result "1/2-1/2"]\n\n{MATE}',
        f'[Result "*"]\n\n{MATE} 1-0',
        '[Result "1-0"]\n[FEN "7k/8/5KQ1/8/8/8/8/8 w - - 0 1"]\n\n1. Qf7 1-0',  # stalemate
        '[Result "0-1"]\n[FEN "7k/8/8/8/8/5K2/6q1/8 w - - 0 1"]\n\n1. Kxg2 0-1',  # bare kings
    ],
}


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason, texts in REASONS.items() for text in texts])
def test_each_fault_has_its_reason(reason: Reason, text: str | bytes) -> None:
    rejection = the_rejection(text)
    assert rejection.reason == reason
    assert rejection.source == "file.pgn"
    assert rejection.offset == 0


def test_every_reason_that_a_game_of_a_file_can_have_is_tried_here() -> None:
    elsewhere = {Reason.NO_DATE, Reason.ENGINE_FAILURE, Reason.ILLEGAL_POSITION, Reason.GAME_OVER, Reason.FILTERED, Reason.DUPLICATE}
    assert set(REASONS) == set(Reason) - elsewhere


def test_the_detail_names_the_token_and_its_ply() -> None:
    assert the_rejection(TAGS + "1. e4 e5 2. Qxx9 *").detail == "'Qxx9' at ply 2"
    assert the_rejection(TAGS + "1. e4 e4 *").detail == "'e4' at ply 1"
    assert the_rejection('[Result "1-0"]\n\n1. e4 0-1').detail == "1-0 in the tag, 0-1 after the moves"
    assert the_rejection('[FEN "8/8/8/8/8/8/8/K7 w - - 0 1"]\n\n1. Ka2').detail == "NO_BLACK_KING in '8/8/8/8/8/8/8/K7 w - - 0 1'"


def test_an_open_comment_does_not_take_the_next_games_along() -> None:
    assert outcomes(TAGS + "1. e4 {oh\n\n" + TAGS + "1. d4 *\n\n" + TAGS + "1. c4 {x} *") == ["unclosed comment", "d2d4", "c2c4"]


def test_only_an_event_tag_begins_a_game_inside_a_comment() -> None:
    assert moves_of('1. e4 {\n[Event of the day]\n[Site "x"]\n[%clk 0:01:00]\n} e5 *') == "e2e4 e7e5"
    assert outcomes(TAGS + '1. e4 {\n[Event "x"]\n\n1. d4 *') == ["unclosed comment", "d2d4"]


# What is accepted


@pytest.mark.parametrize(
    ("movetext", "moves"),
    [
        ("1.e4 e5 2.Nf3", "e2e4 e7e5 g1f3"),
        ("1 e4 1... e5 2 . Nf3 2...Nc6 3…a3", "e2e4 e7e5 g1f3 b8c6 a2a3"),
        ("e4! e5?! Nf3!! Nc6?? $1 Bb5 $146 a6", "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6"),
        ("1. e4 (1. d4 d5 (1... Nf6 {)} 2. Qxx9 1-0)) e5 (x) 2. f4", "e2e4 e7e5 f2f4"),
        ("1. e4 ; (not { a variation\n e5 {two\nlines; }2. f4", "e2e4 e7e5 f2f4"),
        ("1. e4\n% 1. d4 { (\ne5", "e2e4 e7e5"),
        ("1. e4+- e5", "unreadable move"),
        ("1. e4 +- e5 ± 2. Nf3 += N ! =", "e2e4 e7e5 g1f3"),
        ("1. e2e4 e7-e5 2. Ng1-f3 Nb8c6 3. g1h3", "illegal move"),
        ("1. e2e4 e7-e5 2. Ng1-f3 Nb8c6 3. b1c3", "e2e4 e7e5 g1f3 b8c6 b1c3"),
        (
            "1. e4 a6 2. e5 d5 3. exd6e.p. cxd6 4. a3 b5 5. a4 b4 6. c4 bxc3 e.p.",
            "e2e4 a7a6 e4e5 d7d5 e5d6 c7d6 a2a3 b7b5 a3a4 b5b4 c2c4 b4c3",
        ),
        ("1. Nf3 Nf6 2. g3 g6 3. Bg2 Bg7 4. O-O 0-0!", "g1f3 g8f6 g2g3 g7g6 f1g2 f8g7 e1g1 e8g8"),
        ("1. d4 d5 2. Nc3 Nc6 3. Bf4 Bf5 4. Qd2 Qd7 5. O-O-O 0-0-0", "d2d4 d7d5 b1c3 b8c6 c1f4 c8f5 d1d2 d8d7 e1c1 e8c8"),
        ("1. e4\t\v\x0c  e5 \ufeff *", "e2e4 e7e5"),
        ("1. e4 * {White leaves} ; indeed\n% so\n$2", "e2e4"),
        ("1. e4 d5 2. exd5 e5 3. d6 Nf6 4. dxc7 a6 5. cxb8=N Rxb8", "e2e4 d7d5 e4d5 e7e5 d5d6 g8f6 d6c7 a7a6 c7b8n a8b8"),
        ("1. e4 d5 2. exd5 e5 3. d6 Nf6 4. dxc7 a6 5. cxd8Q+ Kxd8", "e2e4 d7d5 e4d5 e7e5 d5d6 g8f6 d6c7 a7a6 c7d8q e8d8"),
        ("1. e4 d5 2. exd5 e5 3. d6 Nf6 4. dxc7 a6 5. cxb8 Rxb8", "illegal move"),
    ],
)
def test_moves_may_be_written_in_these_ways(movetext: str, moves: str) -> None:
    assert moves_of(movetext) == moves


def test_exactly_the_allowed_plies_and_depth_are_read() -> None:
    assert len(the_game(TAGS + "1. Nf3 Nf6 2. Ng1 Ng8 " * 300).moves) == 1_200
    assert moves_of("1. e4 " + "(" * 100 + ")" * 100) == "e2e4"
    assert len(the_game(TAGS + "1. e4 {" + "x" * (MIB - len(TAGS) - 8) + "}").moves) == 1
    assert the_rejection(TAGS + "1. e4 {" + "x" * (MIB - len(TAGS) - 7) + "}").reason == Reason.TOO_LONG


@pytest.mark.parametrize(
    ("tag", "movetext", "result"),
    [
        ("1-0", "1. e4", "1-0"),
        ("1-0", "1. e4 *", "1-0"),
        ("*", "1. e4 0-1", "0-1"),
        ("1/2", "1. e4 1/2-1/2", "1/2-1/2"),
        ("", "1. e4 ½-½", "1/2-1/2"),
        ("*", "1. e4 *", "*"),
        ("0-1", MATE, "0-1"),
        ("*", MATE + " *", "*"),
    ],
)
def test_of_two_results_the_decided_one_counts(tag: str, movetext: str, result: str) -> None:
    assert the_game(f'[Result "{tag}"]\n\n{movetext}').result == result


def test_a_draw_is_allowed_in_stalemate_and_with_bare_kings() -> None:
    assert the_game('[Result "1/2-1/2"]\n[FEN "7k/8/5KQ1/8/8/8/8/8 w - - 0 1"]\n\n1. Qf7').result == "1/2-1/2"
    assert the_game('[Result "1/2-1/2"]\n[FEN "7k/8/8/8/8/5K2/6q1/8 w - - 0 1"]\n\n1. Kxg2').result == "1/2-1/2"


@pytest.mark.parametrize("name", ["Standard", "chess", "NORMAL", "From Position", ""])
def test_names_of_standard_chess_are_no_variant(name: str) -> None:
    assert the_game(f'[Variant "{name}"]\n\n1. e4 *').moves


def test_a_game_may_begin_anywhere() -> None:
    fen = "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 5 30"
    game = the_game(f'[SetUp "1"]\n[FEN "{fen}"]\n\n30... O-O-O 31. O-O *')
    assert [board.fen() for board in game.boards] == [fen, "2kr3r/8/8/8/8/8/8/R3K2R w KQ - 6 31"]


def test_the_boards_are_those_before_each_move_and_carry_no_stack() -> None:
    game = the_game(TAGS + "1. e4 c5 2. Nf3 d6")
    board = chess.Board()
    for before, move in zip(game.boards, game.moves, strict=True):
        assert before.fen() == board.fen()
        assert not before.move_stack
        board.push(move)
    assert game.is_label == (True,) * 4


# Tags


def test_tags_may_be_written_in_these_ways() -> None:
    [game] = read_pgn_games(
        [
            b'[Event "a"] [Site "b"]\n[Round"3"]\n[ White  "Nick "Nicky" Name" ]  \n\n  [Black "x \\"y\\" \\\\z"]\n% [Date "1"]\n'
            b'[Date " 2020.01.02 "]\n[ECO "broken]\n[Odd tag]\n[Annotator "one"]\n[Annotator "two"]\n1. e4 *'
        ],
        "f",
    )
    assert isinstance(game, PgnGame)
    assert game.headers == {
        "Event": "a",
        "Site": "b",
        "Round": "3",
        "White": 'Nick "Nicky" Name',
        "Black": 'x "y" \\z',
        "Date": "2020.01.02",
        "Annotator": "two",
    }


def test_names_are_read_as_utf_8_or_else_as_latin_1_game_by_game() -> None:
    stream = '[White "Réti"]\n\n1. e4 *\n\n'.encode() + '[White "Réti"]\n\n1. d4 *\n\n'.encode("latin-1")
    games = [game for game in read_pgn_games([stream], "f") if isinstance(game, PgnGame)]
    assert [game.headers["White"] for game in games] == ["Réti", "Réti"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_refused_with_the_remedy(encoding: str) -> None:
    stream = ("\ufeff" * (encoding == "utf-16-be") + TAGS).encode(encoding)
    with pytest.raises(SourceError, match=r"file\.pgn: is UTF-16.*iconv"):
        read(stream)
    with pytest.raises(SourceError, match="UTF-16"):
        list(read_games([stream[:1], stream[1:]], "f"))


@pytest.mark.parametrize(
    ("text", "rating"),
    [
        *(("1704", 1704), ("1", 1), ("4000", 4000), ("4001", None), ("0", None), ("?", None), ("", None), ("-", None), ("-5", None)),
        *(("1700?", None), ("\u0661\u0667\u0660\u0660", None), ("²", None), ("9" * 5_000, None), (" 1704 ", 1704)),
    ],
)
def test_a_rating_is_a_decimal_number_up_to_4000(text: str, rating: int | None) -> None:
    game = the_game(f'[WhiteElo "{text}"]\n[BlackElo "900"]\n\n1. e4 *')
    assert (game.white_rating, game.black_rating) == (rating, 900)


@pytest.mark.parametrize(
    ("utc_date", "date", "expected"),
    [
        ("2018.11.16", "2018.11.17", "2018.11.16"),
        ("", "2018.11.17", "2018.11.17"),
        ("????.??.??", "2018.11.17", "2018.11.17"),
        ("", "2018-11-17", "2018.11.17"),
        ("", "2018/11/17", "2018.11.17"),
        ("", "2018.??.??", "2018.??.??"),
        ("", "2018.11.??", "2018.11.??"),
        ("", "2018.??.31", "2018.??.31"),
        ("", "????.11.17", None),
        ("", "2018.13.01", None),
        ("", "2018.00.01", None),
        ("", "2019.02.29", None),
        ("", "2020.02.29", "2020.02.29"),
        ("", "2018.11.31", None),
        ("", "2018.11.00", None),
        ("", "0000.01.01", None),
        ("", "17.11.2018", None),
        ("", "2018.1.1", None),
    ],
)
def test_a_date_is_one_of_the_calendar_in_one_form(utc_date: str, date: str, expected: str | None) -> None:
    assert the_game(f'[UTCDate "{utc_date}"]\n[Date "{date}"]\n\n1. e4 *').date == expected


def test_clocks_belong_to_the_move_before_them() -> None:
    movetext = (
        "{[%clk 9:00:00]} 1. e4 {[%clk 0:03:00]} (1. d4 {[%clk 0:00:01]}) e5 {x [%eval 0.1] [%clk 1:02:03.5] y} {[%clk 0:00:09]}"
        " 2. Nf3 Nc6 {[%clk 2:30]} 3. a3 {[%clk soon]} a6 {[%emt 0:00:05]} *"
    )
    [game] = read_pgn_games([(TAGS + movetext).encode()], "f")
    assert isinstance(game, PgnGame)
    assert game.clocks == (180, 3723.5, None, 150, None, None)


# Where games begin


MESSY = (
    b'\xef\xbb\xbf  \n[White "one"]\n1. e4 e5\n[White "two"]\n[Black "x"]\n\n1. d4 {\n[%clk 0:01:00]\n[White "no"]\n} d5 *\n'
    b'\xef\xbb\xbf[Event "three"]\r\n\r\n1. c4 *\r\n\r\n[Event "four"]\r[Site "s"]\r\r1. Nf3 ; {\r Nf6 *\r\r\r[Site "five"]\n\n'
    b'[Black "b"]\n\n[Site "six"]\n[White "[White "]\n\n1. b3 ; \n[Odd seven]\n[White "z"]\n\n1. e4 {open \n\n'
    b' \t[Event "eight"]\n% [Event "no"]\n1. g3\n \n'
)
MESSY_OUTCOMES = [
    "e2e4 e7e5",
    "d2d4 d7d5",
    "c2c4",
    "g1f3 g8f6",
    "no moves",
    "b2b3",
    "unclosed comment",
    "g2g3",
]


def test_games_are_told_apart_whatever_stands_between_them() -> None:
    assert outcomes(MESSY) == MESSY_OUTCOMES


def test_the_offset_is_that_of_the_first_bracket() -> None:
    begins = [
        MESSY.index(tag) for tag in (b'[White "one', b'[White "two', b'[Event "three', b'[Event "four', b'[Site "five', b'[Site "six')
    ]
    begins += [MESSY.index(tag) for tag in (b"[Odd seven", b'[Event "eight')]
    assert [item.offset for item in read(MESSY)] == begins


def test_text_before_the_first_game_is_one_rejection_and_costs_no_game() -> None:
    [rejection, game] = read(b"\xef\xbb\xbf\n Games of [my] club\n1. e4\n\n" + TAGS.encode() + b"1. e4 *")
    assert (rejection.offset, rejection.reason) == (5, Reason.NOT_A_GAME)
    assert isinstance(game, Game)


def test_a_game_without_tags_is_never_part_of_another() -> None:
    assert outcomes("1. e4 *\n\n" + TAGS + "1. d4 *\n\n1. c4 *\n\n" + TAGS + "1. b4 *") == ["e2e4", "d2d4", "c2c4", "b2b4"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. e4 e5 1-0\n\n1. d4 d5 0-1\n\n1. c4 *\n", ["e2e4 e7e5", "d2d4 d7d5", "c2c4"]),
        ("1. e4 e5 1-0\n1. d4 d5 1/2-1/2\n1.c4 *", ["e2e4 e7e5", "d2d4 d7d5", "c2c4"]),  # One a line, as in books.
        ("1. e4 e5\n\n1. d4 d5\n\n1.c4\n", ["e2e4 e7e5", "d2d4 d7d5", "c2c4"]),  # No result: a blank line ends a game.
        ("{one} 1. e4 {a\n\n1. d4} e5 (1... c5\n\n2. Nf3) 2. Nf3 *\n\n1. d4 *", ["e2e4 e7e5 g1f3", "d2d4"]),
        ("1. e4 e5\n2. Nf3\n\n2... Nc6 *", ["e2e4 e7e5 g1f3 b8c6"]),  # Wrapped, and a blank line within a game.
        ("1. e4 e5 2. Ke3 *\n\n1. d4 *", ["illegal move", "d2d4"]),
        (TAGS + "1. e4 1-0\n\nPrinted by a program\n\n" + TAGS + "1. d4 *", ["e2e4", "not a game", "d2d4"]),
        (TAGS + "{A word before.}\n\n1. e4 *\n\n1. d4 *", ["e2e4", "d2d4"]),
        (TAGS + "1. e4 *\n\n{A word after.}\n\n" + TAGS + "1. d4 *", ["e2e4", "d2d4"]),
    ],
)
def test_games_without_tags_are_read_one_by_one_and_spoil_no_other(text: str, expected: list[str], line_end: str) -> None:
    whole = text.replace("\n", line_end).encode()
    items = read(whole)
    assert [item.reason.value if isinstance(item, Rejection) else " ".join(map(str, item.moves)) for item in items] == expected
    for item in items:
        assert item.offset == 0 or whole[: item.offset].endswith(line_end.encode()), "it begins at a line"
        assert whole[item.offset : item.offset + 1].strip()


def test_a_game_without_tags_is_found_across_blocks_and_in_any_chunks() -> None:
    text = "".join(f"1. e4 e5 2. {move} {{{'x' * 7_001}}} 1-0\n\n" for move in ("Nf3", "Nc3", "d4", "f4") * 100).encode()
    items = read(text)
    assert len(items) == 400
    assert all(isinstance(item, Game) and len(item.moves) == 3 for item in items)
    starts = [found.start() for found in re.finditer(rb"1\. e4", text)]
    assert [item.offset for item in items] == starts


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, len(MESSY)), max_size=30), block=st.integers(1, 80), limit=st.sampled_from([60, 200, MIB]))
def test_no_cut_of_the_stream_matters(cuts: list[int], block: int, limit: int) -> None:
    edges = [0, *sorted(cuts), len(MESSY)]
    chunks = [MESSY[start:stop] for start, stop in pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo.reading.pgn, "MAX_GAME_BYTES", limit)
        patch.setattr(grpo.reading.pgn_split, "MAX_GAME_BYTES", limit)
        whole = read(MESSY)
        assert list(read_games(chunks, "file.pgn")) == whole
        patch.setattr(grpo.reading.pgn_split, "_BLOCK_BYTES", block)
        assert list(read_games(chunks, "file.pgn")) == whole


ALPHABET = st.sampled_from(
    (
        *(
            "[",
            "]",
            '"',
            "[Event ",
            '[Event "e"]\n',
            '[White "',
            "{",
            "}",
            "(",
            ")",
            ";",
            "%",
            "\n",
            "\r",
            " ",
            "\\",
            "1.",
            "e4",
            "e5",
            "Nf3",
        ),
        *("O-O", "--", "$", "$1", "*", "1-0", "½", "\0", "\ufeff", '[FEN "', "8/8/8/8/8/8/8/K1k5 w - - 0 1", '[Variant "', '[SetUp "1"]\n'),
        *("é", "0"),
    )
)


@settings(max_examples=100)
@given(parts=st.lists(ALPHABET, max_size=40), encoding=st.sampled_from(["utf-8", "latin-1"]), block=st.integers(1, 80))
def test_no_text_is_too_strange(parts: list[str], encoding: str, block: int) -> None:
    stream = "".join(parts).encode(encoding, "replace")
    items = read(stream)
    assert [item.offset for item in items] == sorted({item.offset for item in items})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo.reading.pgn_split, "_BLOCK_BYTES", block)
        assert read(stream) == items


# Round trips


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    comments=st.lists(st.text(st.characters(exclude_characters="{}\0", exclude_categories=["Cs"]), max_size=90), max_size=4),
    columns=st.sampled_from([None, 20, 80]),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_python_chess_writes_is_read_back(seed: int, comments: list[str], columns: int | None, line_end: str) -> None:
    rng = random.Random(seed)
    fens = (None, "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1")
    games = [random_game(rng, comments=comments, fen=rng.choice(fens)) for _ in range(3)]
    text = "\n\n".join(written(game, columns) for game in games).replace("\n", line_end)
    read_back = list(read_pgn_games([text.encode()], "f"))
    assert [item.game.moves if isinstance(item, PgnGame) else item for item in read_back] == [tuple(g.mainline_moves()) for g in games]
    assert [item.clocks for item in read_back if isinstance(item, PgnGame)] == [tuple(n.clock() for n in g.mainline()) for g in games]


DAMAGES: dict[str, tuple[Callable[[str], str], Reason]] = {
    "open comment": (lambda text: text.replace("1. ", "1. {oh ", 1), Reason.UNCLOSED_COMMENT),
    "open variation": (lambda text: text.replace("1. ", "1. ( ", 1), Reason.UNBALANCED_VARIATION),
    "unreadable": (lambda text: text.replace("1. ", "1. Qxx9 ", 1), Reason.UNREADABLE_MOVE),
    "illegal": (lambda text: text.replace("1. ", "1. Ke5 ", 1), Reason.ILLEGAL_MOVE),
    "null": (lambda text: text.replace("1. ", "1. -- ", 1), Reason.NULL_MOVE),
    "NUL": (lambda text: text.replace("1. ", "1. \0 ", 1), Reason.NUL_BYTES),
    "header only": (lambda text: text.partition("\n\n")[0] + "\n", Reason.NO_MOVES),
    "broken tag": (lambda text: text.replace("[Black", '[White "x\n[Black', 1).replace("[White", "[Annotator", 1), Reason.UNREADABLE_TAG),
    "no quotes": (lambda text: text.replace('"e"', "e", 1), Reason.UNREADABLE_TAG),
    "variant": (lambda text: '[Event "e"]\n[Variant "Atomic"]\n' + text.partition("\n")[2], Reason.VARIANT),
    "result": (lambda text: text.rstrip() + " 1-0", Reason.TEXT_AFTER_RESULT),
    "long": (lambda text: text.replace("1. ", "1. {" + "x" * MIB + "} ", 1), Reason.TOO_LONG),
}


def expect_damages(rng: random.Random, damages: list[str | None], gap: str) -> None:
    """Read games of which some are damaged, and compare each with what it should give."""
    expected: list[tuple[int, object]] = []
    stream = ""
    for damage in damages:
        game = random_game(rng, comments=[])
        damaged, outcome = DAMAGES[damage] if damage is not None else (str, tuple(game.mainline_moves()))
        expected.append((len(stream.encode()), outcome))
        stream += damaged(written(game, 80)) + gap
    assert [(item.offset, item.reason if isinstance(item, Rejection) else item.moves) for item in read(stream)] == expected


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_costs_one_game_wherever_it_is(damage: str) -> None:
    expect_damages(random.Random(1), [damage, None, damage, damage, None, damage], "\n\n")


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    damages=st.lists(st.sampled_from([None, None, *DAMAGES]), min_size=1, max_size=8),
    gap=st.sampled_from(["\n\n", "\n", "\n\ufeff", "\n \n\t\n"]),
)
def test_damaged_games_cost_no_other_game(seed: int, damages: list[str | None], gap: str) -> None:
    expect_damages(random.Random(seed), damages, gap)


# Identity, duplicates and parts


def test_the_identity_of_a_game_never_changes() -> None:
    # Worked out by hand: sha256("<FEN> e2e4 e7e5/a/b/2020.01.02//s"), as boards that are stored already carry it.
    game = the_game(TAGS + "1. e4 {x} e5 *")
    assert game.game_id == "dd9b5c80b4bdf6bfee09"
    assert the_game(TAGS.replace("\n", "\r\n") + "1.e4 e5").game_id == game.game_id
    assert the_game(TAGS.replace('"a"', '"c"') + "1. e4 e5").game_id != game.game_id
    assert the_game(TAGS + "1. e4 e6").game_id != game.game_id


def test_a_missing_tag_is_an_unknown_one() -> None:
    unknown = '[White "?"]\n[Black "?"]\n[Date "????.??.??"]\n[Site "?"]\n'
    assert the_game(unknown + "\n1. e4 *").game_id == the_game('[Event "x"]\n\n1. e4 *').game_id


def test_a_game_met_before_is_a_duplicate_and_a_bad_one_keeps_its_reason() -> None:
    good, bad = TAGS + "1. e4 e5 *\n\n", TAGS + "1. e4 Qxx9 *\n\n"
    stream = good + bad + good.replace("\n", "\r\n") + bad + good.replace("1. e4", "1. e4 {!}") + good.replace("e5", "e6 \t")
    reasons = ["e2e4 e7e5", "unreadable move", "duplicate", "unreadable move", "duplicate", "e2e4 e7e6"]
    assert outcomes(stream, seen=SeenGames()) == reasons
    assert outcomes(stream)[2:5] == ["e2e4 e7e5", "unreadable move", "e2e4 e7e5"]


def test_duplicates_are_found_across_files() -> None:
    seen = SeenGames()
    assert outcomes(TAGS + "1. e4 *", seen=seen) == ["e2e4"]
    assert outcomes(TAGS + "1. e4 *", seen=seen) == ["duplicate"]
    assert outcomes(TAGS + "1.e4", seen=seen) == ["duplicate"]


def test_a_text_met_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SeenGames()
    read(TAGS + "1. e4 *", seen=seen)
    monkeypatch.setattr(grpo.reading.pgn, "read_main_line", None)
    assert outcomes(TAGS + "1. e4 *", seen=seen) == ["duplicate"]


def test_only_the_oldest_games_are_forgotten() -> None:
    seen = SeenGames(capacity=2)
    games = [TAGS + f"1. {move} *\n\n" for move in ("a3", "b3", "c3")]
    assert outcomes("".join(games), seen=seen) == ["a2a3", "b2b3", "c2c3"]
    assert outcomes(games[1], seen=seen) == ["duplicate"]
    assert outcomes(games[2].replace("c3", "c3 {}"), seen=seen) == ["duplicate"]
    assert outcomes(games[0], seen=seen) == ["a2a3"]


def test_parts_share_the_games_among_them() -> None:
    rng = random.Random(3)
    stream = "\n\n".join(written(random_game(rng, comments=[]), 80) for _ in range(40)) + TAGS + "\n\n1. Qxx9\n" + TAGS + "x" * MIB
    whole = read(stream)
    parts = [read(stream, is_mine=lambda digest, part=part: digest[0] % 3 == part) for part in range(3)]
    assert sorted((item for part in parts for item in part), key=lambda item: item.offset) == whole
    assert all(parts)
    elsewhere = read("junk\n" + stream.replace("\n", "\r\n"), is_mine=lambda digest: digest[0] % 3 == 0)
    assert [item.game_id for item in elsewhere if isinstance(item, Game)] == [item.game_id for item in parts[0] if isinstance(item, Game)]


# Bounds


@pytest.mark.parametrize(
    ("begin", "filling", "end"),
    [
        (TAGS + "1. e4 {", "x" * MIB, "} *\n\n"),  # a comment
        (TAGS + "1. e4 ", "x" * MIB, "\n\n"),  # a token
        (TAGS + "1. e4 ", ('\n[%clk "' + "x" * 999 + '"]') * 1_000, "\n"),
        ('[Event "', "x" * MIB, '"]\n\n1. e4 *\n'),  # a value
        ('[Event "e"]\n', ('[Odd "' + "x" * 999 + '"]\n') * 1_000, "\n\n1. e4 *\n"),  # tags
        (TAGS + "1. e4 {\n", ('[Site "' + "x" * 999 + '"]\n') * 1_000, "} *\n"),  # tag lines in a comment
        ("", "x" * MIB, "\n"),  # no game at all
    ],
    ids=["comment", "token", "brackets", "value", "tags", "tags in a comment", "junk"],
)
def test_a_huge_game_is_passed_over_in_little_memory(begin: str, filling: str, end: str) -> None:
    good = (TAGS + "1. d4 *\n\n").encode()

    def chunks() -> Iterator[bytes]:
        yield good if begin else b""
        yield begin.encode()
        for _ in range(NUM_FILLINGS):
            yield filling.encode()
        yield end.encode() + good

    tracemalloc.start()
    items = list(read_games(chunks(), "f"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * MIB
    size = len(begin) + NUM_FILLINGS * len(filling) + len((begin + filling + end).rstrip()) - len(begin + filling)
    assert [item.offset for item in items] == (
        [0, len(good), len(good) + len(begin + end) + NUM_FILLINGS * len(filling)] if begin else [0, NUM_FILLINGS * MIB + 1]
    )
    [rejection] = [item for item in items if isinstance(item, Rejection)]
    assert rejection.reason == (Reason.TOO_LONG if begin else Reason.NOT_A_GAME)
    assert f"{size:,} bytes" in rejection.detail


def test_much_empty_space_makes_no_game_too_long() -> None:
    stream = [b"\n" * MIB] * 3 + [TAGS.encode(), b"1. e4 *"] + [b" \n" * MIB] * 3 + [TAGS.encode() + b"1. d4 *"]
    games = list(read_games(stream, "f"))
    assert [game.offset for game in games if isinstance(game, Game)] == [3 * MIB, 9 * MIB + len(TAGS) + 7]


@pytest.mark.parametrize(
    "text",
    [
        *(TAGS + '{\n[A "' * 100_000, "[" * 10**6, '[A "' * 250_000, TAGS + "{}" * 500_000, '[White "' + '\\"' * 500_000),
        *('[a "\\' * 200_000, '[White "a"] ' * 80_000, '[White "a" ' * 80_000, "[[A" * 300_000, TAGS + "(" * 10**6),
        *(TAGS + "1." * 500_000, "[" + "A" * 10**6),
    ],
    ids=range(12),
)
def test_no_text_takes_for_ever(text: str, within: Callable[[float], AbstractContextManager[None]]) -> None:
    with within(120):  # A quadratic pass over any of these takes hours.
        read(text)


# Real games


@pytest.fixture(scope="module")
def sample_data() -> Path:
    folder = os.environ.get("CHESS_GRPO_SAMPLE_DATA")
    if not folder:
        pytest.skip("CHESS_GRPO_SAMPLE_DATA does not name the folder of lichess_fishnet_games.pgn and 8moves_v3.pgn.zip")
    return Path(folder)


@pytest.mark.parametrize(
    ("name", "num_games", "num_compared"), [("lichess_fishnet_games.pgn", 2_878, 50), ("8moves_v3.pgn.zip", 34_700, 100)]
)
def test_real_games_are_those_that_python_chess_reads(sample_data: Path, name: str, num_games: int, num_compared: int) -> None:
    path = sample_data / name
    stream = zipfile.ZipFile(path).read("8moves_v3.pgn") if path.suffix == ".zip" else path.read_bytes()
    digests: list[bytes] = []

    def is_mine(digest: bytes) -> bool:
        digests.append(digest)
        return len(digests) <= num_compared

    items = list(read_games([stream], name, is_mine=is_mine))
    assert len(digests) == num_games
    assert len(items) == num_compared
    text = io.StringIO(stream.decode("latin-1"))
    for item in items:
        expected = chess.pgn.read_game(text)
        assert isinstance(item, Game)
        assert expected is not None
        assert item.moves == tuple(expected.mainline_moves())
        assert item.result == expected.headers["Result"]
