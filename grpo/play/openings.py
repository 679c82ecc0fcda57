"""Start positions of matches, all distinct: random plies that a search finds even enough, a book, or positions of one phase.

A deterministic pair of players plays one game from one opening and colour, so that the number of distinct openings is the sample size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.base.errors import PlainError
from grpo.board.encoding import MAX_HALFMOVE_CLOCK, decode, key_of_fen, position_key, turned_fen
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
    """There are fewer distinct openings than were asked for; the message has both numbers, and what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpeningBook:
    """The openings of one book, and what of it is none."""

    name: str
    """As it was given."""
    openings: Mapping[str, str]
    """`position_key` -> full FEN, in an order that depends on the positions alone."""
    left_out: Mapping[Reason, int]
    """Why an entry is no opening -> how many: repeated positions (`DUPLICATE`), finished ones (`GAME_OVER`), unreadable ones."""

    def __str__(self) -> str:
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.left_out.items()))
        return f"{self.name}: {len(self.openings):,} distinct openings; left out: {left_out or 'none'}"


def make_openings(config: EvaluationConfig, *, count: int, rng: np.random.Generator, pool: EnginePool, exclude: set[str]) -> list[str]:
    """Return the FENs of `count` distinct openings, and add their keys to `exclude`, whose positions are not used.

    They are drawn from the book that the settings name, as they are there, however uneven: both colours play each. Without a book they
    are random plies that a search finds even enough. One `exclude` for all stages keeps the stages apart.

    Args:
        config: where openings come from.
        count: how many.
        rng: draws them; fewer are the beginning of more.
        pool: judges the generator's; a book asks it nothing.
        exclude: `position_key` of each position that may not be used.

    Raises OpeningsError when a book has too few, SourceError when it cannot be read, EngineError when the generator finds too few.
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
        openings += [board.fen() for board in _even(candidates, pool, config.max_opening_centipawns)]
        if len(openings) >= count:
            return openings[:count]
    raise EngineError(
        f"found only {len(openings)} of {count} openings of {config.opening_plies} plies within"
        f" {config.max_opening_centipawns} centipawns; raise evaluation.opening_plies or evaluation.max_opening_centipawns"
    )


def drawn_openings(book: OpeningBook, *, count: int, rng: np.random.Generator, exclude: set[str]) -> list[str]:
    """Return `count` of the book's openings, drawn without replacement from those not in `exclude`, and add their keys to it.

    Raises OpeningsError when fewer are left.
    """
    usable = [key for key in book.openings if key not in exclude]
    if len(usable) < count:
        used = len(book.openings) - len(usable)
        raise OpeningsError(
            f"{count:,} distinct openings are asked for, and {len(usable):,} are to be had: {book}; {used:,} of them are in use elsewhere"
            " (boards of the dataset, or openings of other stages). Give a larger evaluation.opening_book, or ask for fewer pairs of games"
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
    """Return `count` of these positions that are of the phase, distinct, going on, and even enough by a search; see `make_openings`.

    Candidates are, say, boards of a dataset's held-out split, whose keys may then not be in `exclude`; or a book's. In which order they
    come does not matter: `rng` draws the order in which they are looked at.

    Raises OpeningsError when there are too few, ValueError for a text that is no FEN.
    """
    found: dict[str, str] = {}
    for board in map(chess.Board, fens):
        if phase_of(board) == phase and not _is_over(board):
            _note(found, board)
    usable = [chess.Board(fen) for key, fen in sorted(found.items()) if key not in exclude]
    waiting = [usable[index] for index in rng.permutation(len(usable))]
    openings: list[str] = []
    for start in range(0, len(waiting), _CANDIDATES_PER_ROUND):
        for board in _even(waiting[start : start + _CANDIDATES_PER_ROUND], pool, config.max_opening_centipawns):
            openings.append(board.fen())
            exclude.add(position_key(board))
            if len(openings) == count:
                return openings
    raise OpeningsError(
        f"{count:,} distinct {phase} openings are asked for, and {len(openings):,} are to be had: of {len(found):,} distinct positions"
        f" {len(usable):,} are not in use elsewhere, and of those {len(openings):,} are within {config.max_opening_centipawns} centipawns."
        " Give more positions, or raise evaluation.max_opening_centipawns"
    )


def keys_of(encodings: NDArray[np.uint8]) -> set[str]:
    """Return the `position_key` of encoded boards [N, 71], such as states of own games, for an `exclude`."""
    return {position_key(decode(row)) for row in encodings}


def book_files(book: str) -> list[SourceFile]:
    """Return the files that the setting `evaluation.opening_book` stands for.

    Raises SourceError when there are none, or one of them is a puzzle table.
    """
    files = find_files([book])
    for file in files:
        if file.kind == FileKind.PUZZLES:
            raise SourceError(
                f"{file.uri}: a puzzle table is no opening book; give evaluation.opening_book games (.pgn) or positions (.epd)"
            )
    return files


def read_book(book: str, *, max_plies: int) -> OpeningBook:
    """Return the openings of a book: each listed position, or the one at the end of each game's moves, of which `max_plies` at most count.

    What is no opening is left out and counted. A book that was read is kept, for as long as its content stays the same.

    Args:
        book: path, folder, glob or `s3://` address of PGN, EPD or FEN files, packed or not.
        max_plies: where a longer game is cut.

    Raises SourceError when a file cannot be read, is cut short, or holds something else; OpeningsError when there is no opening in it.
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
            elif not _note(found, board):
                left_out[Reason.DUPLICATE] += 1
    read_so = OpeningBook(name=book, openings=dict(sorted(found.items())), left_out=dict(left_out))
    if not found:
        raise OpeningsError(f"{read_so}; give evaluation.opening_book a file with games or positions to begin from")
    return read_so


def _line_end(game: Game, max_plies: int) -> chess.Board:
    num_plies = min(max_plies, len(game.moves))
    if num_plies < len(game.boards):
        return game.boards[num_plies]
    board = game.boards[-1].copy(stack=False)
    board.push(game.moves[-1])
    return board


def _note(found: dict[str, str], board: chess.Board) -> bool:
    """Note a position and return whether it is new; of those that differ in clocks or colours the least FEN stays, whoever came first."""
    fen = board.fen()
    key = key_of_fen(turned_fen(fen))
    is_new = key not in found
    found[key] = fen if is_new else min(fen, found[key])
    return is_new


def _is_over(board: chess.Board) -> bool:
    return not any(board.legal_moves) or board.is_insufficient_material() or board.halfmove_clock >= MAX_HALFMOVE_CLOCK


def _even(boards: Sequence[chess.Board], pool: EnginePool, max_centipawns: int) -> Iterator[chess.Board]:
    """Yield the boards that a search finds even enough, in their order; those on which the engine fails are left out."""
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
