"""Rules on the label of one row of the table of boards, and a test that all labels together beat random moves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from data_checks.rules import MADE_BY_OTHER_CODE, REPLAY_REMEDY, BoardReading, RowRule
from data_checks.value_rules import TOLERANCE

LABELLERS: Final = ("game", "engine")
MIN_BOARDS_FOR_CHANCE: Final = 300
"""With fewer played labels, weak players cannot be distinguished from random moves."""
NUM_STANDARD_ERRORS: Final = 3.0


def _illegal_label(reading: BoardReading) -> str | None:
    label, legal = reading.row["label"], reading.legal_moves
    if legal is None or label is None:
        return None
    return "" if label in legal else f"{reading.row['fen']}: the label {label} is not a legal move"


def _wrong_labeller(reading: BoardReading) -> str | None:
    label_from, num_plies = reading.row["label_from"], reading.num_plies
    if label_from not in LABELLERS or num_plies is None or num_plies < 0:
        return None
    due = "game" if num_plies else "engine"
    return "" if label_from == due else f"{reading.row['fen']}: label_from {label_from} on a board of a game of {num_plies} plies"


def _not_best(reading: BoardReading) -> str | None:
    if reading.row["label_from"] != "engine":
        return None
    values, label = reading.values, reading.row["label"]
    if values is None or label not in reading.row["moves"]:
        return None
    value, best = values[reading.row["moves"].index(label)], max(values)
    if value >= best - TOLERANCE:
        return ""
    better = reading.row["moves"][values.index(best)]
    return f"{reading.row['fen']}: the label {label} is worth {value:.6f}, and {better} {best:.6f}"


LABEL_RULES: Final[tuple[RowRule[BoardReading], ...]] = (
    RowRule(
        name="label_legal",
        meaning="The label, the move to imitate, is legal.",
        remedy=REPLAY_REMEDY,
        breach=_illegal_label,
    ),
    RowRule(
        name="label_by_who_played",
        meaning="Where a game was played the label is its move; on a listed position it is the engine's.",
        remedy=MADE_BY_OTHER_CODE,
        breach=_wrong_labeller,
    ),
    RowRule(
        name="engine_label_best",
        meaning="A label of the engine is a best move of the board's values.",
        remedy=MADE_BY_OTHER_CODE,
        breach=_not_best,
    ),
)
"""In the order in which to fix violations."""


@dataclass(frozen=True, slots=True)
class Edge:
    """The gain of one played label over a random move."""

    gain: float
    """Value of the label minus the mean value of the legal moves."""
    variance: float
    """Variance of the values of the legal moves, which is that of `gain` for a random label."""

    @classmethod
    def of(cls, reading: BoardReading) -> "Edge | None":
        """Return the edge of a played label; None for other labels, and for an invalid label or values."""
        row = reading.row
        values = reading.values if row["label_from"] == "game" else None
        if values is None or row["label"] not in row["moves"]:
            return None
        mean = math.fsum(values) / len(values)
        return cls(values[row["moves"].index(row["label"])] - mean, math.fsum((value - mean) ** 2 for value in values) / len(values))


CHANCE_MEANING: Final = (
    f"Played moves are worth more than moves drawn at random: over {MIN_BOARDS_FOR_CHANCE} boards or more the mean gain exceeds"
    f" {NUM_STANDARD_ERRORS:g} standard errors; over fewer it is not that far below 0."
)


def chance_breach(edges: Sequence[Edge]) -> str | None:
    """Return "" if the labels beat random moves, a sentence if they do not, None if no label was played.

    The gain of random labels has mean 0 and a variance that follows exactly from the values, so no assumption about the players is needed.
    From 300 boards on, random labels exceed 3 standard errors once in 740 datasets. Players with an expected gain of 0.3 standard
    deviations per board (Stockfish at 60 to 960 nodes: 1.0) reach 5.2 standard errors there. With fewer boards weak players might fail, so
    only labels that are clearly worse than random (for example of the wrong side) fail. The test does not detect that a part of the labels
    is shuffled, if the rest compensates for it.
    """
    if not edges:
        return None
    gain = math.fsum(edge.gain for edge in edges) / len(edges)
    standard_error = math.sqrt(math.fsum(edge.variance for edge in edges)) / len(edges)
    is_enough = len(edges) >= MIN_BOARDS_FOR_CHANCE
    bound = (NUM_STANDARD_ERRORS if is_enough else -NUM_STANDARD_ERRORS) * standard_error
    if (gain > bound) if is_enough else (gain >= bound):
        return ""
    return (
        f"the labels of {len(edges):,} boards gain {gain:+.4f} on average over a random legal move, and must gain more than {bound:+.4f}"
        f" (standard error {standard_error:.4f})"
    )
