"""Boards as bytes: lossless, seen from the mover's side, the same for a position and its mirror."""

from collections import Counter
from collections.abc import Sequence

import chess
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.board.encoding import (
    BLACK_TO_MOVE,
    CASTLING,
    EN_PASSANT,
    HALFMOVE_CLOCK,
    decode,
    encode,
    fen_of,
    key_of_fen,
    mover_fen,
    mover_view,
    position_key,
    turned_fen,
)

CHOICES = st.lists(st.integers(0, 10_000), max_size=120)


def played(choices: Sequence[int]) -> chess.Board:
    """Return the board after the moves that the numbers choose, as far as the game goes."""
    board = chess.Board()
    for choice in choices:
        legal = sorted(board.legal_moves, key=chess.Move.uci)
        if not legal:
            break
        board.push(legal[choice % len(legal)])
    return board


def fen_without_number(board: chess.Board) -> str:
    """Return the FEN without its full-move number, with the en-passant square where a capture is possible."""
    return board.fen(en_passant="legal").rsplit(" ", 1)[0]


def test_the_start_position_worked_by_hand() -> None:
    [row] = encode([chess.Board()])
    back_rank = [4, 2, 3, 5, 6, 3, 2, 4]
    assert row.dtype == np.uint8
    assert row[:64].tolist() == [*back_rank, *[1] * 8, *[0] * 32, *[7] * 8, *(code + 6 for code in back_rank)]
    assert row[64:].tolist() == [1, 1, 1, 1, 0, 0, 0]


def test_a_position_of_black_worked_by_hand() -> None:
    [row] = encode([chess.Board("r3k2r/8/8/8/1pP5/8/8/R3K2R b Kq c3 0 10")])
    # Seen by Black, rank 8 is the first: his king is on e1, his pawn on b5, White's on c5.
    assert {square: code for square, code in enumerate(row[:64].tolist()) if code} == {
        chess.A1: 4, chess.E1: 6, chess.H1: 4, chess.B5: 1, chess.C5: 7, chess.A8: 10, chess.E8: 12, chess.H8: 10,
    }  # fmt: skip
    assert row[CASTLING].tolist() == [0, 1, 1, 0]  # Mover: queen side only; opponent: king side only.
    assert (row[EN_PASSANT], row[HALFMOVE_CLOCK], row[BLACK_TO_MOVE]) == (3, 0, 1)


def test_decoding_gives_back_each_of_5000_positions_but_for_the_full_move_number(random_boards: list[chess.Board]) -> None:
    for board, row in zip(random_boards, encode(random_boards), strict=True):
        decoded = decode(row)
        expected = board.copy(stack=False)
        expected.fullmove_number = 1
        assert decoded == expected
        assert fen_without_number(decoded) == fen_without_number(board)


def test_a_position_and_its_mirror_differ_only_in_who_is_black(random_boards: list[chess.Board]) -> None:
    rows = encode(random_boards)
    mirrored = encode([board.mirror() for board in random_boards])
    assert np.array_equal(rows[:, :BLACK_TO_MOVE], mirrored[:, :BLACK_TO_MOVE])
    assert np.array_equal(rows[:, BLACK_TO_MOVE], 1 - mirrored[:, BLACK_TO_MOVE])


@settings(max_examples=40)
@given(CHOICES)
def test_a_board_reached_by_moves_is_encoded_like_the_same_board_read_from_its_fen(choices: list[int]) -> None:
    # Training reads boards from FENs, matches push moves; the network must not see two kinds of one position.
    board = played(choices)
    assert np.array_equal(encode([board]), encode([chess.Board(board.fen())])), board.fen()


def test_the_half_move_clock_stops_at_100() -> None:
    clocks = encode([chess.Board(f"4k3/8/8/8/8/8/8/R3K3 w - - {clock} 90") for clock in (0, 99, 100, 101, 5_000)])[:, HALFMOVE_CLOCK]
    assert clocks.tolist() == [0, 99, 100, 100, 100]


@pytest.mark.parametrize(
    ("fen", "rights"),
    [
        ("4k3/8/8/8/8/8/8/4K2R w KQkq - 0 1", [1, 0, 0, 0]),
        ("4k3/8/8/8/8/8/8/N3K2R w KQ - 0 1", [1, 0, 0, 0]),
        ("4k3/8/8/8/8/8/8/R4K1R w KQ - 0 1", [0, 0, 0, 0]),
        ("r3k2r/8/8/8/8/8/8/4K3 w kq - 0 1", [0, 0, 1, 1]),
        ("r3k2r/8/8/8/8/8/8/4K3 b kq - 0 1", [1, 1, 0, 0]),
    ],
)
def test_castling_rights_count_only_with_king_and_rook_at_home(fen: str, rights: list[int]) -> None:
    assert encode([chess.Board(fen)])[0, CASTLING].tolist() == rights


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "4k3/8/8/8/8/8/4P3/4K3 w - - 40 77", True),
        ("4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "4k3/4p3/8/8/8/8/8/4K3 b - - 3 9", True),
        ("4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "4k3/8/8/8/8/8/4P3/4K3 b - - 0 1", False),
        ("4k3/8/8/8/8/8/8/R3K3 w Q - 0 1", "4k3/8/8/8/8/8/8/R3K3 w - - 0 1", False),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1", False),
        ("4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3p4/8/8/8/4K3 w - - 0 1", True),
    ],
)
def test_the_key_of_a_position_is_about_what_can_be_played_and_not_about_clocks_or_colours(one: str, other: str, are_same: bool) -> None:
    assert (position_key(chess.Board(one)) == position_key(chess.Board(other))) is are_same


def test_the_movers_fen_is_that_of_the_turned_board(random_boards: list[chess.Board]) -> None:
    seen: Counter[str] = Counter()
    for board in random_boards[::3]:
        for side in (board, board.mirror()):
            fen = side.fen()
            turned = turned_fen(fen)
            assert turned == mover_fen(side) == mover_view(side).fen()
            assert turned_fen(turned) == turned
            assert key_of_fen(turned) == position_key(side)
            _, _, castling, en_passant, _ = fen.split(" ", 4)
            seen.update({castling, "en passant" if en_passant != "-" else "none"})
        assert turned_fen(board.mirror().fen()) == turned_fen(board.fen())
    assert seen["en passant"] > 20
    assert {"KQkq", "KQ", "kq", "Kkq", "-"} <= set(seen), "rights of all kinds, turned into their usual order"


@pytest.mark.parametrize(
    ("fen", "turned"),
    [
        (chess.STARTING_FEN, chess.STARTING_FEN),
        ("r3k2r/8/8/8/1pP5/8/8/R3K2R b Kq c3 7 10", "r3k2r/8/8/1Pp5/8/8/8/R3K2R w Qk c6 7 10"),
        ("4k3/8/8/8/8/8/4P3/4K3 b - - 3 9", "4k3/4p3/8/8/8/8/8/4K3 w - - 3 9"),
        ("4k2r/8/8/8/8/8/8/R3K3 b Qk - 0 1", "r3k3/8/8/8/8/8/8/4K2R w Kq - 0 1"),
    ],
)
def test_fens_turned_by_hand(fen: str, turned: str) -> None:
    assert turned_fen(fen) == turned
    assert key_of_fen(turned) == turned.rsplit(" ", 2)[0]


def test_positions_are_told_to_the_engine_as_python_chess_writes_them(random_boards: list[chess.Board]) -> None:
    assert any(board.has_legal_en_passant() for board in random_boards)
    assert any(board.ep_square is not None and not board.has_legal_en_passant() for board in random_boards)
    assert [fen_of(board) for board in random_boards] == [board.fen() for board in random_boards]
