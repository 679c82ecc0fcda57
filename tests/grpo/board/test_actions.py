"""The action table against python-chess, perft and itself."""

import hashlib

import chess
import pytest

from grpo.board.actions import (
    ACTIONS,
    NUM_ACTIONS,
    action_id,
    action_move,
    legal_action_ids,
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


def test_the_table_holds_1792_plain_moves_and_176_promotions_all_different() -> None:
    promotions = [move for move in ACTIONS if move.promotion]
    assert NUM_ACTIONS == len(ACTIONS) == len(set(ACTIONS)) == 1_968
    assert len(promotions) == 22 * 4 * 2
    assert {move.promotion for move in promotions} == {chess.KNIGHT, chess.BISHOP, chess.ROOK, chess.QUEEN}


def test_the_plain_moves_are_those_of_a_queen_and_of_a_knight_on_an_empty_board() -> None:
    expected = set()
    for start in chess.SQUARES:
        for end in chess.SQUARES:
            files = abs(chess.square_file(start) - chess.square_file(end))
            ranks = abs(chess.square_rank(start) - chess.square_rank(end))
            is_line = start != end and (files == 0 or ranks == 0 or files == ranks)
            if is_line or sorted((files, ranks)) == [1, 2]:
                expected.add(chess.Move(start, end))
    assert {move for move in ACTIONS if not move.promotion} == expected


def test_the_order_of_the_table_never_changes_because_checkpoints_name_moves_by_number() -> None:
    names = [move.uci() for move in ACTIONS]
    assert names == sorted(names)
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


@pytest.mark.parametrize("turn", chess.COLORS)
@pytest.mark.parametrize("uci", ["0000", "N@e4", "a1b4", "a1h7", "a6a7q", "e7g8q", "e4e5n"])
def test_what_is_no_move_of_standard_chess_is_refused_by_name(uci: str, turn: chess.Color) -> None:
    with pytest.raises(ValueError, match=rf"{uci} is not one of the 1968 UCI moves"):
        action_id(chess.Move.from_uci(uci), turn)


def test_the_legal_ids_are_those_of_the_legal_moves_seen_by_the_mover_on_5000_positions(random_boards: list[chess.Board]) -> None:
    number = {move.uci(): index for index, move in enumerate(ACTIONS)}
    for board in random_boards:
        view = board if board.turn == chess.WHITE else board.mirror()
        assert legal_action_ids(board) == sorted(number[move.uci()] for move in view.legal_moves), board.fen()


def test_the_legal_ids_turn_back_into_exactly_the_legal_moves_on_5000_positions(random_boards: list[chess.Board]) -> None:
    for board in random_boards:
        moves = [action_move(index, board.turn) for index in legal_action_ids(board)]
        assert len(moves) == board.legal_moves.count()
        assert set(moves) == set(board.legal_moves), board.fen()


@pytest.mark.parametrize("turn", chess.COLORS)
@pytest.mark.parametrize(
    ("fen", "moves"),
    [
        ("4r2k/8/8/8/8/8/4R3/4K3 w - - 0 1", "e1d1 e1d2 e1f1 e1f2 e2e3 e2e4 e2e5 e2e6 e2e7 e2e8"),  # Pinned on its file.
        ("7k/8/8/8/7b/8/5B2/4K3 w - - 0 1", "e1d1 e1d2 e1e2 e1f1 f2g3 f2h4"),  # Pinned on its diagonal.
        ("4r2k/8/8/8/8/8/4N3/4K3 w - - 0 1", "e1d1 e1d2 e1f1 e1f2"),  # A pinned knight has no move.
        ("4r2k/8/8/8/7b/8/8/4K2R w K - 0 1", "e1d1 e1d2 e1f1"),  # Double check: the king alone.
        ("7k/8/8/8/7b/8/8/R3K3 w Q - 0 1", "e1d1 e1d2 e1e2 e1f1"),  # In check nobody castles.
        ("7k/8/8/K1pP3r/8/8/8/8 w - c6 0 1", "a5a4 a5a6 a5b5 a5b6 d5d6"),  # En passant would open the rank.
        ("k7/8/8/8/8/8/8/R3K2R w KQ - 0 1", None),
        ("1r5k/P7/8/8/8/8/8/K7 w - - 0 1", None),
        ("3r3k/8/8/8/8/8/8/R3K2R w KQ - 0 1", None),  # Castling through check.
        ("8/8/8/8/8/8/8/QQ6 w - - 0 1", None),  # No king at all.
    ],
)
def test_pins_checks_castling_and_promotions_by_hand(fen: str, moves: str | None, turn: chess.Color) -> None:
    board = chess.Board(fen) if turn == chess.WHITE else chess.Board(fen).mirror()
    found = [action_move(index, chess.WHITE).uci() for index in legal_action_ids(board)]
    assert sorted(found) == sorted(move.uci() for move in chess.Board(fen).legal_moves)
    if moves is not None:
        assert " ".join(sorted(found)) == moves


def test_a_position_and_its_mirror_have_the_same_legal_ids(random_boards: list[chess.Board]) -> None:
    for board in random_boards[::5]:
        assert legal_action_ids(board) == legal_action_ids(board.mirror()), board.fen()


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
