"""Graded reward of an answer, in points.

The reward is the sum of the parts below. A malformed answer (no parsed section) gets `MALFORMED` instead. A chess part is a fraction
in [0, 1] times its points in `CHESS`. Answers to move prompts have the first three chess parts, or `best_move` alone without
`language.lists_moves`; answers to environment prompts have the last two. No text gets more than the target answer.
`grpo.language.text.tasks` defines sections and fields.

structure, parsing
    structure counts sections, parsing counts fields. With n parsed of N expected, the points are
    `least + (most - least) (n - 1) / (N - 1)`, or 0 if n is 0. Each extra section or word raises its N by 1.
move_quality
    Sum of the listed moves' quality / sum of the five best moves' quality. A move's quality is (value - worst) / (best - worst), with
    the board's best and worst value, or 1 if all values are equal. Illegal moves and repetitions count 0.
evaluation
    `max(0, 1 - |p(e) - p(truth)| / EVALUATION_TOLERANCE)`, with the answer's evaluation e, the engine's evaluation truth and p =
    `win_probability`. The part is the mean over five moves, or all legal moves if fewer. Illegal, repeated and unevaluated moves count 0.
best_move
    Quality of the move in section B.
similarity
    Score of the predicted FEN (`fen_similarity`).
outcome
    Correct fraction of the fields reward, terminated and truncated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grpo.engine.move_values import LOGISTIC_SLOPE, logistic
from grpo.language.text.examples import EnvironmentExample, Example, MoveExample
from grpo.language.text.fen_similarity import fen_similarity
from grpo.language.text.tasks import NUM_MOVES, EnvironmentAnswer, MoveAnswer, Reading

# A larger tolerance would reward answers that write 0.00 on every board.
EVALUATION_TOLERANCE: Final = 0.25
STRUCTURE: Final = (0.2, 1.0)  # Points for one section (least) and for all (most).
PARSING: Final = (0.1, 0.8)  # Points for one field and for all.
# Chess part -> points of a perfect answer.
CHESS: Final[Mapping[str, float]] = {"move_quality": 1.0, "evaluation": 0.5, "best_move": 2.0, "similarity": 2.0, "outcome": 0.5}
MALFORMED: Final = -0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class Grades:
    parts: Mapping[str, float]  # Part of `grpo.metrics.table.REWARD_PARTS` -> points; all 0 for a malformed answer.
    malformed: float  # `MALFORMED` or 0.
    reading: Reading
    is_legal_best: bool  # Whether the move in section B is legal; False for the environment task.

    def total(self, content_weight: float = 1.0) -> float:
        """`content_weight`, in [0, 1], multiplies the chess parts."""
        return self.malformed + sum(value * (content_weight if name in CHESS else 1.0) for name, value in self.parts.items())


def grade(example: Example, text: str) -> Grades:
    """`example` must not be a `PlayedExample`."""
    reading = example.read(text)
    if isinstance(example, MoveExample) and isinstance(reading, MoveAnswer):
        chess, is_legal_best = _choice_parts(example, reading), reading.best in example.moves
    else:
        assert isinstance(example, EnvironmentExample)
        assert isinstance(reading, EnvironmentAnswer)
        chess, is_legal_best = _environment_parts(example, reading), False
    parts = {
        "structure": _graded_fraction(reading.num_sections, reading.num_sections_expected, STRUCTURE),
        "parsing": _graded_fraction(reading.num_fields, reading.num_fields_expected, PARSING),
        **{name: CHESS[name] * value for name, value in chess.items()},
    }
    if reading.is_malformed:
        return Grades(parts=dict.fromkeys(parts, 0.0), malformed=MALFORMED, reading=reading, is_legal_best=False)
    return Grades(parts=parts, malformed=0.0, reading=reading, is_legal_best=is_legal_best)


def win_probability(pawns: float) -> float:
    return logistic(100 * LOGISTIC_SLOPE * pawns)


def _graded_fraction(count: int, expected: int, ends: tuple[float, float]) -> float:
    least, most = ends
    # A weighted mean gives exactly `most` for the full count.
    fraction = (count - 1) / (expected - 1) if expected > 1 else 1.0
    return (1 - fraction) * least + fraction * most if count else 0.0


def _choice_parts(example: MoveExample, answer: MoveAnswer) -> dict[str, float]:
    best, worst = max(example.values), min(example.values)
    quality = {
        move: (value - worst) / (best - worst) if best > worst else 1.0 for move, value in zip(example.moves, example.values, strict=True)
    }
    best_move = {"best_move": quality.get(answer.best, 0.0) if answer.best is not None else 0.0}
    if not example.lists_moves:
        return best_move
    truth = dict(zip(example.moves, example.evaluations, strict=True))
    evaluations = (*answer.evaluations, *[None] * NUM_MOVES)
    # Reversed, so that the first listing of a repeated move overwrites later ones.
    first = {move: stated for move, stated in reversed(list(zip(answer.moves, evaluations, strict=False))) if move and move in quality}
    top = sorted(quality.values(), reverse=True)[:NUM_MOVES]
    closeness = [
        max(0.0, 1 - abs(win_probability(stated) - win_probability(truth[move])) / EVALUATION_TOLERANCE)
        for move, stated in first.items()
        if stated is not None
    ]
    return {
        # `fsum` gives exactly 1 for the five best moves in any order.
        "move_quality": math.fsum(quality[move] for move in first) / math.fsum(top),
        "evaluation": sum(closeness) / len(top),
        **best_move,
    }


def _environment_parts(example: EnvironmentExample, answer: EnvironmentAnswer) -> dict[str, float]:
    right = (answer.reward == example.reward, answer.terminated == example.terminated, answer.truncated == example.truncated)
    return {
        "similarity": fen_similarity(answer.fen, example.new_fen, before=example.fen),
        "outcome": sum(right) / len(right),
    }
