"""The two tasks of a language model as text: prompts, and writers and parsers of answers.

`move`, choose a move:

    P: <FEN>    M: m1 m2 m3 m4 m5    E: e1 e2 e3 e4 e5    B: best

`environment`, predict the new position (https://github.com/jorahn/RookWorld; the history ends with the move itself, separated by blanks):

    A: <FEN>+<move>+<history>+<new FEN>+<reward>+<terminated>+<truncated>

A prompt ends with `M:` or with the third `+`; the answer is the rest. Moves are UCI, evaluations are in pawns for the player to move. The
parsers ignore white space but nothing else: a word that is not a move, number, position or flag is not parsed, and surplus words are
counted. They never raise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from grpo.language.text.fen_similarity import NUM_FIELDS, read_fen

NUM_MOVES: Final = 5
"""Number of moves in an answer; all legal moves if there are fewer."""

_GAP: Final = "    "
_MOVE: Final = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?")
# Bounded, so that no number is infinite; ASCII digits, because `\d` matches other scripts' digits.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,4}(?:\.[0-9]{1,4})?")
_LABEL: Final = re.compile(r"[A-Z]:")
_LABELS: Final = ("M:", "E:", "B:")
_NUM_PARTS: Final = 4


class LanguageTask(StrEnum):
    """The tasks of a language model, named as in `grpo.metrics.table.TASKS`."""

    MOVE = "move"
    ENVIRONMENT = "environment"


def move_prompt(fen: str) -> str:
    """Return the prompt of the move task; the answer begins with a blank and the first move."""
    return f"P: {fen}{_GAP}M:"


def environment_prompt(fen: str, move: str, history: Sequence[str]) -> str:
    """Return the prompt of the environment task; `history` has the moves up to and including `move`."""
    return f"A: {fen}+{move}+{' '.join(history)}+"


def write_move_answer(moves: Sequence[str], evaluations: Sequence[float], best: str) -> str:
    """Return the answer to `move_prompt`; evaluations have two decimals."""
    return f" {' '.join(moves)}{_GAP}E: {' '.join(f'{number:.2f}' for number in evaluations)}{_GAP}B: {best}"


def write_environment_answer(fen: str, reward: float, *, terminated: bool, truncated: bool) -> str:
    """Return the answer to `environment_prompt`; `fen` is the position after the move."""
    return f"{fen}+{reward}+{int(terminated)}+{int(truncated)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A parsed answer: counts of valid sections and fields."""

    num_sections: int
    """Sections in the right place with at least one valid field."""
    num_sections_expected: int
    """Expected sections plus surplus ones."""
    num_fields: int
    """Valid fields of these sections."""
    num_fields_expected: int
    """Expected fields plus surplus words."""
    is_readable: bool
    """Whether every field that is there is valid, and there is nothing else. How many moves a board asks for is graded by `num_fields`: a
    text can be read, or not, without its board."""

    @property
    def is_malformed(self) -> bool:
        """Whether no section is present."""
        return self.num_sections == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveAnswer(Reading):
    """An answer to `move_prompt`: sections M, E and B."""

    moves: tuple[str | None, ...]
    """The listed moves, legal or not, at most the expected number; None for a word that is not a move."""
    evaluations: tuple[float | None, ...]
    """In pawns for the player to move, in the order of the moves."""
    best: str | None
    """The first word of section B if it is a move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentAnswer(Reading):
    """An answer to `environment_prompt`: sections new FEN (6 fields), reward, terminated and truncated."""

    fen: str
    """As written, with white space normalized; parse it with `fen_similarity.read_fen`."""
    reward: float | None
    terminated: bool | None
    truncated: bool | None


def read_move_answer(text: str, *, num_legal: int = NUM_MOVES) -> MoveAnswer:
    """Parse an answer for a board with `num_legal` legal moves; at most five are expected.

    Sections must be in order, each once: parsing ends at a misplaced label, and all words from there on are surplus. Readable is an answer
    of one to five moves, an evaluation of each, and one best move.
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
    is_whole = num_right == len(parts) and len(named) == 1 and 1 <= len(listed) == len(numbers) <= NUM_MOVES
    return MoveAnswer(
        num_sections=sum(map(bool, readable)),
        num_sections_expected=len(_LABELS) + len(parts) - num_right,
        num_fields=sum(readable),
        num_fields_expected=2 * num_moves + 1 + num_surplus + num_lost,
        is_readable=is_whole and None not in (best, *map(_as_move, listed), *map(_as_number, numbers)),
        moves=moves,
        evaluations=evaluations,
        best=best,
    )


def read_environment_answer(text: str) -> EnvironmentAnswer:
    """Parse an answer; a final `+` is allowed, as in some of RookWorld's data."""
    parts = text.split("+")
    if len(parts) == _NUM_PARTS + 1 and not parts[-1].strip():
        parts.pop()
    words = [part.split() for part in parts]
    fen = " ".join(words[0])
    fields = read_fen(fen)
    # Without a piece placement the other fields mean nothing.
    num_readable = sum(field is not None for field in fields) if fields[0] else 0
    first = [part[0] if part else "" for part in (*words[1:_NUM_PARTS], *[[]] * _NUM_PARTS)]
    reward, terminated, truncated = _as_number(first[0]), _as_flag(first[1]), _as_flag(first[2])
    readable = [num_readable, *(int(field is not None) for field in (reward, terminated, truncated))]
    num_surplus = max(0, len(words[0]) - NUM_FIELDS) + sum(max(0, len(part) - 1) for part in words[1:_NUM_PARTS])
    num_fields_expected = NUM_FIELDS + _NUM_PARTS - 1 + num_surplus + sum(map(len, words[_NUM_PARTS:]))
    return EnvironmentAnswer(
        num_sections=sum(map(bool, readable)),
        num_sections_expected=max(_NUM_PARTS, len(parts)),
        num_fields=sum(readable),
        num_fields_expected=num_fields_expected,
        is_readable=len(parts) == _NUM_PARTS and sum(readable) == num_fields_expected,
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
