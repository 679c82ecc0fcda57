"""A language model as games and measurements meet it; imported only where a policy is one, for transformers takes seconds."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess
import torch

from grpo.base.seeding import numpy_stream
from grpo.language.generate.player import AnswerGenerator, LanguageMoveFinder, LanguagePlayer
from grpo.language.learn.evaluation import EvaluationBoards, evaluate_language
from grpo.language.model.policy import LanguagePolicy
from grpo.match.players import Player
from grpo.match.regret import HeldoutScores
from grpo.policy.files import LANGUAGE
from grpo.policy.policy import weights_hash
from grpo.settings.language import LanguageConfig
from grpo.uci.search import MoveFinder

if TYPE_CHECKING:
    import pyarrow as pa

    from steps.policies.open import Competitor


class LanguageCompetitor:
    """A language model, which names its moves in words."""

    kind = LANGUAGE
    is_deterministic = False
    """Its best answer is always the same; but one without a legal move is followed by others, which are drawn."""

    def __init__(self, generator: AnswerGenerator, hash_weights: Callable[[], str]) -> None:
        """Take who is asked, and what finds the hash of the weights: of a large model that takes seconds, and games do without."""
        self._hash_weights = hash_weights
        self.facts: Mapping[str, Any] = {"policy": LANGUAGE, "max_questions": generator.config.max_questions}
        self._generator = generator

    @cached_property
    def weights(self) -> str:
        """A hash of the weights."""
        return self._hash_weights()

    def best_player(self, name: str, *, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return who plays the best answer's move, and draws from the stream of this name what is asked again."""
        return LanguagePlayer(self._generator, name, temperature=None, rng=numpy_stream(seed, *stream))

    def sampling_player(self, name: str, *, temperature: float, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return who draws the first answer too, at a temperature."""
        return LanguagePlayer(self._generator, name, temperature=temperature, rng=numpy_stream(seed, *stream))

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        """Return regret, expected value, and the shares of best answers that are whole and legal."""
        return evaluate_language(self._generator, EvaluationBoards.of_table(boards, config=self._generator.config)).metrics()

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        """Return regret and expected value, board by board."""
        return evaluate_language(self._generator, EvaluationBoards.of_table(boards, config=self._generator.config)).scores

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: "Competitor | None" = None) -> None:
        """Write none: they are told with the probabilities of moves."""

    def move_probabilities(self, boards: Sequence[chess.Board]) -> None:
        """Return None: its answers are texts."""

    def move_finder(self) -> MoveFinder:
        """Return what asks about one board at a time."""
        return LanguageMoveFinder(self._generator)


def open_language_policy(folder: Path, device: torch.device, rules: LanguageConfig | None) -> LanguageCompetitor:
    """Return the language policy of a folder, asked and judged by these rules, or else by those that it was saved with.

    Raises PlainError when the files do not make one.
    """
    policy = LanguagePolicy.load(folder, device)
    return LanguageCompetitor(AnswerGenerator(policy, rules or policy.config), lambda: weights_hash(policy))
