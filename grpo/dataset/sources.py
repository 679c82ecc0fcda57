"""The files of a dataset, read side by side: at any time about the same fraction of each has been read.

So every file is drawn from in proportion to its size, however many there are and whatever they are called. A file that is tiny beside the
others gives at least a tenth of an equal share of the bytes, unpacked, for as long as it has any. Which file is next depends only on the
files, and so do the boards.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from grpo.dataset.filters import dropped_by_tags, filtered
from grpo.dataset.quotas import SourceReport
from grpo.reading.epd import read_positions
from grpo.reading.games import Game, Reason, Rejection, SourceError
from grpo.reading.pgn import PgnGame, SeenGames, read_pgn_games
from grpo.reading.streams import FileKind, Gauge, SourceFile, find_files, read_chunks
from grpo.settings.tree import BoardsConfig

_MAX_OPEN: Final = 24
"""Files that are open at once: each needs some MiB, and a connection if it is remote."""
_LEAST_SHARE: Final = 10  # A file gives at least an equal share divided by this.
_TURN_GROWTH: Final = 1.5
"""With more files than can be open, a file is read on until its fraction has grown by this factor, since to open it again takes time."""


def file_games(config: BoardsConfig, *, unit: int, report: SourceReport) -> Iterator[Game | Rejection]:
    """Yield the usable games and listed positions of the unit's part of all files, and a Rejection for each unusable one.

    Raises SourceError if a file cannot be read, is damaged, or has another content than its name says.
    """
    seen = SeenGames()

    def is_mine(digest: bytes) -> bool:
        return int.from_bytes(digest[:8], "big") % config.num_units == unit

    def entries(file: SourceFile, start: int, gauge: Gauge) -> Iterator[PgnGame | Game | Rejection]:
        chunks = read_chunks(file, start=start, gauge=gauge)
        if file.kind == FileKind.GAMES:
            return read_pgn_games(
                chunks,
                file.name,
                start=start,
                is_mine=is_mine,
                seen=seen,
                dropped_by=lambda headers: dropped_by_tags(headers, config.filters),
            )
        return read_positions(chunks, file.name, start=start, is_mine=is_mine)

    files = find_files(config.files)
    for file in files:
        if file.kind == FileKind.PUZZLES:
            raise SourceError(
                f"{file.uri}: a .csv is read as a table of puzzles, which measure a policy: give it to boards.exclude, or to `chess-grpo"
                " solve`; boards.files takes games (.pgn) and lists of positions, one FEN a line and nothing before it (.epd, .fen)"
            )
    readings = [_Reading(file, entries) for file in files]
    for reading in readings:
        report.files[reading.file.name].read = 0.0
    for reading, entry in _side_by_side(readings):
        of_file = report.files[reading.file.name]
        of_file.read = reading.fraction
        if entry is None:
            continue
        used = filtered(entry, config.filters, report.left_out) if isinstance(entry, PgnGame) else entry
        if isinstance(used, Game) and config.heldout_from and (used.date is None or "?" in used.date):
            used = Rejection(source=used.source, offset=used.offset, reason=Reason.NO_DATE, detail=used.date or "")
        if isinstance(used, Game):
            of_file.games += 1
        else:
            of_file.rejected += 1
        yield used


class _Reading:
    """One file, entry by entry. It can be put down, and is read on from where it was."""

    def __init__(self, file: SourceFile, entries: Callable[[SourceFile, int, Gauge], Iterator[PgnGame | Game | Rejection]]) -> None:
        self.file = file
        self.fraction = 0.0
        """How much of the file has been read, in [0, 1]."""
        self._open = entries
        self._entries: Iterator[PgnGame | Game | Rejection] | None = None
        self._gauge = Gauge()
        self._offset = -1  # Of the last entry.

    @property
    def num_bytes(self) -> int:
        """How many bytes have been read, unpacked."""
        return self._offset + 1

    def next(self) -> PgnGame | Game | Rejection | None:
        """Return the next entry, or None at the end of the file."""
        if self._entries is None:
            self._gauge = Gauge()
            # The last entry is read again, because where it ends is not known.
            self._entries = self._open(self.file, max(0, self._offset), self._gauge)
        for entry in self._entries:
            offset = entry.game.offset if isinstance(entry, PgnGame) else entry.offset
            if offset > self._offset:
                self._offset = offset
                self.fraction = max(self.fraction, self._gauge.fraction(offset + 1))
                return entry
        self.fraction = 1.0
        return None

    def put_down(self) -> None:
        """Close the file."""
        self._entries = None


def _side_by_side(readings: Iterable[_Reading]) -> Iterator[tuple[_Reading, PgnGame | Game | Rejection | None]]:
    """Yield the entries of all files, each with its file, and None at the end of each file."""
    left = dict(enumerate(readings))
    num_files, num_bytes = len(left), 0
    growth = _TURN_GROWTH if num_files > _MAX_OPEN else 1.0
    # Numbers that have changed since they were pushed are skipped.
    by_fraction = [(0.0, number) for number in left]
    by_bytes = [(0, number) for number in left]
    is_open: OrderedDict[int, None] = OrderedDict()
    while left:
        while by_fraction[0][1] not in left or by_fraction[0][0] != left[by_fraction[0][1]].fraction:
            heapq.heappop(by_fraction)
        while by_bytes[0][1] not in left or by_bytes[0][0] != left[by_bytes[0][1]].num_bytes:
            heapq.heappop(by_bytes)
        is_behind = 0 < by_bytes[0][0] * _LEAST_SHARE * num_files < num_bytes
        number = by_bytes[0][1] if is_behind else by_fraction[0][1]
        reading = left[number]
        if number not in is_open and len(is_open) == _MAX_OPEN:
            left[is_open.popitem(last=False)[0]].put_down()
        is_open[number] = None
        is_open.move_to_end(number)
        goal = 0.0 if is_behind else reading.fraction * growth
        while True:
            before = reading.num_bytes
            entry = reading.next()
            num_bytes += reading.num_bytes - before
            yield reading, entry
            if entry is None:
                del left[number], is_open[number]
                break
            if reading.fraction >= goal:
                heapq.heappush(by_fraction, (reading.fraction, number))
                heapq.heappush(by_bytes, (reading.num_bytes, number))
                break
