"""Parsing of FENs, and a score for the FEN that a language model predicts for the position after a move (the answer).

A copy of the old FEN would share 97 % of the squares with the true FEN. So the score compares changes of the old FEN: the weight of the
changes that answer and truth share, divided by the weight of the changes that at least one of them has (Jaccard index,
https://en.wikipedia.org/wiki/Jaccard_index). A changed square has weight 1, any other change `FIELD_WEIGHT`.
"""

import re
from typing import Final

# Weight of side to move, of each castling right, of en passant and of each clock. The weight is low, because these are easy to predict.
# Example: a quiet move changes two squares and three fields. An answer with the old squares and correct fields gets 0.375 / 2.375 = 0.16.
FIELD_WEIGHT: Final = 0.125
NUM_FIELDS: Final = 6
_NUM_SQUARES: Final = 64
_RANK: Final = re.compile(r"(?:[1-8](?![1-8])|[pnbrqkPNBRQK])+")
# Side to move, castling, en passant, half-move clock, move number. Leading zeros are malformed, so equal numbers are equal texts.
_FIELDS: Final = [re.compile(form) for form in ("[wb]", "-|K?Q?k?q?", "-|[a-h][36]", "0|[1-9][0-9]{0,2}", "[1-9][0-9]{0,3}")]


def read_fen(text: str) -> tuple[str | None, ...]:
    """Return the six fields of a FEN. A missing or malformed field is None.

    The first field is expanded to 64 characters, from a8 to h1, with `.` for an empty square.
    """
    words = [*text.split(), *[""] * NUM_FIELDS][:NUM_FIELDS]
    return _squares(words[0]), *(word if word and form.fullmatch(word) else None for form, word in zip(_FIELDS, words[1:], strict=True))


def fen_similarity(answer: str, truth: str, *, before: str) -> float:
    """Return the score of `answer` in [0, 1]: the Jaccard index of the changes from `before` to `answer` and from `before` to `truth`.

    - The score is 1 only if `answer` has all fields of `truth`. It is 0 if `answer` has no valid piece placement.
    - If nothing should change (an illegal move), the score is 1 / (1 + weight of the answer's changes).
    - A missing field and an extra word each count as a wrong change.

    `before` and `truth` are complete FENs.
    """
    if read_fen(answer)[0] is None:
        return 0.0
    agreed = expected = 0.0
    either = FIELD_WEIGHT * max(0, len(answer.split()) - NUM_FIELDS)
    for index, (was, right, stated) in enumerate(zip(*map(_features, (before, truth, answer)), strict=True)):
        weight = 1.0 if index < _NUM_SQUARES else FIELD_WEIGHT
        expected += weight * (right != was)
        either += weight * (right != was or stated != was)
        agreed += weight * (stated == right != was)
    return agreed / either if expected else 1 / (1 + either)


def _features(fen: str) -> list[str | bool | None]:
    """Return the 64 squares, then side to move, en passant and clocks, then each of the four castling rights."""
    squares, turn, castling, *others = read_fen(fen)
    assert squares is not None
    return [*squares, turn, *others, *(None if castling is None else right in castling for right in "KQkq")]


def _squares(word: str) -> str | None:
    ranks = word.split("/")
    if len(ranks) != 8 or not all(_RANK.fullmatch(rank) for rank in ranks):
        return None
    wide = ["".join("." * int(mark) if mark.isdigit() else mark for mark in rank) for rank in ranks]
    return "".join(wide) if all(len(rank) == 8 for rank in wide) else None
