"""Encoding of a position in 71 bytes (`uint8`), and a text key. Both see the position from the mover's side.

- 0-63: piece on each square a1..h8: 0 none, 1-6 the mover's pawn..king, 7-12 the opponent's
- 64-67: castling rights: the mover's (king side, queen side), then the opponent's
- 68: file (1-8) of the en-passant square if a capture there is legal, else 0
- 69: half-move clock (plies since a capture or pawn move), at most 100
- 70: 1 if the mover is Black; only `decode` reads it
"""

from collections.abc import Sequence
from typing import Final

import chess
import numpy as np
from numpy.typing import NDArray

NUM_PIECE_CODES: Final = 13
CASTLING: Final = slice(64, 68)
EN_PASSANT: Final = 68
HALFMOVE_CLOCK: Final = 69
BLACK_TO_MOVE: Final = 70
ENCODING_SIZE: Final = 71
MAX_HALFMOVE_CLOCK: Final = 100

_CASTLING_ROOKS: Final = (chess.BB_H1, chess.BB_A1, chess.BB_H8, chess.BB_A8)
# Placement (a FEN's first field) -> one character per square, "." if empty.
_SQUARES_OF: Final = str.maketrans({"/": "", **{str(count): "." * count for count in range(1, 9)}})
_CODE_OF_LETTER: Final = np.array([".PNBRQKpnbrqk".find(chr(letter)) for letter in range(128)]).astype(np.uint8)
_TURNED_CODE: Final = np.array([0, *range(7, 13), *range(1, 7)], dtype=np.uint8)


def mover_view(board: chess.Board) -> chess.Board:
    """Return the board if White is to move, else its mirror image (ranks reversed) with swapped colors."""
    return board if board.turn == chess.WHITE else board.mirror()


def encode(boards: Sequence[chess.Board]) -> NDArray[np.uint8]:
    """Return encodings [len(boards), 71]; Chess960 castling rights are not supported."""
    rows = np.zeros((len(boards), ENCODING_SIZE), dtype=np.uint8)
    is_black = np.array([board.turn == chess.BLACK for board in boards], dtype=np.bool_)
    sets = np.array([_sets(board) for board in boards], dtype=np.uint64).reshape(-1, 8)
    sets[is_black] = sets[is_black].byteswap()  # A byte is a rank, and Black sees the ranks reversed.
    planes = (sets[:, 6:, None] & sets[:, None, :6]).astype("<u8")  # [boards, 2 sides, 6 kinds]
    is_on = np.unpackbits(planes.view(np.uint8), bitorder="little").reshape(-1, 12, 64)
    rows[:, :64] = (is_on * np.arange(1, 13, dtype=np.uint8)[:, None]).sum(1, dtype=np.uint8)
    rights = [board.clean_castling_rights() for board in boards]
    for slot, rook in enumerate(_CASTLING_ROOKS):
        rows[:, CASTLING.start + slot] = [
            (rook if board.turn else chess.flip_vertical(rook)) & right > 0 for board, right in zip(boards, rights, strict=True)
        ]
    rows[:, EN_PASSANT] = [_en_passant_file(board) for board in boards]
    rows[:, HALFMOVE_CLOCK] = [min(board.halfmove_clock, MAX_HALFMOVE_CLOCK) for board in boards]
    rows[:, BLACK_TO_MOVE] = is_black
    return rows


def _sets(board: chess.Board) -> tuple[int, ...]:
    kinds = board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings
    return (*kinds, board.occupied_co[board.turn], board.occupied_co[not board.turn])


def _en_passant_file(board: chess.Board) -> int:
    return chess.square_file(board.ep_square) + 1 if board.ep_square is not None and board.has_legal_en_passant() else 0


def encode_fens(fens: Sequence[str]) -> NDArray[np.uint8]:
    """Return encodings [len(fens), 71]. A FEN may name an en-passant square only if a capture there is legal, as in `board.fen()`."""
    rows = np.zeros((len(fens), ENCODING_SIZE), dtype=np.uint8)
    parts = [fen.split(" ", 5) for fen in fens]
    is_black = np.array([turn == "b" for _, turn, *_ in parts], dtype=np.bool_)
    squares = "".join(placement.translate(_SQUARES_OF) for placement, *_ in parts)
    # A FEN lists rank 8 first. Black's view also begins with rank 8, so only White's ranks are flipped.
    codes = _CODE_OF_LETTER[np.frombuffer(squares.encode("ascii"), dtype=np.uint8)].reshape(-1, 8, 8)
    rows[:, :64] = np.where(is_black[:, None, None], _TURNED_CODE[codes], codes[:, ::-1]).reshape(-1, 64)
    for slot, (right, turned) in enumerate(zip("KQkq", "kqKQ", strict=True)):
        rows[:, CASTLING.start + slot] = [(turned if turn == "b" else right) in castling for _, turn, castling, *_ in parts]
    rows[:, EN_PASSANT] = ["-abcdefgh".index(square[0]) for _, _, _, square, *_ in parts]
    rows[:, HALFMOVE_CLOCK] = [min(int(clock), MAX_HALFMOVE_CLOCK) for _, _, _, _, clock, _ in parts]
    rows[:, BLACK_TO_MOVE] = is_black
    return rows


def decode(row: NDArray[np.uint8]) -> chess.Board:
    """Return the board of an encoding [71], with full-move number 1 and an empty move stack."""
    board = chess.Board.empty()
    for square, code in enumerate(row[:64].tolist()):
        if code:
            is_mover = code <= 6
            board.set_piece_at(square, chess.Piece(code if is_mover else code - 6, is_mover))
    for rook, has_right in zip(_CASTLING_ROOKS, row[CASTLING].tolist(), strict=True):
        if has_right:
            board.castling_rights |= rook
    en_passant = int(row[EN_PASSANT])
    board.ep_square = chess.square(en_passant - 1, 5) if en_passant else None
    board.halfmove_clock = int(row[HALFMOVE_CLOCK])
    return board.mirror() if row[BLACK_TO_MOVE] else board


def fen_of(board: chess.Board) -> str:
    """Return `board.fen()` of standard chess in a third of the time."""
    squares = ["1"] * 64
    kinds = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings)
    for color, symbols in ((chess.WHITE, "PNBRQK"), (chess.BLACK, "pnbrqk")):
        for symbol, kind in zip(symbols, kinds, strict=True):
            for square in chess.scan_forward(kind & board.occupied_co[color]):
                squares[square ^ 56] = symbol  # ^ 56 flips the ranks: a FEN begins at the eighth.
    placement = "/".join(["".join(squares[start : start + 8]) for start in range(0, 64, 8)])
    for length in range(8, 1, -1):
        placement = placement.replace("1" * length, str(length))
    castling = board.castling_xfen() if board.castling_rights else "-"
    en_passant = chess.SQUARE_NAMES[board.ep_square] if board.ep_square is not None and board.has_legal_en_passant() else "-"
    return f"{placement} {'w' if board.turn else 'b'} {castling} {en_passant} {board.halfmove_clock} {board.fullmove_number}"


def mover_fen(board: chess.Board) -> str:
    return turned_fen(fen_of(board))


def turned_fen(fen: str) -> str:
    """Return the FEN of the `mover_view` of a FEN's board."""
    placement, turn, castling, en_passant, clocks = fen.split(" ", 4)
    if turn == "w":
        return fen
    placement = "/".join(reversed(placement.swapcase().split("/")))
    castling = "".join(sorted(castling.swapcase(), key="KQkq-".index))
    return f"{placement} w {castling} {en_passant.replace('3', '6')} {clocks}"


def position_key(board: chess.Board) -> str:
    """Return a text that leaves out the clocks. A position and its color mirror have the same key."""
    return key_of_fen(mover_fen(board))


def key_of_fen(fen: str) -> str:
    """Return the `position_key` of a `mover_fen`."""
    return " ".join(fen.split(" ", 4)[:4])
