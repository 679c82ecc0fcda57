"""FEN parsing and similarity for environment answers: which fraction of the change by a move is correct.

A position after a move differs from the one before in about two of 64 squares, so a copy of the old FEN would share 97 % of them.
Therefore changes are compared. The answer and the truth each differ from the position before in some squares and fields; the similarity
is the weight of the differences that agree over the weight of all differences of either (Jaccard index,
https://en.wikipedia.org/wiki/Jaccard_index). A square has weight 1, each other field `FIELD_WEIGHT`.
"""

import re
from typing import Final

FIELD_WEIGHT: Final = 0.125
"""Weight of side to move, each castling right, en passant and each clock, which are easy to predict for any move.

An answer that copies the board and corrects only these gets at most 0.16 for a quiet move (3/8 of 2 3/8).
"""

NUM_FIELDS: Final = 6
_NUM_SQUARES: Final = 64
_RANK: Final = re.compile(r"(?:[1-8](?![1-8])|[pnbrqkPNBRQK])+")
# Side to move, castling, en passant; clocks without leading zeros, so that equal numbers are equal texts. A game has below 10,000 moves.
_FIELDS: Final = [re.compile(form) for form in ("[wb]", "-|K?Q?k?q?", "-|[a-h][36]", "0|[1-9][0-9]{0,2}", "[1-9][0-9]{0,3}")]


def read_fen(text: str) -> tuple[str | None, ...]:
    """Return the six fields of a FEN, None for one that is missing or invalid by its form; never raises.

    The first has 64 characters from a8 to h1, `.` for an empty square.
    """
    words = [*text.split(), *[""] * NUM_FIELDS][:NUM_FIELDS]
    return _squares(words[0]), *(word if word and form.fullmatch(word) else None for form, word in zip(_FIELDS, words[1:], strict=True))


def fen_similarity(answer: str, truth: str, *, before: str) -> float:
    """Return the fraction in [0, 1] of the change from `before` to `truth` that `answer` has; 1 only for the truth itself.

    A copy of `before` has 0. If nothing should change (illegal move), it is 1 / (1 + weight of the answer's changes). An answer without a
    valid piece placement has 0. A missing field counts as changed wrongly, and a surplus word as a field. `truth` and `before` must be
    complete FENs.
    """
    if read_fen(answer)[0] is None:
        return 0.0
    agreed = expected = 0.0
    either = FIELD_WEIGHT * max(0, len(answer.split()) - NUM_FIELDS)
    for index, (was, right, told) in enumerate(zip(*map(_features, (before, truth, answer)), strict=True)):
        weight = 1.0 if index < _NUM_SQUARES else FIELD_WEIGHT
        expected += weight * (right != was)
        either += weight * (right != was or told != was)
        agreed += weight * (told == right != was)
    return agreed / either if expected else 1 / (1 + either)


def _features(fen: str) -> list[str | bool | None]:
    """Return what two positions can differ in: squares, then the other fields, castling by its four rights."""
    squares, turn, castling, *others = read_fen(fen)
    assert squares is not None
    return [*squares, turn, *others, *(None if castling is None else right in castling for right in "KQkq")]


def _squares(word: str) -> str | None:
    ranks = word.split("/")
    if len(ranks) != 8 or not all(_RANK.fullmatch(rank) for rank in ranks):
        return None
    wide = ["".join("." * int(mark) if mark.isdigit() else mark for mark in rank) for rank in ranks]
    return "".join(wide) if all(len(rank) == 8 for rank in wide) else None
