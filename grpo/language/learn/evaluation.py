"""A language model on held-out boards: regret of its best answer and of drawn ones, and how many say something legal.

It has no distribution over moves: what needs one (entropy, the mass of blunders and of illegal moves) is not measured.
An answer that names no legal move is worth 0, a loss, and nobody is asked again: rules of play would hide what is measured here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final

import chess
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from grpo.base.seeding import numpy_stream
from grpo.board.phases import PHASES, Phase
from grpo.dataset.table import Split
from grpo.language.generate.answers import sampled_answers
from grpo.language.generate.player import AnswerGenerator, board_prompts, named_move
from grpo.language.learn.rollouts import Grader
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example, LanguageBoards
from grpo.match.regret import HeldoutScores
from grpo.settings.language import LanguageConfig

_ROOT: Final = 0  # Of all draws: two policies that are compared draw with the same numbers.
_NUM_SAMPLED: Final = 2
"""Answers sampled for each board, beside the greedy one."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EvaluationBoards:
    """Held-out boards with the values of their moves: N of them."""

    boards: tuple[chess.Board, ...]
    values: tuple[Mapping[chess.Move, float], ...]
    """Of each board: legal move -> win probability for the mover, by the stronger search."""
    phases: NDArray[np.int64]
    """[N], index into `PHASES`."""

    def __len__(self) -> int:
        return len(self.boards)

    @classmethod
    def of_table(cls, table: pa.Table, *, config: LanguageConfig) -> "EvaluationBoards":
        """Return `num_heldout_boards` held-out boards of a dataset's table, in its order: the first of each phase, in equal parts.

        Where a phase has too few, the others fill up. Positions keep the clocks and move numbers that they had in their games.

        Raises ValueError when there are none, or their moves have no values by the stronger search.
        """
        rows = [row for row in table.to_pylist() if row["split"] == Split.HELDOUT]
        if not rows:
            raise ValueError("the dataset has no boards in its heldout split")
        of_phases = [[index for index, row in enumerate(rows) if row["phase"] == phase] for phase in PHASES]
        in_turn = (index for index in chain.from_iterable(zip_longest(*of_phases)) if index is not None)
        chosen = [rows[index] for index in sorted([index for index, _ in zip(in_turn, range(config.num_heldout_boards), strict=False)])]
        for row in chosen:
            if row["strong_values"] is None:
                raise ValueError(f"{row['fen']} has no values of the stronger search")
        return cls(
            boards=tuple(chess.Board(row["fen"]) for row in chosen),
            values=tuple(
                {chess.Move.from_uci(move): float(value) for move, value in zip(row["moves"], row["strong_values"], strict=True)}
                for row in chosen
            ),
            phases=np.array([PHASES.index(Phase(row["phase"])) for row in chosen], dtype=np.int64),
        )

    def worth(self, moves: Sequence[chess.Move | None]) -> NDArray[np.float64]:
        """Return the values, [N], of a move for each board; 0 where there is none."""
        return np.array([0.0 if move is None else of[move] for of, move in zip(self.values, moves, strict=True)])


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LanguageEvaluation:
    """What a language model makes of N held-out boards."""

    scores: HeldoutScores
    is_whole: NDArray[np.bool_]
    """[N], whether every field of the best answer can be read."""
    is_legal: NDArray[np.bool_]
    """[N], whether the best answer names a legal move."""

    def metrics(self) -> dict[str, float]:
        """Return the means, those of each phase that has boards, and the fractions of answers that are whole and legal."""
        scores = self.scores
        found = {"heldout/parse_rate": float(self.is_whole.mean()), "heldout/legal_rate": float(self.is_legal.mean())}
        for name in ("expected_value", "regret_sampled", "regret_best"):
            column = getattr(scores, name)
            found[f"heldout/{name}"] = float(column.mean())
            for index, phase in enumerate(PHASES):
                if (rows := scores.phases == index).any():
                    found[f"heldout/{name}/{phase}"] = float(column[rows].mean())
        if len(self.is_whole) > 1:  # One board has no spread, and no standard error.
            found["heldout/regret_best_stderr"] = _stderr(scores.regret_best)
        return found


def evaluate_language(generator: AnswerGenerator, boards: EvaluationBoards) -> LanguageEvaluation:
    """Return regret and rates: of the best answers, and of two drawn at T = 1, whose mean is the expected value.

    Every board draws from streams of its own, the same for all policies.
    """
    prompts = board_prompts(boards.boards)
    best, read = zip(*(named_move(*pair) for pair in zip(boards.boards, generator.greedy(prompts), strict=True)), strict=True)
    answers = generator.sampled(
        [prompt for prompt in prompts for _ in range(_NUM_SAMPLED)],
        temperature=1.0,
        streams=[numpy_stream(_ROOT, "judged", row, number) for row in range(len(boards)) for number in range(_NUM_SAMPLED)],
    )
    drawn = [
        boards.worth([named_move(*pair)[0] for pair in zip(boards.boards, answers[number::_NUM_SAMPLED], strict=True)])
        for number in range(_NUM_SAMPLED)
    ]
    expected = np.mean(drawn, axis=0)
    tops = np.array([max(of.values()) for of in boards.values])
    scores = HeldoutScores(
        regret_best=tops - boards.worth(best),
        regret_sampled=tops - expected,
        expected_value=expected,
        phases=boards.phases,
    )
    return LanguageEvaluation(
        scores=scores,
        is_whole=np.array([answer.is_readable for answer in read]),
        is_legal=np.array([move is not None for move in best]),
    )


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HeldoutReward:
    """What a policy's answers to N questions are worth, drawn at T = 1."""

    rewards: NDArray[np.float64]
    """[N] points, all parts at full weight."""
    is_readable: NDArray[np.bool_]
    """[N], whether every field of the answer can be read."""

    def metrics(self) -> dict[str, float]:
        """Return the mean."""
        return {"heldout/reward": float(self.rewards.mean())}


def questions(boards: LanguageBoards, count: int) -> list[Example]:
    """Return examples of a split's boards, always the same."""
    return boards.draw(numpy_stream(_ROOT, "held-out questions"), count)


def heldout_reward(policy: LanguagePolicy, examples: Sequence[Example], grader: Grader) -> HeldoutReward:
    """Return what drawn answers are worth; the draws are the same for all policies as far as their distributions are."""
    streams = [numpy_stream(_ROOT, "held-out answers", number) for number in range(len(examples))]
    answers = sampled_answers(policy, [example.prompt for example in examples], temperature=1.0, streams=streams)
    grades = [grader(example, answer.text) for example, answer in zip(examples, answers, strict=True)]
    return HeldoutReward(
        rewards=np.array([one.total() for one in grades]),
        is_readable=np.array([one.reading.is_readable for one in grades]),
    )


def _stderr(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))
