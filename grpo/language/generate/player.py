"""A language model as a player: illegal answers are counted and asked again by rule, and then the game is lost."""

from collections.abc import Sequence

import chess
import numpy as np

from grpo.language.generate.retries import Speaker, asked_moves
from grpo.play.players import NUM_ROOTS, GameStreams
from grpo.play.replies import Reply


class LanguagePlayer:
    """Plays the moves that a language model names; all games that wait for it are asked about together."""

    def __init__(self, speaker: Speaker, name: str, *, temperature: float | None, rng: np.random.Generator) -> None:
        """Take one number from `rng`, from which the streams of all games follow.

        Args:
            speaker: who names the moves.
            name: of the player.
            temperature: of the first answer for a move, None for the best one; what is asked again is drawn at T = 1.
            rng: root of what is drawn.
        """
        self.name = name
        self._speaker = speaker
        self._temperature = temperature
        self._streams = GameStreams(int(rng.integers(NUM_ROOTS)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[Reply]:
        """Return moves, or none where every answer that the rule allows named no legal one; and what the answers were like."""
        streams = [self._streams.of(game) for game in games]
        return asked_moves(self._speaker, boards, temperature=self._temperature, streams=streams)
