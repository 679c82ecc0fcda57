"""Strict parser of PGN movetext: the main line of a game; any token that is not valid movetext rejects the game.

python-chess's PGN reader skips tokens that it cannot parse, so a game with a damaged move becomes a different game. This parser uses
python-chess only for the rules of chess.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import chess

from grpo.reading.games import Reason

MAX_PLIES: Final = 1_200  # The longest tournament game on record has 538 (Nikolic - Arsovic, Belgrade 1989).
_MAX_DEPTH: Final = 100
_MAX_TOKEN: Final = 255  # The PGN standard's limit for a line.
_MAX_SHOWN: Final = 60  # Characters of a token that are quoted in a detail.

RESULT_BY_TOKEN: Final[Mapping[str, str]] = {
    "1-0": "1-0",
    "0-1": "0-1",
    "1/2-1/2": "1/2-1/2",
    "1/2": "1/2-1/2",
    "½-½": "1/2-1/2",
    "*": "*",
}
"""Result token -> standard PGN result."""

_NULL_MOVES: Final = frozenset(("--", "Z0", "0000", "@@@@", "<>"))
# Standalone assessments. ChessBase writes N for a novelty and D for a diagram.
_GLYPHS: Final = frozenset(
    (
        *("!", "?", "!!", "??", "!?", "?!", "+", "++", "#", "=", "~", "+=", "=+", "+/=", "=/+", "+/-", "-/+", "+-", "-+", "+/--", "--/+"),
        *("±", "∓", "⩲", "⩱", "∞", "□", "e.p.", "e.p", "ep", "N", "D"),
    )
)

_TOKEN: Final = re.compile(
    r"""
      ^%[^\n]*+                                      # an escape line: for other programs
    | (?P<word>[^\s\ufeff{}();$]++)
    | \{(?P<comment>[^}]*+)(?P<is_closed>\})?+
    | (?P<open>\()
    | (?P<close>\))
    | \$[0-9]++
    | ;[^\n]*+                                       # a comment up to the end of its line
    | (?P<stray>[}$])
    """,
    re.MULTILINE | re.VERBOSE,
)
_MOVE: Final = re.compile(
    r"""
    (?:[0-9]*[.…]+)?
    (?P<san>[KQRBN]?[a-h]?[1-8]?[x-]?[a-h][1-8](?:=?[QRBNqrbn])?|O-O(?:-O)?|0-0(?:-0)?)
    (?:e\.p\.|ep)?(?:\+\+?|\#)?[!?]{0,3}
    """,
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"[0-9]*[.…]+|[0-9]+\Z")
_CLOCK: Final = re.compile(r"\[%clk\s+(?:([0-9]{1,4}):)?([0-9]{1,4}):([0-9]{1,4}(?:\.[0-9]{0,9})?)\s*\]")


class UnusableError(ValueError):
    """A game cannot be used; the caller, who knows its offset, turns this into a `Rejection`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, kw_only=True, slots=True)
class MainLine:
    """The main line of a game: the moves that were played."""

    boards: tuple[chess.Board, ...]
    """Before each move, without move stacks."""
    moves: tuple[chess.Move, ...]
    clocks: tuple[float | None, ...]
    """Seconds left on the mover's clock after each move; None for moves without `[%clk ...]`."""
    end: chess.Board
    """After the last move."""
    result: str
    """The result token at the end of the movetext; `*` if there is none."""


def quoted(text: str) -> str:
    """Return a text as a short one-line quote for a detail."""
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")


def read_main_line(text: str, start: chess.Board) -> MainLine:
    """Return the main line of a movetext with LF line ends; variations are skipped but must be balanced.

    Moves may be SAN (also overspecified, castling with zeros, promotion without `=`), long algebraic (`e2-e4`) or UCI (`e2e4`). A move
    number may precede a move without a blank, and `e.p.`, `+`, `++`, `#`, `!`, `?` may follow it.

    Raises UnusableError at the first invalid token.
    """
    board = start.copy(stack=False)
    boards: list[chess.Board] = []
    moves: list[chess.Move] = []
    clocks: list[float | None] = []
    result: str | None = None
    depth = 0

    def unusable(reason: Reason, what: str) -> UnusableError:
        return UnusableError(reason, f"{what} at ply {len(moves)}")

    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "word":
            word = token["word"]
            if len(word) > _MAX_TOKEN:
                raise unusable(Reason.TOO_LONG, f"a token of {len(word):,} characters, {quoted(word)},")
            if depth:
                continue
            if result is not None:
                raise unusable(Reason.TEXT_AFTER_RESULT, quoted(word))
            written = _MOVE.fullmatch(word)
            if written is None:
                result = _result_or_nothing(word, len(moves))
                continue
            if len(moves) == MAX_PLIES:
                raise UnusableError(Reason.TOO_LONG, f"more than {MAX_PLIES:,} plies")
            move = _parse_move(board, written["san"], word, len(moves))
            boards.append(board.copy(stack=False))
            moves.append(move)
            clocks.append(None)
            board.push(move)
        elif kind in ("comment", "is_closed"):
            comment = token["comment"]
            # The standard allows `{` in a comment, but in practice a `}` is missing before it, and moves are lost.
            if not token["is_closed"] or "{" in comment:
                raise unusable(Reason.UNCLOSED_COMMENT, quoted("{" + comment))
            if moves and not depth and clocks[-1] is None and "[%clk" in comment:
                clocks[-1] = _clock(comment)
        elif kind == "open":
            depth += 1
            if result is not None:
                raise unusable(Reason.TEXT_AFTER_RESULT, "'('")
            if depth > _MAX_DEPTH:
                raise unusable(Reason.TOO_LONG, f"variations nested more than {_MAX_DEPTH} deep")
        elif kind == "close":
            depth -= 1
            if depth < 0:
                raise unusable(Reason.UNBALANCED_VARIATION, "')' without '('")
        elif kind == "stray":
            raise unusable(Reason.UNREADABLE_MOVE, quoted(token["stray"]))
    if depth:
        raise unusable(Reason.UNBALANCED_VARIATION, f"the text ends inside {depth} variation(s)")
    return MainLine(boards=tuple(boards), moves=tuple(moves), clocks=tuple(clocks), end=board, result=result or "*")


def _result_or_nothing(word: str, ply: int) -> str | None:
    """Return the result that a token stands for, or None for a move number or a glyph."""
    if word in _NULL_MOVES:
        raise UnusableError(Reason.NULL_MOVE, f"{quoted(word)} at ply {ply}")
    number = _NUMBER.match(word)
    rest = word[number.end() :] if number else word
    if rest in _NULL_MOVES:
        raise UnusableError(Reason.NULL_MOVE, f"{quoted(word)} at ply {ply}")
    if rest and rest not in RESULT_BY_TOKEN and rest not in _GLYPHS:
        raise UnusableError(Reason.UNREADABLE_MOVE, f"{quoted(word)} at ply {ply}")
    return RESULT_BY_TOKEN.get(rest)


def _parse_move(board: chess.Board, san: str, word: str, ply: int) -> chess.Move:
    try:
        return board.parse_san(san)
    except chess.AmbiguousMoveError:
        raise UnusableError(Reason.AMBIGUOUS_MOVE, f"{quoted(word)} at ply {ply}") from None
    except chess.IllegalMoveError:
        raise UnusableError(Reason.ILLEGAL_MOVE, f"{quoted(word)} at ply {ply}") from None


def _clock(comment: str) -> float | None:
    found = _CLOCK.search(comment)
    if found is None:
        return None
    hours, minutes, seconds = found.groups()
    return 3600 * int(hours or 0) + 60 * int(minutes) + float(seconds)
