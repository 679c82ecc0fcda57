"""Games of PGN files, read by python-chess; every unusable game is reported."""

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from typing import BinaryIO, Final, TextIO, cast

import chess
import chess.pgn

from grpo.dataset.games import MAX_DETAIL, Game, Reason, Rejection

MAX_RATING: Final = 4_000
"""A higher number in a tag is no rating."""
_EVENT: Final = '[Event "'
_STANDARD_NAMES: Final = frozenset(("", "standard", "chess", "normal", "fromposition"))
_CHESS960_NAMES: Final = frozenset(
    ("chess960", "960", "fischerandom", "fischerrandom", "fischerandomchess", "fischerrandomchess", "freestyle", "freestylechess")
)
_RESULTS: Final = {
    **dict.fromkeys(("1-0", "1:0"), "1-0"),
    **dict.fromkeys(("0-1", "0:1"), "0-1"),
    **dict.fromkeys(("1/2-1/2", "1/2", "½-½", "0.5-0.5"), "1/2-1/2"),
}
_DATE: Final = re.compile(r"([0-9]{4})[./-]([0-9]{2}|\?\?)[./-]([0-9]{2}|\?\?)")


def read_games(
    stream: BinaryIO,
    source: str,
    *,
    is_mine: Callable[[int], bool] = lambda _: True,
    dropped_by: Callable[[Mapping[str, str]], str | None] = lambda _: None,
) -> Iterator[Game | Rejection]:
    """Yield each game of a PGN stream, or its Rejection, in order.

    Args:
        stream: The decompressed bytes.
        source: Name of the file.
        is_mine: Whether to parse the game with this number; the first is 0. Other games are skipped.
        dropped_by: The filter that drops a game for its tags, or None. The moves of a dropped game are not parsed.
    """
    text = _GameTexts(stream)
    number = 0
    while text.begin_game():
        while True:
            visitor = _Visitor(source, number, is_mine=is_mine(number), dropped_by=dropped_by)
            try:
                if chess.pgn.read_game(cast("TextIO", text), Visitor=visitor.result) is None:
                    break
                found = visitor.found()
            except IndexError as error:  # Of python-chess 1.11 on some damaged games.
                found = visitor.rejected(Reason.UNREADABLE_MOVE, str(error))
            if is_mine(number):
                yield found
            number += 1


class _GameTexts:
    """The texts of a file's games, one after another, as python-chess reads them: the end of a text is that of a file.

    A text begins at an Event tag that follows no other tag, even in a line of moves or in a comment that is not closed. So no damage of a
    game reaches the next one.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace")
        self._next = self._lines.readline()
        self._is_start, self._in_tags = True, False

    def begin_game(self) -> bool:
        """Go on to the next text, and return whether there is one."""
        while not self._is_start and self.readline():
            pass
        self._is_start = True
        return bool(self._next)

    def readline(self) -> str:
        """Return the next line of this text; nothing at its end."""
        line = self._next
        at = line.find(_EVENT)
        if at == 0 and not self._is_start and not self._in_tags:
            return ""
        if at > 0 and not line.startswith("["):
            line, self._next = line[:at] + "\n", line[at:]
        else:
            self._next = self._lines.readline()
        self._is_start = False
        if not line.startswith("%") and not line.isspace():
            self._in_tags = line.startswith("[")
        return line


class _Visitor(chess.pgn.BaseVisitor["_Visitor"]):
    """Takes one game in: its tags first, then its moves unless it is skipped."""

    def __init__(self, source: str, number: int, *, is_mine: bool, dropped_by: Callable[[Mapping[str, str]], str | None]) -> None:
        self._source, self._number, self._is_mine, self._dropped_by = source, number, is_mine, dropped_by
        self._headers: dict[str, str] = {}
        self._rejection: Rejection | None = None
        self._boards: list[chess.Board] = []
        self._moves: list[chess.Move] = []
        self._result = "*"

    def begin_game(self) -> chess.pgn.SkipType | None:
        return None if self._is_mine else chess.pgn.SKIP

    def visit_header(self, tagname: str, tagvalue: str) -> None:
        self._headers[tagname] = tagvalue.strip()

    def end_headers(self) -> chess.pgn.SkipType | None:
        if name := self._dropped_by(self._headers):
            self.rejected(Reason.FILTERED, name)
        elif unusable := _unusable_start(self._headers):
            self.rejected(*unusable)
        return chess.pgn.SKIP if self._rejection else None

    def visit_move(self, board: chess.Board, move: chess.Move) -> None:
        if not move:
            self.rejected(Reason.NULL_MOVE, f"at ply {len(self._moves)}")
        self._boards.append(board.copy(stack=False))
        self._moves.append(move)

    def begin_variation(self) -> chess.pgn.SkipType:
        return chess.pgn.SKIP

    def visit_result(self, result: str) -> None:
        self._result = result

    def handle_error(self, error: Exception) -> None:
        reason = Reason.ILLEGAL_MOVE if isinstance(error, chess.IllegalMoveError) else Reason.UNREADABLE_MOVE
        self.rejected(Reason.AMBIGUOUS_MOVE if isinstance(error, chess.AmbiguousMoveError) else reason, str(error))

    def result(self) -> "_Visitor":
        return self

    def rejected(self, reason: Reason, detail: str) -> Rejection:
        """Return the first reason for which the game is rejected."""
        self._rejection = self._rejection or Rejection(source=self._source, offset=self._number, reason=reason, detail=detail[:MAX_DETAIL])
        return self._rejection

    def found(self) -> Game | Rejection:
        """Return the game, or why it is rejected."""
        if self._rejection:
            return self._rejection
        if not self._moves:
            return self.rejected(Reason.NO_MOVES if self._headers else Reason.NOT_A_GAME, self._headers.get("FEN", ""))
        tags = self._headers
        return Game(
            game_id=_game_id(tags, self._boards[0], self._moves),
            source=self._source,
            offset=self._number,
            boards=tuple(self._boards),
            moves=tuple(self._moves),
            is_label=(True,) * len(self._moves),
            result=_RESULTS.get(tags.get("Result", ""), self._result),
            white_rating=rating(tags.get("WhiteElo", "")),
            black_rating=rating(tags.get("BlackElo", "")),
            date=_date(tags.get("UTCDate", "")) or _date(tags.get("Date", "")),
        )


def _unusable_start(headers: Mapping[str, str]) -> tuple[Reason, str] | None:
    variant = headers.get("Variant", "")
    name = re.sub(r"[\s_-]", "", variant.lower())
    if name in _CHESS960_NAMES:
        return Reason.CHESS960, variant
    if name not in _STANDARD_NAMES:
        return Reason.VARIANT, variant
    fen = headers.get("FEN", chess.STARTING_FEN)
    try:
        board = chess.Board(fen)
    except ValueError:
        return Reason.IMPOSSIBLE_START, f"not a FEN: {fen}"
    if board.is_valid():
        return None
    if chess.Board(fen, chess960=True).is_valid():
        return Reason.CHESS960, f"castling rights of {fen}"
    return Reason.IMPOSSIBLE_START, f"{board.status().name} in {fen}"


def _game_id(headers: Mapping[str, str], start: chess.Board, moves: Iterable[chess.Move]) -> str:
    # Players and date are part of the id, so that two games with equal moves differ. A missing tag counts as the PGN standard's text for
    # an unknown value.
    unknown = {"White": "?", "Black": "?", "Date": "????.??.??", "UTCTime": "", "Site": "?"}
    text = " ".join([start.fen(), *(move.uci() for move in moves)])
    return hashlib.sha256("/".join([text, *(headers.get(tag, default) for tag, default in unknown.items())]).encode()).hexdigest()[:20]


def rating(text: str) -> int | None:
    """Return the rating of a WhiteElo or BlackElo tag, or None if it is not one."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= 4
    return int(text) if is_number and 1 <= int(text) <= MAX_RATING else None


def _date(text: str) -> str | None:
    """Return a date as `YYYY.MM.DD`, with `??` for an unknown month or day; None if the text is not a date or the year is unknown."""
    if not (found := _DATE.fullmatch(text)):
        return None
    try:
        date.fromisoformat("-".join(found.groups()).replace("??", "01"))
    except ValueError:
        return None
    return ".".join(found.groups())
