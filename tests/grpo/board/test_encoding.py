"""Boards as bytes: lossless, seen from the mover's side, the same for a position and its mirror; and the phase of a game."""

from collections import Counter

import chess
import numpy as np
import pytest

from grpo.board.encoding import (
    BLACK_TO_MOVE,
    CASTLING,
    EN_PASSANT,
    HALFMOVE_CLOCK,
    decode,
    encode,
    encode_fens,
    fen_of,
    key_of_fen,
    mover_fen,
    mover_view,
    position_key,
    turned_fen,
)
from grpo.board.phases import Phase, phase_of


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


def test_decoding_gives_back_the_position_and_its_fen_is_encoded_alike(
    random_boards: list[chess.Board],
) -> None:
    # Training reads boards from FENs, matches push moves; the network must not see two kinds of one position.
    boards = random_boards[::5]
    assert any(board.ep_square is not None and not board.has_legal_en_passant() for board in boards)
    rows = encode(boards)
    assert np.array_equal(encode([chess.Board(board.fen()) for board in boards]), rows)
    assert np.array_equal(encode_fens([fen_of(board) for board in boards]), rows)
    for board, row in zip(boards, rows, strict=True):
        assert decode(row).fen().split()[:5] == board.fen().split()[:5]
    assert np.array_equal(encode([board.mirror() for board in boards])[:, :BLACK_TO_MOVE], rows[:, :BLACK_TO_MOVE]), "seen by the mover"


def test_the_half_move_clock_stops_at_100() -> None:
    fens = [f"4k3/8/8/8/8/8/8/R3K3 w - - {clock} 90" for clock in (0, 99, 100, 101, 5_000)]
    for rows in (encode([chess.Board(fen) for fen in fens]), encode_fens(fens)):
        assert rows[:, HALFMOVE_CLOCK].tolist() == [0, 99, 100, 100, 100]


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
    board = chess.Board(fen)
    for rows in (encode([board]), encode_fens([fen_of(board)])):
        assert rows[0, CASTLING].tolist() == rights


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
def test_the_key_of_a_position_is_about_what_can_be_played_and_not_about_clocks_or_colors(one: str, other: str, are_same: bool) -> None:
    assert (position_key(chess.Board(one)) == position_key(chess.Board(other))) is are_same


def test_the_movers_fen_is_that_of_the_turned_board_and_a_position_and_its_mirror_have_one(random_boards: list[chess.Board]) -> None:
    seen: Counter[str] = Counter()
    for board in random_boards[::10]:
        for side in (board, board.mirror()):
            fen = fen_of(side)
            assert fen == side.fen()
            assert turned_fen(fen) == mover_fen(side) == mover_view(side).fen() == mover_view(board).fen()
            assert key_of_fen(turned_fen(fen)) == position_key(board)
            _, _, castling, en_passant, _ = fen.split(" ", 4)
            seen.update({castling, "en passant" if en_passant != "-" else "none"})
    assert {"en passant", "KQkq", "KQ", "kq", "Kkq", "-"} <= set(seen), "rights of all kinds, turned into their usual order"


@pytest.mark.parametrize(
    ("fen", "phase", "why"),
    [
        (chess.STARTING_FEN, Phase.OPENING, "14 pieces, both back ranks full"),
        ("4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1", Phase.ENDGAME, "pawns do not count"),
        ("qrbnk3/8/8/8/8/8/8/3NKBR1 w - - 0 1", Phase.MIDDLEGAME, "7 pieces"),
        ("1rbnk3/8/8/8/8/8/8/3NKBR1 w - - 0 1", Phase.ENDGAME, "6 pieces"),
        ("rnbqkb2/8/8/8/8/8/8/2BQKBNR w - - 0 1", Phase.MIDDLEGAME, "10 pieces are too few for an opening"),
        ("rnbqkbn1/8/8/8/8/8/8/2BQKBNR w - - 0 1", Phase.OPENING, "11 pieces, both back ranks with at least 4"),
        ("rnbqkbnr/8/8/8/8/8/NBQ5/3RKBN1 w - - 0 1", Phase.OPENING, "White has 4 at home, his king among them"),
        ("rnbqkbnr/8/8/8/8/8/NBQN4/3RKB2 w - - 0 1", Phase.MIDDLEGAME, "White has 3 at home"),
        ("3rkb2/nbqn4/8/8/8/8/8/RNBQKBNR w - - 0 1", Phase.MIDDLEGAME, "Black has 3 at home"),
        ("3rkb2/pppppppp/nbqn4/8/8/8/8/RNBQKBNR w - - 0 1", Phase.MIDDLEGAME, "pawns are no pieces"),
        ("rnbqkbnr/8/8/8/8/NBQN4/8/3RKBPP w - - 0 1", Phase.MIDDLEGAME, "not even where pawns cannot be"),
        ("QRBNkNBR/8/8/8/8/8/8/qrbnKnbr w - - 0 1", Phase.MIDDLEGAME, "pieces on the opponent's back rank are not at home"),
    ],
)
def test_the_rule_by_example(fen: str, phase: Phase, why: str) -> None:
    assert phase_of(chess.Board(fen)) is phase, why
