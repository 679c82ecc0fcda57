"""Gives a language model the interface `Competitor`. Importing this module takes seconds."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import chess
import torch

from grpo.base.seeding import numpy_stream
from grpo.language.generate.player import AnswerGenerator, LanguageMoveFinder, LanguagePlayer
from grpo.language.learn.evaluation import EvaluationBoards, LanguageEvaluation, evaluate_language
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
    """`settings.language` (None: the folder's) sets attempts per move, `legal_moves` and the number of held-out boards."""
    return LanguageCompetitor(LanguagePolicy.load(folder, device), None if settings is None else settings.language)


class LanguageCompetitor:
    def __init__(self, policy: LanguagePolicy, config: LanguageConfig | None) -> None:
        self.policy = policy
        self._generator = AnswerGenerator(policy, config or policy.config)

    @cached_property
    def weights(self) -> str:
        return weights_hash(self.policy)

    def player(self, name: str, *, temperature: float | None, seed: int, stream: tuple[str | int, ...]) -> Player:
        """The first answer is greedy if temperature is None; retries are always sampled."""
        return LanguagePlayer(self._generator, name, temperature=temperature, rng=numpy_stream(seed, *stream))

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        return self._evaluate(boards).metrics()

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        return self._evaluate(boards).scores

    def _evaluate(self, boards: "pa.Table") -> LanguageEvaluation:
        return evaluate_language(self._generator, EvaluationBoards.of_table(boards, config=self._generator.config))

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: Competitor | None = None) -> None:
        """Write nothing: a language model has no move probabilities."""

    def move_probabilities(self, boards: Sequence[chess.Board]) -> None:
        """Return None: answers are texts."""

    def move_finder(self) -> MoveFinder:
        return LanguageMoveFinder(self._generator)
