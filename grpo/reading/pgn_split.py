"""Splits a PGN byte stream into raw games, fast and with memory bounded by the largest allowed game."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from grpo.reading.games import SourceError

MAX_GAME_BYTES: Final = 1 << 20
"""A longer game is truncated."""
TAG_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_+#=:-]{0,254}"
"""Regular expression of a tag's name."""
BOM: Final = b"\xef\xbb\xbf"
# No possessive group here or in other patterns: Python before 3.11.5 matches those wrongly (gh-106052).
# Tag lines, broken ones included, separated only by blank lines, byte order marks, escape lines and `;` comments.
HEADER: Final = re.compile(
    rb"(?:\[[^\r\n]*+[ \t\r\n\f\v]*+(?:(?:\xef\xbb\xbf|(?<=[\r\n])[%;][^\r\n]*+)[ \t\r\n\f\v]*+)*)*",
)
_BLOCK_BYTES: Final = 1 << 20
_BLANKS: Final = b" \t\r\n\f\v"
_ROSTER: Final = r"(Event|Site|Date|Round|White|Black|Result)(?![A-Za-z0-9_+#=:-])"
_TAG_BEGINS: Final = re.compile(rf'\[({TAG_NAME})([ \t]{{0,16}}")?'.encode())
_ROSTER_TAG: Final = re.compile(rf"\[{_ROSTER}".encode())
_ROSTER_OR_OTHER_LINE: Final = re.compile(rf"[%;][^\r\n]*+|\[(?:{_ROSTER})?[^\r\n]*+".encode())
_LOOKAHEAD: Final = 512  # More than `_TAG_BEGINS` can match.
_LOOKBEHIND: Final = 64  # Maximum number of blanks that indent a tag line.
# A blank line before text that is no tag, or any line that begins with move 1. Repetition is bounded, so that no text takes quadratic time.
_UNTAGGED_BEGINS: Final = re.compile(rb"\n(?:([ \t\r]{0,16}+\n[ \t\r\n]{0,48}+)(?=[^\s\[{};%()\xef])|[ \t]{0,16}+(?=1\.[^.0-9]))")
_FIRST_MOVE: Final = re.compile(rb"1\.?(?![.0-9/-])")
_RESULTS: Final = (b"1-0", b"0-1", b"1/2-1/2", b"*", b" 1/2", b"\n1/2")
_NO_MOVES: Final = re.compile(rb"(?:\{[^}]*\}|;[^\r\n]*|\[[^\r\n]*|[\s%])*")
_COMMENT_BEGINS: Final = re.compile(rb"[{;]|(?<![^\r\n])%")
_LINE_ENDS: Final = re.compile(rb"[\r\n]")
_BLANK_BEFORE_LINE_END: Final = re.compile(rb"\n(?<=[ \t]\n)")  # Begins with a literal, because that is searched fast.
_TRAILING_BLANKS: Final = re.compile(rb"[ \t]++(?=\n)")


@dataclass(frozen=True, kw_only=True, slots=True)
class RawGame:
    """The bytes of one game, from its first tag up to the next game."""

    offset: int
    text: bytes
    """With LF line ends and without trailing blanks; only the first MiB of a game that is too long."""
    size: int
    """Bytes in the stream, without trailing blanks."""
    is_tagged: bool
    """False for text that begins with no tag line: a game without tags, or no game."""

    def digest(self) -> bytes:
        """Return the hash of the text, independent of the game's offset and file."""
        return hashlib.sha256(self.text).digest()


class RawGames:
    """Iterator that splits a stream into raw games.

    A game begins at a tag line, broken or not, that follows movetext, or that repeats a tag of the Seven Tag Roster. Inside a comment only
    a line that begins with `[Event "` begins a game: then a `}` is missing. A game without tags begins after a blank line that follows a
    result, or at a line that begins with move 1 and follows a result or, after a blank line, any movetext.
    """

    def __init__(self, chunks: Iterable[bytes], source: str, *, start: int = 0) -> None:
        """Read from chunks that begin at the byte `start` of the source."""
        # The stream is re-split into equal blocks, so that the result does not depend on the chunks.
        self._blocks = _blocks(chunks)
        self._source = source
        self._data = b""
        self._offset = start  # Offset of the data's first byte in the stream.
        self._begin = 0  # Offset of the current game in the data.
        self._is_last = False

    def __iter__(self) -> Iterator[RawGame]:
        while len(self._data) < 2 and not self._is_last:
            self._grow()
        if self._data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise SourceError(
                f"{self._source}: is UTF-16, where PGN is UTF-8 or Latin-1; convert it: iconv -f UTF-16 -t UTF-8 FILE > utf8.pgn"
            )
        self._skip_blanks()
        header_end, _ = self._header_end()
        if not any(tag[2] for tag in _TAG_BEGINS.finditer(self._data, self._begin, header_end)):
            text = self._cut(is_tagged=False)
            if re.sub(rb"(?m)^%.*", b"", text.text).strip(_BLANKS):
                yield text
        while self._begin < len(self._data):
            yield self._cut(is_tagged=self._data.startswith(b"[", self._begin))

    def _grow(self) -> int:
        """Read the next block, drop the data before the current game, and return the number of bytes dropped."""
        block = next(self._blocks, None)
        self._is_last = block is None
        dropped = self._begin
        self._data = self._data[dropped:] + (block or b"")
        self._offset += dropped
        self._begin = 0
        return dropped

    def _cut(self, *, is_tagged: bool) -> RawGame:
        """Return the current game, and advance to the next one."""
        start = self._offset + self._begin
        scan, is_whole = self._header_end() if is_tagged else (self._begin, True)
        # In a header that is too long, a tag line cannot be distinguished from the start of a game, as in a comment.
        search = _Search(scan=scan, seen_to=scan, comment=b"" if is_whole else b"[", is_tagged=is_tagged)
        head, end_of_text = b"", start
        while (end := self._next_begin(search)) is None:
            if len(self._data) - self._begin > MAX_GAME_BYTES + _LOOKAHEAD + _LOOKBEHIND:
                head = head or self._data[self._begin : self._begin + MAX_GAME_BYTES]
                search.comment = _comment_after(self._data, search.seen_to, search.scan, search.comment)
                search.seen_to = search.scan
                keep = search.scan - _LOOKBEHIND
                if stripped := self._data[self._begin : keep].rstrip(_BLANKS):
                    end_of_text = self._offset + self._begin + len(stripped)
                self._begin = keep
            dropped = self._grow()
            search.scan -= dropped
            search.seen_to -= dropped
        if stripped := _without_trailing_blanks(self._data[self._begin : end]):
            end_of_text = self._offset + self._begin + len(stripped)
        size = end_of_text - start
        text = (head or stripped)[: min(size, MAX_GAME_BYTES)]
        self._begin = end
        return RawGame(offset=start, text=_normalised(text), size=size, is_tagged=is_tagged)

    def _skip_blanks(self) -> None:
        while True:
            data = self._data[self._begin :]
            blank = len(data) - len(data.lstrip(_BLANKS + BOM))
            self._begin += blank
            if blank < len(data) or self._is_last:
                return
            self._grow()

    def _header_end(self) -> tuple[int, bool]:
        """Return where the current game's header ends or the next game begins in it, and whether the whole header was examined."""
        while True:
            header = HEADER.match(self._data, self._begin)
            assert header is not None
            is_whole = header.end() + len(BOM) <= len(self._data) or self._is_last
            if is_whole or len(self._data) - self._begin > MAX_GAME_BYTES:
                break
            self._grow()
        roster = _ROSTER_TAG.findall(self._data, self._begin, header.end())
        if len(set(roster)) < len(roster):  # Rare, and the repetition may be a value that looks like a tag.
            names: set[bytes] = set()
            for line in _ROSTER_OR_OTHER_LINE.finditer(self._data, self._begin, header.end()):
                if line[1] in names:
                    return line.start(), True
                names.update((line[1],) if line[1] else ())
        if is_whole and header.end() - self._begin <= MAX_GAME_BYTES:
            return header.end(), True
        # The last line may be incomplete, and may be the first line of the next game.
        last_line = 1 + max(self._data.rfind(line_end, self._begin, header.end()) for line_end in (b"\r", b"\n"))
        return max(self._begin + 1, last_line), False

    def _next_begin(self, search: "_Search") -> int | None:
        """Return where the next game begins, the data's end if there is none, or None if more data must be read first."""
        scan, seen_to, comment = search.scan, search.seen_to, search.comment
        tagged = self._next_tagged(search)
        end = search.scan if tagged is None else tagged
        for begin in _UNTAGGED_BEGINS.finditer(self._data, max(self._begin, scan - _LOOKBEHIND)):
            at = begin.end()
            if at >= end:
                break
            comment, seen_to = _comment_after(self._data, seen_to, begin.start(), comment), max(seen_to, begin.start())
            if comment:
                continue
            if self._data[max(self._begin, begin.start() - _LOOKBEHIND) : begin.start()].rstrip(_BLANKS).endswith(_RESULTS):
                return at
            # A blank line ends a game of which the result is missing; but not a comment before its moves.
            if begin[1] is not None and _FIRST_MOVE.match(self._data, at) and _has_moves(self._data[self._begin : begin.start()]):
                return at
        return tagged

    def _next_tagged(self, search: "_Search") -> int | None:
        for tag in _TAG_BEGINS.finditer(self._data, search.scan):
            begin = tag.start()
            if not self._is_at_line_start(begin):
                continue
            has_value = tag[2] is not None
            if not has_value and not search.is_tagged:
                continue
            if tag[1] != b"Event" or not has_value:
                search.comment = _comment_after(self._data, search.seen_to, begin, search.comment)
                search.seen_to = begin
                if search.comment:
                    continue
            return begin
        if self._is_last:
            return len(self._data)
        search.scan = max(search.scan, len(self._data) - _LOOKAHEAD)
        return None

    def _is_at_line_start(self, index: int) -> bool:
        # The text before the first game does not begin with blanks, so only blanks can precede its beginning.
        before = self._data[max(0, index - _LOOKBEHIND) : index].rstrip(b" \t" + BOM)
        return index == self._begin or before.endswith((b"\n", b"\r"))


@dataclass(slots=True)
class _Search:
    """State of the search for the end of a game."""

    scan: int
    """The next game begins here or later."""
    seen_to: int
    """Comments were tracked up to here."""
    comment: bytes
    """The open construct at `seen_to` that hides tag lines: a `{` or `;` comment, a `%` escape, or `[` for an endless header."""
    is_tagged: bool
    """False in the text before the first game, where a broken tag line does not begin a game."""


def _comment_after(data: bytes, start: int, stop: int, comment: bytes) -> bytes:
    """Return the kind of comment that is open at `stop`, given the kind that is open at `start`."""
    while start < stop:
        if comment == b"[":
            return comment
        if comment == b"{":
            close = data.find(b"}", start, stop)
            if close < 0:
                return comment
            start, comment = close + 1, b""
        elif comment:
            line_end = _LINE_ENDS.search(data, start, stop)
            if line_end is None:
                return comment
            start, comment = line_end.end(), b""
        else:
            begins = _COMMENT_BEGINS.search(data, start, stop)
            if begins is None:
                return comment
            start, comment = begins.end(), begins[0]
    return comment


def _has_moves(text: bytes) -> bool:
    """Return whether there is more than tags and comments."""
    return _NO_MOVES.fullmatch(text) is None


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the stream in blocks of equal size; the last may be shorter."""
    pending = bytearray()
    for chunk in chunks:
        for start in range(0, len(chunk), _BLOCK_BYTES):
            pending += chunk[start : start + _BLOCK_BYTES]
            if len(pending) >= _BLOCK_BYTES:
                yield bytes(pending[:_BLOCK_BYTES])
                del pending[:_BLOCK_BYTES]
    if pending:
        yield bytes(pending)


def _without_trailing_blanks(text: bytes) -> bytes:
    text = text.rstrip(_BLANKS)
    while text.endswith(BOM):
        text = text[: -len(BOM)].rstrip(_BLANKS)
    return text


def _normalised(text: bytes) -> bytes:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if _BLANK_BEFORE_LINE_END.search(text):
        text = _TRAILING_BLANKS.sub(b"", text)
    return text
