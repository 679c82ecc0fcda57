"""Measurements of a language model: regret, readable and legal answers on held-out boards, and mean reward on validation prompts.

- A move's value, in [0, 1] for the player to move (1 is a win), comes from an engine search to `evaluation.heldout_depth`.
- A move's regret is the best move's value minus the move's value.
- An answer without a legal move has value 0. There are no retries.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
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
from grpo.language.text.tasks import MoveAnswer
from grpo.match.regret import HeldoutScores
from grpo.settings.language import LanguageConfig

_ROOT: Final = 0  # One seed for all policies makes comparisons less noisy.
_NUM_SAMPLED: Final = 2  # Answers per board.


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EvaluationBoards:
    """N held-out boards."""

    boards: tuple[chess.Board, ...]
    values: tuple[Mapping[chess.Move, float], ...]  # Legal move -> value.
    phases: NDArray[np.int64]  # [N], index into `PHASES`.

    def __len__(self) -> int:
        return len(self.boards)

    @classmethod
    def of_table(cls, table: pa.Table, *, config: LanguageConfig) -> "EvaluationBoards":
        """Return up to `language.num_heldout_boards` held-out boards of the board table, in its order.

        Raises ValueError without held-out boards, or if a chosen board has no `strong_values`.
        """
        rows = [row for row in table.to_pylist() if row["split"] == Split.HELDOUT]
        if not rows:
            raise ValueError("the dataset has no boards in its heldout split")
        indices_by_phase = [[index for index, row in enumerate(rows) if row["phase"] == phase] for phase in PHASES]
        # One board of each phase in turn.
        in_turn = (index for index in chain.from_iterable(zip_longest(*indices_by_phase)) if index is not None)
        chosen = [rows[index] for index in sorted(islice(in_turn, config.num_heldout_boards))]
        for row in chosen:
            if row["strong_values"] is None:
                raise ValueError(f"{row['fen']} has no values at evaluation.heldout_depth (column strong_values)")
        return cls(
            boards=tuple(chess.Board(row["fen"]) for row in chosen),
            values=tuple(
                {chess.Move.from_uci(move): float(value) for move, value in zip(row["moves"], row["strong_values"], strict=True)}
                for row in chosen
            ),
            phases=np.array([PHASES.index(Phase(row["phase"])) for row in chosen], dtype=np.int64),
        )

    def worth(self, moves: Sequence[chess.Move | None]) -> NDArray[np.float64]:
        """Return the value of one legal move per board, [N]; 0 for None."""
        return np.array([0.0 if move is None else values[move] for values, move in zip(self.values, moves, strict=True)])


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LanguageEvaluation:
    scores: HeldoutScores
    is_readable: NDArray[np.bool_]  # [N], whether every field of the greedy answer can be parsed.
    is_legal: NDArray[np.bool_]  # [N], whether the greedy answer names a legal move.
    is_legal_unmasked: NDArray[np.bool_]  # [N], the same without a mask.

    def metrics(self) -> dict[str, float]:
        scores = self.scores
        metrics = {"heldout/parse_rate": float(self.is_readable.mean()), "heldout/legal_rate": float(self.is_legal.mean())}
        metrics["heldout/legal_rate_unmasked"] = float(self.is_legal_unmasked.mean())
        for name in ("expected_value", "regret_sampled", "regret_best"):
            column = getattr(scores, name)
            metrics[f"heldout/{name}"] = float(column.mean())
            for index, phase in enumerate(PHASES):
                if (rows := scores.phases == index).any():
                    metrics[f"heldout/{name}/{phase}"] = float(column[rows].mean())
        if len(self.is_readable) > 1:
            metrics["heldout/regret_best_stderr"] = float(scores.regret_best.std(ddof=1)) / math.sqrt(len(scores.regret_best))
        return metrics | scores.move_quality()


def evaluate_language(generator: AnswerGenerator, boards: EvaluationBoards) -> LanguageEvaluation:
    """Score one greedy answer and `_NUM_SAMPLED` answers at temperature 1 on each board."""
    config = generator.config
    prompts = board_prompts(boards.boards, config)

    def named(answers: Sequence[str]) -> Iterator[tuple[chess.Move | None, MoveAnswer]]:
        return (named_move(board, answer, config) for board, answer in zip(boards.boards, answers, strict=True))

    greedy_moves, parsed = zip(*named(generator.greedy(prompts)), strict=True)
    unmasked_moves = [move for move, _ in named(generator.unmasked(prompts))] if config.legal_moves else greedy_moves
    answers = generator.sampled(
        [prompt for prompt in prompts for _ in range(_NUM_SAMPLED)],
        temperature=1.0,
        streams=[numpy_stream(_ROOT, "judged", row, number) for row in range(len(boards)) for number in range(_NUM_SAMPLED)],
    )
    # A board's answers are neighbors.
    sampled_values = [boards.worth([move for move, _ in named(answers[number::_NUM_SAMPLED])]) for number in range(_NUM_SAMPLED)]
    expected = np.mean(sampled_values, axis=0)
    top = np.array([max(values.values()) for values in boards.values])
    return LanguageEvaluation(
        scores=HeldoutScores(
            regret_best=top - boards.worth(greedy_moves), regret_sampled=top - expected, expected_value=expected, phases=boards.phases
        ),
        is_readable=np.array([answer.is_readable for answer in parsed]),
        is_legal=np.array([move is not None for move in greedy_moves]),
        is_legal_unmasked=np.array([move is not None for move in unmasked_moves]),
    )


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HeldoutReward:
    """Rewards of N answers, one per prompt, sampled at temperature 1."""

    rewards: NDArray[np.float64]  # [N] points (`grpo.language.text.rewards`), all parts at full weight.
    is_readable: NDArray[np.bool_]  # [N]

    def metrics(self) -> dict[str, float]:
        return {"heldout/reward": float(self.rewards.mean())}


def reward_examples(boards: LanguageBoards, count: int) -> list[Example]:
    return boards.draw(numpy_stream(_ROOT, "held-out questions"), count)


def heldout_reward(policy: LanguagePolicy, examples: Sequence[Example], grader: Grader) -> HeldoutReward:
    streams = [numpy_stream(_ROOT, "held-out answers", number) for number in range(len(examples))]
    answers = sampled_answers(policy, [example.prompt for example in examples], temperature=1.0, streams=streams)
    grades = [grader(example, answer.text) for example, answer in zip(examples, answers, strict=True)]
    return HeldoutReward(
        rewards=np.array([grade.total() for grade in grades]),
        is_readable=np.array([grade.reading.is_readable for grade in grades]),
    )
