"""Openings of matches, all distinct: balanced positions after random plies, an opening book, or positions of one game phase.

Deterministic players repeat their game from the same opening and colours, so the number of distinct openings is the sample size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import chess
import numpy as np

from grpo.base.errors import PlainError
from grpo.board.encoding import MAX_HALFMOVE_CLOCK, key_of_fen, position_key, turned_fen
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


class OpeningsError(PlainError, ValueError):
    """There are fewer distinct openings than requested; the message has both numbers, and what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpeningBook:
    """The openings of one book, and counts of its rejected entries."""

    name: str
    """The book's path or pattern as given."""
    openings: Mapping[str, str]
    """`position_key` -> full FEN, in an order that depends only on the positions."""
    left_out: Mapping[Reason, int]
    """Reason -> number of rejected entries: repeated positions (`DUPLICATE`), finished ones (`GAME_OVER`), unreadable ones."""

    def __str__(self) -> str:
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.left_out.items()))
        return f"{self.name}: {len(self.openings):,} distinct openings; left out: {left_out or 'none'}"


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

    Raises OpeningsError if fewer are left.
    """
    usable = [key for key in book.openings if key not in exclude]
    if len(usable) < count:
        used = len(book.openings) - len(usable)
        raise OpeningsError(
            f"{count:,} distinct openings are needed, but only {len(usable):,} are available: {book}; {used:,} of them are used elsewhere"
            " (boards of the dataset, or openings of other stages). Use a larger evaluation.opening_book, or play fewer pairs of games"
        )
    drawn = [usable[index] for index in rng.permutation(len(usable))[:count]]
    exclude.update(drawn)
    return [book.openings[key] for key in drawn]


def phase_openings(
    fens: Iterable[str],
    phase: Phase,
    *,
    config: EvaluationConfig,
    count: int,
    rng: np.random.Generator,
    pool: EnginePool,
    exclude: set[str],
) -> list[str]:
    """Return `count` distinct positions of the phase that are not finished and that the engine finds balanced; see `make_openings`.

    Candidates may be boards of a dataset's held-out split (then their keys must not be in `exclude`) or a book's positions. Their order
    does not matter: `rng` draws the order in which they are examined.

    Raises OpeningsError if there are too few, ValueError for a text that is not a FEN.
    """
    found: dict[str, str] = {}
    for board in map(chess.Board, fens):
        if phase_of(board) == phase and not _is_over(board):
            _add(found, board)
    usable = [chess.Board(fen) for key, fen in sorted(found.items()) if key not in exclude]
    candidates = [usable[index] for index in rng.permutation(len(usable))]
    openings: list[str] = []
    for start in range(0, len(candidates), _CANDIDATES_PER_ROUND):
        for board in _balanced(candidates[start : start + _CANDIDATES_PER_ROUND], pool, config.max_opening_centipawns):
            openings.append(board.fen())
            exclude.add(position_key(board))
            if len(openings) == count:
                return openings
    raise OpeningsError(
        f"{count:,} distinct {phase} openings are needed, but only {len(openings):,} are available: of {len(found):,} distinct positions"
        f" {len(usable):,} are not used elsewhere, and of those {len(openings):,} are within {config.max_opening_centipawns} centipawns."
        " Give more positions, or raise evaluation.max_opening_centipawns"
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

    Entries that are not openings are counted. The result is cached until the content of the files changes.

    Args:
        book: Path, folder, glob or `s3://` address of PGN, EPD or FEN files, compressed or not.
        max_plies: Longer games are cut here.

    Raises SourceError if a file cannot be read, is truncated or has another content; OpeningsError if it contains no opening.
    """
    return _read_book(book, max_plies, fingerprint_of_all(book_files(book)))


@lru_cache(maxsize=2)
def _read_book(book: str, max_plies: int, _fingerprint: str) -> OpeningBook:
    left_out: Counter[Reason] = Counter()
    found: dict[str, str] = {}
    for file in book_files(book):
        read = read_games if file.kind == FileKind.GAMES else read_positions
        for entry in read(read_chunks(file), file.name):
            if isinstance(entry, Rejection):
                left_out[entry.reason] += 1
            elif _is_over(board := _line_end(entry, max_plies)):
                left_out[Reason.GAME_OVER] += 1
            elif not _add(found, board):
                left_out[Reason.DUPLICATE] += 1
    opening_book = OpeningBook(name=book, openings=dict(sorted(found.items())), left_out=dict(left_out))
    if not found:
        raise OpeningsError(f"{opening_book}; give evaluation.opening_book a file with games or positions to begin from")
    return opening_book


def _line_end(game: Game, max_plies: int) -> chess.Board:
    num_plies = min(max_plies, len(game.moves))
    if num_plies < len(game.boards):
        return game.boards[num_plies]
    board = game.boards[-1].copy(stack=False)
    board.push(game.moves[-1])
    return board


def _add(found: dict[str, str], board: chess.Board) -> bool:
    """Add a position and return whether it is new; of those that differ only in clocks or colours, the smallest FEN stays."""
    fen = board.fen()
    key = key_of_fen(turned_fen(fen))
    is_new = key not in found
    found[key] = fen if is_new else min(fen, found[key])
    return is_new


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
