"""Openings: as many distinct ones as were asked for, even enough, none that was used before, the same each time."""

import gzip
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import chess
import pytest
from doubles import some_boards

from grpo.base.seeding import numpy_stream
from grpo.board.encoding import position_key
from grpo.engine.answers import EngineAnswer, EngineError, Score
from grpo.engine.pool import EnginePool, Query
from grpo.match import openings
from grpo.match.openings import OpeningsError, drawn_openings, make_openings
from grpo.settings.tree import EvaluationConfig, Settings
from steps.run.machine import Machine
from steps.run.outside import OUTSIDE


class FakePool:
    def __init__(self, score: Callable[[str], Score | None]) -> None:
        self._score = score

    def search(self, queries: Sequence[Query]) -> list[EngineAnswer | EngineError]:
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> EngineAnswer | EngineError:
        score = self._score(query.fen)
        move = next(iter(chess.Board(query.fen).legal_moves)).uci()
        return EngineError(query.fen) if score is None else EngineAnswer(best_move=move, scores={move: score})


def some_score(fen: str) -> Score:
    """Return centipawns from -300 to 300."""
    return Score(zlib.crc32(fen.encode()) % 601 - 300)


def even(fen: str) -> Score:
    return Score(0)


def made(count: int, score: Callable[[str], Score | None] = even, *, exclude: set[str] | None = None, plies: int = 4) -> list[str]:
    pool, rng = cast("EnginePool", FakePool(score)), numpy_stream(0, "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openings, "_PLIES", plies)
        return make_openings(EvaluationConfig(), count=count, rng=rng, pool=pool, exclude=set() if exclude is None else exclude)


def test_as_many_as_were_asked_for_each_so_many_legal_plies_from_the_start() -> None:
    boards = [chess.Board(fen) for fen in made(15, plies=7)]
    assert len(boards) == 15
    assert all(board.ply() == 7 and board.is_valid() and any(board.legal_moves) for board in boards)


def test_a_position_that_was_excluded_is_not_used_and_neither_is_its_mirror() -> None:
    first_moves = made(20, plies=1)
    kept_out = {position_key(chess.Board(fen).mirror()) for fen in first_moves[:12]}
    assert sorted(made(8, plies=1, exclude=set(kept_out))) == sorted(first_moves[12:])


def test_none_is_more_uneven_than_the_bound_and_the_bound_itself_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [some_score(fen).value for fen in made(40, some_score)]
    assert -120 <= min(scores) < 0 < max(scores) <= 120, "for either side"
    assert len(made(5, lambda _: Score(120))) == len(made(5, lambda _: Score(-120))) == 5
    monkeypatch.setattr(openings, "_CANDIDATES_PER_ROUND", 4)
    monkeypatch.setattr(openings, "_MAX_ROUNDS", 2)
    for score in (Score(121), Score(-121), Score(1, is_mate=True), Score(-3, is_mate=True)):
        with pytest.raises(EngineError, match="0 of 1 "):
            made(1, lambda _, score=score: score)  # type: ignore[misc]


def test_a_position_on_which_the_engine_fails_is_left_out_and_changes_no_other() -> None:
    healthy = made(20, some_score)
    broken = set(healthy[::5])
    found = made(16, lambda fen: None if fen in broken else some_score(fen))
    assert found == [fen for fen in healthy if fen not in broken]


# A book.


def from_book(book: Path, count: int, *, seed: int = 0, exclude: set[str] | None = None) -> list[str]:
    return drawn_openings(str(book), count=count, rng=numpy_stream(seed, "test"), exclude=set() if exclude is None else exclude)


@cache
def distinct_fens(count: int) -> list[str]:
    """Return FENs of positions that go on, no two of which (or of whose mirrors) are equal."""
    boards = {position_key(board): board.fen() for board in some_boards(2 * count) if board.halfmove_clock < 100}
    return list(boards.values())[:count]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.epd"
    path.write_text("".join(f"{fen}\n" for fen in distinct_fens(40)))
    return path


def test_stages_that_share_what_is_excluded_share_no_opening_even_with_one_stream(book: Path) -> None:
    exclude: set[str] = set()
    drawn = [fen for count in (13, 13, 14) for fen in from_book(book, count, exclude=exclude)]
    assert sorted(drawn) == sorted(distinct_fens(40))
    assert exclude == {position_key(chess.Board(fen)) for fen in drawn}


def test_one_seed_draws_the_same_and_another_otherwise_and_fewer_are_the_beginning_of_more(book: Path) -> None:
    assert from_book(book, 20)[:7] == from_book(book, 7)
    assert from_book(book, 20) != from_book(book, 20, seed=1)


def test_neither_the_order_of_lines_nor_repeats_change_the_draw(book: Path, tmp_path: Path) -> None:
    lines = book.read_text().splitlines(keepends=True)
    (tmp_path / "a.epd.gz").write_bytes(gzip.compress("".join([*lines[::-1], *lines[5:15]]).encode()))
    assert from_book(tmp_path / "a.epd.gz", 12) == from_book(book, 12)


def test_too_small_a_book_is_an_error_with_both_numbers_and_nothing_is_used_up(book: Path) -> None:
    exclude = {position_key(chess.Board(fen)) for fen in distinct_fens(40)[:9]}
    before = set(exclude)
    with pytest.raises(OpeningsError, match=r"^32 .* 31 .* 40 lines.* 9 "):
        from_book(book, 32, exclude=exclude)
    assert exclude == before
    assert len(from_book(book, 31, exclude=exclude)) == 31


def test_the_books_content_and_not_its_place_is_in_the_versions_of_steps(book: Path, tmp_path: Path) -> None:
    def asked(path: str) -> object:
        machine = Machine(stockfish="none", home=tmp_path, tracking_uri="", device="cpu", num_threads=1)
        return OUTSIDE["book"](Settings(evaluation=EvaluationConfig(opening_book=path)), machine)

    other = tmp_path / "other.epd"
    other.write_bytes(book.read_bytes())
    assert asked(str(book)) == asked(str(other)) != asked("") == {}
    other.write_bytes(book.read_bytes() + b"\n")
    assert asked(str(book)) != asked(str(other))
