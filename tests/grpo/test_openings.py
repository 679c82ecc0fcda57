"""Openings: as many distinct ones as were asked for, even enough, none that was used before, the same each time."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import chess
import pytest
import torch
from scripted_engine import ScriptedEngine

from grpo import openings
from grpo.config import EvaluationConfig
from grpo.encoding import position_key
from grpo.engine import Answer, EngineError, EnginePool, Query, Score
from grpo.openings import make_openings
from grpo.seeding import numpy_stream

torch.set_num_threads(1)


def config(*, plies: int = 4, centipawns: int = 120) -> EvaluationConfig:
    """Return settings of openings."""
    return EvaluationConfig(opening_plies=plies, max_opening_centipawns=centipawns)


class FakePool:
    """Scores each position by a function of its FEN, as the engine's pool would."""

    def __init__(self, score: Callable[[str], Score | None]) -> None:
        self._score = score
        self.queries: list[Query] = []

    def search(self, queries: Sequence[Query]) -> list[Answer | EngineError]:
        self.queries += queries
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> Answer | EngineError:
        score = self._score(query.fen)
        move = next(iter(chess.Board(query.fen).legal_moves)).uci()
        return EngineError(query.fen) if score is None else Answer(best_move=move, scores={move: score})


def some_score(fen: str) -> Score:
    """Return centipawns from -300 to 300."""
    return Score(zlib.crc32(fen.encode()) % 601 - 300)


def even(fen: str) -> Score:
    """Find every position even."""
    return Score(0)


def made(
    count: int, score: Callable[[str], Score | None] = even, *, seed: int = 0, exclude: set[str] | None = None, **settings: int
) -> list[str]:
    """Return openings made with a fake pool."""
    pool = cast("EnginePool", FakePool(score))
    return make_openings(
        config(**settings), count=count, rng=numpy_stream(seed, "test"), pool=pool, exclude=set() if exclude is None else exclude
    )


def key(fen: str) -> str:
    """Return the key of a position."""
    return position_key(chess.Board(fen))


@pytest.mark.parametrize("plies", [1, 4, 7])
def test_as_many_as_were_asked_for_each_so_many_legal_plies_from_the_start(plies: int) -> None:
    found = made(15, plies=plies)
    assert len(found) == 15
    for fen in found:
        board = chess.Board(fen)
        assert board.ply() == plies
        assert board.is_valid()
        assert any(board.legal_moves)


def test_all_twenty_first_moves_are_found_and_none_twice() -> None:
    after_one = set()
    for move in chess.Board().legal_moves:
        board = chess.Board()
        board.push(move)
        after_one.add(board.fen())
    assert set(made(20, plies=1)) == after_one


def test_transpositions_count_as_one_opening() -> None:
    found = made(300, plies=3)
    assert len({key(fen) for fen in found}) == 300


def test_a_position_that_was_excluded_is_not_used_and_neither_is_its_mirror() -> None:
    first_moves = made(20, plies=1)
    kept_out = {position_key(chess.Board(fen).mirror()) for fen in first_moves[:12]}
    assert sorted(made(8, plies=1, exclude=set(kept_out))) == sorted(first_moves[12:])


def test_what_was_found_is_excluded_from_the_next_search() -> None:
    exclude: set[str] = set()
    first = made(40, exclude=exclude)
    assert {key(fen) for fen in first} <= exclude
    second = made(40, exclude=exclude)
    assert {key(fen) for fen in first} & {key(fen) for fen in second} == set(), "even with the same random stream"
    assert len({key(fen) for fen in [*first, *second]}) == 80


@pytest.mark.parametrize("centipawns", [30, 120])
def test_none_is_more_uneven_than_the_bound_and_the_bound_itself_is_allowed(centipawns: int) -> None:
    found = made(100, some_score, centipawns=centipawns)
    scores = [some_score(fen).value for fen in found]
    assert max(map(abs, scores)) <= centipawns
    assert min(scores) < 0 < max(scores), "for either side"
    assert len(made(5, lambda fen: Score(centipawns), centipawns=centipawns)) == 5
    assert len(made(5, lambda fen: Score(-centipawns), centipawns=centipawns)) == 5


def test_every_candidate_within_the_bound_is_used_in_the_order_it_came() -> None:
    pool = FakePool(some_score)
    found = make_openings(config(), count=60, rng=numpy_stream(0, "test"), pool=cast("EnginePool", pool), exclude=set())
    assert found == [query.fen for query in pool.queries if abs(some_score(query.fen).value) <= 120][:60]
    assert {query.limit for query in pool.queries} == {"depth 6"}
    assert all(query.is_fresh for query in pool.queries)


@pytest.mark.parametrize("centipawns", [1, 1_000])
def test_one_centipawn_beyond_the_bound_or_a_forced_mate_is_too_uneven(centipawns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "_MAX_ROUNDS", 2)
    for score in (Score(centipawns + 1), Score(-centipawns - 1), Score(1, is_mate=True), Score(-3, is_mate=True)):
        with pytest.raises(EngineError, match="found only 0 of 1 "):
            made(1, lambda fen, score=score: score, centipawns=centipawns)  # type: ignore[misc]


def test_a_position_on_which_the_engine_fails_is_left_out_and_changes_no_other() -> None:
    healthy = made(50, some_score)
    broken = set(healthy[::5])
    found = made(40, lambda fen: None if fen in broken else some_score(fen))
    assert found == [fen for fen in healthy if fen not in broken]


def test_one_seed_gives_the_same_openings_and_another_others() -> None:
    assert made(30, some_score) == made(30, some_score)
    assert set(made(30, some_score)).isdisjoint(made(30, some_score, seed=1))


def test_fewer_openings_are_the_beginning_of_more() -> None:
    assert made(30, some_score)[:7] == made(7, some_score)


def test_what_cannot_be_found_is_an_error_that_says_how_many_there_were_and_what_to_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "_MAX_ROUNDS", 3)
    with pytest.raises(
        EngineError,
        match=r"found only 20 of 21 openings of 1 plies within 120 centipawns; raise evaluation\.opening_plies or evaluation\.max_opening",
    ):
        made(21, plies=1)


@pytest.mark.usefixtures("no_process_left")
def test_an_engine_that_fails_again_and_again_is_an_error(scripted: Callable[..., ScriptedEngine]) -> None:
    engine = scripted({"kind": "crash", "times": 10_000})
    with EnginePool(engine.path, num_processes=1, options={}) as pool, pytest.raises(EngineError, match="in a row failed"):
        make_openings(config(), count=3, rng=numpy_stream(0, "test"), pool=pool, exclude=set())


@pytest.mark.usefixtures("no_process_left")
def test_real_openings_are_even_and_the_same_whatever_the_number_of_processes(stockfish: str) -> None:
    found: list[Any] = []
    for num_processes in (1, 2):
        with EnginePool(stockfish, num_processes=num_processes, options={"Hash": 1}) as pool:
            found.append(make_openings(config(plies=8, centipawns=60), count=25, rng=numpy_stream(0, "real"), pool=pool, exclude=set()))
            answers = pool.search([Query(fen=fen, limit="depth 6") for fen in found[-1]])
            for answer in answers:
                assert isinstance(answer, Answer)
                assert max(score.value for score in answer.scores.values()) <= 60
    assert found[0] == found[1]
    assert len({key(fen) for fen in found[0]}) == 25
