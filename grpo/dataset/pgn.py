"""Games of PGN files, read with python-chess. An unusable game becomes a Rejection.

The text is first cut into games, so damage in one game cannot spoil the next.
"""

import hashlib
import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, Final

import chess
import chess.pgn

from grpo.dataset.games import Game, Reason, Rejection, standard_board
from grpo.dataset.streams import MAX_LINE, lines_of
from grpo.settings.tree import BoardsConfig, TimeControl

MAX_RATING: Final = 4_000
_TAG_START: Final = re.compile(r'\[\s*\w+\s+"')
_ONE_TAG: Final = re.compile(r'\[\s*(\w+)\s+"([^"]*)"\s*\]')
_TAGS: Final = re.compile(rf"(?:{_ONE_TAG.pattern}\s*)+")
_BEGINS_MOVES: Final = re.compile(r"[;%0-9{(*a-hKQRBNO$]|\Z")  # Moves, a comment or nothing.
_EVENT: Final = re.compile(r'(?=\[Event ")')
_FIRST_MOVE: Final = re.compile(r"(1\s*\.?\s*)?[a-hN]")
_SQUARE: Final = re.compile("[a-h][1-8]")
_BRACE: Final = re.compile("[{}]")
_NOT_MOVES: Final = re.compile(r"\{[^}]*\}?|;.*|^[%\[].*", re.MULTILINE)  # Comments, tags and `%` lines.
# Unread text in a word without its moves: python-chess reads f3 in `Sf3` (German for Nf3), and skips `ed` and `o-o`.
_UNREAD: Final = re.compile(r"[^\W\d_½]|[♔-♟]|\ufffd |(?<!:)\b0[^\w:]?0(?!:)")
_EN_PASSANT: Final = re.compile(r"e\.?p\.?")
_NUMBER: Final = re.compile(r"(?<!\S)([0-9]{1,4})[.\s]")
_RESULTS: Final = {
    **dict.fromkeys(("1-0", "1:0"), "1-0"),
    **dict.fromkeys(("0-1", "0:1"), "0-1"),
    **dict.fromkeys(("1/2-1/2", "1/2", "½-½", "0.5-0.5"), "1/2-1/2"),
}
_ENDS_GAME: Final = re.compile(rf"(?<!\S)(?:{'|'.join(map(re.escape, (*_RESULTS, '*')))})\Z")
# Upper bounds of Lichess's classes in seconds. A game's duration is base + 40 increments: https://lichess.org/faq#time-controls.
_CLASSES: Final = (
    (30, TimeControl.ULTRABULLET),
    (180, TimeControl.BULLET),
    (480, TimeControl.BLITZ),
    (1_500, TimeControl.RAPID),
    (86_400, TimeControl.CLASSICAL),
)
# `300`, `300+3`, `40/7200`, `40/7200+30`, or the first of several periods (`40/7200:3600`).
_PERIOD: Final = re.compile(r"(?:[0-9]{1,4}/)?([0-9]{1,8}(?:\.[0-9]{1,6})?)(?:\+([0-9]{1,8}(?:\.[0-9]{1,6})?))?(?::.*)?")
_NO_FILTERS: Final = BoardsConfig()
_DATE: Final = re.compile(r"([0-9]{4})[./-](0[1-9]|1[0-2]|\?\?)[./-](0[1-9]|[12][0-9]|3[01]|\?\?)")


def read_games(
    stream: BinaryIO, source: str, *, is_mine: Callable[[int], bool] = lambda _: True, filters: BoardsConfig = _NO_FILTERS
) -> Iterator[Game | Rejection]:
    """Yield each game of a PGN stream, or its Rejection.

    `is_mine` takes a game's number, from 0, and can skip the game. `filters` (`min_rating`, `time_controls`) reject games by their tags.
    """
    number = 0
    for text in _texts(stream):
        if text is None:
            if is_mine(number):
                yield Rejection(source=source, offset=number, reason=Reason.TOO_LONG, detail=f"a game of more than {MAX_LINE:,} characters")
            number += 1
            continue
        games = io.StringIO(text)
        while True:
            begin = games.tell()
            visitor = _Visitor(source, number, is_mine=is_mine(number), filters=filters)
            try:
                if chess.pgn.read_game(games, Visitor=visitor.result) is None:
                    break
                result = visitor.game(text[begin : games.tell()])
            except IndexError as error:  # python-chess 1.11 raises IndexError on some damaged games.
                result = visitor.rejected(Reason.ILLEGAL_MOVE, str(error))
            if is_mine(number):
                yield result
            number += 1


def _texts(stream: BinaryIO) -> Iterator[str | None]:
    """Yield each game's text, or None for a game of more than `MAX_LINE` characters.

    A game ends at a blank line after its moves (as in python-chess), or before a second Event tag, a tag that follows no tag, or
    another first move: with number 1 outside of variations, or after a result.
    """
    lines: list[str] = []
    size, depth, is_after_tag, has_moves, is_begun, is_over = 0, 0, False, False, False, False
    for line, is_comment in _marked(_lines(stream)):
        is_blank = line.isspace()
        begins_tags = lines and _TAG_START.match(line) and (not is_after_tag or (_EVENT.match(line) and _EVENT.match(lines[0])))
        first = _FIRST_MOVE.match(line)
        begins_moves = first and is_begun and (is_over or (first[1] and not depth))
        if not is_comment and (has_moves if is_blank else begins_tags or begins_moves):
            yield "".join(lines) if size <= MAX_LINE else None
            lines, size, depth, has_moves, is_begun, is_over = [], 0, 0, False, False, False
        if is_blank and not (is_comment or has_moves):  # Here python-chess could end the game.
            continue
        if size <= MAX_LINE:
            lines.append(line)
        size += len(line)
        if moves := _NOT_MOVES.sub("", line.partition("}")[2] if is_comment else line).strip():
            has_moves, is_begun, is_over = True, is_begun or bool(_SQUARE.search(moves)), bool(_ENDS_GAME.search(moves))
            depth += moves.count("(") - moves.count(")")
        if is_comment or not (is_blank or line[0] in "%;"):  # Blank, `%` and `;` lines may stand between tags.
            is_after_tag = line[0] == "[" and not is_comment
    if lines:
        yield "".join(lines) if size <= MAX_LINE else None


def _marked(lines: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether the line begins inside a comment (in braces).

    An unclosed comment would swallow the games after it, so it ends before its first tag, if any. A comment is unclosed if another `{`, the
    end of the file or more than `MAX_LINE` characters come before its `}`.
    """
    to_reread, comment = deque[str](), list[str]()
    size, is_open = 0, False
    while (line := to_reread.popleft() if to_reread else next(lines, None)) is not None or comment:
        if line is not None and not is_open:
            yield line, False
            is_open = line[0] not in "[%;" and _opens_comment(line)
            continue
        brace = None
        if line is not None:
            comment.append(line)
            size += len(line)
            brace = _BRACE.search(line)
            if brace is None and size <= MAX_LINE:
                continue
        first_tag = next((index for index, text in enumerate(comment) if _TAG_START.match(text)), len(comment))
        if brace is not None and (brace[0] == "}" or first_tag == len(comment)):
            is_open = "}" not in comment[-1] or _opens_comment(comment[-1].partition("}")[2])
        elif first_tag < len(comment):
            to_reread.extendleft(reversed(comment[first_tag:]))
            del comment[first_tag:]
            is_open = False
        yield from ((text, True) for text in comment)
        comment, size = [], 0


def _opens_comment(text: str) -> bool:
    return "{" in text.rpartition("}")[2].partition(";")[0]


def _lines(stream: BinaryIO) -> Iterator[str]:
    """Yield lines. A line is split before each Event tag. Tags at a line's beginning get lines of their own if moves or nothing follow."""
    for _, data in lines_of(stream):
        # Latin-1 gives one character per byte, so a line that is too long stays too long.
        line = data.decode("latin-1") if len(data) > MAX_LINE else data.decode("utf-8", "replace").lstrip("\ufeff \t")
        for piece in _EVENT.split(line) if '[Event "' in line else [line]:
            tags = _TAGS.match(piece)
            end = tags.end() if tags and _BEGINS_MOVES.match(piece, tags.end()) else 0
            yield from (f'[{name} "{value}"]\n' for name, value in _ONE_TAG.findall(piece[:end]))
            if end < len(piece):
                yield piece[end:].rstrip("\r\n") + "\n"


class _Visitor(chess.pgn.BaseVisitor["_Visitor"]):
    """The first rejection counts."""

    def __init__(self, source: str, number: int, *, is_mine: bool, filters: BoardsConfig) -> None:
        self._source, self._number, self._is_mine, self._filters = source, number, is_mine, filters
        self._headers = chess.pgn.Headers({})
        self._rejection: Rejection | None = None
        self._boards: list[chess.Board] = []
        self._moves: list[chess.Move] = []
        self._result = "*"
        self._is_over = False

    def begin_game(self) -> chess.pgn.SkipType | None:
        return None if self._is_mine else chess.pgn.SKIP

    def begin_headers(self) -> chess.pgn.Headers:
        return self._headers

    def visit_header(self, tagname: str, tagvalue: str) -> None:
        if tagname != "FEN" or tagvalue.strip():  # Chessable writes an empty FEN.
            self._headers[tagname] = tagvalue.strip()

    def end_headers(self) -> chess.pgn.SkipType | None:
        if name := dropped_by(self._headers, self._filters):
            self.rejected(Reason.FILTERED, name)
        elif variant := _variant(self._headers.get("Variant", "")):
            self.rejected(Reason.VARIANT, variant)
        else:
            try:
                standard_board(self._headers.get("FEN", chess.STARTING_FEN))
            except ValueError as error:
                self.rejected(Reason.ILLEGAL_POSITION, str(error))
        return chess.pgn.SKIP if self._rejection else None

    def visit_move(self, board: chess.Board, move: chess.Move) -> None:
        if not move:
            self.rejected(Reason.ILLEGAL_MOVE, f"null move at ply {len(self._moves)}")
        if self._is_over:
            self.rejected(Reason.ILLEGAL_MOVE, f"moves after the result {self._result}")
        self._boards.append(board.copy(stack=False))
        self._moves.append(move)

    def begin_variation(self) -> chess.pgn.SkipType:
        return chess.pgn.SKIP

    def visit_result(self, result: str) -> None:
        self._result, self._is_over = result, True

    def handle_error(self, error: Exception) -> None:
        self.rejected(Reason.ILLEGAL_MOVE, str(error))

    def result(self) -> "_Visitor":
        return self

    def rejected(self, reason: Reason, detail: str) -> Rejection:
        self._rejection = self._rejection or Rejection(source=self._source, offset=self._number, reason=reason, detail=detail)
        return self._rejection

    def game(self, text: str) -> Game | Rejection:
        if self._rejection:
            return self._rejection
        tags = self._headers
        if not self._moves:
            return self.rejected(Reason.NO_MOVES if tags else Reason.NOT_A_GAME, tags.get("FEN", ""))
        text = _NOT_MOVES.sub("", text)
        if text.count("(") != text.count(")"):
            return self.rejected(Reason.ILLEGAL_MOVE, "a variation lacks a parenthesis")
        words = (_EN_PASSANT.sub("", word) for word in text.split())
        if unread := next((word for word in words if _UNREAD.search(chess.pgn.MOVETEXT_REGEX.sub(" ", word))), ""):
            return self.rejected(Reason.ILLEGAL_MOVE, f"{unread} is not English notation")
        if "FEN" not in tags and (number := _NUMBER.search(text)) and int(number[1]) > 1:  # As after a blank line between moves.
            return self.rejected(Reason.ILLEGAL_MOVE, f"the first move has number {number[1]}")
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


def _variant(tag: str) -> str:
    tags = chess.pgn.Headers({"Variant": tag} if tag else {})
    if tags.is_chess960():
        return "Chess960"
    try:
        board = tags.variant()
    except ValueError:
        return "unknown"
    return "" if board is chess.Board else board.aliases[0]


def _game_id(headers: Mapping[str, str], start: chess.Board, moves: Iterable[chess.Move]) -> str:
    # Players, date, time and site distinguish games with equal moves.
    unknown = {"White": "?", "Black": "?", "Date": "????.??.??", "UTCTime": "", "Site": "?"}
    text = " ".join([start.fen(), *(move.uci() for move in moves)])
    return hashlib.sha256("/".join([text, *(headers.get(tag, default) for tag, default in unknown.items())]).encode()).hexdigest()[:20]


def rating(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= 4
    return int(text) if is_number and 1 <= int(text) <= MAX_RATING else None


def dropped_by(headers: Mapping[str, str], filters: BoardsConfig) -> str | None:
    """Return the first setting that rejects a game, or None. An unknown rating counts as too low."""
    ratings = rating(headers.get("WhiteElo", "")), rating(headers.get("BlackElo", ""))
    if filters.min_rating is not None and any(known is None or known < filters.min_rating for known in ratings):
        return "min_rating"
    # An unknown time control passes, because many files lack the tag.
    control = time_control(headers.get("TimeControl", "")) if filters.time_controls else None
    return "time_controls" if control is not None and control not in filters.time_controls else None


def time_control(tag: str) -> TimeControl | None:
    """Return a TimeControl tag's class; None for unknown forms, such as `*60`, and `0`. A day or more is correspondence."""
    if tag == "-":
        return TimeControl.CORRESPONDENCE
    period = _PERIOD.fullmatch(tag)
    if period is None:
        return None
    base, increment = period.groups()
    duration = float(base) + 40 * float(increment or 0)
    if not duration:
        return None  # No time.
    return next((name for limit, name in _CLASSES if duration < limit), TimeControl.CORRESPONDENCE)


def _date(text: str) -> str | None:
    match = _DATE.fullmatch(text)
    return ".".join(match.groups()) if match else None
