"""The action table against python-chess, perft and itself."""

import hashlib

import chess
import numpy as np
import pytest

from grpo.board.actions import (
    ACTIONS,
    NUM_ACTIONS,
    action_id,
    action_move,
    legal_action_ids,
    push_random_moves,
    random_move,
)

# https://www.chessprogramming.org/Perft_Results, and the mirror of one of them so that Black starts too.
PERFT = (
    (chess.STARTING_FEN, (20, 400, 8_902)),
    ("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", (48, 2_039, 97_862)),
    ("8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", (14, 191, 2_812, 43_238)),
    ("r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1", (6, 264, 9_467)),
    ("r2q1rk1/pP1p2pp/Q4n2/bbp1p3/Np6/1B3NBn/pPPP1PPP/R3K2R b KQ - 0 1", (6, 264, 9_467)),
    ("rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8", (44, 1_486)),
)
TABLE_SHA256 = "41536cd09f4af130d2525f022aeef3fc3ee8fcc7110cd3a13f0f166fdf2bbd7a"


def test_the_order_of_the_table_never_changes_because_checkpoints_name_moves_by_number() -> None:
    names = [move.uci() for move in ACTIONS]
    assert NUM_ACTIONS == len(names) == 1_968
    assert hashlib.sha256(" ".join(names).encode()).hexdigest() == TABLE_SHA256


@pytest.mark.parametrize(
    ("black", "white"),
    [("e7e5", "e2e4"), ("e8g8", "e1g1"), ("e8c8", "e1c1"), ("d4e3", "d5e6"), ("a2b1n", "a7b8n"), ("h2h1q", "h7h8q"), ("g8f6", "g1f3")],
)
def test_a_move_of_black_has_the_id_of_its_mirror_image_by_white(black: str, white: str) -> None:
    index = action_id(chess.Move.from_uci(white), chess.WHITE)
    assert ACTIONS[index].uci() == white
    assert action_id(chess.Move.from_uci(black), chess.BLACK) == index
    assert action_move(index, chess.BLACK).uci() == black


@pytest.mark.parametrize("uci", ["0000", "N@e4", "a1b4", "a6a7q", "e7g8q", "e4e5n"])
def test_what_is_no_move_of_standard_chess_is_refused_by_name(uci: str) -> None:
    for turn in chess.COLORS:
        with pytest.raises(ValueError, match=uci):
            action_id(chess.Move.from_uci(uci), turn)


def test_the_legal_ids_are_those_of_the_legal_moves_seen_by_the_mover(random_boards: list[chess.Board]) -> None:
    number = {move.uci(): index for index, move in enumerate(ACTIONS)}
    for board in random_boards[::4]:
        view = board if board.turn == chess.WHITE else board.mirror()
        assert legal_action_ids(board) == sorted(number[move.uci()] for move in view.legal_moves), board.fen()


@pytest.mark.parametrize("fen", ["8/8/8/8/8/8/8/QQ6 w - - 0 1", "3r3k/8/8/8/8/8/8/R3K2R w KQ - 0 1", "7k/8/8/K1pP3r/8/8/8/8 w - c6 0 1"])
def test_rare_positions_have_the_legal_ids_of_python_chess(fen: str) -> None:
    # Without a king; castling through check; en passant that would open the rank of the king.
    for board in (chess.Board(fen), chess.Board(fen).mirror()):
        assert {action_move(index, board.turn) for index in legal_action_ids(board)} == set(board.legal_moves)


@pytest.mark.parametrize(("fen", "counts"), PERFT)
def test_games_walked_through_ids_alone_count_as_perft_says(fen: str, counts: tuple[int, ...]) -> None:
    def leaves(board: chess.Board, depth: int) -> int:
        ids = legal_action_ids(board)
        if depth == 1:
            return len(ids)
        total = 0
        for index in ids:
            board.push(action_move(index, board.turn))
            total += leaves(board, depth - 1)
            board.pop()
        return total

    assert [leaves(chess.Board(fen), depth) for depth in range(1, len(counts) + 1)] == list(counts)


@pytest.mark.parametrize("fen", [chess.STARTING_FEN, PERFT[1][0], PERFT[4][0]])
def test_a_random_move_is_drawn_by_its_place_among_the_moves_by_text(fen: str) -> None:
    board, rng, same = chess.Board(fen), np.random.default_rng(1), np.random.default_rng(1)
    by_text = sorted(move.uci() for move in board.legal_moves)
    assert [random_move(board, rng).uci() for _ in range(60)] == [by_text[same.integers(len(by_text))] for _ in range(60)]


def test_random_moves_are_pushed_until_no_legal_move_is_left() -> None:
    board, mated = chess.Board(), chess.Board("7k/6pp/8/8/8/8/8/K3R3 w - - 0 1")
    push_random_moves(board, 9, np.random.default_rng(0))
    assert board.ply() == 9
    mated.push_uci("e1e8")
    push_random_moves(mated, 9, np.random.default_rng(0))
    assert mated.peek().uci() == "e1e8"
