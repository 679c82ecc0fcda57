"""A language model as games and measurements meet it; imported only where a policy is one, for transformers takes seconds."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import chess
import torch

from grpo.base.seeding import numpy_stream
from grpo.language.generate.player import AnswerGenerator, LanguageMoveFinder, LanguagePlayer
from grpo.language.learn.evaluation import EvaluationBoards, evaluate_language
from grpo.language.model.policy import LanguagePolicy
from grpo.match.players import Player
from grpo.match.regret import HeldoutScores
from grpo.policy.policy import weights_hash
from grpo.settings.language import LanguageConfig
from grpo.settings.tree import Settings
from grpo.uci.search import MoveFinder
from steps.common.policies.competitor import Competitor

if TYPE_CHECKING:
    import pyarrow as pa


def open_competitor(folder: Path, device: torch.device, settings: Settings | None) -> Competitor:
    """Return the language model of a folder; `[language]` says how often it is asked in games, and on how many boards it is judged."""
    return LanguageCompetitor(LanguagePolicy.load(folder, device), None if settings is None else settings.language)


class LanguageCompetitor:
    """A language model, which names its moves in words."""

    def __init__(self, policy: LanguagePolicy, rules: LanguageConfig | None) -> None:
        """Let a policy be asked and judged by these rules, or else by those that it was saved with."""
        self.policy = policy
        self._generator = AnswerGenerator(policy, rules or policy.config)

    @cached_property
    def weights(self) -> str:
        """A hash of the weights; of a large model that takes seconds."""
        return weights_hash(self.policy)

    def player(self, name: str, *, temperature: float | None, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return who draws answers at a temperature; for None the best one first, and only what is asked again is drawn."""
        return LanguagePlayer(self._generator, name, temperature=temperature, rng=numpy_stream(seed, *stream))

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        """Return regret, expected value, and the shares of best answers that are whole and legal."""
        return evaluate_language(self._generator, EvaluationBoards.of_table(boards, config=self._generator.config)).metrics()

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        """Return regret and expected value, board by board."""
        return evaluate_language(self._generator, EvaluationBoards.of_table(boards, config=self._generator.config)).scores

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: Competitor | None = None) -> None:
        """Write none: they are told with the probabilities of moves."""

    def move_probabilities(self, boards: Sequence[chess.Board]) -> None:
        """Return None: its answers are texts."""

    def move_finder(self) -> MoveFinder:
        """Return what asks about one board at a time."""
        return LanguageMoveFinder(self._generator)
