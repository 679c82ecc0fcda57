"""Parsing of FENs, and a score for the FEN that a language model predicts after a move (the answer).

A copy of the old FEN has 97 % of the squares right after a usual move. So the score compares changes of the old FEN: the weight of the
changes that answer and truth (the right FEN) share, divided by the weight of the changes that at least one of them has (Jaccard index,
https://en.wikipedia.org/wiki/Jaccard_index). A changed square has weight 1.
"""

import re
from typing import Final

# Weight of side to move, of each castling right, of en passant and of each clock; low, because these are easy to predict.
FIELD_WEIGHT: Final = 0.125
NUM_FIELDS: Final = 6
_NUM_SQUARES: Final = 64
_RANK: Final = re.compile(r"(?:[1-8](?![1-8])|[pnbrqkPNBRQK])+")
# Side to move, castling, en passant, half-move clock, move number. Leading zeros are malformed, so equal numbers are equal texts.
_FIELDS: Final = [re.compile(form) for form in ("[wb]", "-|K?Q?k?q?", "-|[a-h][36]", "0|[1-9][0-9]{0,2}", "[1-9][0-9]{0,3}")]


def read_fen(text: str) -> tuple[str | None, ...]:
    """Return the six fields of a FEN, with None for a missing or malformed field.

    The first field is expanded to 64 characters, from a8 to h1, with `.` for an empty square.
    """
    words = [*text.split(), *[""] * NUM_FIELDS][:NUM_FIELDS]
    return _squares(words[0]), *(word if word and form.fullmatch(word) else None for form, word in zip(_FIELDS, words[1:], strict=True))


def fen_similarity(answer: str, truth: str, *, before: str) -> float:
    """Return the score of `answer` in [0, 1]. `before` and `truth` are complete FENs.

    - An answer without a valid piece placement gets 0.
    - If nothing should change (an illegal move), the score is 1 / (1 + weight of the answer's changes).
    - A missing or malformed field and an extra word each count as a wrong change, a castling field as four.
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
    squares, turn, castling, *others = read_fen(fen)
    assert squares is not None
    return [*squares, turn, *others, *(None if castling is None else right in castling for right in "KQkq")]


def _squares(word: str) -> str | None:
    ranks = word.split("/")
    if len(ranks) != 8 or not all(_RANK.fullmatch(rank) for rank in ranks):
        return None
    wide = ["".join("." * int(mark) if mark.isdigit() else mark for mark in rank) for rank in ranks]
    return "".join(wide) if all(len(rank) == 8 for rank in wide) else None
