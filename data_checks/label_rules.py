"""What must hold of the label of one row of the table of boards, and of all labels together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from data_checks.rules import MADE_BY_OTHER_CODE, REPLAY_REMEDY, BoardReading, RowRule
from data_checks.value_rules import TOLERANCE

LABELLERS: Final = ("game", "engine")
MIN_BOARDS_FOR_CHANCE: Final = 300
"""Played labels below this are too few to tell weak players from chance."""
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
"""In the order in which a reader should mend what breaks them."""


@dataclass(frozen=True, slots=True)
class Edge:
    """How much better than chance one played label is."""

    gain: float
    """Value of the label less the mean value of the legal moves."""
    variance: float
    """Of the values of the legal moves: that of `gain` if the label were drawn at random from them."""

    @classmethod
    def of(cls, reading: BoardReading) -> "Edge | None":
        """Return the edge of a label that was played; None for others, and where label or values are not sound."""
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
    """Return "" when the labels beat chance, a sentence when they do not, None when none was played.

    The gain of labels that were drawn at random has mean 0 and a variance that the values give exactly, so that its standard error needs no
    guess about the players. From 300 boards on such labels get past 3 standard errors once in 740 datasets. Players of whom a gain of
    0.3 standard deviations a board can be expected (Stockfish at 60 to 960 nodes: 1.0) get 5.2 there, and more with every board.
    With fewer boards honest weak players might not, so that only labels that are plainly worse than chance (of the wrong side, say) fail.
    What this does not find: a part of the labels that is shuffled, as long as the rest makes up for it.
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
