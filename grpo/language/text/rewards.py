"""Graded rewards of an answer: a little for its form, most for its chess.

Every part lies in [0, 1] before its weight, and the target of an example has all of them in full, which no other text exceeds.

structure, parsing
    Of n sections (or fields) that can be read among N that are wanted, `least + (most - least) (n - 1) / (N - 1)`; 0 without any. A
    section that does not belong and a word too many count as wanted, so that longer texts never gain by it.
move_quality
    What the listed moves are worth, of what the best five are: a move's worth is (value - worst) / (best - worst) by the value table, 1
    where all are equal. An illegal move is worth nothing, nor is a move that was listed before.
evaluation
    For each move that is wanted `max(0, 1 - |p(e) - p(truth)| / EVALUATION_TOLERANCE)`, their mean, with
    p(e) = 1 / (1 + exp(-slope * 100 e)), `values.logistic_slope` and e in pawns; so a mate is sure, and nothing beyond it counts. A move
    that is illegal, listed before, or without an evaluation has 0.
best_move
    What the named move is worth; an illegal one 0.
similarity
    `fens.fen_similarity`: how much of the change was made rightly.
outcome
    Of reward, terminated and truncated, the share that is right.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grpo.language.text.examples import EnvironmentExample, Example, MoveExample
from grpo.language.text.fen_similarity import fen_similarity
from grpo.language.text.tasks import NUM_MOVES, EnvironmentAnswer, MoveAnswer, Reading
from grpo.settings.language import RewardWeights

EVALUATION_TOLERANCE: Final = 0.25
"""Win probability: an evaluation that is this far off is worth nothing, so that 0.00 everywhere is worth little on uneven boards."""

FORM: Final = ("structure", "parsing")
"""Parts that judge an answer's form; the others ask for chess."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grades:
    """What an answer gets."""

    parts: Mapping[str, float]
    """Of the task's parts in `metrics.REWARD_PARTS`, each times its weight; all 0 for a malformed answer."""
    malformed: float
    """What a malformed answer gets; 0 for every other."""
    reading: Reading
    """What could be read."""
    is_legal_best: bool
    """Policy task: whether a legal move is named as the best."""

    def total(self, content_share: float = 1.0) -> float:
        """Return the reward, with the parts that ask for chess at this share of their weights (warm-up)."""
        return self.malformed + sum(value * (1.0 if name in FORM else content_share) for name, value in self.parts.items())


def grade(example: Example, text: str, weights: RewardWeights, *, logistic_slope: float) -> Grades:
    """Return the grades of an answer; never raises, whatever the text.

    Args:
        example: What was asked.
        text: What the model wrote after the prompt.
        weights: Of the settings.
        logistic_slope: `values.logistic_slope` of the settings, by which evaluations are compared as win probabilities.

    """
    if isinstance(example, MoveExample):
        choice = example.read(text)
        chess = _choice_parts(example, choice, logistic_slope)
        weight_of = {"move_quality": weights.move_quality, "evaluation": weights.evaluation, "best_move": weights.best_move}
        return _graded(choice, chess, weight_of, weights, is_legal_best=choice.best in example.moves)
    assert isinstance(example, EnvironmentExample)
    told = example.read(text)
    weight_of = {"similarity": weights.similarity, "outcome": weights.outcome}
    return _graded(told, _environment_parts(example, told), weight_of, weights, is_legal_best=False)


def win_probability(pawns: float, slope: float) -> float:
    """Return 1 / (1 + exp(-slope * 100 * pawns)), written so that it cannot overflow."""
    return (1 + math.tanh(50 * slope * pawns)) / 2


def _graded(
    reading: Reading, chess: Mapping[str, float], weight_of: Mapping[str, float], weights: RewardWeights, *, is_legal_best: bool
) -> Grades:
    parts = {
        "structure": _share(reading.num_sections, reading.num_sections_wanted, weights.structure),
        "parsing": _share(reading.num_fields, reading.num_fields_wanted, weights.parsing),
        **{name: weight_of[name] * value for name, value in chess.items()},
    }
    if reading.is_malformed:
        return Grades(parts=dict.fromkeys(parts, 0.0), malformed=weights.malformed, reading=reading, is_legal_best=False)
    return Grades(parts=parts, malformed=0.0, reading=reading, is_legal_best=is_legal_best)


def _share(count: int, wanted: int, ends: tuple[float, float]) -> float:
    """Return where `count` in [1, wanted] stands between the two ends; 0 for none."""
    least, most = ends
    # Weighted ends, and not `least + ...`, so that all of them give `most` to the last digit.
    share = (count - 1) / (wanted - 1)
    return (1 - share) * least + share * most if count else 0.0


def _choice_parts(example: MoveExample, answer: MoveAnswer, slope: float) -> dict[str, float]:
    best, worst = max(example.values), min(example.values)
    worth = {
        move: (value - worst) / (best - worst) if best > worst else 1.0 for move, value in zip(example.moves, example.values, strict=True)
    }
    truth = dict(zip(example.moves, example.evaluations, strict=True))
    evaluations = (*answer.evaluations, *[None] * NUM_MOVES)
    # A move counts where it is listed first.
    first = {move: evaluations[place] for place, move in reversed(list(enumerate(answer.moves))) if move in worth}
    top = sorted(worth.values(), reverse=True)[:NUM_MOVES]
    closeness = [
        max(0.0, 1 - abs(win_probability(told, slope) - win_probability(truth[move], slope)) / EVALUATION_TOLERANCE)
        for move, told in first.items()
        if move is not None and told is not None
    ]
    return {
        # Summed without rounding, so that the best five moves have 1 in any order.
        "move_quality": math.fsum(worth[move] for move in first if move is not None) / math.fsum(top),
        "evaluation": sum(closeness) / len(top),
        "best_move": worth.get(answer.best, 0.0) if answer.best is not None else 0.0,
    }


def _environment_parts(example: EnvironmentExample, answer: EnvironmentAnswer) -> dict[str, float]:
    right = (answer.reward == example.reward, answer.terminated == example.terminated, answer.truncated == example.truncated)
    return {
        "similarity": fen_similarity(answer.fen, example.new_fen, before=example.fen),
        "outcome": sum(right) / len(right),
    }
