"""The new position in an answer: its six fields as they can be read, and how much of what should change was changed rightly.

A position after a move is nearly the one before it: of 64 squares two differ, and a copy of the old FEN would share 97 % of them. So what
is compared is the change. Both the answer and the truth differ from the position before in some squares and fields; the similarity is the
weight of the differences that agree over the weight of all differences of either (Jaccard's index,
https://en.wikipedia.org/wiki/Jaccard_index). A square weighs 1, each other field `FIELD_WEIGHT`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

FIELD_WEIGHT: Final = 0.125
"""Of side to move, each castling right, en passant and each clock, where a square has 1: they follow from a rule of thumb, whatever the
move was. Who copies the board and mends no more than these has at most 0.16 of a quiet move (3/8 of 2 3/8)."""

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
    """The fields of a FEN, None where one is missing or is none."""

    squares: str | None
    """64 characters from a8 to h1, `.` where a square is empty."""
    turn: str | None
    castling: str | None
    en_passant: str | None
    halfmove_clock: str | None
    move_number: str | None
    num_surplus: int = 0
    """Words after the sixth."""

    @property
    def num_readable(self) -> int:
        """Fields that can be read, of 6; none where the placement of the men cannot, for the others say nothing without it."""
        if self.squares is None:
            return 0
        return 1 + sum(getattr(self, name) is not None for name in _FIELDS)


def read_fen(text: str) -> FenFields:
    """Return what can be read of a FEN; the words' form is judged, not whether such a position can arise. Never raises."""
    words = text.split()
    return FenFields(
        squares=_squares(words[0]) if words else None,
        **{
            name: word if (word := words[place] if place < len(words) else "") and pattern.fullmatch(word) else None
            for place, (name, pattern) in enumerate(_FIELDS.items(), start=1)
        },
        num_surplus=max(0, len(words) - NUM_FIELDS),
    )


def fen_similarity(answer: str, truth: str, *, before: str) -> float:
    """Return in [0, 1] how much of the change from `before` to `truth` is in `answer`; 1 only for the truth itself.

    A copy of `before` has 0. Where nothing should change (an illegal move), it is 1 / (1 + weight of what the answer changed). An answer
    without a placement of men has 0; a field that it lacks counts as changed wrongly, a word too many as a field. `truth` and `before`
    must be whole FENs.
    """
    found = read_fen(answer)
    if found.squares is None:
        return 0.0
    old, new, answered = (dict(_features(fields)) for fields in (read_fen(before), read_fen(truth), found))
    agreed = wanted = 0.0
    either = FIELD_WEIGHT * found.num_surplus
    for name, was in old.items():
        weight = 1.0 if isinstance(name, int) else FIELD_WEIGHT
        should, does = new[name] != was, answered[name] != was
        wanted += weight * should
        either += weight * (should or does)
        agreed += weight * (should and answered[name] == new[name])
    return agreed / either if wanted else 1 / (1 + either)


def _features(fields: FenFields) -> Iterator[tuple[int | str, str | bool | None]]:
    """Yield all that two positions can differ in: squares by number, the rest by name."""
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
