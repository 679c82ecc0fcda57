"""What the UCI engine plays with a language model: the move that it names, or, after as many questions as the rule allows, none."""

import chess

from grpo.base.seeding import numpy_stream
from grpo.language.generate.retries import Speaker, asked_moves
from grpo.uci.options import BEST_MOVE, UciOptions
from grpo.uci.search import UciSearchResult


class LanguageMoveFinder:
    """Asks a language model about one board at a time."""

    def __init__(self, speaker: Speaker) -> None:
        """Ask nothing yet."""
        self._speaker = speaker

    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Return the move that it names, and in words what its answers were like.

        What is drawn depends on seed, game and number of moves played, so that asking again about the same board gives the same move.
        """
        temperature = None if options.temperature == BEST_MOVE else options.temperature
        stream = numpy_stream(seed, "uci", num_games, board.ply())
        (reply,) = asked_moves(self._speaker, [board], temperature=temperature, streams=[stream], allowed=allowed)
        counts = reply.counts
        remark = f"language model: {counts.num_answers} answers, {counts.num_unreadable} unreadable, {counts.num_illegal} illegal"
        if reply.move is None:
            return UciSearchResult(best=None, shown=(), remarks=(f"{remark}: no legal move, so the game is given up",))
        return UciSearchResult(best=reply.move, shown=(reply.move,), remarks=(remark,))
