"""Which moves end the game in a draw, by the rules and not by an engine's opinion."""

from collections.abc import Hashable

import chess


def drawing_moves(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves after which nobody can win: stalemate, too little material, or the hundredth half-move without progress.

    Mate comes before the fifty-move rule (FIDE Laws 9.6). For repetition, which needs a history, see `repeating_moves`.
    """
    num_enough = (board.pawns | board.rooks | board.queens).bit_count()
    if board.halfmove_clock >= 99 or not num_enough or _may_stalemate(board):
        moves = list(board.legal_moves)
    elif num_enough <= 2:
        # One move can take one man away and turn a pawn into a minor piece: at most two of those that are enough to win.
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
    """Return the legal moves that lead back to a position of the board's own history, its move stack; none for a board without one.

    One return is enough, as in engines' searches: who may go back once may go back again, and three times is a draw.
    """
    num_reversible = min(board.halfmove_clock, len(board.move_stack))
    if num_reversible < 3:
        return []
    earlier = set()
    past = board.copy(stack=num_reversible)
    for _ in range(num_reversible):
        past.pop()
        if past.turn != board.turn:
            earlier.add(_position(past))
    back = []
    for move in board.legal_moves:
        if not board.is_zeroing(move):
            board.push(move)
            if _position(board) in earlier:
                back.append(move)
            board.pop()
    return back


def _position(board: chess.Board) -> Hashable:
    """Return what makes two positions the same (FIDE Laws 9.2), but for whose move it is."""
    men = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings, board.occupied_co[chess.WHITE])
    return men, board.clean_castling_rights(), board.ep_square if board.has_legal_en_passant() else None


def _may_stalemate(board: chess.Board) -> bool:
    """Return False only when no move stalemates; playing every move to see takes as long as the engine's search, and this hardly any time.

    A man that stands on no line with his own king can never be pinned; if he can move now, only being captured or (a pawn) blocked stops
    him, and no move does that to more than two men (castling, en passant).
    """
    rival = not board.turn
    king = board.king(rival)
    assert king is not None
    lines = chess.BB_SQUARES[king]
    mine = board.occupied_co[board.turn]
    if mine & (board.bishops | board.rooks | board.queens | (board.pawns & (chess.BB_RANK_2 | chess.BB_RANK_7))):
        lines |= chess.BB_RANK_ATTACKS[king][0] | chess.BB_FILE_ATTACKS[king][0] | chess.BB_DIAG_ATTACKS[king][0]
    theirs = board.occupied_co[rival]
    free = theirs & ~lines
    pawns = free & board.pawns
    steps = (pawns >> 8 if rival == chess.BLACK else pawns << 8) & ~board.occupied
    num_mobile = steps.bit_count()
    for square in chess.scan_forward(free & ~board.pawns):
        if num_mobile >= 3:
            break
        num_mobile += bool(board.attacks_mask(square) & ~theirs)
    return num_mobile < 3
