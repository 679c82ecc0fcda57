"""Which moves end the game in a draw: against brute force with python-chess, move by move."""

import random
from collections import Counter

import chess
import pytest

from grpo.board.draws import drawing_moves, repeating_moves


def brute_force(board: chess.Board) -> list[chess.Move]:
    drawing = []
    for move in board.legal_moves:
        board.push(move)
        # The hundredth half-move is `is_fifty_moves` if a legal move is left: mate comes first.
        if not board.is_checkmate() and (board.is_stalemate() or board.is_insufficient_material() or board.is_fifty_moves()):
            drawing.append(move)
        board.pop()
    return drawing


def test_drawing_moves_are_those_of_brute_force_in_positions_of_random_play(random_boards: list[chess.Board]) -> None:
    num_drawing = Counter[int]()
    for number, board in enumerate(random_boards[::12]):
        # Every fourth one near the fiftieth move; in the others the short cut (`_may_stalemate`) decides whether moves are played at all.
        late = board.copy(stack=False)
        late.halfmove_clock = 0 if number % 4 else 99
        expected = brute_force(late)
        assert drawing_moves(late) == expected, late.fen()
        num_drawing[late.halfmove_clock] += bool(expected)
    assert num_drawing[0] >= 2 < num_drawing[99], num_drawing


@pytest.mark.parametrize(
    ("fen", "drawing"),
    [
        (chess.STARTING_FEN, ""),
        ("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1", "f1c4 f1f7"),  # Stalemate: the king has no square left. Qf8 mates.
        ("8/8/8/8/8/5k2/7p/7K w - - 0 1", "h1h2"),  # The last pawn falls.
        ("8/8/8/3k4/8/8/3p4/2B1K3 w - - 0 1", "c1d2 e1d2"),
        ("k7/8/8/8/8/8/6pK/8 b - - 0 1", "g2g1b g2g1n"),  # A minor piece alone cannot win.
        ("2B1B1B1/8/7k/8/8/8/6p1/K4R2 b - - 0 1", "g2f1b"),  # What is left are bishops of one color.
        ("1B1B1B2/8/8/7k/8/8/6p1/K7 b - - 0 1", "g2g1b"),  # So are these, and White is far from stalemate.
        ("k7/8/8/8/8/8/6pK/5N2 b - - 0 1", "g2f1b g2f1n"),  # Two of the pieces that can win go in one move.
        ("5K1k/3q4/3P4/8/5Pp1/8/8/8 b - f3 0 1", "g4f3"),  # En passant: White's last move goes.
        ("7k/8/6K1/8/n7/1B6/3PP3/R7 w - - 0 1", "a1a4"),  # The one piece that can move is taken.
        ("8/2Q5/4k3/8/8/8/8/3QK2R w K - 0 1", "d1f3 e1g1 h1f1"),  # Castling takes the last squares as well.
        ("8/5k2/8/8/8/8/8/4K2R w K - 99 80", "e1d1 e1d2 e1e2 e1f1 e1f2 e1g1 h1f1 h1g1 h1h2 h1h3 h1h4 h1h5 h1h6 h1h7 h1h8"),
        ("6k1/5ppp/8/8/8/8/8/R3K3 w - - 98 80", ""),
        ("7k/5ppp/8/8/8/8/P7/1K6 w - - 99 80", "b1a1 b1b2 b1c1 b1c2"),  # A pawn's move is progress.
    ],
)
def test_drawing_moves_worked_by_hand(fen: str, drawing: str) -> None:
    board = chess.Board(fen)
    assert board.is_valid()
    found = drawing_moves(board)
    assert " ".join(sorted(move.uci() for move in found)) == drawing
    assert found == brute_force(board)


def test_repeating_moves_are_those_after_which_python_chess_counts_a_position_twice() -> None:
    rng = random.Random(5)
    num_found = 0
    for _ in range(24):
        board = chess.Board(rng.choice([chess.STARTING_FEN, "r3k2r/8/8/3pP3/8/8/8/R3K2R w KQkq d6 0 1", "8/5k2/8/8/8/2R5/8/4K3 w - - 0 1"]))
        for _ in range(60):
            legal = list(board.legal_moves)
            if not legal:
                break
            expected = []
            for move in legal:
                board.push(move)
                if board.is_repetition(2):
                    expected.append(move)
                board.pop()
            assert repeating_moves(board) == expected, board.fen()
            num_found += len(expected)
            # Back where it came from more often than by chance.
            back = [move for move in legal if len(board.move_stack) > 1 and move.from_square == board.move_stack[-2].to_square]
            board.push(rng.choice(back or legal))
    assert num_found > 100


def test_what_cannot_be_undone_is_no_repetition_castling_rights_and_en_passant_included() -> None:
    board = chess.Board("4k2r/8/8/8/8/8/8/4K2R w Kk - 0 1")
    for uci in ("h1h2", "h8h7", "h2h1"):
        board.push_uci(uci)

    assert repeating_moves(board) == [], "the pieces stand as they did, and the right to castle is gone"
    for uci in ("h7h8", "h1h2", "h8h7"):
        board.push_uci(uci)
    before = list(board.move_stack)
    assert [move.uci() for move in repeating_moves(board)] == ["h2h1"]
    assert board.move_stack == before
    assert repeating_moves(board.copy(stack=False)) == [], "a board without a history repeats nothing"
    board = chess.Board("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1")
    for uci in ("e1e2", "e8e7", "e2e1"):
        board.push_uci(uci)
    assert repeating_moves(board) == [], "the pawn can no longer be taken"
