"""The two tasks of a language model as texts: prompts, answers as they are written, and as they are read.

`move`, choose a move:

    P: <FEN>    M: m1 m2 m3 m4 m5    E: e1 e2 e3 e4 e5    B: best

`environment`, be the board (https://github.com/jorahn/RookWorld; the history ends with the move itself, its moves parted by blanks):

    A: <FEN>+<move>+<history>+<new FEN>+<reward>+<terminated>+<truncated>

A prompt ends with `M:`, or with the third `+`; the answer is the rest. Moves are UCI. Evaluations are pawns for who moves. Reading
forgives any white space, and nothing else: what is no move, number, position or flag by its form is not read, and what should not be there
is counted. No text makes it raise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from grpo.language.text.fen_similarity import NUM_FIELDS, read_fen

ALPHABET: Final = " +-./0123456789:ABEKMNPQRabcdefghknpqrw"
"""Every character of prompts and answers; a tokenizer must give each text of them back as it was."""

NUM_MOVES: Final = 5
"""Moves that an answer lists; where fewer are legal, all of them."""

_GAP: Final = "    "
_MOVE: Final = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?")
# Bounded, so that no text becomes infinite; ASCII digits, for `\d` knows hundreds.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,4}(?:\.[0-9]{1,4})?")
_LABEL: Final = re.compile(r"[A-Z]:")
_LABELS: Final = ("M:", "E:", "B:")
_NUM_PARTS: Final = 4


class LanguageTask(StrEnum):
    """What a prompt asks for; the names are those of `grpo.metrics.table.TASKS`."""

    MOVE = "move"
    ENVIRONMENT = "environment"


def move_prompt(fen: str) -> str:
    """Return the prompt that asks for a move: its answer begins with a blank and the first of the moves."""
    return f"P: {fen}{_GAP}M:"


def environment_prompt(fen: str, move: str, history: Sequence[str]) -> str:
    """Return the prompt that asks what a move does; `history` are the moves up to it, itself the last."""
    return f"A: {fen}+{move}+{' '.join(history)}+"


def write_move_answer(moves: Sequence[str], evaluations: Sequence[float], best: str) -> str:
    """Return the rest of a text whose prompt is `move_prompt`; evaluations have two decimals."""
    return f" {' '.join(moves)}{_GAP}E: {' '.join(f'{number:.2f}' for number in evaluations)}{_GAP}B: {best}"


def write_environment_answer(fen: str, reward: float, *, terminated: bool, truncated: bool) -> str:
    """Return the rest of a text whose prompt is `environment_prompt`; `fen` is the position after the move."""
    return f"{fen}+{reward}+{int(terminated)}+{int(truncated)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How much of an answer can be read."""

    num_sections: int
    """Sections that are there: in their place, with a field that can be read."""
    num_sections_wanted: int
    """Those that an answer has, and each that does not belong."""
    num_fields: int
    """Fields of these sections that can be read."""
    num_fields_wanted: int
    """Those that an answer has, and each word that is too many."""

    @property
    def has_structure(self) -> bool:
        """Whether all sections are there, and no others."""
        return self.num_sections == self.num_sections_wanted

    @property
    def is_readable(self) -> bool:
        """Whether every field can be read, and nothing else stands there."""
        return self.has_structure and self.num_fields == self.num_fields_wanted

    @property
    def is_malformed(self) -> bool:
        """Whether no section is there."""
        return self.num_sections == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveAnswer(Reading):
    """An answer to `move_prompt`: sections M, E and B."""

    moves: tuple[str | None, ...]
    """The listed moves by their form, legal or not, at most as many as are wanted; None where a word is no move."""
    evaluations: tuple[float | None, ...]
    """Pawns for who moves, in the order of the moves."""
    best: str | None
    """The first word of section B, where that is a move by its form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentAnswer(Reading):
    """An answer to `environment_prompt`: sections new FEN (6 fields), reward, terminated and truncated."""

    fen: str
    """As written, but for white space; see `fens.read_fen` for what can be read of it."""
    reward: float | None
    terminated: bool | None
    truncated: bool | None


def read_move_answer(text: str, *, num_legal: int = NUM_MOVES) -> MoveAnswer:
    """Return what can be read of an answer on a board with so many legal moves; five or more want five.

    Sections stand in their order, and each once: reading ends at a label that is out of place, and words from there on are too many.
    """
    num_moves = min(NUM_MOVES, num_legal)
    labels, parts = ["M:", *_LABEL.findall(text)], _LABEL.split(text)
    sections: dict[str, list[str]] = {label: [] for label in _LABELS}
    num_right, least = 0, 0
    for label, part in zip(labels, parts, strict=True):
        if label not in _LABELS[least:]:
            break
        sections[label], least = part.split(), _LABELS.index(label) + 1
        num_right += 1
    num_lost = sum(len(part.split()) for part in parts[num_right:])
    listed, numbers, named = (sections[label] for label in _LABELS)
    moves = tuple(_as_move(word) for word in listed[:num_moves])
    evaluations = tuple(_as_number(word) for word in numbers[:num_moves])
    best = _as_move(named[0]) if named else None
    readable = [sum(field is not None for field in fields) for fields in (moves, evaluations, (best,))]
    num_surplus = max(0, len(listed) - num_moves) + max(0, len(numbers) - num_moves) + max(0, len(named) - 1)
    return MoveAnswer(
        num_sections=sum(map(bool, readable)),
        num_sections_wanted=len(_LABELS) + len(parts) - num_right,
        num_fields=sum(readable),
        num_fields_wanted=2 * num_moves + 1 + num_surplus + num_lost,
        moves=moves,
        evaluations=evaluations,
        best=best,
    )


def read_environment_answer(text: str) -> EnvironmentAnswer:
    """Return what can be read of an answer; one `+` may end it, as in some of RookWorld's data."""
    parts = text.split("+")
    if len(parts) == _NUM_PARTS + 1 and not parts[-1].strip():
        parts.pop()
    words = [part.split() for part in parts]
    fen = " ".join(words[0])
    fields = read_fen(fen)
    first = [part[0] if part else "" for part in (*words[1:_NUM_PARTS], *[[]] * _NUM_PARTS)]
    reward, terminated, truncated = _as_number(first[0]), _as_flag(first[1]), _as_flag(first[2])
    readable = [fields.num_readable, *(int(field is not None) for field in (reward, terminated, truncated))]
    num_surplus = fields.num_surplus + sum(max(0, len(part) - 1) for part in words[1:_NUM_PARTS])
    return EnvironmentAnswer(
        num_sections=sum(map(bool, readable)),
        num_sections_wanted=max(_NUM_PARTS, len(parts)),
        num_fields=sum(readable),
        num_fields_wanted=NUM_FIELDS + _NUM_PARTS - 1 + num_surplus + sum(map(len, words[_NUM_PARTS:])),
        fen=fen,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
    )


def _as_move(word: str) -> str | None:
    return word if _MOVE.fullmatch(word) else None


def _as_number(word: str) -> float | None:
    return float(word) if _NUMBER.fullmatch(word) else None


def _as_flag(word: str) -> bool | None:
    return word == "1" if word in ("0", "1") else None
