"""A language model as a player: illegal answers are counted and retried, and then the game is forfeited."""

from collections.abc import Sequence

import chess
import numpy as np

from grpo.language.generate.retries import AnswerGenerator, moves_with_retries
from grpo.play.players import NUM_ROOTS, GameStreams
from grpo.play.replies import Reply


class LanguagePlayer:
    """Plays the moves that a language model names, for a batch of games."""

    def __init__(self, generator: AnswerGenerator, name: str, *, temperature: float | None, rng: np.random.Generator) -> None:
        """Draw one number from `rng` as the root of the streams of all games.

        Args:
            generator: The language model.
            name: Name of the player.
            temperature: Temperature of the first answer for a move, None for greedy; retries are sampled at T = 1.
            rng: Source of the root seed.
        """
        self.name = name
        self._generator = generator
        self._temperature = temperature
        self._streams = GameStreams(int(rng.integers(NUM_ROOTS)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[Reply]:
        """Return replies with a move, or without one if no allowed answer named a legal move, and with the answer counts."""
        streams = [self._streams.of(game) for game in games]
        return moves_with_retries(self._generator, boards, temperature=self._temperature, streams=streams)
