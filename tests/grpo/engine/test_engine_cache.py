"""Engine answers on disk: a hit is the search itself, bit for bit; what is damaged, foreign or out of reach is searched again."""

import multiprocessing
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from grpo.board.actions import ACTION_UCI
from grpo.board.encoding import mover_fen
from grpo.engine.answers import EngineError, Score
from grpo.engine.cache import ValueCache, _packed, _unpacked
from grpo.engine.identity import EngineIdentity, identify
from grpo.engine.move_values import TRANSFORMS, ValueTable, engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.settings.tree import ValuesConfig

ENGINE = EngineIdentity(name="Some Engine 1", sha256="a" * 64)
OPTIONS: dict[str, str | int] = {"Hash": 1, "MultiPV": 256}
LIMIT = "depth 2"
SCORES = {
    "e2e4": Score(31, expected=0.5255),
    "d2d4": Score(-2, is_mate=True),
    "a2a3": Score(-900),
    "g1f3": Score(3, is_mate=True, expected=1.0),
}
CONFIG = ValuesConfig()


def cache_in(folder: Path, engine: EngineIdentity = ENGINE, **options: str | int) -> ValueCache:
    """Return the cache of an engine under the usual options."""
    return ValueCache(folder, engine=engine, options=OPTIONS | options)


def counts(cache: ValueCache) -> tuple[int, int, int, int]:
    """Return hits, misses, what was stored, and what was damaged."""
    return cache.num_hits, cache.num_misses, cache.num_stored, cache.num_damaged


def numbers(table: ValueTable | EngineError) -> Any:
    """Return a table as plain numbers that can be compared."""
    assert isinstance(table, ValueTable), table
    return table.moves, table.values.tobytes(), table.scores


@pytest.fixture
def boards(random_boards: list[chess.Board]) -> list[chess.Board]:
    """Return boards of both colours, one with a mate in one, one with a drawing move."""
    return [*random_boards[3::211], chess.Board("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1"), chess.Board("8/k7/8/8/8/8/6pK/8 b - - 99 90")]


# What is stored.


def test_what_is_stored_comes_back_exactly_and_in_its_order(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "not yet there")
    cache.put(LIMIT, {"fen": SCORES, "other": {"e2e4": Score(1)}})
    again = cache_in(tmp_path / "not yet there")
    found = again.get(LIMIT, ["fen", "unknown", "fen", "other"])
    assert found == {"fen": SCORES, "other": {"e2e4": Score(1)}}
    assert list(found["fen"]) == list(SCORES)
    assert all(type(a) is type(b) for move in SCORES for a, b in zip(found["fen"][move], SCORES[move], strict=True))
    assert counts(cache) == (0, 0, 2, 0)
    assert counts(again) == (2, 1, 0, 0), "a position asked for twice is counted once"
    assert len(again) == 2
    again.put(LIMIT, {})
    again.put(LIMIT, {"fen": {"e2e4": Score(2)}})
    assert again.get(LIMIT, ["fen"]) == {"fen": {"e2e4": Score(2)}}
    assert len(again) == 2


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(ACTION_UCI[chess.WHITE]),
        st.builds(
            Score,
            st.integers(-(2**31), 2**31 - 1),
            st.booleans(),
            st.one_of(st.none(), st.integers(0, 2_000).map(lambda halves: (2 * (halves // 2) + halves % 2) / 2_000)),
        ),
        max_size=218,
    )
)
def test_no_score_is_changed_by_packing(scores: dict[str, Score]) -> None:
    assert _unpacked(_packed(scores)) == scores


@pytest.mark.parametrize("transform", sorted(TRANSFORMS))
def test_a_hit_gives_the_table_of_a_search_bit_for_bit_and_another_transform_needs_no_search(
    transform: str, stockfish: str, boards: list[chess.Board], tmp_path: Path
) -> None:
    config = ValuesConfig(transform=transform)  # type: ignore[arg-type]
    options = engine_options(CONFIG)
    identity = identify(stockfish)
    with EnginePool(stockfish, num_processes=1, options=options) as pool:
        plain = [numbers(table) for table in value_tables(boards, pool, config, depth=2)]
        cold = ValueCache(tmp_path, engine=identity, options=options)
        other = ValuesConfig(transform="wdl" if transform == "logistic" else "logistic")
        list(value_tables(boards, pool, other, depth=2, cache=cold))
        assert counts(cold) == (0, len(boards), len(boards), 0)
    warm = ValueCache(tmp_path, engine=identity, options=options)
    with EnginePool("true", num_processes=1, options=options) as never_asked:
        assert [numbers(table) for table in value_tables(boards, never_asked, config, depth=2, cache=warm)] == plain
        # The mirror of a position has its mover's view, and so its answer.
        mirrored = list(value_tables([board.mirror() for board in boards], never_asked, config, depth=2, cache=warm))
    assert [numbers(table)[1] for table in mirrored] == [values for _, values, _ in plain]
    assert counts(warm) == (2 * len(boards), 0, 0, 0)


def test_hits_and_misses_come_out_in_the_order_of_the_boards(
    scripted: Callable[..., ScriptedEngine], random_boards: list[chess.Board], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo.engine.move_values._BOARDS_PER_BATCH", 16)  # Several look-ups, several transactions.
    some = list({mover_fen(board): board for board in random_boards[::50]}.values())[:70]
    engine = scripted(name="Stockfish scripted", positions=[mover_fen(board) for board in some])
    with EnginePool(engine.path, num_processes=1, options=engine_options(CONFIG)) as pool:
        plain = [numbers(table) for table in value_tables(some, pool, CONFIG, depth=2)]
        cache = cache_in(tmp_path)
        list(value_tables(some[20:65:2], pool, CONFIG, depth=2, cache=cache))
        before = len(engine.searches())
        mixed = [numbers(table) for table in value_tables(some, pool, CONFIG, depth=2, cache=cache)]
    assert mixed == plain
    assert counts(cache) == (23, 70, 70, 0)
    assert len(engine.searches()) - before == 70 - 23, "only what was not known"


# What is another search.


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"engine": EngineIdentity(name="Some Engine 1", sha256="b" * 64)}, False),
        ({"engine": EngineIdentity(name="Some Engine 2", sha256="a" * 64)}, False),
        ({"engine": EngineIdentity(name="Some Engine 1", sha256="a" * 64, network_sha256="c" * 64)}, False),
        ({"Hash": 2}, False),
        ({"MultiPV": 255}, False),
        ({"UCI_ShowWDL": "true"}, False),
    ],
)
def test_another_engine_or_another_option_is_another_cache(change: dict[str, Any], is_same: bool, tmp_path: Path) -> None:
    cache_in(tmp_path).put(LIMIT, {"fen": SCORES})
    other = cache_in(tmp_path, **change)
    assert bool(other.get(LIMIT, ["fen"])) is is_same
    assert (other.path == cache_in(tmp_path).path) is is_same


def test_another_limit_or_other_clocks_are_another_search(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    fen = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"
    cache.put("depth 2", {fen: SCORES})
    assert cache.get("depth 3", [fen]) == cache.get("nodes 2", [fen]) == {}
    assert cache.get("depth 2", [fen.replace("0 1", "1 1"), fen.replace("0 1", "0 2"), fen.replace(" w ", " b ")]) == {}
    assert cache.get("depth 2", [fen]) == {fen: SCORES}
    assert counts(cache) == (1, 5, 1, 0)


def test_the_rows_of_another_cache_are_not_taken_for_its_own(tmp_path: Path) -> None:
    # Copied by hand under the name of another engine's file: the checksum knows whose a row is.
    mine, other = cache_in(tmp_path), cache_in(tmp_path, engine=EngineIdentity(name="Other", sha256="b" * 64))
    mine.put(LIMIT, {"fen": SCORES})
    other.path.write_bytes(mine.path.read_bytes())
    assert other.get(LIMIT, ["fen"]) == {}
    assert counts(other) == (0, 1, 0, 1)


# Failures are not stored.


def test_only_whole_answers_are_stored(scripted: Callable[..., ScriptedEngine], random_boards: list[chess.Board], tmp_path: Path) -> None:
    some = list({mover_fen(board): board for board in random_boards[::400]}.values())
    fens = [mover_fen(board) for board in some]
    faulty = scripted({"kind": "half of the moves", "fen": fens[2], "times": 99}, {"kind": "crash", "fen": fens[5], "times": 99})
    cache = cache_in(tmp_path)
    with EnginePool(faulty.path, num_processes=1, options=engine_options(CONFIG)) as pool:
        made = list(value_tables(some, pool, CONFIG, depth=2, cache=cache))
    assert [index for index, table in enumerate(made) if isinstance(table, EngineError)] == [2, 5]
    assert len(cache) == cache.num_stored == len(some) - 2
    assert set(cache.get("depth 2", fens)) == set(fens) - {fens[2], fens[5]}


def test_what_was_searched_before_an_interruption_is_stored(
    scripted: Callable[..., ScriptedEngine], random_boards: list[chess.Board], tmp_path: Path
) -> None:
    cache = cache_in(tmp_path)
    with EnginePool(scripted().path, num_processes=1, options=engine_options(CONFIG)) as pool:
        made = value_tables(random_boards[1:2000:100], pool, CONFIG, depth=2, cache=cache)
        for _ in range(3):
            next(made)
        made.close()  # type: ignore[attr-defined]
        assert len(cache) == 3
    fens = [mover_fen(board) for board in random_boards[::100]]
    crashing = scripted({"kind": "crash", "times": 10_000}, positions=fens)
    with EnginePool(crashing.path, num_processes=1, options=engine_options(CONFIG)) as pool, pytest.raises(EngineError, match="in a row"):
        list(value_tables(random_boards[::100], pool, CONFIG, depth=2, cache=cache))
    assert len(cache) == 3


# Damage.


def filled(folder: Path, count: int = 400) -> ValueCache:
    """Return a cache of many rows."""
    cache = cache_in(folder)
    cache.put(LIMIT, {f"fen {number}": {"e2e4": Score(number), "d2d4": Score(-number)} for number in range(count)})
    return cache


@pytest.mark.parametrize("value", [b"", b"xxxxx", None, 7, "text"])
@pytest.mark.parametrize("column", ["scores", "checksum"])
def test_a_damaged_row_is_a_miss_and_counted_and_the_others_are_read(column: str, value: object, tmp_path: Path) -> None:
    cache = filled(tmp_path, 5)
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        connection.execute(f"UPDATE answers SET {column} = ? WHERE position = 'fen 3'", (value,))
    found = cache.get(LIMIT, [f"fen {number}" for number in range(5)])
    assert set(found) == {"fen 0", "fen 1", "fen 2", "fen 4"}
    assert counts(cache) == (4, 1, 5, 1)
    cache.put(LIMIT, {"fen 3": SCORES})
    assert cache.get(LIMIT, ["fen 3"]) == {"fen 3": SCORES}


@pytest.mark.parametrize("place", range(9))
def test_a_flipped_byte_of_a_score_is_never_used(place: int, tmp_path: Path) -> None:
    cache = filled(tmp_path, 2)
    with closing(sqlite3.connect(cache.path)) as connection, connection:
        [(data,)] = connection.execute("SELECT scores FROM answers WHERE position = 'fen 1'").fetchall()
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        connection.execute("UPDATE answers SET scores = ? WHERE position = 'fen 1'", (flipped,))
    assert set(cache.get(LIMIT, ["fen 0", "fen 1"])) == {"fen 0"}
    assert cache.num_damaged == 1


def cut(data: bytes) -> bytes:
    """Return the first half."""
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"<html>503 Service Unavailable</html>" * 40,
        lambda data: data[:100],
        cut,
        lambda data: data[:4096] + random.Random(1).randbytes(len(data) - 4096),
        lambda data: random.Random(2).randbytes(len(data)),
        lambda data: b"",
    ],
    ids=["HTML", "the header alone", "half of it", "garbage after the first page", "garbage", "empty"],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_file_is_set_aside_and_begun_anew(damage: Callable[[bytes], bytes], is_open: bool, tmp_path: Path) -> None:
    cache = filled(tmp_path)
    content = damage(cache.path.read_bytes())
    cache.path.write_bytes(content)
    if not is_open:
        cache = cache_in(tmp_path)
    before = cache.num_damaged
    wanted = [f"fen {number}" for number in range(400)]
    if is_open and not content:  # An empty file is a sound one, but for its table.
        with pytest.warns(RuntimeWarning, match="no such table"):
            found = cache.get(LIMIT, wanted)
        cache = cache_in(tmp_path)
    else:
        found = cache.get(LIMIT, wanted)
    for fen, scores in found.items():
        number = int(fen.split()[1])
        assert scores == {"e2e4": Score(number), "d2d4": Score(-number)}
    if content:
        assert cache.num_damaged > before or not is_open
        assert cache.path.with_suffix(".damaged").exists()
    assert len(found) < 400
    cache.put(LIMIT, {"fen 7": SCORES})
    assert cache.get(LIMIT, ["fen 7"]) == {"fen 7": SCORES}
    assert cache_in(tmp_path).get(LIMIT, ["fen 7"]) == {"fen 7": SCORES}


def test_a_damaged_file_costs_no_table(scripted: Callable[..., ScriptedEngine], random_boards: list[chess.Board], tmp_path: Path) -> None:
    some = random_boards[1::500]
    cache = cache_in(tmp_path)
    with EnginePool(scripted().path, num_processes=1, options=engine_options(CONFIG)) as pool:
        plain = [numbers(table) for table in value_tables(some, pool, CONFIG, depth=2, cache=cache)]
        cache.path.write_bytes(b"SQLite format 3\0" + b"\xff" * 9_000)
        assert [numbers(table) for table in value_tables(some, pool, CONFIG, depth=2, cache=cache)] == plain
        assert [numbers(table) for table in value_tables(some, pool, CONFIG, depth=2, cache=cache)] == plain
    assert cache.num_damaged == 1
    assert cache.num_hits == len(some), "the third time from the new file"


# Several writers, and writers that are killed.


def write_many(folder: str, writer: int) -> None:
    """Write 500 rows in 25 transactions, reading between them."""
    cache = cache_in(Path(folder))
    for start in range(0, 500, 20):
        answers = {f"fen {writer} {number}": {"e2e4": Score(1_000 * writer + number)} for number in range(start, start + 20)}
        cache.put(LIMIT, answers | {"shared": SCORES})
        assert cache.get(LIMIT, answers) == answers
    assert cache.num_damaged == 0


def test_four_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(str(tmp_path), writer)) for writer in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(120)
    assert [process.exitcode for process in writers] == [0] * 4
    cache = cache_in(tmp_path)
    expected = {f"fen {writer} {number}": {"e2e4": Score(1_000 * writer + number)} for writer in range(4) for number in range(500)}
    assert cache.get(LIMIT, [*expected, "shared"]) == expected | {"shared": SCORES}
    assert len(cache) == 2_001
    assert cache.num_damaged == 0


WRITING = """
import itertools, sys
from pathlib import Path
from grpo.engine.answers import Score
from grpo.engine.identity import EngineIdentity
from grpo.engine.cache import ValueCache
cache = ValueCache(Path(sys.argv[1]), engine=EngineIdentity(name="Some Engine 1", sha256="a" * 64), options={"Hash": 1, "MultiPV": 256})
print("writing", flush=True)
for batch in itertools.count():
    cache.put("depth 2", {f"fen {batch} {number}": {"e2e4": Score(number)} for number in range(400)})
"""


def test_a_writer_that_is_killed_leaves_whole_batches_and_a_sound_file(tmp_path: Path) -> None:
    rng = random.Random(3)
    num_rows = 0
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITING, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        time.sleep(rng.uniform(0.02, 0.2))
        writer.kill()
        writer.communicate()
        assert writer.returncode == -signal.SIGKILL
        cache = cache_in(tmp_path)
        num_rows = max(num_rows, len(cache))
        assert len(cache) % 400 == 0, "whole transactions only"
        fens = [f"fen {batch} {number}" for batch in range(len(cache) // 400) for number in range(400)]
        assert len(cache.get(LIMIT, fens)) == len(fens)
        assert cache.num_damaged == 0
        with closing(sqlite3.connect(cache.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert num_rows > 0
    assert not list(tmp_path.glob("*.damaged"))


# Where it cannot be written.


@pytest.fixture
def small_files_only() -> Iterator[Callable[[int], None]]:
    """Return a function that limits the size of files from now on, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_a_warning_and_no_table(
    scripted: Callable[..., ScriptedEngine], random_boards: list[chess.Board], tmp_path: Path, small_files_only: Callable[[int], None]
) -> None:
    some = random_boards[1::500]
    cache = filled(tmp_path)
    with EnginePool(scripted().path, num_processes=1, options=engine_options(CONFIG)) as pool:
        plain = [numbers(table) for table in value_tables(some, pool, CONFIG, depth=2)]
        size = cache.path.stat().st_size
        small_files_only(1024)
        with pytest.warns(RuntimeWarning, match=rf"^{cache.path}: .*; continuing without this cache$"):
            made = [numbers(table) for table in value_tables(some, pool, CONFIG, depth=2, cache=cache)]
        cache.put(LIMIT, {"fen": SCORES})  # Which is not warned of again: here it would be an error.
        small_files_only(resource.RLIM_INFINITY)
    assert made == plain
    assert cache.num_stored == 400
    assert cache.path.stat().st_size == size
    assert len(cache_in(tmp_path).get(LIMIT, [f"fen {number}" for number in range(400)])) == 400, "what was there is as it was"


def test_a_cache_that_can_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 5)
    connect = sqlite3.connect
    # Root may write anywhere: so sqlite itself is told.
    monkeypatch.setattr("grpo.engine.cache.sqlite3.connect", lambda path, **options: connect(f"file:{path}?mode=ro", uri=True, **options))
    cache = cache_in(tmp_path)
    assert cache.get(LIMIT, ["fen 3"]) == {"fen 3": {"e2e4": Score(3), "d2d4": Score(-3)}}
    with pytest.warns(RuntimeWarning, match="attempt to write a readonly database"):
        cache.put(LIMIT, {"fen": SCORES})
    assert set(cache.get(LIMIT, ["fen", "fen 4"])) == {"fen 4"}
    assert counts(cache) == (2, 1, 0, 0)
    assert not list(tmp_path.glob("*.damaged"))


def test_a_folder_that_cannot_be_made_costs_a_warning_and_no_table(
    scripted: Callable[..., ScriptedEngine], random_boards: list[chess.Board]
) -> None:
    with pytest.warns(RuntimeWarning, match="/proc/nowhere/values-.*unable to open database file"):
        cache = cache_in(Path("/proc/nowhere"))
    with EnginePool(scripted().path, num_processes=1, options=engine_options(CONFIG)) as pool:
        made = list(value_tables(random_boards[1::900], pool, CONFIG, depth=2, cache=cache))
    assert all(isinstance(table, ValueTable) for table in made)
    assert cache.num_hits == cache.num_stored == cache.num_damaged == len(cache) == 0


def test_a_file_that_another_writer_never_lets_go_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.cache._BUSY_SECONDS", 0.3)
    cache = filled(tmp_path, 5)
    with closing(sqlite3.connect(cache.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.warns(RuntimeWarning, match="database is locked"):
            cache.put(LIMIT, {"fen": SCORES})
        monkeypatch.setattr("grpo.engine.cache._BUSY_SECONDS", 600.0)
        assert cache.get(LIMIT, ["fen 3"]) == {}
    assert set(cache.get(LIMIT, ["fen 3", "fen"])) == {"fen 3"}
    assert not list(tmp_path.glob("*.damaged")), "a locked file is a sound one"
