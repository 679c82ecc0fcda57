"""Openings of matches: balanced positions after random moves, or an opening book (files with one position a line).

Openings are distinct, because deterministic players would repeat a game.
"""

from collections.abc import Iterator, Sequence

import chess
import numpy as np

from grpo.base.errors import PlainError
from grpo.board.actions import push_random_moves
from grpo.board.encoding import position_key
from grpo.dataset.epd import lines, read_line
from grpo.dataset.games import Rejection, SourceError
from grpo.dataset.streams import FileKind, SourceFile, find_files, opened
from grpo.engine.answers import EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.settings.tree import EvaluationConfig

_CANDIDATES_PER_ROUND = 128
_MAX_ROUNDS = 1_000
_LIMIT = "depth 6"  # Search that tests the balance.
_PLIES = 8  # Random plies of a generated opening.
_MAX_CENTIPAWNS = 120  # Largest absolute score of a balanced opening (1/100 pawn).


class OpeningsError(PlainError, ValueError):
    """The book has fewer distinct unused openings than needed."""


def make_openings(config: EvaluationConfig, *, count: int, rng: np.random.Generator, pool: EnginePool, exclude: set[str]) -> list[str]:
    """Return the FENs of `count` distinct openings that are not in `exclude` (keys of `position_key`).

    Adds the keys of the openings to `exclude`; without a book, the keys of all tried positions. With equal `rng` and `exclude`, a smaller
    count gives the beginning of the list. `pool` must have MultiPV 1.

    Raises the errors of `drawn_openings`, and EngineError if too few random positions are balanced.
    """
    if config.opening_book:
        return drawn_openings(config.opening_book, count=count, rng=rng, exclude=exclude)
    openings: list[str] = []
    for _ in range(_MAX_ROUNDS):
        candidates = []
        for _ in range(_CANDIDATES_PER_ROUND):
            board = chess.Board()
            push_random_moves(board, _PLIES, rng)
            if any(board.legal_moves) and position_key(board) not in exclude:
                exclude.add(position_key(board))
                candidates.append(board)
        openings += [board.fen() for board in _balanced(candidates, pool)]
        if len(openings) >= count:
            return openings[:count]
    raise EngineError(
        f"found only {len(openings)} of {count} openings of {_PLIES} plies within {_MAX_CENTIPAWNS} centipawns; give an"
        " evaluation.opening_book, or play fewer pairs of games"
    )


def drawn_openings(book: str, *, count: int, rng: np.random.Generator, exclude: set[str]) -> list[str]:
    """Draw openings from a book as `make_openings` does. Only the set of lines and `rng` determine the order.

    Raises OpeningsError if too few openings are available, SourceError for an unusable file.
    """
    texts: set[bytes] = set()
    for file in book_files(book):
        with opened(file) as stream:
            # A line that is too long comes as a Rejection, whose text is no opening.
            texts.update(str(entry).encode() if isinstance(entry, Rejection) else entry[1] for entry in lines(stream, file.name))
    entries = sorted(texts)
    drawn: dict[str, str] = {}
    num_left_out = 0
    for index in rng.permutation(len(entries)):
        board = read_line(entries[index])
        if not isinstance(board, chess.Board) or (key := position_key(board)) in drawn:
            num_left_out += 1
        elif key not in exclude:
            drawn[key] = board.fen()
            if len(drawn) == count:
                exclude.update(drawn)
                return list(drawn.values())
    raise OpeningsError(
        f"{count:,} distinct openings are needed, but only {len(drawn):,} are available: {book} has {len(entries):,} lines, of which"
        f" {num_left_out:,} are no openings or repeat one, and {len(entries) - num_left_out - len(drawn):,} are boards of"
        " the dataset or openings of other stages. Use a larger evaluation.opening_book, or play fewer pairs of games"
    )


def book_files(book: str) -> list[SourceFile]:
    """Raises SourceError without a file, or for a file that is no list of positions."""
    files = find_files([book])
    for file in files:
        if file.kind != FileKind.POSITIONS:
            raise SourceError(f"{file.uri}: not an opening book; give evaluation.opening_book a list of positions (.epd, .fen)")
    return files


def _balanced(boards: Sequence[chess.Board], pool: EnginePool) -> Iterator[chess.Board]:
    answers = pool.search([Query(fen=board.fen(), limit=_LIMIT, board=board) for board in boards])
    for board, answer in zip(boards, answers, strict=True):
        if isinstance(answer, EngineError):
            continue
        score = next(iter(answer.scores.values()))
        if not score.is_mate and abs(score.value) <= _MAX_CENTIPAWNS:
            yield board
