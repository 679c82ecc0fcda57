"""The two text tasks: prompts, writers and parsers of answers, in the formats of RookWorld (https://github.com/jorahn/RookWorld).

`move`, choose a move:

    P: <FEN>    M: m1 m2 m3 m4 m5    E: e1 e2 e3 e4 e5    B: best

`environment`, predict the position after a move; the history's moves are separated by blanks and end with the move:

    A: <FEN>+<move>+<history>+<new FEN>+<reward>+<terminated>+<truncated>

A prompt ends with `M:` or the third `+`; the rest is the answer. Without `language.lists_moves`, the prompt of `move` ends with `B:`, and
the answer is the best move alone. Moves are UCI, evaluations are pawns for the player to move. The flags are
0 or 1: terminated means that the game is over, truncated that the move is illegal.

- Sections of an answer are M, E and B, or the four parts between `+`.
- Fields of a section are moves, numbers, flags, or the six fields of a FEN.
- Extra words are words beyond a section's expected fields, and all words of extra sections.

Parsers never raise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from grpo.language.text.fen_similarity import NUM_FIELDS, read_fen

NUM_MOVES: Final = 5  # Expected moves in section M; fewer if the board has fewer legal moves.
_GAP: Final = "    "
_MOVE: Final = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?")
# At most four digits on each side of the point, so no number is infinite. `\d` would match digits of other scripts too.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,4}(?:\.[0-9]{1,4})?")
_LABEL: Final = re.compile(r"[A-Z]:")
_LABELS: Final = ("M:", "E:", "B:")
LABEL_EVALUATIONS: Final = f"{_GAP}E:"
LABEL_BEST: Final = f"{_GAP}B:"
_MOVE_PROMPT: Final = re.compile(rf"P: (.*){_GAP}([MB]):")
_NUM_PARTS: Final = 4  # Sections of an environment answer.


class TextTask(StrEnum):
    """The values are also the keys of `grpo.metrics.table.TASKS`."""

    MOVE = "move"
    ENVIRONMENT = "environment"


def move_prompt(fen: str, *, lists_moves: bool = True) -> str:
    return f"P: {fen}{_GAP}M:" if lists_moves else f"P: {fen}{LABEL_BEST}"


def read_move_prompt(prompt: str) -> tuple[str, bool] | None:
    """Return FEN and `lists_moves` of a prompt; None for another text."""
    match = _MOVE_PROMPT.fullmatch(prompt)
    return None if match is None else (match[1], match[2] == "M")


def environment_prompt(fen: str, move: str, history: Sequence[str]) -> str:
    """`history` has moves in UCI and ends with `move`."""
    return f"A: {fen}+{move}+{' '.join(history)}+"


def write_move_answer(moves: Sequence[str], evaluations: Sequence[float], best: str) -> str:
    """`evaluations` are pawns, one per move."""
    return f" {' '.join(moves)}{LABEL_EVALUATIONS} {' '.join(f'{number:.2f}' for number in evaluations)}{LABEL_BEST} {best}"


def write_environment_answer(fen: str, reward: float, *, terminated: bool, truncated: bool) -> str:
    """`fen` is the position after the move."""
    return f"{fen}+{reward}+{int(terminated)}+{int(truncated)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    num_sections: int  # Sections in the right order with at least one valid field.
    num_sections_expected: int  # Expected sections plus extra sections.
    num_fields: int  # Valid fields of sections in the right order.
    num_fields_expected: int  # Expected fields plus extra words.
    is_readable: bool  # Whether no section is missing and every word is a valid field in its place. Moves need not be legal.

    @property
    def is_malformed(self) -> bool:
        return self.num_sections == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveAnswer(Reading):
    moves: tuple[str | None, ...]  # First words of section M, at most the expected number. UCI, legal or not; None for other words.
    evaluations: tuple[float | None, ...]  # First words of section E, at most the same number. Pawns; None for other words.
    best: str | None  # First word of section B; None if it is no move.


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentAnswer(Reading):
    """Invalid fields are None."""

    fen: str  # New FEN as written, words separated by one blank.
    reward: float | None
    terminated: bool | None
    truncated: bool | None


def read_move_answer(text: str, *, num_legal: int = NUM_MOVES, lists_moves: bool = True) -> MoveAnswer:
    """A misplaced, repeated or unknown label ends parsing; all later words are extra words.

    A readable answer has one to five moves, an evaluation of each move, and one best move; without `lists_moves`, only the best
    move. `num_legal` limits the expected moves.
    """
    expected = _LABELS if lists_moves else _LABELS[-1:]
    num_moves = min(NUM_MOVES, num_legal) if lists_moves else 0
    # The prompt ends with the first label.
    labels, parts = [expected[0], *_LABEL.findall(text)], _LABEL.split(text)
    sections: dict[str, list[str]] = {label: [] for label in _LABELS}
    num_in_order, next_label = 0, 0
    for label, part in zip(labels, parts, strict=True):
        if label not in _LABELS[next_label:]:
            break
        sections[label], next_label = part.split(), _LABELS.index(label) + 1
        num_in_order += 1
    num_lost = sum(len(part.split()) for part in parts[num_in_order:])
    listed, numbers, named = (sections[label] for label in _LABELS)
    moves = tuple(_as_move(word) for word in listed[:num_moves])
    evaluations = tuple(_as_number(word) for word in numbers[:num_moves])
    best = _as_move(named[0]) if named else None
    readable = [sum(field is not None for field in fields) for fields in (moves, evaluations, (best,))]
    num_surplus = max(0, len(listed) - num_moves) + max(0, len(numbers) - num_moves) + max(0, len(named) - 1)
    # At least `lists_moves` (0 or 1) moves.
    is_complete = num_in_order == len(parts) and len(named) == 1 and lists_moves <= len(listed) == len(numbers) <= NUM_MOVES
    return MoveAnswer(
        num_sections=sum(map(bool, readable)),
        num_sections_expected=len(expected) + len(parts) - num_in_order,
        num_fields=sum(readable),
        num_fields_expected=2 * num_moves + 1 + num_surplus + num_lost,
        is_readable=is_complete and None not in (best, *map(_as_move, listed), *map(_as_number, numbers)),
        moves=moves,
        evaluations=evaluations,
        best=best,
    )


def read_environment_answer(text: str) -> EnvironmentAnswer:
    """One `+` after the last section is allowed, because some of RookWorld's data has one."""
    parts = text.split("+")
    if len(parts) == _NUM_PARTS + 1 and not parts[-1].strip():
        parts.pop()
    words = [part.split() for part in parts]
    fen = " ".join(words[0])
    fields = read_fen(fen)
    # Without a valid piece placement (first field), the FEN's other fields count as invalid.
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
