"""Action ids (0-1967) of UCI moves, seen from the mover's side: Black's e7e5 has the id of White's e2e4.

The actions are all queen and knight moves on an empty board (1,792) and all promotions (176).
"""

from typing import Final

import chess
import numpy as np
from numpy.typing import NDArray


def _all_moves() -> list[chess.Move]:
    moves: list[chess.Move] = []
    for start in chess.SQUARES:
        lines = chess.BB_RANK_ATTACKS[start][0] | chess.BB_FILE_ATTACKS[start][0] | chess.BB_DIAG_ATTACKS[start][0]
        moves += [chess.Move(start, end) for end in chess.SquareSet(lines | chess.BB_KNIGHT_ATTACKS[start])]
    for rank_from, rank_to in ((6, 7), (1, 0)):
        for file_from in range(8):
            for file_to in range(max(0, file_from - 1), min(7, file_from + 1) + 1):
                start, end = chess.square(file_from, rank_from), chess.square(file_to, rank_to)
                moves.extend(chess.Move(start, end, promotion=piece) for piece in (chess.KNIGHT, chess.BISHOP, chess.ROOK, chess.QUEEN))
    return sorted(moves, key=chess.Move.uci)


ACTIONS: Final[tuple[chess.Move, ...]] = tuple(_all_moves())  # Id -> White's move.
NUM_ACTIONS: Final = len(ACTIONS)

_NO_ACTION: Final = -1


def _lookup_table(turn: chess.Color) -> NDArray[np.int16]:
    table = np.full((64, 64, 6), _NO_ACTION, dtype=np.int16)
    for index, move in enumerate(ACTIONS):
        start, end = move.from_square, move.to_square
        if turn == chess.BLACK:
            start, end = chess.square_mirror(start), chess.square_mirror(end)
        table[start, end, move.promotion or 0] = index
    return table


# Player to move -> [from][to][promotion piece or 0] -> id. A dictionary takes 1.5 times as long.
_LOOKUP: Final[dict[chess.Color, list[list[list[int]]]]] = {turn: _lookup_table(turn).tolist() for turn in chess.COLORS}


def mirror_move(move: chess.Move) -> chess.Move:
    return chess.Move(chess.square_mirror(move.from_square), chess.square_mirror(move.to_square), promotion=move.promotion)


def action_id(move: chess.Move, turn: chess.Color) -> int:
    """Raises ValueError if the move is no action, such as a null move."""
    index = _LOOKUP[turn][move.from_square][move.to_square][move.promotion or 0]
    if index == _NO_ACTION or move.drop is not None:
        raise ValueError(f"{move.uci()} is not one of the {NUM_ACTIONS} UCI moves of standard chess")
    return index


def action_move(index: int, turn: chess.Color) -> chess.Move:
    return ACTIONS[index] if turn == chess.WHITE else mirror_move(ACTIONS[index])


ACTION_UCI: Final[dict[chess.Color, tuple[str, ...]]] = {
    turn: tuple(action_move(index, turn).uci() for index in range(NUM_ACTIONS)) for turn in chess.COLORS
}
ID_OF_UCI: Final[dict[chess.Color, dict[str, int]]] = {
    turn: {uci: index for index, uci in enumerate(actions)} for turn, actions in ACTION_UCI.items()
}


def legal_action_ids(board: chess.Board) -> list[int]:
    """Return the ids of all legal moves, ascending."""
    lookup = _LOOKUP[board.turn]
    turn, own = board.turn, board.occupied_co[board.turn]
    king = board.king(turn)
    ids: list[int] = []
    slow = own
    if king is not None and not board.is_check():
        # An unpinned piece, except pawn and king, can move to every attacked square without an own piece. This takes half the time of
        # `generate_legal_moves`, which serves the other pieces (`slow`).
        lines = chess.BB_RANK_ATTACKS[king][0] | chess.BB_FILE_ATTACKS[king][0] | chess.BB_DIAG_ATTACKS[king][0]
        for start in chess.scan_forward(own & ~board.pawns & ~board.kings):
            square = chess.BB_SQUARES[start]
            if not (square & lines and board.is_pinned(turn, start)):
                slow &= ~square
                row = lookup[start]
                ids += [row[end][0] for end in chess.scan_forward(board.attacks_mask(start) & ~own)]
    ids += [lookup[m.from_square][m.to_square][m.promotion or 0] for m in board.generate_legal_moves(slow)]
    return sorted(ids)


def random_move(board: chess.Board, rng: np.random.Generator) -> chess.Move:
    """Draw uniformly from the legal moves, sorted by UCI text."""
    ids = sorted(legal_action_ids(board), key=ACTION_UCI[board.turn].__getitem__)
    return action_move(ids[int(rng.integers(len(ids)))], board.turn)


def push_random_moves(board: chess.Board, count: int, rng: np.random.Generator) -> None:
    """Push `count` random moves, or fewer if the game ends."""
    for _ in range(count):
        if not any(board.legal_moves):
            return
        board.push(random_move(board, rng))
