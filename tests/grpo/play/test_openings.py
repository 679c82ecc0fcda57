"""Openings: as many distinct ones as were asked for, even enough, none that was used before, the same each time."""

import gzip
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import chess
import pytest
import zstandard
from doubles import some_boards
from made_games import FOOLS_MATE, HEADER, as_epd, random_pgn

from grpo.base.seeding import numpy_stream
from grpo.board.encoding import position_key
from grpo.board.phases import PHASES, Phase, phase_of
from grpo.engine.answers import EngineAnswer, EngineError, Score
from grpo.engine.pool import EnginePool, Query
from grpo.play import openings
from grpo.play.openings import OpeningsError, drawn_openings, in_random_order, make_openings, phase_openings, read_book
from grpo.reading.games import Reason, SourceError
from grpo.settings.roles import settings_read_by
from grpo.settings.tree import EvaluationConfig, Settings
from steps.store import external_inputs


def config(*, plies: int = 4, centipawns: int = 120) -> EvaluationConfig:
    """Return settings of openings."""
    return EvaluationConfig(opening_plies=plies, max_opening_centipawns=centipawns)


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


def test_a_position_that_was_excluded_is_not_used_and_neither_is_its_mirror() -> None:
    first_moves = made(20, plies=1)
    kept_out = {position_key(chess.Board(fen).mirror()) for fen in first_moves[:12]}
    assert sorted(made(8, plies=1, exclude=set(kept_out))) == sorted(first_moves[12:])


@pytest.mark.parametrize("centipawns", [30, 120])
def test_none_is_more_uneven_than_the_bound_and_the_bound_itself_is_allowed(centipawns: int) -> None:
    found = made(40, some_score, centipawns=centipawns)
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


def test_what_cannot_be_found_is_an_error_that_says_how_many_there_were_and_what_to_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "_MAX_ROUNDS", 3)
    with pytest.raises(
        EngineError,
        match=r"found only 20 of 21 openings of 1 plies within 120 centipawns; raise evaluation\.opening_plies or evaluation\.max_opening",
    ):
        made(21, plies=1)


def test_an_engine_that_fails_again_and_again_is_an_error() -> None:
    def failing(fen: str) -> Score:
        raise EngineError("8 searches in a row failed")

    with pytest.raises(EngineError, match="in a row failed"):
        made(3, failing)


@pytest.mark.usefixtures("no_process_left")
def test_real_openings_are_even_and_the_same_whatever_the_number_of_processes(stockfish: str) -> None:
    found: list[Any] = []
    for num_processes in (1, 2):
        with EnginePool(stockfish, num_processes=num_processes, options={"Hash": 1}) as pool:
            found.append(make_openings(config(plies=8, centipawns=60), count=10, rng=numpy_stream(0, "real"), pool=pool, exclude=set()))
            answers = pool.search([Query(fen=fen, limit="depth 6") for fen in found[-1]])
            for answer in answers:
                assert isinstance(answer, EngineAnswer)
                assert max(score.value for score in answer.scores.values()) <= 60
    assert found[0] == found[1]
    assert len({key(fen) for fen in found[0]}) == 10


# A book.


class NoPool:
    """An engine that must not be asked."""

    def search(self, queries: Sequence[Query]) -> list[EngineAnswer | EngineError]:
        raise AssertionError("a book's openings are used as they are")


def from_book(book: Path | str, count: int, *, seed: int = 0, exclude: set[str] | None = None, max_plies: int = 16) -> list[str]:
    """Return openings of a book."""
    return make_openings(
        EvaluationConfig(opening_book=str(book), opening_book_plies=max_plies),
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


def test_neither_the_order_of_lines_nor_repeats_nor_the_way_of_packing_change_the_draw(book: Path, tmp_path: Path) -> None:
    drawn = from_book(book, 12)
    lines = book.read_text().splitlines(keepends=True)
    shuffled = "".join([*lines[::-1], *lines[5:15]]).encode()
    (tmp_path / "a.epd.gz").write_bytes(gzip.compress(shuffled))
    (tmp_path / "b.fen.zst").write_bytes(zstandard.compress(shuffled))
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("first.epd", b"".join(line.encode() for line in lines[20:]))
        archive.writestr("second.epd", b"".join(line.encode() for line in lines[:21]))
    for name in ("a.epd.gz", "b.fen.zst", "c.zip"):
        assert from_book(tmp_path / name, 12) == drawn


def test_what_is_no_opening_is_counted_by_its_reason(tmp_path: Path) -> None:
    fens = distinct_fens(5)
    lines = [
        *fens,
        chess.Board(fens[0]).mirror().fen(),
        fens[1],
        "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3",  # Checkmate.
        "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1",  # Stalemate.
        "7k/8/6K1/8/8/8/8/8 b - - 0 1",  # Bare kings.
        "8/8/8/8/8/8/8/8 w - -",
        "hello",
        "x" * 70_000,
    ]
    (tmp_path / "book.epd").write_text("\n".join(lines))
    left_out: Counter[Reason] = Counter()
    book = read_book(str(tmp_path / "book.epd"), max_plies=16)
    found = list(book.in_random_order(numpy_stream(0, "test"), left_out))
    assert {board.fen() for board in found} <= {*fens, *lines}
    assert left_out == {Reason.GAME_OVER: 3, Reason.ILLEGAL_POSITION: 2, Reason.TOO_LONG: 1}
    message = "only 5 are available: .*book.epd has 12 entries; left out: 1 duplicate, 3 game over, 2 illegal position, 1 too long; 0 of"
    with pytest.raises(OpeningsError, match=message):
        from_book(tmp_path / "book.epd", 6)


def test_only_the_entries_that_are_needed_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fens = distinct_fens(100)
    (tmp_path / "large.epd").write_text("".join(f"{fen}\n" for fen in fens))
    monkeypatch.setattr(openings, "_ENTRIES_AT_ONCE", 16)
    num_parsed = 0
    parsed = openings.OpeningBook._parsed

    def counting(book: openings.OpeningBook, hashes: Sequence[int]) -> Any:
        nonlocal num_parsed
        num_parsed += len(hashes)
        return parsed(book, hashes)

    monkeypatch.setattr(openings.OpeningBook, "_parsed", counting)
    assert len(from_book(tmp_path / "large.epd", 20)) == 20
    assert num_parsed == 32
    assert len(from_book(tmp_path / "large.epd", 100)) == 100


def test_of_texts_that_differ_in_clocks_one_is_drawn_wherever_it_lies(tmp_path: Path) -> None:
    fen = "4k3/8/4K3/4P3/8/8/8/8 w - -"
    for name, clocks in (("a.epd", ("7 9", "3 4")), ("b.epd", ("3 4", "7 9"))):
        (tmp_path / name).write_text("".join(f"{fen} {each}\n" for each in clocks))
        assert from_book(tmp_path / name, 1) == [f"{fen} 3 4"]


def game_of(moves: str) -> str:
    """Return one game as PGN."""
    return f"{HEADER}\n{moves} *\n\n"


def after(*moves: str) -> str:
    """Return the FEN after these moves."""
    board = chess.Board()
    for move in moves:
        board.push_san(move)
    return board.fen()


@pytest.mark.parametrize(
    ("max_plies", "expected"),
    [
        (1, ("e4",)),
        (2, ("e4", "e5")),
        (3, ("e4", "e5", "Nf3")),
        (4, ("e4", "e5", "Nf3", "Nc6")),
        (5, ("e4", "e5", "Nf3", "Nc6")),
        (99, None),
    ],
)
def test_a_line_of_a_pgn_book_is_followed_to_its_end_or_to_the_bound(
    max_plies: int, expected: tuple[str, ...] | None, tmp_path: Path
) -> None:
    (tmp_path / "book.pgn").write_text(game_of("1. e4 e5 2. Nf3 Nc6"))
    assert from_book(tmp_path / "book.pgn", 1, max_plies=max_plies) == [after(*(expected or ("e4", "e5", "Nf3", "Nc6")))]


def test_lines_that_transpose_are_one_opening_and_one_that_ends_the_game_is_none(tmp_path: Path) -> None:
    games = ["1. e4 e5 2. Nf3 Nc6", "1. Nf3 Nc6 2. e4 e5", FOOLS_MATE, "1. e4 e5 2. Ke3", "1. d4"]
    (tmp_path / "book.pgn").write_text("".join(map(game_of, games)))
    assert {key(fen) for fen in from_book(tmp_path / "book.pgn", 2)} == {key(after("Nf3", "Nc6", "e4", "e5")), key(after("d4"))}
    with pytest.raises(OpeningsError, match=r"only 2 are available: .*left out: 1 duplicate, 1 game over, 1 illegal move"):
        from_book(tmp_path / "book.pgn", 3)
    cut = read_book(str(tmp_path / "book.pgn"), max_plies=3).in_random_order(numpy_stream(0, "test"), Counter())
    assert after("f3", "e5", "g4") in {board.fen() for board in cut}, "mate lies beyond the bound"


def test_too_small_a_book_is_an_error_with_both_numbers_and_nothing_is_used_up(book: Path) -> None:
    exclude = {key(fen) for fen in distinct_fens(40)[:9]}
    before = set(exclude)
    with pytest.raises(
        OpeningsError, match=r"^32 distinct openings are needed, but only 31 are available: .*book\.epd has 40 entries"
    ) as caught:
        from_book(book, 32, exclude=exclude)
    assert "; 9 of them are used elsewhere" in str(caught.value)
    assert "Use a larger evaluation.opening_book, or play fewer pairs of games" in str(caught.value)
    assert exclude == before
    assert len(from_book(book, 31, exclude=exclude)) == 31


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("book.csv", b"PuzzleId,FEN,Moves\n", "a puzzle table is not an opening book"),
        ("book.tsv", b"eco\tname\tpgn\n", "cannot tell by its suffix"),
        ("book.epd.gz", gzip.compress(b"8/pp2nkR1/5n1p/3p4/5p2/P2BP3/1PPKN3/8 b - -\n" * 99)[:-9], "truncated"),
        ("book.epd", b"# nothing\n", "book.epd has no entries; give evaluation.opening_book a file"),
        ("book.pgn", b"hello", "only 0 are available: "),
    ],
)
def test_what_is_no_book_is_an_error_in_plain_words(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((SourceError, OpeningsError), match=re.escape(message)):
        from_book(tmp_path / name, 1)
    with pytest.raises(SourceError, match="no file found"):
        from_book(tmp_path / "nowhere.epd", 1)


def test_a_book_that_changes_is_read_anew(book: Path) -> None:
    assert len(from_book(book, 40)) == 40
    book.write_text("".join(f"{fen}\n" for fen in distinct_fens(41)))
    assert len(from_book(book, 41)) == 41


def test_the_books_content_and_not_its_place_is_in_the_versions_of_steps(book: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "deep" / "other.epd"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(book.read_bytes())
    here, there, none = (Settings(evaluation=EvaluationConfig(opening_book=str(path))) for path in (book, elsewhere, ""))
    for step in ("baseline", "select"):
        assert settings_read_by(step, here) == settings_read_by(step, there) == settings_read_by(step, none)
        assert settings_read_by(step, here)["evaluation"]["opening_book_plies"] == 16
        shorter = Settings(evaluation=EvaluationConfig(opening_book=str(book), opening_book_plies=8))
        assert settings_read_by(step, here) != settings_read_by(step, shorter)
    assert external_inputs.opening_inputs(here) == external_inputs.opening_inputs(there) != external_inputs.opening_inputs(none) == {}
    elsewhere.write_bytes(book.read_bytes() + b"\n")
    assert external_inputs.opening_inputs(here) != external_inputs.opening_inputs(there)


# Positions of a phase.


def of_phase(fens: Sequence[str], phase: Phase, count: int, score: Callable[[str], Score | None] = even, **given: Any) -> list[str]:
    """Return openings of a phase made with a fake pool."""
    return phase_openings(
        in_random_order(fens, numpy_stream(given.get("seed", 0), "test")),
        phase,
        config=config(),
        count=count,
        pool=cast("EnginePool", FakePool(score)),
        exclude=given.get("exclude", set()),
    )


@pytest.fixture(scope="module")
def candidates() -> list[str]:
    """Return positions of all phases, some of them met twice, some drawn."""
    fens = [chess.Board.from_epd(line)[0].fen() for line in as_epd(random_pgn(30)).splitlines()]
    return [*fens, *fens[:50]]


@pytest.mark.parametrize("phase", PHASES)
def test_openings_of_a_phase_are_of_that_phase_distinct_and_even(phase: Phase, candidates: list[str]) -> None:
    exclude: set[str] = set()
    found = of_phase(candidates, phase, 15, some_score, exclude=exclude)
    assert {phase_of(chess.Board(fen)) for fen in found} == {phase}
    assert len({key(fen) for fen in found}) == 15
    assert all(abs(some_score(fen).value) <= 120 for fen in found)
    assert exclude == {key(fen) for fen in found}
    again = of_phase(candidates, phase, 15, some_score, exclude=exclude)
    assert not {key(fen) for fen in again} & {key(fen) for fen in found}


def test_finished_positions_are_no_openings_of_a_phase() -> None:
    over = ["7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "7k/8/6K1/8/8/8/8/8 b - - 0 1", "7k/8/6K1/8/8/8/8/6R1 b - - 100 90"]
    going_on = "7k/8/6K1/8/8/8/8/6R1 b - - 12 90"
    assert of_phase([*over, going_on], Phase.ENDGAME, 1) == [going_on]
    with pytest.raises(OpeningsError, match="1 distinct endgame openings are needed, but only 0 are available: of 0 distinct positions"):
        of_phase(over, Phase.ENDGAME, 1)


def test_too_few_positions_of_a_phase_are_an_error_with_all_numbers(candidates: list[str]) -> None:
    keys = {key(fen) for fen in candidates if phase_of(chess.Board(fen)) == Phase.OPENING}
    num_even = sum(abs(some_score(fen).value) <= 120 for fen in distinct(candidates, Phase.OPENING))
    assert 0 < num_even < len(keys)
    message = rf"99,999 distinct opening openings .* {num_even} are available: of {len(keys)} distinct positions {len(keys)} are not used"
    with pytest.raises(OpeningsError, match=message):
        of_phase(candidates, Phase.OPENING, 99_999, some_score)


def distinct(fens: Sequence[str], phase: Phase) -> list[str]:
    """Return the least FEN of each distinct position of a phase."""
    least: dict[str, str] = {}
    for fen in fens:
        if phase_of(chess.Board(fen)) == phase:
            least[key(fen)] = min(fen, least.get(key(fen), fen))
    return list(least.values())


# Real books.

SAMPLE_DATA = os.environ.get("CHESS_GRPO_SAMPLE_DATA", "")


@pytest.mark.skipif(not SAMPLE_DATA, reason="CHESS_GRPO_SAMPLE_DATA is not set")
@pytest.mark.prove
def test_real_books_are_read_whole_and_every_line_is_accounted_for() -> None:
    # `endgames.epd` lists 22 positions twice, with other clocks: an entry is a position.
    for name, num_entries in (("8moves_v3.pgn.zip", 34_700), ("popularpos_lichess_v3.epd.zip", 200_000), ("endgames.epd.zip", 157_824)):
        book = read_book(f"{SAMPLE_DATA}/{name}", max_plies=16)
        assert len(book) == num_entries
        left_out: Counter[Reason] = Counter()
        num_found = sum(1 for _ in book.in_random_order(numpy_stream(0, "test"), left_out))
        assert num_found + sum(left_out.values()) == num_entries
        assert set(left_out) <= {Reason.GAME_OVER, Reason.CHESS960}
        drawn = drawn_openings(book, count=500, rng=numpy_stream(0, "test"), exclude=set())
        assert all(chess.Board(fen).is_valid() for fen in drawn)
        if name.startswith("8moves"):
            assert {chess.Board(fen).ply() for fen in drawn} == {16}
