"""Moves that draw by rule or repeat a position."""

from collections.abc import Hashable

import chess


def drawing_moves(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves that draw by stalemate, insufficient material or 100 plies without capture or pawn move.

    A move that mates is never a draw.
    """
    num_mating_pieces = (board.pawns | board.rooks | board.queens).bit_count()
    if board.halfmove_clock >= 99 or not num_mating_pieces or _may_stalemate(board):
        moves = list(board.legal_moves)
    elif num_mating_pieces <= 2:
        # Material suffices while a pawn, rook or queen is left. A move removes at most two: a captured piece and an underpromoted pawn.
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
    """Return the legal moves that repeat a position of the move stack. One repetition counts, as in engines."""
    # No position before the last capture or pawn move can recur.
    num_reversible = min(board.halfmove_clock, len(board.move_stack))
    # The shortest repetition has four plies, the move included.
    if num_reversible < 3:
        return []
    earlier: dict[Hashable, set[Hashable]] = {}
    past = board.copy(stack=num_reversible)
    for _ in range(num_reversible):
        past.pop()
        if past.turn != board.turn:
            occupied = past.occupied_co[chess.WHITE], past.occupied_co[chess.BLACK]
            earlier.setdefault(occupied, set()).add(repetition_key(past))
    if not earlier:
        return []
    mover, own = board.turn, board.occupied_co[board.turn]
    theirs = board.occupied_co[not mover]
    repeating = []
    for move in board.generate_legal_moves(own & ~board.pawns):
        # Compare occupied squares first, because playing every move is slow.
        after = own ^ chess.BB_SQUARES[move.from_square] ^ chess.BB_SQUARES[move.to_square]
        candidates = earlier.get((after, theirs) if mover == chess.WHITE else (theirs, after))
        # Castling changes the rights, so it repeats nothing.
        if candidates and not board.is_castling(move):
            board.push(move)
            if repetition_key(board) in candidates:
                repeating.append(move)
            board.pop()
    return repeating


def repetition_key(board: chess.Board) -> Hashable:
    """Return a key, equal for positions that repeat each other (FIDE Laws 9.2); 20 times faster than a FEN."""
    pieces = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings, board.occupied_co[chess.WHITE])
    return pieces, board.turn, board.clean_castling_rights(), board.ep_square if board.has_legal_en_passant() else None


def _may_stalemate(board: chess.Board) -> bool:
    """Return False only if no legal move stalemates the opponent.

    A piece of the opponent is mobile if it has a move and shares no line with its king, so it cannot be pinned. A move captures or blocks
    at most one mobile piece. So two mobile pieces rule out stalemate; three are demanded, to be safe.
    """
    opponent = not board.turn
    king = board.king(opponent)
    assert king is not None
    lines = chess.BB_SQUARES[king]
    # Only rooks, bishops and queens pin. A pawn on rank 2 or 7 may become one.
    if board.occupied_co[board.turn] & (board.bishops | board.rooks | board.queens | (board.pawns & (chess.BB_RANK_2 | chess.BB_RANK_7))):
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
