"""UCI search with a language model: the move that it names, or a resignation after the allowed number of attempts."""

import chess

from grpo.base.seeding import numpy_stream
from grpo.language.generate.retries import AnswerGenerator, moves_with_retries
from grpo.uci.options import BEST_MOVE, UciOptions
from grpo.uci.search import UciSearchResult


class LanguageMoveFinder:
    """Chooses moves with a language model, one board at a time."""

    def __init__(self, generator: AnswerGenerator) -> None:
        """Store the language model."""
        self._generator = generator

    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Return the named move, and a remark with the answer counts.

        Samples depend on the seed, the game and the number of moves played, so that a repeated `go` on the same board gives the same move.
        """
        temperature = None if options.temperature == BEST_MOVE else options.temperature
        stream = numpy_stream(seed, "uci", num_games, board.ply())
        (reply,) = moves_with_retries(self._generator, [board], temperature=temperature, streams=[stream], allowed=allowed)
        counts = reply.counts
        remark = f"language model: {counts.num_answers} answers, {counts.num_unreadable} unreadable, {counts.num_illegal} illegal"
        if reply.move is None:
            return UciSearchResult(best=None, shown=(), remarks=(f"{remark}: no legal move, so it resigns",))
        return UciSearchResult(best=reply.move, shown=(reply.move,), remarks=(remark,))
