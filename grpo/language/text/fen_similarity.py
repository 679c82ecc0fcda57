"""FEN parsing and similarity for environment answers: which fraction of the change by a move is correct.

A position after a move differs from the one before in about two of 64 squares, so a copy of the old FEN would share 97 % of them.
Therefore changes are compared. The answer and the truth each differ from the position before in some squares and fields; the similarity
is the weight of the differences that agree over the weight of all differences of either (Jaccard index,
https://en.wikipedia.org/wiki/Jaccard_index). A square has weight 1, each other field `FIELD_WEIGHT`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

FIELD_WEIGHT: Final = 0.125
"""Weight of side to move, each castling right, en passant and each clock, which are easy to predict for any move.

An answer that copies the board and corrects only these gets at most 0.16 for a quiet move (3/8 of 2 3/8).
"""

NUM_FIELDS: Final = 6
_NUM_SQUARES: Final = 64
_RANK: Final = re.compile(r"(?:[1-8](?![1-8])|[pnbrqkPNBRQK])+")
_FIELDS: Final[Mapping[str, re.Pattern[str]]] = {
    "turn": re.compile(r"[wb]"),
    "castling": re.compile(r"-|K?Q?k?q?"),
    "en_passant": re.compile(r"-|[a-h][36]"),
    # Without leading zeros, so that equal numbers are equal texts; a game has fewer than 10,000 moves.
    "halfmove_clock": re.compile(r"0|[1-9][0-9]{0,2}"),
    "move_number": re.compile(r"[1-9][0-9]{0,3}"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FenFields:
    """The fields of a FEN, None for a missing or invalid field."""

    squares: str | None
    """64 characters from a8 to h1, `.` for an empty square."""
    turn: str | None
    castling: str | None
    en_passant: str | None
    halfmove_clock: str | None
    move_number: str | None
    num_surplus: int = 0
    """Number of words after the sixth."""

    @property
    def num_readable(self) -> int:
        """Number of valid fields, of 6; 0 if the piece placement is invalid, because the others mean nothing without it."""
        if self.squares is None:
            return 0
        return 1 + sum(getattr(self, name) is not None for name in _FIELDS)


def read_fen(text: str) -> FenFields:
    """Parse a FEN by its form only (the position need not be possible); never raises."""
    words = text.split()
    return FenFields(
        squares=_squares(words[0]) if words else None,
        **{
            name: word if (word := words[index] if index < len(words) else "") and pattern.fullmatch(word) else None
            for index, (name, pattern) in enumerate(_FIELDS.items(), start=1)
        },
        num_surplus=max(0, len(words) - NUM_FIELDS),
    )


def fen_similarity(answer: str, truth: str, *, before: str) -> float:
    """Return the fraction in [0, 1] of the change from `before` to `truth` that `answer` has; 1 only for the truth itself.

    A copy of `before` has 0. If nothing should change (illegal move), it is 1 / (1 + weight of the answer's changes). An answer without a
    valid piece placement has 0. A missing field counts as changed wrongly, and a surplus word as a field. `truth` and `before` must be
    complete FENs.
    """
    found = read_fen(answer)
    if found.squares is None:
        return 0.0
    old, new, answered = (dict(_features(fields)) for fields in (read_fen(before), read_fen(truth), found))
    agreed = expected = 0.0
    either = FIELD_WEIGHT * found.num_surplus
    for name, was in old.items():
        weight = 1.0 if isinstance(name, int) else FIELD_WEIGHT
        should, does = new[name] != was, answered[name] != was
        expected += weight * should
        either += weight * (should or does)
        agreed += weight * (should and answered[name] == new[name])
    return agreed / either if expected else 1 / (1 + either)


def _features(fields: FenFields) -> Iterator[tuple[int | str, str | bool | None]]:
    """Yield the features in which two positions can differ: squares by number, other fields by name."""
    yield from enumerate(fields.squares or "?" * _NUM_SQUARES)
    for right in "KQkq":
        yield right, None if fields.castling is None else right in fields.castling
    for name in _FIELDS:
        if name != "castling":
            yield name, getattr(fields, name)


def _squares(word: str) -> str | None:
    ranks = word.split("/")
    if len(ranks) != 8 or not all(_RANK.fullmatch(rank) for rank in ranks):
        return None
    wide = ["".join("." * int(mark) if mark.isdigit() else mark for mark in rank) for rank in ranks]
    return "".join(wide) if all(len(rank) == 8 for rank in wide) else None
