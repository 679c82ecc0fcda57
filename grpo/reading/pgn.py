"""PGN parser: a byte stream to games and rejections; every unusable game is reported.

`pgn_split` first splits the stream into raw games at tag lines. This works on bytes, so it is fast, and memory is bounded by the largest
allowed game. Only raw games that are selected and new are then parsed strictly: tags, start position, moves and result. An unusable game
becomes a `Rejection` with its byte offset and reason.
"""

import calendar
import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import chess

from grpo.reading.games import Game, Reason, Rejection
from grpo.reading.pgn_moves import RESULT_BY_TOKEN, MainLine, UnusableError, quoted, read_main_line
from grpo.reading.pgn_split import BOM, HEADER, MAX_GAME_BYTES, TAG_NAME, RawGame, RawGames

_MAX_SEEN: Final = 1_000_000
_MAX_DETAIL: Final = 120
_MAX_RATING: Final = 4_000

_FIRST_WORD: Final = re.compile(rb"(?:\s|\xef\xbb\xbf|\{[^}]*\}|[;%][^\n]*|[0-9]{1,3}\.+)*([^\s{};()]+)")
_PLAIN_TAG: Final = re.compile(rf'^\[({TAG_NAME}) "([^"\\\n]*)"\]$', re.MULTILINE)
_TAG_LINE: Final = re.compile(rf'\[\s*({TAG_NAME})\s*"(.*)"\s*\]')
_TAGS_IN_LINE: Final = re.compile(rf'(?:\[\s*{TAG_NAME}\s*"[^"\\]*+(?:\\.[^"\\]*+)*"\s*\]\s*)+')
_TAG_IN_LINE: Final = re.compile(rf'\[\s*({TAG_NAME})\s*"([^"\\]*+(?:\\.[^"\\]*+)*)"\s*\]')
_ESCAPED: Final = re.compile(r'\\(["\\])')
_BROKEN_NAME: Final = re.compile(rf"\[\s*({TAG_NAME})(?![^\s\"\]])")
# Tags that determine a game's identity, start position, result or filters; any other tag may be broken.
_TAGS_THAT_MATTER: Final = frozenset(
    (
        *("Event", "Site", "Date", "White", "Black", "Result", "UTCDate", "UTCTime", "WhiteElo", "BlackElo", "WhiteTitle", "BlackTitle"),
        *("WhiteType", "BlackType", "TimeControl", "Termination", "Rated", "Variant", "FEN", "SetUp"),
    )
)

_STANDARD_NAMES: Final = frozenset(("", "standard", "chess", "normal", "fromposition"))
_CHESS960_NAMES: Final = frozenset(
    ("chess960", "960", "fischerandom", "fischerrandom", "fischerandomchess", "fischerrandomchess", "freestyle", "freestylechess")
)
_DATE: Final = re.compile(r"([0-9]{4})[./-]([0-9]{2}|\?\?)[./-]([0-9]{2}|\?\?)")


class SeenGames:
    """The last `capacity` games that were read, by hash of text and by game id, for the detection of duplicates.

    Each is stored as 8 bytes of hash: among a million games the probability of a collision is 3 in 100 million.
    """

    def __init__(self, capacity: int = _MAX_SEEN) -> None:
        self._capacity = capacity
        self._verdicts: dict[int, Reason] = {}
        self._texts: deque[int] = deque()
        self._ids: dict[int, None] = {}
        self._ids_in_order: deque[int] = deque()

    def verdict(self, digest: bytes) -> Reason | None:
        """Return the reason to reject this text if it was read before, or None if it is new."""
        return self._verdicts.get(_eight_bytes(digest))

    def remember(self, digest: bytes, reason: Reason) -> None:
        """Store the reason to reject this text if it is read again."""
        key = _eight_bytes(digest)
        if key in self._verdicts:
            return
        # The deque is needed because a dict finds its first key slowly: it scans all entries that were deleted before.
        if len(self._texts) >= self._capacity:
            del self._verdicts[self._texts.popleft()]
        self._texts.append(key)
        self._verdicts[key] = reason

    def is_new_game(self, game_id: str) -> bool:
        """Return whether no game with this id was read before, and store the id."""
        key = _eight_bytes(bytes.fromhex(game_id))
        if key in self._ids:
            return False
        if len(self._ids_in_order) >= self._capacity:
            del self._ids[self._ids_in_order.popleft()]
        self._ids_in_order.append(key)
        self._ids[key] = None
        return True


def _eight_bytes(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def read_games(
    chunks: Iterable[bytes],
    source: str,
    *,
    start: int = 0,
    is_mine: Callable[[bytes], bool] = lambda _: True,
    seen: SeenGames | None = None,
    dropped_by: Callable[[Mapping[str, str]], str | None] = lambda _: None,
) -> Iterator[Game | Rejection]:
    """Yield each game of a PGN stream, or its Rejection, in order.

    Args:
        chunks: The decompressed bytes, split anywhere.
        source: Name of the file.
        start: Offset of the first chunk in the file, where a game begins.
        is_mine: Whether to parse the game with this digest; other games are skipped. The digest depends only on the game's text (its first
            MiB), not on its line ends, its offset or its file.
        seen: Games that were read before, from this or other files. A game among them is a duplicate, or is rejected for the same reason
            as the first time. None disables the check.
        dropped_by: The filter that drops a game for its tags, or None. The moves of a dropped game are not read, which takes a fortieth
            of the time; whether they are legal, and whether the game was read before, is then not known.

    Raises SourceError if the stream is UTF-16.
    """
    for raw in RawGames(chunks, source, start=start):
        digest = raw.digest()
        if not is_mine(digest):
            continue
        earlier = seen.verdict(digest) if seen is not None else None
        if earlier is not None:
            yield Rejection(source=source, offset=raw.offset, reason=earlier, detail="the same text as an earlier game's")
            continue
        read = _read(raw, source, dropped_by)
        if seen is not None and not (isinstance(read, Rejection) and read.reason == Reason.FILTERED):
            if isinstance(read, Game) and not seen.is_new_game(read.game_id):
                same = "an earlier game's players, date and moves"
                read = Rejection(source=source, offset=raw.offset, reason=Reason.DUPLICATE, detail=same)
            seen.remember(digest, read.reason if isinstance(read, Rejection) else Reason.DUPLICATE)
        yield read


def _read(raw: RawGame, source: str, dropped_by: Callable[[Mapping[str, str]], str | None]) -> Game | Rejection:
    try:
        return _parse(raw, source, dropped_by)
    except UnusableError as error:
        detail = error.detail if len(error.detail) <= _MAX_DETAIL else error.detail[: _MAX_DETAIL - 1] + "…"
        return Rejection(source=source, offset=raw.offset, reason=error.reason, detail=detail)


def _parse(raw: RawGame, source: str, dropped_by: Callable[[Mapping[str, str]], str | None]) -> Game:
    if not raw.is_tagged and not _begins_a_game(raw.text):
        raise UnusableError(Reason.NOT_A_GAME, f"{raw.size:,} bytes that are no moves: {quoted(raw.text[:200].decode('latin-1'))}")
    if raw.size > MAX_GAME_BYTES:
        raise UnusableError(Reason.TOO_LONG, f"{raw.size:,} bytes, of at most {MAX_GAME_BYTES:,}")
    if b"\0" in raw.text:
        raise UnusableError(Reason.NUL_BYTES, f"{raw.text.count(0):,} of them")
    header = HEADER.match(raw.text)
    assert header is not None
    encoding = _encoding(raw.text)
    headers = _parse_header(header[0].replace(BOM, b"").decode(encoding))
    if name := dropped_by(headers):
        raise UnusableError(Reason.FILTERED, name)
    start = _start(headers)
    tag_result = _tag_result(headers)
    line = read_main_line(raw.text[header.end() :].decode(encoding), start)
    if not line.moves:
        raise UnusableError(Reason.NO_MOVES, headers.get("FEN", ""))
    result = _result(tag_result, line)
    return Game(
        game_id=_game_id(headers, start, line.moves),
        source=source,
        offset=raw.offset,
        boards=line.boards,
        moves=line.moves,
        is_label=(True,) * len(line.moves),
        result=result,
        white_rating=rating(headers.get("WhiteElo", "")),
        black_rating=rating(headers.get("BlackElo", "")),
        date=_date(headers.get("UTCDate", "")) or _date(headers.get("Date", "")),
    )


def _begins_a_game(text: bytes) -> bool:
    """Return whether the first word of a text without tags, after comments and move numbers, is a legal first move."""
    found = _FIRST_WORD.match(text)
    try:
        return found is not None and bool(read_main_line(found[1].decode("latin-1"), chess.Board()).moves)
    except UnusableError:
        return False


def _encoding(text: bytes) -> str:
    try:
        text.decode()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _parse_header(text: str) -> dict[str, str]:
    plain = _PLAIN_TAG.findall(text)
    headers = {name: value.strip() for name, value in plain}
    if len(headers) == len(plain) == text.count("["):  # Nearly all headers; by line it takes five times as long.
        return headers
    headers = {}
    for line in text.split("\n"):
        shown = line.strip()
        if not shown.startswith("["):
            continue
        for name, value in _tags(shown):
            if name in _TAGS_THAT_MATTER and headers.get(name, value) != value:
                raise UnusableError(Reason.UNREADABLE_TAG, f"{name} is given twice: {quoted(headers[name])} and {quoted(value)}")
            headers[name] = value
    return headers


def _tags(line: str) -> list[tuple[str, str]]:
    """Return the tags of one header line; an empty list if only a tag that does not matter is broken."""
    tag = _TAG_LINE.fullmatch(line)
    if tag is not None and '"' not in tag[2] and "\\" not in tag[2]:
        return [(tag[1], tag[2].strip())]
    if _TAGS_IN_LINE.fullmatch(line):
        return [(name, _ESCAPED.sub(r"\1", value).strip()) for name, value in _TAG_IN_LINE.findall(line)]
    if tag is not None:
        return [(tag[1], tag[2].strip())]  # Quotes inside that should have been escaped: `"Nick "Nicky" Name"`.
    name = _BROKEN_NAME.match(line)
    if name is None or name[1] in _TAGS_THAT_MATTER:
        raise UnusableError(Reason.UNREADABLE_TAG, quoted(line))
    return []


def _start(headers: Mapping[str, str]) -> chess.Board:
    variant = re.sub(r"[\s_-]", "", headers.get("Variant", "").lower())
    if variant in _CHESS960_NAMES:
        raise UnusableError(Reason.CHESS960, quoted(headers["Variant"]))
    if variant not in _STANDARD_NAMES:
        raise UnusableError(Reason.VARIANT, quoted(headers["Variant"]))
    fen = headers.get("FEN")
    if fen is None:
        if headers.get("SetUp") == "1":
            raise UnusableError(Reason.IMPOSSIBLE_START, "SetUp is 1, but there is no FEN tag")
        return chess.Board()
    try:
        board = chess.Board(fen)
    except ValueError:
        raise UnusableError(Reason.IMPOSSIBLE_START, f"not a FEN: {quoted(fen)}") from None
    if board.is_valid():
        return board
    if chess.Board(fen, chess960=True).is_valid():
        raise UnusableError(Reason.CHESS960, f"castling rights of {quoted(fen)}")
    raise UnusableError(Reason.IMPOSSIBLE_START, f"{board.status().name} in {quoted(fen)}")


def _tag_result(headers: Mapping[str, str]) -> str:
    text = headers.get("Result") or "*"
    if text not in RESULT_BY_TOKEN:
        raise UnusableError(Reason.UNKNOWN_RESULT, quoted(text))
    return RESULT_BY_TOKEN[text]


def _result(tag_result: str, line: MainLine) -> str:
    if "*" not in (tag_result, line.result) and tag_result != line.result:
        raise UnusableError(Reason.CONTRADICTING_RESULTS, f"{tag_result} in the tag, {line.result} after the moves")
    result = line.result if tag_result == "*" else tag_result
    if result == "*":
        return result
    if not any(line.end.generate_legal_moves()):
        possible = "1/2-1/2" if not line.end.is_check() else "0-1" if line.end.turn == chess.WHITE else "1-0"
    elif line.end.is_insufficient_material():
        possible = "1/2-1/2"
    else:
        possible = result
    if result != possible:
        raise UnusableError(Reason.RESULT_AGAINST_BOARD, f"{result}, where the board says {possible}")
    return result


def _game_id(headers: Mapping[str, str], start: chess.Board, moves: Iterable[chess.Move]) -> str:
    # Players and date are part of the id, so that two games with equal moves differ. A missing tag counts as the PGN standard's text for
    # an unknown value.
    unknown = {"White": "?", "Black": "?", "Date": "????.??.??", "UTCTime": "", "Site": "?"}
    text = " ".join([start.fen(), *(move.uci() for move in moves)])
    return hashlib.sha256("/".join([text, *(headers.get(tag, default) for tag, default in unknown.items())]).encode()).hexdigest()[:20]


def rating(text: str) -> int | None:
    """Return the rating of a WhiteElo or BlackElo tag, or None if it is not one."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= 4
    return int(text) if is_number and 1 <= int(text) <= _MAX_RATING else None


def _date(text: str) -> str | None:
    """Return a date as `YYYY.MM.DD`, with `??` for an unknown month or day; None if the text is not a date or the year is unknown."""
    found = _DATE.fullmatch(text)
    if found is None or found[1] == "0000":
        return None
    year, month, day = found.groups()
    if month != "??" and not 1 <= int(month) <= 12:
        return None
    num_days = 31 if month == "??" else calendar.monthrange(int(year), int(month))[1]
    if day != "??" and not 1 <= int(day) <= num_days:
        return None
    return f"{year}.{month}.{day}"
