"""Lists of positions and tables of puzzles: each line is read, or rejected for a reason; and what is kept out of a dataset."""

import io
import re
from pathlib import Path

import chess
import pytest

from grpo.board.encoding import position_key
from grpo.dataset.epd import read_positions, read_puzzles
from grpo.dataset.exclusions import excluded_positions
from grpo.dataset.games import Game, Reason, Rejection, SourceError
from grpo.dataset.streams import MAX_LINE

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -"
ENDGAME = "8/pp2nkR1/5n1p/3p4/5p2/P2BP3/1PPKN3/8 b - -"


def entries(data: bytes | str) -> list[Game | Rejection]:
    return list(read_positions(io.BytesIO(data.encode() if isinstance(data, str) else data), "list.epd"))


def fens(data: bytes | str) -> list[str]:
    games = entries(data)
    assert all(isinstance(game, Game) for game in games), games
    return [game.boards[0].fen() for game in games if isinstance(game, Game)]


def only_rejection(data: bytes | str) -> tuple[Reason, str]:
    (rejection,) = entries(data)
    return rejection.reason, rejection.detail


@pytest.mark.parametrize(
    ("line", "clocks"),
    [
        (ENDGAME, "0 1"),
        (f"  {ENDGAME}\t31   57  \0", "31 57"),
        (f'{ENDGAME} bm Nf3; id "x"; hmvc 3; fmvn 10;', "3 10"),
        (f"{ENDGAME} 31 57 bm Nf3 Nf4; am e4;", "31 57"),
        (f"{ENDGAME} hmvcx 3; xhmvc 4; acd 40; draw_reject;", "0 1"),
    ],
)
def test_fens_and_epds_are_read_with_their_clocks(line: str, clocks: str) -> None:
    assert fens(line) == [f"{ENDGAME} {clocks}"]


def test_a_position_is_a_game_without_moves_whose_id_is_of_the_position_whatever_clocks_color_and_place() -> None:
    board = chess.Board(f"{ENDGAME} 31 57")
    lines = ["# a comment", board.fen(), f"{ENDGAME} 3 9", board.mirror().fen(), f"{START} 0 1"]
    first, *others = [game for game in entries("\n".join(lines)) if isinstance(game, Game)]
    assert (first.boards, first.moves, first.is_label, first.source, first.offset) == ((board,), (), (True,), "list.epd", 12)
    assert [other.game_id == first.game_id for other in others] == [True, True, False]


def test_line_ends_of_all_systems_are_line_ends_and_offsets_count_bytes() -> None:
    data = "\r".join([f"{ENDGAME} bm e4;", f"{START} 0 1\r\n{ENDGAME} 5 7\n", "rubbish\r"])
    found = entries(data)
    assert [data[entry.offset :][:7] for entry in found] == [ENDGAME[:7], START[:7], ENDGAME[:7], "rubbish"]
    assert [isinstance(entry, Game) for entry in found] == [True, True, True, False]


def test_a_line_that_is_too_long_is_a_rejection_in_lists_and_tables_and_the_next_is_read() -> None:
    long = "x" * (3 * MAX_LINE)
    first, too_long, last = entries(f'{ENDGAME} id "{long[: MAX_LINE // 2]}";\n{START} id "{long}";\n{ENDGAME}\n')
    assert isinstance(first, Game)
    assert isinstance(too_long, Rejection)
    assert (too_long.reason, too_long.detail) == (Reason.TOO_LONG, "a line of more than 1,048,576 bytes")
    assert isinstance(last, Game)
    whole = puzzles(HEADER + MATE_IN_TWO)
    assert puzzles(f"{HEADER}{long}\n{MATE_IN_TWO}") == ["too long: a line of more than 1,048,576 bytes", *whole]
    with pytest.raises(SourceError, match=r"puzzles\.csv: the first line is not the header"):
        puzzles(long)


def test_what_is_written_is_read_back(random_boards: list[chess.Board]) -> None:
    boards = [board for board in random_boards[::5] if board.halfmove_clock < 100 and not board.is_insufficient_material()]
    assert fens("\n".join(board.fen() for board in boards)) == [board.fen() for board in boards]
    assert fens("\n".join(board.epd(hmvc=board.halfmove_clock, fmvn=board.fullmove_number) for board in boards)) == [
        board.fen() for board in boards
    ]


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP w KQkq - 0 1", "expected 8 rows"),
        ("8/8/8/8/8/8/8/8 w - - 0 1", "NO_WHITE_KING.*NO_BLACK_KING|EMPTY"),
        ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR w KQkq e3 0 1", "INVALID_EP_SQUARE"),
        ("4k3/8/8/8/8/8/4P3/4K3 w KQ - 0 1", "BAD_CASTLING_RIGHTS"),
        (f"{ENDGAME} {'9' * 5_000} 1", "half-move clock"),
    ],
)
def test_what_is_no_position_is_told(line: str, detail: str) -> None:
    reason, found = only_rejection(line)
    assert reason == Reason.ILLEGAL_POSITION
    assert re.search(detail, found), found


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3", "checkmate"),
        ("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "stalemate"),
        ("4k3/8/8/8/8/8/8/4KB2 w - - 0 1", "insufficient material"),
    ],
)
def test_games_that_are_over_are_told(line: str, detail: str) -> None:
    assert only_rejection(line) == (Reason.GAME_OVER, detail)


def test_position_with_an_elapsed_clock_is_drawn_and_excluded_at_any_clock(tmp_path: Path) -> None:
    fen = f"{ENDGAME} 100 90"
    assert only_rejection(fen) == (Reason.DRAWN_BY_CLOCK, fen)
    assert judged(tmp_path, list_epd=f"{fen}\n") == {position_key(chess.Board(f"{ENDGAME} 0 31"))}
    assert fens(f"{ENDGAME} 99 90") == [f"{ENDGAME} 99 90"]


HEADER = "PuzzleId,FEN,Moves,Rating\n"
MATE_IN_TWO = "00008,r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1798\n"


def puzzles(data: str | bytes) -> list[str]:
    entries = read_puzzles(io.BytesIO(data.encode() if isinstance(data, str) else data), "puzzles.csv")
    return [f"{entry.reason}: {entry.detail}" if isinstance(entry, Rejection) else entry.fen() for entry in entries]


def test_a_puzzle_gives_its_start_and_each_position_of_the_solver() -> None:
    assert puzzles(HEADER + MATE_IN_TWO) == [
        "r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24",
        "r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2b1/PqP3PP/7K w - - 0 25",
        "r6k/pp2R2p/5p1Q/3p4/8/1N1P2b1/P1P3PP/1q5K w - - 1 26",
        "r6k/pp2R2p/5p1Q/3p4/8/3P2b1/P1P3PP/2q4K w - - 0 27",
    ]


@pytest.mark.parametrize("data", [MATE_IN_TWO, "PuzzleId,FEN,Rating\n", b"\xff\xfeP\0"])
def test_a_table_of_something_else_is_refused(data: str | bytes) -> None:
    with pytest.raises(SourceError, match=r"puzzles\.csv: the first line is not the header"):
        puzzles(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (HEADER + MATE_IN_TWO + "x,8/8/8 w - -,e2e4\n", "not a puzzle: expected 8 rows"),
        (HEADER + MATE_IN_TWO.replace("e6e7", "e6e8"), "not a puzzle: illegal uci: 'e6e8'"),
        (HEADER + MATE_IN_TWO.replace("f2g3 e6e7 b2b1 b3c1 b1c1 h6c1", " "), "not a puzzle: the solution does not end"),
    ],
)
def test_a_puzzle_that_cannot_be_read_is_a_rejection_and_the_next_is_read(data: str, message: str) -> None:
    found = [text for text in puzzles(f"{data.rstrip()}\n{MATE_IN_TWO}") if text.startswith("illegal position: ")]
    assert len(found) == 1
    assert re.search(message, found[0])
    assert puzzles(f"{data.rstrip()}\n{MATE_IN_TWO}")[-4:] == puzzles(HEADER + MATE_IN_TWO)


# What is kept out of a dataset.

GAME = (
    '[Event "?"]\n[Site "?"]\n[Date "2024.01.01"]\n[Round "1"]\n[White "a"]\n[Black "b"]\n[Result "1/2-1/2"]\n\n1. e4 e5 2. Nf3 1/2-1/2\n\n'
)


def judged(tmp_path: Path, **files: str) -> frozenset[str]:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return excluded_positions([str(tmp_path)])


def positions_of(*moves: str) -> list[str]:
    board = chess.Board()
    return [position_key(board), *(position_key(board) for move in moves if board.push_san(move))]


def test_the_positions_of_a_list_their_mirrors_and_no_others_are_judged(tmp_path: Path, random_boards: list[chess.Board]) -> None:
    boards = [board for board in random_boards[::10] if board.halfmove_clock < 100 and not board.is_insufficient_material()]
    found = judged(tmp_path, list_epd="\n".join(board.fen() for board in boards[::2]))
    keys = {position_key(board) for board in boards[::2]}
    assert found == keys == {position_key(board.mirror()) for board in boards[::2]}


def test_every_position_of_a_game_is_judged_the_last_one_too(tmp_path: Path) -> None:
    found = judged(tmp_path, book_pgn=GAME)
    assert found == set(positions_of("e4", "e5", "Nf3"))


def test_all_unreadable_entries_of_all_files_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as refusal:
        judged(
            tmp_path,
            list_epd=f"{ENDGAME} 0 31\nk7/8/8/8/8/8/8/KK6 w - - 0 1\nrubbish\n",
            book_pgn=GAME.replace("Nf3", "Nf6") + GAME,
            puzzles_csv=f"{HEADER}{MATE_IN_TWO}rubbish\n",
        )
    message = str(refusal.value)
    assert message.startswith("boards.exclude: 4 entries cannot be read")
    for place in ("list.epd, byte 49: ", "list.epd, byte 78: ", "book.pgn, game 1: ", f"puzzles.csv, byte {len(HEADER + MATE_IN_TWO)}: "):
        assert f"{place}illegal " in message


def test_text_around_the_games_of_a_book_is_passed_over_and_a_chapter_without_moves_counts_by_its_position(tmp_path: Path) -> None:
    problem = f'[Event "a problem"]\n[FEN "{ENDGAME} 0 31"]\n[SetUp "1"]\n\n{{ Black to move. }} *\n\n'
    study = f'[Event "text alone"]\n\n{{ Read this first. }} *\n\n{problem}'
    found = judged(tmp_path, book_pgn=f"Openings of my club\n\n{GAME}Printed in May\n\n1. d4 d5 *\n", study_pgn=study)
    assert found == {*positions_of("e4", "e5", "Nf3"), *positions_of("d4", "d5"), position_key(chess.Board(f"{ENDGAME} 0 31"))}
