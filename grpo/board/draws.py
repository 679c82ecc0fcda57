"""Moves that draw by rule: stalemate, insufficient material, fifty-move rule, repetition; no engine is asked."""

from collections.abc import Hashable

import chess


def drawing_moves(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves that end the game in a draw: stalemate, insufficient material or the fifty-move rule.

    Checkmate takes precedence over the fifty-move rule (FIDE Laws 9.6). Repetition needs a history: see `repeating_moves`.
    """
    num_enough = (board.pawns | board.rooks | board.queens).bit_count()
    if board.halfmove_clock >= 99 or not num_enough or _may_stalemate(board):
        moves = list(board.legal_moves)
    elif num_enough <= 2:
        # One move can capture one piece and promote a pawn to a minor piece, so it removes at most two winning pieces.
        moves = [move for move in board.legal_moves if move.promotion or board.is_capture(move)]
    else:
        return []
    drawing = []
    for move in moves:
        board.push(move)
        can_move = any(board.legal_moves)
        is_drawn = board.halfmove_clock >= 100 or board.is_insufficient_material() if can_move else not board.is_check()
        if is_drawn:
            drawing.append(move)
        board.pop()
    return drawing


def repeating_moves(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves that repeat a position of the board's move stack; none if the stack is empty.

    One repetition counts as a draw, as in engine searches: a position that can be repeated once can be repeated again.
    """
    num_reversible = min(board.halfmove_clock, len(board.move_stack))
    if num_reversible < 3:
        return []
    earlier: dict[Hashable, set[Hashable]] = {}
    past = board.copy(stack=num_reversible)
    for _ in range(num_reversible):
        past.pop()
        if past.turn != board.turn:
            earlier.setdefault(_occupied(past), set()).add(repetition_key(past))
    if not earlier:
        return []
    mover, own = board.turn, board.occupied_co[board.turn]
    theirs = board.occupied_co[not mover]
    back = []
    for move in board.generate_legal_moves(own & ~board.pawns):
        # Hardly any move leads to squares that were occupied before: most need not be tried.
        after = own ^ chess.BB_SQUARES[move.from_square] ^ chess.BB_SQUARES[move.to_square]
        candidates = earlier.get((after, theirs) if mover == chess.WHITE else (theirs, after))
        if candidates and not board.is_castling(move):  # Which no position before it can follow.
            board.push(move)
            if repetition_key(board) in candidates:
                back.append(move)
            board.pop()
    return back


def _occupied(board: chess.Board) -> Hashable:
    return board.occupied_co[chess.WHITE], board.occupied_co[chess.BLACK]


def repetition_key(board: chess.Board) -> Hashable:
    """Return a key that is equal for positions that repeat each other (FIDE Laws 9.2); building a FEN takes 20 times as long."""
    pieces = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings, board.occupied_co[chess.WHITE])
    return pieces, board.turn, board.clean_castling_rights(), board.ep_square if board.has_legal_en_passant() else None


def _may_stalemate(board: chess.Board) -> bool:
    """Return False only if no move stalemates: a fast filter, because trying every move takes as long as the engine's search.

    A piece that shares no line with its own king can never be pinned. If it can move now, only a capture or (of a pawn) a block stops it,
    and no move does that to more than two pieces (castling, en passant).
    """
    opponent = not board.turn
    king = board.king(opponent)
    assert king is not None
    lines = chess.BB_SQUARES[king]
    mine = board.occupied_co[board.turn]
    if mine & (board.bishops | board.rooks | board.queens | (board.pawns & (chess.BB_RANK_2 | chess.BB_RANK_7))):
        lines |= chess.BB_RANK_ATTACKS[king][0] | chess.BB_FILE_ATTACKS[king][0] | chess.BB_DIAG_ATTACKS[king][0]
    theirs = board.occupied_co[opponent]
    free = theirs & ~lines
    pawns = free & board.pawns
    steps = (pawns >> 8 if opponent == chess.BLACK else pawns << 8) & ~board.occupied
    num_mobile = steps.bit_count()
    for square in chess.scan_forward(free & ~board.pawns):
        if num_mobile >= 3:
            break
        num_mobile += bool(board.attacks_mask(square) & ~theirs)
    return num_mobile < 3
