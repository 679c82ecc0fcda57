"""Openings of matches, all distinct: balanced positions after random plies, an opening book, or positions of one game phase.

Deterministic players repeat their game from the same opening and colours, so the number of distinct openings is the sample size.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.base.errors import PlainError
from grpo.board.encoding import MAX_HALFMOVE_CLOCK, position_key
from grpo.board.phases import Phase, phase_of
from grpo.engine.answers import EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.reading.epd import read_positions
from grpo.reading.games import Game, Reason, Rejection, SourceError
from grpo.reading.pgn import read_games
from grpo.reading.streams import FileKind, SourceFile, find_files, fingerprint_of_all, read_chunks
from grpo.settings.tree import EvaluationConfig

_CANDIDATES_PER_ROUND = 128
_MAX_ROUNDS = 1_000
_LIMIT = "depth 6"
_ENTRIES_AT_ONCE = 1_024
_MOST_ENTRIES_AT_ONCE = 32_768  # Their boards are in memory together.
_READERS: Final[Mapping[FileKind, Callable[..., Iterator[Game | Rejection]]]] = {
    FileKind.GAMES: read_games,
    FileKind.POSITIONS: read_positions,
}


class OpeningsError(PlainError, ValueError):
    """There are fewer distinct openings than requested; the message has both numbers, and what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpeningBook:
    """A book's entries. Only those that are drawn are parsed, because books have hundreds of thousands and a match needs hundreds."""

    name: str
    """The book's path or pattern as given."""
    files: tuple[SourceFile, ...]
    max_plies: int
    """Longer games are cut here."""
    entries: NDArray[np.uint64]
    """Hashes of the entries' texts, sorted, each once, shape [len(self)]."""

    def __len__(self) -> int:
        return len(self.entries)

    def in_random_order(self, rng: np.random.Generator, left_out: Counter[Reason]) -> Iterator[chess.Board]:
        """Yield the openings, in an order that depends only on the entries' texts and `rng`; those of two entries may be equal.

        Entries that are no openings are counted in `left_out`: finished positions (`GAME_OVER`) and unreadable ones. The files are read
        again for each batch of entries, and batches grow.

        Raises SourceError if a file cannot be read, or is truncated.
        """
        order = rng.permutation(self.entries)
        start, size = 0, _ENTRIES_AT_ONCE
        while start < len(order):
            for entry in self._parsed(order[start : start + size].tolist()):
                if isinstance(entry, Rejection):
                    left_out[entry.reason] += 1
                elif _is_over(entry):
                    left_out[Reason.GAME_OVER] += 1
                else:
                    yield entry
            start, size = start + size, min(start + size, _MOST_ENTRIES_AT_ONCE)

    def _parsed(self, hashes: Sequence[int]) -> Iterator[chess.Board | Rejection]:
        """Yield the entries with these hashes, in this order; of equal texts with different clocks, the one with the smallest FEN."""
        wanted = dict.fromkeys(hashes)
        found: dict[int, chess.Board | Rejection] = {}
        latest: list[int] = [0]

        def is_wanted(digest: bytes) -> bool:
            latest[0] = _eight_bytes(digest)
            return latest[0] in wanted

        for file in self.files:
            for entry in _READERS[file.kind](read_chunks(file), file.name, is_mine=is_wanted):
                read = entry if isinstance(entry, Rejection) else _line_end(entry, self.max_plies)
                found[latest[0]] = min(found.get(latest[0], read), read, key=_fen_or_none)
        return (found[entry] for entry in wanted)


def make_openings(config: EvaluationConfig, *, count: int, rng: np.random.Generator, pool: EnginePool, exclude: set[str]) -> list[str]:
    """Return the FENs of `count` distinct openings that are not in `exclude`, and add their keys to `exclude`.

    With an opening book in the settings, openings are drawn from it, however unbalanced, because both colours play each. Without a book
    they are positions after random plies that the engine finds balanced. Share one `exclude` between stages to give them distinct openings.

    Args:
        config: Where openings come from.
        count: Number of openings.
        rng: Draws them; a smaller count gives the beginning of the same list.
        pool: Engine that checks the balance of generated positions; not used with a book.
        exclude: `position_key` of each position that must not be used.

    Raises OpeningsError if a book has too few, SourceError if it cannot be read, EngineError if the generator finds too few.
    """
    if config.opening_book:
        return drawn_openings(read_book(config.opening_book, max_plies=config.opening_book_plies), count=count, rng=rng, exclude=exclude)
    openings: list[str] = []
    for _ in range(_MAX_ROUNDS):
        candidates = []
        for _ in range(_CANDIDATES_PER_ROUND):
            board = _random_board(config.opening_plies, rng)
            if board is not None and position_key(board) not in exclude:
                exclude.add(position_key(board))
                candidates.append(board)
        openings += [board.fen() for board in _balanced(candidates, pool, config.max_opening_centipawns)]
        if len(openings) >= count:
            return openings[:count]
    raise EngineError(
        f"found only {len(openings)} of {count} openings of {config.opening_plies} plies within"
        f" {config.max_opening_centipawns} centipawns; raise evaluation.opening_plies or evaluation.max_opening_centipawns"
    )


def drawn_openings(book: OpeningBook, *, count: int, rng: np.random.Generator, exclude: set[str]) -> list[str]:
    """Return `count` openings of the book, drawn without replacement from those not in `exclude`, and add their keys to `exclude`.

    Raises OpeningsError if fewer are left, SourceError if a file cannot be read.
    """
    left_out: Counter[Reason] = Counter()
    drawn: dict[str, str] = {}
    num_used = 0
    for board in book.in_random_order(rng, left_out):
        key = position_key(board)
        if key in exclude:
            num_used += 1
        elif key in drawn:
            left_out[Reason.DUPLICATE] += 1
        else:
            drawn[key] = board.fen()
            if len(drawn) == count:
                exclude.update(drawn)
                return list(drawn.values())
    counts = ", ".join(f"{number:,} {reason}" for reason, number in sorted(left_out.items()))
    raise OpeningsError(
        f"{count:,} distinct openings are needed, but only {len(drawn):,} are available: {book.name} has {len(book):,} entries; left out:"
        f" {counts or 'none'}; {num_used:,} of them are used elsewhere (boards of the dataset, or openings of other stages). Use a larger"
        " evaluation.opening_book, or play fewer pairs of games"
    )


def in_random_order(fens: Iterable[str], rng: np.random.Generator) -> Iterator[chess.Board]:
    """Yield the positions, each text once, in an order that depends only on the texts and `rng`.

    Raises ValueError for a text that is not a FEN.
    """
    distinct = sorted(set(fens))
    yield from (chess.Board(distinct[index]) for index in rng.permutation(len(distinct)))


def phase_openings(
    boards: Iterable[chess.Board], phase: Phase, *, config: EvaluationConfig, count: int, pool: EnginePool, exclude: set[str]
) -> list[str]:
    """Return `count` distinct positions of the phase that are not finished and that the engine finds balanced; see `make_openings`.

    Args:
        boards: The candidates, in the order in which they are examined, such as a dataset's held-out boards (then their keys must not be
            in `exclude`) or a book's positions in random order.
        phase: The phase.
        config: What counts as balanced.
        count: Number of openings.
        pool: Engine that checks the balance.
        exclude: `position_key` of each position that must not be used; those of the openings are added.

    Raises OpeningsError if there are too few.
    """
    openings: list[str] = []
    found: set[str] = set()
    num_used = 0
    of_phase = (board for board in boards if phase_of(board) == phase and not _is_over(board))
    while batch := list(islice(of_phase, _CANDIDATES_PER_ROUND)):
        usable = []
        for board in batch:
            key = position_key(board)
            num_used += key not in found and key in exclude
            if key not in found and key not in exclude:
                usable.append(board)
            found.add(key)
        for board in _balanced(usable, pool, config.max_opening_centipawns):
            openings.append(board.fen())
            exclude.add(position_key(board))
            if len(openings) == count:
                return openings
    raise OpeningsError(
        f"{count:,} distinct {phase} openings are needed, but only {len(openings):,} are available: of {len(found):,} distinct positions"
        f" {len(found) - num_used:,} are not used elsewhere, and of those {len(openings):,} are within {config.max_opening_centipawns}"
        " centipawns. Give more positions, or raise evaluation.max_opening_centipawns"
    )


def book_files(book: str) -> list[SourceFile]:
    """Return the files that the setting `evaluation.opening_book` matches.

    Raises SourceError if there are none, or if one of them is a puzzle table.
    """
    files = find_files([book])
    for file in files:
        if file.kind == FileKind.PUZZLES:
            raise SourceError(
                f"{file.uri}: a puzzle table is not an opening book; give evaluation.opening_book games (.pgn) or positions (.epd)"
            )
    return files


def read_book(book: str, *, max_plies: int) -> OpeningBook:
    """Return the openings of a book: each listed position, and the position after at most `max_plies` plies of each game.

    The files are split into entries, and no entry is parsed. The result is cached until the content of the files changes.

    Args:
        book: Path, folder, glob or remote address of PGN, EPD or FEN files, compressed or not.
        max_plies: Longer games are cut here.

    Raises SourceError if a file cannot be read, is truncated or has another content; OpeningsError if it contains no entry.
    """
    files = tuple(book_files(book))
    return _read_book(book, files, max_plies, fingerprint_of_all(files))


@lru_cache(maxsize=2)
def _read_book(book: str, files: tuple[SourceFile, ...], max_plies: int, _fingerprint: str) -> OpeningBook:
    hashes = array("Q")

    def note(digest: bytes) -> bool:
        hashes.append(_eight_bytes(digest))
        return False

    for file in files:
        for _ in _READERS[file.kind](read_chunks(file), file.name, is_mine=note):
            raise AssertionError("no entry is asked for")
    if not hashes:
        raise OpeningsError(f"{book} has no entries; give evaluation.opening_book a file with games or positions to begin from")
    return OpeningBook(name=book, files=files, max_plies=max_plies, entries=np.unique(np.frombuffer(hashes, dtype=np.uint64)))


def _eight_bytes(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def _line_end(game: Game, max_plies: int) -> chess.Board:
    num_plies = min(max_plies, len(game.moves))
    if num_plies < len(game.boards):
        return game.boards[num_plies]
    board = game.boards[-1].copy(stack=False)
    board.push(game.moves[-1])
    return board


def _fen_or_none(read: chess.Board | Rejection) -> tuple[bool, str]:
    return (True, "") if isinstance(read, Rejection) else (False, read.fen())


def _is_over(board: chess.Board) -> bool:
    return not any(board.legal_moves) or board.is_insufficient_material() or board.halfmove_clock >= MAX_HALFMOVE_CLOCK


def _balanced(boards: Sequence[chess.Board], pool: EnginePool, max_centipawns: int) -> Iterator[chess.Board]:
    """Yield the boards within `max_centipawns` by the engine's search, in order; boards on which the engine fails are skipped."""
    answers = pool.search([Query(fen=board.fen(), limit=_LIMIT, board=board) for board in boards])
    for board, answer in zip(boards, answers, strict=True):
        if isinstance(answer, EngineError):
            continue
        score = next(iter(answer.scores.values()))
        if not score.is_mate and abs(score.value) <= max_centipawns:
            yield board


def _random_board(num_plies: int, rng: np.random.Generator) -> chess.Board | None:
    board = chess.Board()
    for _ in range(num_plies):
        legal = sorted(board.legal_moves, key=chess.Move.uci)
        if not legal:
            return None
        board.push(legal[int(rng.integers(len(legal)))])
    return board if any(board.legal_moves) else None
