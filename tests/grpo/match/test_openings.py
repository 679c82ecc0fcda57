"""Openings: as many distinct ones as were asked for, even enough, none that was used before, the same each time."""

import gzip
import re
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
from grpo.dataset.games import SourceError
from grpo.engine.answers import EngineAnswer, EngineError, Score
from grpo.engine.pool import EnginePool, Query
from grpo.match import openings
from grpo.match.openings import OpeningsError, make_openings
from grpo.settings.tree import EvaluationConfig, Settings
from steps.run.machine import Machine
from steps.run.outside import OUTSIDE
from steps.run.step import step_of


class FakePool:
    """Scores each position by a function of its FEN, as the engine's pool would."""

    def __init__(self, score: Callable[[str], Score | None]) -> None:
        self._score = score
        self.queries: list[Query] = []

    def search(self, queries: Sequence[Query]) -> list[EngineAnswer | EngineError]:
        self.queries += queries
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> EngineAnswer | EngineError:
        score = self._score(query.fen)
        move = next(iter(chess.Board(query.fen).legal_moves)).uci()
        return EngineError(query.fen) if score is None else EngineAnswer(best_move=move, scores={move: score})


def some_score(fen: str) -> Score:
    """Return centipawns from -300 to 300."""
    return Score(zlib.crc32(fen.encode()) % 601 - 300)


def even(fen: str) -> Score:
    """Find every position even."""
    return Score(0)


def made(
    count: int, score: Callable[[str], Score | None] = even, *, seed: int = 0, exclude: set[str] | None = None, plies: int = 4
) -> list[str]:
    """Return openings of so many plies, made with a fake pool."""
    pool = cast("EnginePool", FakePool(score))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openings, "_PLIES", plies)
        return make_openings(
            EvaluationConfig(), count=count, rng=numpy_stream(seed, "test"), pool=pool, exclude=set() if exclude is None else exclude
        )


def key(fen: str) -> str:
    """Return the key of a position."""
    return position_key(chess.Board(fen))


def test_as_many_as_were_asked_for_each_so_many_legal_plies_from_the_start() -> None:
    boards = [chess.Board(fen) for fen in made(15, plies=7)]
    assert len(boards) == 15
    assert all(board.ply() == 7 and board.is_valid() and any(board.legal_moves) for board in boards)


def test_a_position_that_was_excluded_is_not_used_and_neither_is_its_mirror() -> None:
    first_moves = made(20, plies=1)
    kept_out = {position_key(chess.Board(fen).mirror()) for fen in first_moves[:12]}
    assert sorted(made(8, plies=1, exclude=set(kept_out))) == sorted(first_moves[12:])


def test_none_is_more_uneven_than_the_bound_and_the_bound_itself_is_allowed() -> None:
    centipawns = 120
    found = made(40, some_score)
    scores = [some_score(fen).value for fen in found]
    assert max(map(abs, scores)) <= centipawns
    assert min(scores) < 0 < max(scores), "for either side"
    assert len(made(5, lambda fen: Score(centipawns))) == 5
    assert len(made(5, lambda fen: Score(-centipawns))) == 5


def test_one_centipawn_beyond_the_bound_or_a_forced_mate_is_too_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "_MAX_ROUNDS", 2)
    for score in (Score(121), Score(-121), Score(1, is_mate=True), Score(-3, is_mate=True)):
        with pytest.raises(EngineError, match="found only 0 of 1 "):
            made(1, lambda fen, score=score: score)  # type: ignore[misc]


def test_a_position_on_which_the_engine_fails_is_left_out_and_changes_no_other() -> None:
    healthy = made(50, some_score)
    broken = set(healthy[::5])
    found = made(40, lambda fen: None if fen in broken else some_score(fen))
    assert found == [fen for fen in healthy if fen not in broken]


# A book.


class NoPool:
    """An engine that must not be asked."""

    def search(self, queries: Sequence[Query]) -> list[EngineAnswer | EngineError]:
        raise AssertionError("a book's openings are used as they are")


def from_book(book: Path | str, count: int, *, seed: int = 0, exclude: set[str] | None = None) -> list[str]:
    """Return openings of a book."""
    return make_openings(
        EvaluationConfig(opening_book=str(book)),
        count=count,
        rng=numpy_stream(seed, "test"),
        pool=cast("EnginePool", NoPool()),
        exclude=set() if exclude is None else exclude,
    )


@cache
def distinct_fens(count: int) -> list[str]:
    """Return FENs of positions that go on, no two of which (or of whose mirrors) are equal."""
    boards = {position_key(board): board.fen() for board in some_boards(2 * count) if board.halfmove_clock < 100}
    return list(boards.values())[:count]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Return a book of 40 positions."""
    path = tmp_path / "book.epd"
    path.write_text("".join(f"{fen}\n" for fen in distinct_fens(40)))
    return path


def test_a_book_gives_its_own_positions_each_once(book: Path) -> None:
    found = from_book(book, 40)
    assert sorted(found) == sorted(distinct_fens(40))
    assert found != sorted(found), "drawn, not read off"


def test_stages_that_share_what_is_excluded_share_no_opening_even_with_one_stream(book: Path) -> None:
    exclude: set[str] = set()
    stages = [from_book(book, 13, exclude=exclude) for _ in range(3)]
    assert len({key(fen) for stage in stages for fen in stage}) == 39
    assert exclude == {key(fen) for stage in stages for fen in stage}, "and nothing that was not drawn"


def test_one_seed_draws_the_same_and_another_otherwise_and_fewer_are_the_beginning_of_more(book: Path) -> None:
    assert from_book(book, 20) == from_book(book, 20)
    assert from_book(book, 20)[:7] == from_book(book, 7)
    assert from_book(book, 20) != from_book(book, 20, seed=1)


def test_neither_the_order_of_lines_nor_repeats_change_the_draw(book: Path, tmp_path: Path) -> None:
    lines = book.read_text().splitlines(keepends=True)
    (tmp_path / "a.epd.gz").write_bytes(gzip.compress("".join([*lines[::-1], *lines[5:15]]).encode()))
    assert from_book(tmp_path / "a.epd.gz", 12) == from_book(book, 12)


def test_too_small_a_book_is_an_error_with_both_numbers_and_nothing_is_used_up(book: Path) -> None:
    exclude = {key(fen) for fen in distinct_fens(40)[:9]}
    before = set(exclude)
    with pytest.raises(
        OpeningsError, match=r"^32 distinct openings are needed, but only 31 are available: .*book\.epd has 40 lines"
    ) as caught:
        from_book(book, 32, exclude=exclude)
    assert "and 9 are used elsewhere" in str(caught.value)
    assert exclude == before
    assert len(from_book(book, 31, exclude=exclude)) == 31


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("book.csv", b"PuzzleId,FEN,Moves\n", "not an opening book"),
        ("book.pgn", b"1. e4 *\n", "not an opening book"),
        ("book.tsv", b"eco\tname\tpgn\n", "cannot tell by its suffix"),
        ("book.epd.gz", gzip.compress(b"8/pp2nkR1/5n1p/3p4/5p2/P2BP3/1PPKN3/8 b - -\n" * 99)[:-9], "damaged or cut short"),
        ("book.epd", b"# nothing\n", "only 0 are available: "),
    ],
)
def test_what_is_no_book_is_an_error_in_plain_words(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((SourceError, OpeningsError), match=re.escape(message)):
        from_book(tmp_path / name, 1)
    with pytest.raises(SourceError, match="no file found"):
        from_book(tmp_path / "nowhere.epd", 1)


def test_the_books_content_and_not_its_place_is_in_the_versions_of_steps(book: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "deep" / "other.epd"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(book.read_bytes())
    here, there, none = (Settings(evaluation=EvaluationConfig(opening_book=str(path))) for path in (book, elsewhere, ""))
    for step in ("baseline", "select"):
        read = step_of(step).settings
        assert read(here) == read(there) == read(none)
    machine = Machine(stockfish="none", home=tmp_path, tracking_uri="", device="cpu", num_threads=1)
    asked = OUTSIDE["book"]
    assert asked(here, machine) == asked(there, machine) != asked(none, machine) == {}
    elsewhere.write_bytes(book.read_bytes() + b"\n")
    assert asked(here, machine) != asked(there, machine)
