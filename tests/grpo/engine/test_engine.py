"""Engine processes, real and scripted: every fault is survived or named, no score is invented, nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import chess
import pytest
from scripted_engine import ScriptedEngine, move_scores

from grpo.engine.answers import EngineAnswer, EngineError, Score, parse_answer, parse_best_move
from grpo.engine.identity import EngineMissingError, identify
from grpo.engine.pool import MAX_LINES, EnginePool, Query
from grpo.engine.process import START_SECONDS, EngineProcess

pytestmark = pytest.mark.usefixtures("no_process_left")

FENS = [
    chess.STARTING_FEN,
    "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3",
    "r1bqkb1r/pppp1ppp/2n2n2/1B2p3/4P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "4k3/8/8/8/8/8/4P3/4K3 b - - 0 1",
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
]
ALL_LINES: dict[str, str | int] = {"MultiPV": MAX_LINES, "Hash": 1}
ONE_AT_A_TIME, SENT_AHEAD = "Scripted 1", "Stockfish scripted"
Within = Callable[[float], AbstractContextManager[None]]
Scripted = Callable[..., ScriptedEngine]


def query(fen: str) -> Query:
    """Return the search of all legal moves."""
    return Query(fen=fen, limit="depth 2", moves=frozenset(move.uci() for move in chess.Board(fen).legal_moves))


QUERIES = [query(fen) for fen in FENS]


@pytest.fixture
def scripted(scripted: Scripted) -> Scripted:
    """Return the maker of engines that know the positions of this file beforehand, and so start in a third of the time."""
    return partial(scripted, positions=FENS)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shorten the deadline of a search, so that hung engines are noticed soon; sound ones need a hundredth of it."""
    monkeypatch.setattr("grpo.engine.process.SILENT_SECONDS", 1.5)
    return 1.5


def answers_of(path: str, queries: Sequence[Query], *, num_processes: int = 1) -> list[EngineAnswer | EngineError]:
    """Return what a pool of its own answers."""
    with EnginePool(path, num_processes=num_processes, options=ALL_LINES) as pool:
        return pool.search(queries)


def expected(fen: str) -> EngineAnswer:
    """Return the scripted engine's answer when nothing goes wrong."""
    scores = move_scores(fen, sorted(move.uci() for move in chess.Board(fen).legal_moves), "")
    return EngineAnswer(best_move=scores[0][1], scores={move: Score(value) for value, move in scores})


EXPECTED = [expected(fen) for fen in FENS]


# What an answer says.


def test_the_scores_are_those_of_the_last_iteration_in_which_every_line_was_searched() -> None:
    text = (
        b"info string NNUE evaluation\n"
        b"info depth 1 seldepth 1 multipv 1 score cp 40 nodes 30 pv e2e4\n"
        b"info depth 1 seldepth 1 multipv 2 score cp 30 nodes 30 pv d2d4\n"
        b"info depth 2 seldepth 2 multipv 1 score cp 50 nodes 90 pv d2d4 d7d5\n"
        b"info depth 2 seldepth 3 multipv 2 score mate -3 nodes 90 pv e2e4 e7e5\n"
        b"info depth 3 seldepth 3 multipv 1 score cp 99 nodes 120 pv d2d4 d7d5\n"
        b"bestmove d2d4 ponder d7d5\n"
    )
    for num_lines in (None, 2):
        answer = parse_answer(text, num_lines=num_lines)
        assert answer.best_move == "d2d4"
        assert answer.scores == {"d2d4": Score(50), "e2e4": Score(-3, is_mate=True)}
        assert answer.num_nodes == 120
    with pytest.raises(EngineError, match="the engine scored 2 moves, and there are 3"):
        parse_answer(text, num_lines=3)


def test_a_later_line_of_one_iteration_replaces_an_earlier_one_and_bounds_are_no_scores() -> None:
    text = (
        b"info depth 5 seldepth 6 score cp 10 lowerbound nodes 30 pv e2e4\n"
        b"info depth 5 seldepth 6 score cp 60 nodes 30 pv e2e4\n"
        b"info depth 5 seldepth 6 score cp 70 nodes 30 pv e2e4\n"
        b"info depth 5 currmove d2d4 currmovenumber 2\n"
        b"info depth 5 seldepth 6 score cp 5 upperbound nodes 30 pv e2e4\n"
        b"bestmove e2e4\n"
    )
    for num_lines in (None, 1):
        assert parse_answer(text, num_lines=num_lines).scores == {"e2e4": Score(70)}


@pytest.mark.parametrize(
    "line",
    [
        b"info depth 7 seldepth 9 multipv 1 score cp -31 wdl 12 801 187 nodes 8 nps 9 hashfull 0 tbhits 0 time 1 pv e2e4 e7e5",  # Stockfish
        b"info depth 7 score cp -31 wdl 12 801 187 time 3 nodes 8 pv e2e4",
        b"info multipv 1 depth 7 seldepth 9 score cp -31 wdl 12 801 187 pv e2e4",
        b"info depth 7 time 3 nodes 8 wdl 12 801 187 score cp -31 pv e2e4 e7e5\r",
    ],
)
def test_the_words_of_a_line_may_come_in_any_order(line: bytes) -> None:
    assert parse_answer(line + b"\nbestmove e2e4\r\n", num_lines=1).scores == {"e2e4": Score(-31)}


def test_text_for_people_is_no_score() -> None:
    text = b"info depth 1 score cp 3 pv e2e4\ninfo string depth 9 score cp 900 nodes 1 pv d2d4\nbestmove e2e4\n"
    assert parse_answer(text).scores == {"e2e4": Score(3)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"info depth 0 score mate 0\nbestmove (none)\n", "the engine found no move"),
        (b"info depth 1 score cp 3 pv e2e4\nbestmove 0000\n", "the engine found no move"),
        (b"info depth 1 score cp 3 pv e2e4\nbestmove NULL\n", "the engine found no move"),
        (b"bestmove\n", "the engine named no best move"),
        (b"info string bestmove e2e4\n", "the engine named no best move"),
        (b"", "the engine named no best move"),
        (b"bestmove e2e4\n", "the engine gave no score"),
        (b"info depth 1 score cp 3 lowerbound pv e2e4\nbestmove e2e4\n", "the engine gave no score"),
    ],
)
@pytest.mark.parametrize("num_lines", [None, 1])
def test_an_answer_without_a_move_or_a_score_is_an_error_and_never_a_zero(text: bytes, message: str, num_lines: int | None) -> None:
    with pytest.raises(EngineError, match=message):
        parse_answer(text, num_lines=num_lines)


@pytest.mark.parametrize("num_lines", [None, 1])
@pytest.mark.parametrize(
    "numbers",
    [
        b"cp 999999999999",
        b"mate -2147483649",
        b"cp " + b"9" * 5_000,
        b"cp x",
    ],
)
def test_numbers_that_no_engine_can_mean_are_an_error(numbers: bytes, num_lines: int | None) -> None:
    for text in (b"info depth 1 score " + numbers + b" nodes 1 pv e2e4", b"info nodes 1 score " + numbers + b" depth 1 pv e2e4"):
        with pytest.raises((EngineError, ValueError)):  # Of both the pool asks again.
            parse_answer(text + b"\nbestmove e2e4\n", num_lines=num_lines)


def test_a_best_move_is_read_by_itself_and_none_is_no_move() -> None:
    assert parse_best_move(b"info depth 1\nbestmove e7e8q ponder a1a2\n") == "e7e8q"
    assert [parse_best_move(b"bestmove " + word + b"\n") for word in (b"(none)", b"0000", b"NULL")] == [""] * 3


def test_both_ways_of_reading_an_answer_read_the_same(stockfish: str, random_boards: list[chess.Board]) -> None:
    # With the number of lines known, the last lines are read in one go; else line by line, from all iterations.
    with EngineProcess(stockfish, ALL_LINES, start_seconds=30) as process:
        for board in [*random_boards[2::251], chess.Board("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1")]:
            process.send(f"position fen {board.fen()}\ngo depth 3")
            data = process.answer()
            answer = parse_answer(data)
            assert answer == parse_answer(data, num_lines=len(answer.scores))
            assert answer.scores.keys() == {move.uci() for move in board.legal_moves}


def test_a_helper_of_the_engine_that_keeps_the_pipe_open_does_not_hold_up_its_end(tmp_path: Path) -> None:
    engine, helper = tmp_path / "engine", tmp_path / "helper"
    engine.write_text(
        f"""#!/bin/sh
setsid sh -c 'echo $$ > {helper}; exec sleep 100' &
while read line; do
  case "$line" in
    uci) echo "id name wrapped"; echo uciok;;
    isready) echo readyok;;
  esac
done
"""
    )
    engine.chmod(0o755)
    process = EngineProcess(str(engine), {}, start_seconds=30)
    while not helper.exists() or not helper.read_text().endswith("\n"):
        time.sleep(0.01)
    process.kill()
    process.kill()
    assert not process.is_alive()
    assert Path(f"/proc/{helper.read_text().strip()}/cmdline").read_bytes(), "it was there all the while, and no zombie"
    os.kill(int(helper.read_text()), signal.SIGKILL)


def test_an_ended_engines_id_stays_its_own_until_its_group_is_killed_and_is_not_used_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, killed = tmp_path / "engine", []
    engine.write_text("#!/bin/sh\nread line; echo uciok; read line; echo readyok; read line\n")
    engine.chmod(0o755)
    process = EngineProcess(str(engine), {}, start_seconds=30)
    process.send("quit")
    while process.is_alive():
        time.sleep(0.01)
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(Path(f"/proc/{group}").exists()))
    process.kill()
    process.kill()
    assert killed == [True]


# Which engine it is.


def test_an_engine_is_known_by_its_name_and_by_the_hash_of_its_file(stockfish: str) -> None:
    identity = identify(stockfish)
    [digest] = subprocess.run(["sha256sum", stockfish], capture_output=True, text=True, check=True).stdout.split()[:1]
    assert identity.name.startswith("Stockfish ")
    assert identity.sha256 == digest
    assert str(identity) == f"{identity.name} (sha256 {digest[:16]})"


def test_an_engine_that_changes_is_another_engine(scripted: Scripted) -> None:
    path = scripted().path
    before = identify(path)
    with Path(path).open("a") as file:
        file.write("# changed\n")
    after = identify(path)
    assert before.name == after.name == "Scripted 1"
    assert before.sha256 != after.sha256


@pytest.mark.parametrize("name", ["no-such-engine", "/no/such/engine", ""])
def test_a_missing_engine_is_refused_with_the_remedy(name: str) -> None:
    for ask in (lambda: identify(name), lambda: EnginePool(name, num_processes=1, options={})):
        with pytest.raises(EngineMissingError, match=r"no engine at .*apt-get install stockfish.*CHESS_GRPO_STOCKFISH") as refusal:
            ask()
        assert repr(name) in str(refusal.value)


def test_a_file_that_may_not_be_executed_and_a_folder_are_no_engines(tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("#!/bin/sh\n")
    (tmp_path / "engine").chmod(0o644)
    for path in (tmp_path / "engine", tmp_path):
        with pytest.raises(EngineMissingError, match=r"no engine at .*apt-get install stockfish"):
            identify(str(path))


@pytest.mark.parametrize("name", ["cat", "true", "false", "yes"])
def test_a_program_that_is_no_engine_is_refused_with_the_remedy(name: str, monkeypatch: pytest.MonkeyPatch, within: Within) -> None:
    monkeypatch.setattr("grpo.engine.identity.START_SECONDS", 0.3)
    with (
        within(120),
        pytest.raises(EngineMissingError, match=rf"{name} is not a usable UCI engine .*apt-get install stockfish.*CHESS_GRPO_STOCKFISH"),
    ):
        identify(name)


def test_a_text_file_that_may_be_executed_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"\0not a program")
    path.chmod(0o755)
    with pytest.raises(EngineMissingError, match=r"is not a usable UCI engine .*apt-get install stockfish"):
        identify(str(path))


@pytest.mark.parametrize("start", ["dies", "silent", "floods"])
def test_an_engine_that_does_not_start_is_refused(
    start: str,
    scripted: Scripted,
    monkeypatch: pytest.MonkeyPatch,
    within: Within,
) -> None:
    monkeypatch.setattr("grpo.engine.identity.START_SECONDS", 0.5)
    with within(120), pytest.raises(EngineMissingError, match="is not a usable UCI engine"):
        identify(scripted(start=start).path)


def test_what_is_no_engine_is_found_out_in_less_than_five_seconds() -> None:
    # `cat` answers nothing for ever, so that the preflight takes exactly this long.
    assert START_SECONDS < 5


def test_an_engine_may_start_slowly(scripted: Scripted) -> None:
    slow = scripted(start="slow", start_seconds=0.3)
    assert identify(slow.path).name == "Scripted 1"
    assert answers_of(slow.path, QUERIES[:1]) == [expected(FENS[0])]


def test_an_engine_that_the_machine_keeps_waiting_has_longer(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.identity.START_SECONDS", 0.01)
    monkeypatch.setattr("grpo.engine.process._LATEST_START", 60_000)
    assert identify(scripted(start="busy", start_seconds=1).path).name == "Scripted 1"
    with pytest.raises(EngineMissingError, match="no uciok in time"):
        identify(scripted(start="silent").path)


# Searches that go well.


def test_one_search_scores_every_legal_move_for_the_mover(stockfish: str) -> None:
    # White mates in one; Black, to move in the mirror, does too; in the third the mover is a queen down.
    fens = ["6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "r3k3/8/8/8/8/8/5PPP/6K1 b - - 0 1", "3qk3/8/8/8/8/8/8/4K3 w - - 0 1"]
    white, black, lost = answers_of(stockfish, [Query(fen=fen, limit="depth 3") for fen in fens])
    assert isinstance(white, EngineAnswer)
    assert isinstance(black, EngineAnswer)
    assert isinstance(lost, EngineAnswer)
    for fen, answer in zip(fens, (white, black, lost), strict=True):
        assert set(answer.scores) == {move.uci() for move in chess.Board(fen).legal_moves}
    assert (white.best_move, white.scores["a1a8"]) == ("a1a8", Score(1, is_mate=True))
    assert (black.best_move, black.scores["a8a1"]) == ("a8a1", Score(1, is_mate=True))
    assert all(score.value < -300 for score in lost.scores.values())


def test_no_queries_have_no_answers_and_start_no_process(scripted: Scripted) -> None:
    assert answers_of(scripted(start="dies").path, []) == []


def test_scores_depend_neither_on_the_order_of_the_queries_nor_on_the_number_of_processes(
    stockfish: str, random_boards: list[chess.Board]
) -> None:
    queries = [Query(fen=board.fen(), limit="depth 4") for board in random_boards[3::281]]
    once = answers_of(stockfish, queries)
    assert len(queries) > 15
    assert all(isinstance(answer, EngineAnswer) for answer in once)
    assert answers_of(stockfish, queries[::-1])[::-1] == once
    assert answers_of(stockfish, queries, num_processes=3) == once
    # The test above has teeth: with a kept hash the order does matter.
    kept = [Query(fen=asked.fen, limit=asked.limit, is_fresh=False) for asked in queries]
    assert answers_of(stockfish, kept[::-1])[::-1] != answers_of(stockfish, kept)


def test_the_hash_is_cleared_before_a_search_exactly_when_it_must_be_fresh(scripted: Scripted) -> None:
    healthy = scripted(has_memory=True)
    kept = Query(fen=FENS[0], limit="nodes 9", is_fresh=False)
    fresh = Query(fen=FENS[0], limit="nodes 9")
    with EnginePool(healthy.path, num_processes=1, options=ALL_LINES) as pool:
        first, with_memory, cleared = pool.search([fresh, kept, fresh])
    assert [search["is_fresh"] for search in healthy.searches()] == [True, False, True]
    assert [search["limit"] for search in healthy.searches()] == ["nodes 9"] * 3
    assert first == cleared != with_memory


def test_every_process_has_one_thread_and_the_options_that_were_asked_for(tmp_path: Path, stockfish: str) -> None:
    spy = tmp_path / "spy"
    spy.write_text(f'#!/bin/sh\ntee "{tmp_path}/said" | "{stockfish}"\n')
    spy.chmod(0o755)
    with EnginePool(str(spy), num_processes=1, options={"Hash": 3, "MultiPV": 5}) as pool:
        [answer] = pool.search([Query(fen=FENS[0], limit="depth 2")])
    assert isinstance(answer, EngineAnswer)
    assert len(answer.scores) == 5
    said = (tmp_path / "said").read_text().splitlines()
    assert {"setoption name Threads value 1", "setoption name Hash value 3", "setoption name MultiPV value 5"} <= set(said)


@pytest.mark.parametrize("kind", ["dribble", "slow pieces", "chatter", "speaks of its best move"])
def test_an_answer_may_come_in_pieces_or_with_chatter(kind: str, scripted: Scripted) -> None:
    assert answers_of(scripted({"kind": kind, "times": 99}).path, QUERIES[3:5]) == [expected(fen) for fen in FENS[3:5]]


# Searches that go wrong. Each also with searches sent ahead, when a process that fails owes several answers.

FAULTS = [
    "crash",
    "crash midway",
    "dies on its last line",
    "closes its output",
    "hang midway",
    "hang with a child",
    "no newline",
    "none",
    "garbage",
    "no score",
    "flood",
    "flood without newline",
    "illegal best move",
    "half of the moves",
    "a move that is none",
    "answers, then dies",
]
OWING = ["crash", "dies on its last line", "hang with a child", "garbage", "answers, then dies"]
"""Those that end in other ways where further answers are owed."""
NAMES = pytest.mark.parametrize("name", [ONE_AT_A_TIME, SENT_AHEAD])


@pytest.fixture
def little_is_a_flood(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lower the number of bytes above which an answer is a flood."""
    monkeypatch.setattr("grpo.engine.process.MAX_ANSWER_BYTES", 1 << 20)
    return 1 << 20


@pytest.mark.parametrize(("kind", "name"), [*((kind, ONE_AT_A_TIME) for kind in FAULTS), *((kind, SENT_AHEAD) for kind in OWING)])
@pytest.mark.usefixtures("little_is_a_flood", "patience")
def test_after_one_fault_the_answers_are_those_of_a_run_without_it(kind: str, name: str, scripted: Scripted, within: Within) -> None:
    faulty = scripted({"kind": kind, "nth": 3}, name=name)
    with within(300):
        assert answers_of(faulty.path, QUERIES) == EXPECTED
    searches = faulty.searches()
    [struck] = [search for search in searches if search["fault"] is not None]
    again = [search for search in searches if search["fen"] == struck["fen"] and search["fault"] is None]
    if kind == "answers, then dies":
        assert not again, "what was said before it died is an answer"
    else:
        assert [search["pid"] != struck["pid"] for search in again] == [True], "asked again, once, on a fresh process"


@pytest.mark.parametrize(("kind", "num_processes", "name"), [("crash", 2, ONE_AT_A_TIME), ("hang", 3, SENT_AHEAD), ("none", 2, SENT_AHEAD)])
@pytest.mark.usefixtures("patience")
def test_a_fault_of_one_of_several_processes_changes_no_answer(
    kind: str, num_processes: int, name: str, scripted: Scripted, within: Within
) -> None:
    faulty = scripted({"kind": kind, "nth": 4}, {"kind": kind, "nth": 9}, name=name)
    with within(300):
        assert answers_of(faulty.path, QUERIES * 3, num_processes=num_processes) == EXPECTED * 3


@pytest.mark.parametrize(
    ("kind", "num_processes", "name"), [("crash", 1, SENT_AHEAD), ("crash", 3, ONE_AT_A_TIME), ("garbage", 2, SENT_AHEAD)]
)
def test_a_position_that_fails_three_times_is_an_error_in_its_place_and_no_other_is_touched(
    kind: str, num_processes: int, name: str, scripted: Scripted, within: Within
) -> None:
    faulty = scripted({"kind": kind, "fen": FENS[2], "times": 99}, name=name)
    with within(300):
        answers = answers_of(faulty.path, QUERIES, num_processes=num_processes)
    assert isinstance(answers[2], EngineError)
    assert FENS[2] in str(answers[2])
    assert answers[:2] + answers[3:] == EXPECTED[:2] + EXPECTED[3:]
    asked = [search["pid"] for search in faulty.searches() if search["fen"] == FENS[2]]
    assert len(asked) == len(set(asked)) == 3, "three attempts, each on a process of its own"


def test_a_process_that_dies_on_the_second_search_sent_ahead_is_not_blamed_on_the_first(scripted: Scripted) -> None:
    # It has answered the first and died on the second when the third is sent: a broken pipe, which says nothing about whose fault it is.
    faulty = scripted({"kind": "crash", "fen": FENS[1], "times": 99}, name=SENT_AHEAD)

    def queries() -> Iterator[Query]:
        yield from QUERIES[:2]
        until = time.monotonic() + 120
        while len(faulty.searches()) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)
        yield from QUERIES[2:]

    with EnginePool(faulty.path, num_processes=1, options=ALL_LINES) as pool:
        answers = pool.search(queries())
    assert isinstance(answers[1], EngineError)
    assert answers[:1] + answers[2:] == EXPECTED[:1] + EXPECTED[2:]
    assert [search["fen"] for search in faulty.searches()].count(FENS[0]) == 1


def test_searches_sent_ahead_that_need_the_hash_of_a_dead_process_are_errors_and_are_not_asked_again(scripted: Scripted) -> None:
    faulty = scripted({"kind": "crash", "nth": 2}, name=SENT_AHEAD)
    kept = [Query(fen=asked.fen, limit=asked.limit, moves=asked.moves, is_fresh=False) for asked in QUERIES]
    answers = answers_of(faulty.path, kept)
    assert answers[0] == EXPECTED[0]
    assert "the engine has died" in str(answers[1])
    assert "the process whose hash it needed has failed" in str(answers[2])
    lost = [answer for answer in answers if isinstance(answer, EngineError)]
    assert answers == [EXPECTED[0], *lost, *EXPECTED[1 + len(lost) :]]
    assert 2 <= len(lost) <= 4, "those sent ahead, and none that was sent to the next process"
    searched = [search["fen"] for search in faulty.searches()]
    assert searched == FENS[:2] + FENS[1 + len(lost) :], "nothing is asked again"


@pytest.mark.parametrize(("name", "num_ahead"), [(ONE_AT_A_TIME, 0), ("Fairy-Stockfish 11", 0), (SENT_AHEAD, 3), ("Stockfish 15.1", 3)])
def test_searches_are_sent_ahead_only_to_engines_known_to_take_them(name: str, num_ahead: int, scripted: Scripted) -> None:
    slow = scripted({"kind": "sleeps", "nth": 1, "seconds": 0.1}, name=name)
    given: list[int] = []

    def queries() -> Iterator[Query]:
        for number, asked in enumerate(QUERIES):
            given.append(number)
            yield asked

    with EnginePool(slow.path, num_processes=1, options=ALL_LINES) as pool:
        for _ in pool.answers(queries()):
            break
    assert len(given) == 1 + num_ahead
    assert len(slow.searches()) <= 1 + num_ahead


@pytest.mark.parametrize("newline", ["", " without newline"])
@pytest.mark.usefixtures("little_is_a_flood")
def test_a_flood_takes_no_more_memory_than_it_may(
    newline: str, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, within: Within
) -> None:
    monkeypatch.setattr("grpo.engine.pool._NUM_ATTEMPTS", 1)
    flooding = scripted({"kind": f"flood{newline}"})
    tracemalloc.start()
    try:
        with within(300):
            [answer] = answers_of(flooding.path, QUERIES[:1])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert str(answer) == f"{FENS[0]}: the engine wrote more than 1,048,576 bytes and no best move"


@pytest.mark.usefixtures("patience")
def test_an_engine_that_computes_in_silence_is_not_taken_for_hung_and_one_that_sleeps_is(scripted: Scripted, within: Within) -> None:
    computing, sleeping = (scripted({"kind": kind, "nth": 1, "seconds": 3.0}) for kind in ("computes", "sleeps"))
    with within(300):
        assert answers_of(computing.path, QUERIES[:1]) == answers_of(sleeping.path, QUERIES[:1]) == EXPECTED[:1]
    assert len(computing.searches()) == 1
    assert len(sleeping.searches()) == 2, "given up, and asked again"


@pytest.mark.parametrize("kind", [pytest.param("computes", marks=pytest.mark.prove), "chatters for ever"])
def test_an_engine_that_never_comes_to_an_end_is_given_up_and_the_depth_blamed(
    kind: str, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, within: Within
) -> None:
    monkeypatch.setattr("grpo.engine.process.BUSY_SECONDS", 1.0)
    monkeypatch.setattr("grpo.engine.pool._NUM_ATTEMPTS", 1)
    with within(300):
        [answer] = answers_of(scripted({"kind": kind, "seconds": 60}).path, QUERIES[:1])
    assert str(answer) == f"{FENS[0]}: no answer in 1 s; lower the depth (values.depth, evaluation.heldout_depth)"


@pytest.mark.usefixtures("patience")
def test_a_position_on_which_the_engine_always_hangs_is_given_up(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, within: Within
) -> None:
    monkeypatch.setattr("grpo.engine.pool._NUM_ATTEMPTS", 1)
    faulty = scripted({"kind": "hang with a child", "fen": FENS[4], "times": 99})
    with within(300):
        [answer] = answers_of(faulty.path, [QUERIES[4]])
    assert isinstance(answer, EngineError)
    assert str(answer) == f"{FENS[4]}: silent for 1.5 s"


@NAMES
def test_a_hung_engine_does_not_hold_up_its_neighbour(name: str, scripted: Scripted, patience: float, within: Within) -> None:
    faulty = scripted({"kind": "hang", "nth": 1}, name=name)
    with within(300):
        assert answers_of(faulty.path, QUERIES * 15, num_processes=2) == EXPECTED * 15
    searches = faulty.searches()
    [struck] = [index for index, search in enumerate(searches) if search["fault"] is not None]
    dead = searches[struck]["pid"]
    other = next(search["pid"] for search in searches if search["pid"] != dead)
    third = next((index for index, search in enumerate(searches) if search["pid"] not in (dead, other)), len(searches))
    assert third > 2, "the other process went on answering until the hung one was noticed"


def test_an_engine_that_dies_on_every_search_is_given_up_with_a_clear_error(scripted: Scripted) -> None:
    broken = scripted({"kind": "crash", "times": 10_000})
    with pytest.raises(EngineError) as refusal:
        answers_of(broken.path, QUERIES * 5)
    message = str(refusal.value)
    assert message.startswith(f"{broken.path}: 5 searches in a row failed on fresh processes, last: {FENS[4]}: the engine has died;")
    assert message.endswith("run it by hand, reinstall it, or set CHESS_GRPO_STOCKFISH to another engine")
    assert len(broken.searches()) == 5 * 3, "no position more than it takes"


def test_the_failures_in_a_row_are_counted_across_calls(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.pool._MAX_FAILURES_IN_A_ROW", 2)
    broken = scripted({"kind": "crash", "times": 10_000})

    def search_one_by_one() -> None:
        with EnginePool(broken.path, num_processes=1, options=ALL_LINES) as pool:
            for asked in QUERIES:
                pool.search([asked])

    with pytest.raises(EngineError, match="in a row"):
        search_one_by_one()
    assert len(broken.searches()) == 2 * 3


def test_failures_with_successes_between_them_do_not_stop_the_pool(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.pool._MAX_FAILURES_IN_A_ROW", 2)
    faulty = scripted({"kind": "crash", "fen": FENS[0], "times": 10_000})
    answers = answers_of(faulty.path, [QUERIES[0], QUERIES[1]] * 3)
    assert [isinstance(answer, EngineError) for answer in answers] == [True, False] * 3


@pytest.mark.parametrize("start", ["dies", "silent", "floods"])
def test_a_pool_whose_engine_does_not_start_fails_and_does_not_hang(
    start: str, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, within: Within
) -> None:
    monkeypatch.setattr("grpo.engine.pool.SILENT_SECONDS", 0.2)
    with within(300):
        [answer] = answers_of(scripted(start=start).path, QUERIES[:1])
    assert isinstance(answer, EngineError)


def test_processes_that_die_between_two_searches_cost_no_answer(scripted: Scripted) -> None:
    # Out of memory, the kernel kills all of them at once: no position is to blame.
    healthy = scripted()
    with EnginePool(healthy.path, num_processes=3, options=ALL_LINES) as pool:
        pool.search(QUERIES * 3)
        pids = {search["pid"] for search in healthy.searches()}
        assert len(pids) == 3
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert pool.search(QUERIES) == EXPECTED


# Engines that cannot value all moves at once.


@pytest.mark.parametrize(
    ("multi_pv", "message"),
    [(None, r"searches at most 1 line at once"), (5, r"searches at most 5 lines at once"), (217, "searches at most 217 lines at once")],
)
@pytest.mark.parametrize("is_running", [False, True])
def test_an_engine_with_too_few_lines_may_play_and_is_refused_for_tables_at_once(
    multi_pv: int | None, message: str, is_running: bool, scripted: Scripted
) -> None:
    poor = scripted(multi_pv=multi_pv)
    best_moves = [answer.best_move for answer in EXPECTED]
    with EnginePool(poor.path, num_processes=2, options=ALL_LINES) as pool:
        if is_running:
            plain = pool.search(Query(fen=fen, limit="nodes 5") for fen in FENS)
            assert [answer.best_move for answer in plain if isinstance(answer, EngineAnswer)] == best_moves
            assert pool.best_move(FENS[0], "", "nodes 5", is_fresh=True) == best_moves[0]
        before = len(poor.searches())
        with pytest.raises(EngineMissingError, match=rf"^Scripted 1 {message}.*MultiPV.*218 moves.*CHESS_GRPO_STOCKFISH"):
            pool.search(QUERIES)
        assert len(poor.searches()) == before, "at once: nothing was searched in vain"


# Moves in games.


def test_a_move_in_a_game_is_that_of_the_position_after_the_moves_made_and_the_hash_is_kept(scripted: Scripted) -> None:
    healthy = scripted(has_memory=True)
    board = chess.Board()
    with EnginePool(healthy.path, num_processes=1, options={}) as pool:
        for game in range(2):
            board.reset()
            seen: list[str] = []
            for ply in range(4):
                moves = " ".join(move.uci() for move in board.move_stack)
                best = pool.best_move(chess.STARTING_FEN, moves, "nodes 7", is_fresh=ply == 0)
                seen.append(board.fen())
                assert best == move_scores(board.fen(), sorted(move.uci() for move in board.legal_moves), "/".join(seen))[0][1], game
                board.push_uci(best)
    assert [search["is_fresh"] for search in healthy.searches()] == [True, False, False, False] * 2
    assert len({search["pid"] for search in healthy.searches()}) == 1


def test_where_nobody_can_move_there_is_no_best_move(stockfish: str) -> None:
    with EnginePool(stockfish, num_processes=1, options={"Hash": 1}) as pool:
        assert pool.best_move(chess.STARTING_FEN, "f2f3 e7e5 g2g4 d8h4", "nodes 5", is_fresh=True) == ""
        assert pool.best_move(chess.STARTING_FEN, "f2f3 e7e5 g2g4", "nodes 5", is_fresh=False) == "d8h4"


@pytest.mark.parametrize("kind", ["crash", "hang", "flood"])
@pytest.mark.usefixtures("little_is_a_flood", "patience")
def test_a_failure_in_a_game_is_an_error_at_once_and_the_next_game_has_a_fresh_process(
    kind: str, scripted: Scripted, within: Within
) -> None:
    faulty = scripted({"kind": kind, "nth": 2})
    with within(300), EnginePool(faulty.path, num_processes=1, options={}) as pool:
        pool.best_move(FENS[0], "", "nodes 5", is_fresh=True)
        with pytest.raises(EngineError):
            pool.best_move(FENS[0], "e2e4", "nodes 5", is_fresh=False)
        assert pool.best_move(FENS[1], "", "nodes 5", is_fresh=True) == EXPECTED[1].best_move
        os.kill(pid := faulty.searches()[-1]["pid"], signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert pool.best_move(FENS[2], "", "nodes 5", is_fresh=True) == EXPECTED[2].best_move
    assert len(faulty.searches()) == 4, "never asked again by itself"


def test_a_move_in_a_game_that_never_comes_is_given_up(scripted: Scripted, monkeypatch: pytest.MonkeyPatch, within: Within) -> None:
    monkeypatch.setattr("grpo.engine.process.BUSY_SECONDS", 0.5)
    endless = scripted({"kind": "chatters for ever"})
    with (
        within(300),
        EnginePool(endless.path, num_processes=1, options={}) as pool,
        pytest.raises(EngineError, match=r"no answer in 0\.5 s"),
    ):
        pool.best_move(FENS[0], "", "nodes 5", is_fresh=True)


# Nothing is left behind.


def test_an_interrupted_search_leaves_no_process(scripted: Scripted) -> None:
    hung = scripted({"kind": "hang with a child", "times": 99})

    def interrupt(number: int, frame: object) -> None:
        if len(hung.searches()) == 2:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            answers_of(hung.path, QUERIES, num_processes=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_closed_pool_leaves_no_process_and_closing_twice_is_harmless(stockfish: str, tmp_path: Path) -> None:
    link = tmp_path / "stockfish"
    link.symlink_to(stockfish)
    pool = EnginePool(str(link), num_processes=2, options={})
    pool.search(Query(fen=fen, limit="depth 2") for fen in FENS)
    pool.close()
    pool.close()


@NAMES
def test_answers_that_nobody_waits_for_any_more_are_never_taken_for_those_of_the_next_call(name: str, scripted: Scripted) -> None:
    healthy = scripted({"kind": "sleeps", "nth": 2, "seconds": 0.2}, name=name)
    with EnginePool(healthy.path, num_processes=1, options=ALL_LINES) as pool:
        answers = pool.answers(QUERIES)
        assert next(answers) == EXPECTED[0]
        if name == SENT_AHEAD:
            with pytest.raises(AssertionError, match="one call at a time"):
                pool.search(QUERIES[3:])
        answers.close()  # type: ignore[attr-defined]
        assert pool.search(QUERIES[3:]) == EXPECTED[3:]


@NAMES
def test_after_an_error_the_pool_can_be_used_at_once(name: str, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.pool._MAX_FAILURES_IN_A_ROW", 1)
    monkeypatch.setattr("grpo.engine.pool._NUM_ATTEMPTS", 1)
    faulty = scripted({"kind": "crash", "fen": FENS[0]}, {"kind": "sleeps", "fen": FENS[1], "seconds": 0.4}, name=name)

    def queries() -> Iterator[Query]:
        yield QUERIES[0]
        raise ValueError("no more")

    with EnginePool(faulty.path, num_processes=2, options=ALL_LINES) as pool:
        with pytest.raises(EngineError, match="in a row") as caught:
            pool.search(QUERIES * 2)
        assert caught.tb is not None, "which still knows the search, and so its other process"
        assert pool.search(QUERIES) == EXPECTED
        with pytest.raises(ValueError, match="no more"):
            pool.search(queries())
        assert pool.search(QUERIES) == EXPECTED


SEARCHING = """
import os, signal, sys
from grpo.engine.pool import EnginePool, Query
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background jobs are started without.
path, limit, fen, has_guard = sys.argv[1:]
if has_guard == "no guard":
    os.environ["PATH"] = ""
with EnginePool(path, num_processes=2, options={}) as pool:
    pool.search([Query(fen=fen, limit=limit)] * 9)
"""


def seconds_computed(folder: Path) -> list[float]:
    """Return the processor time of each process that was started as the folder's `engine`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(f"{folder}/engine".encode()):
                found.append(int((entry / "stat").read_text().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK"))
        except OSError:
            continue  # It has ended meanwhile.
    return found


@pytest.mark.parametrize(
    ("number", "engine", "guard"),
    [
        (signal.SIGKILL, "hung", "guard"),
        (signal.SIGTERM, "hung", "guard"),
        (signal.SIGINT, "hung", "guard"),
        (signal.SIGKILL, "searching", "guard"),
        (signal.SIGTERM, "searching", "guard"),
        (signal.SIGKILL, "searching", "no guard"),  # Then it ends by the end of its input.
    ],
)
def test_however_the_process_ends_its_engines_end_too(
    number: signal.Signals, engine: str, guard: str, scripted: Scripted, stockfish: str, tmp_path: Path
) -> None:
    if engine == "hung":
        hung = scripted({"kind": "hang", "times": 99})  # It ignores SIGTERM, and the end of its input.
        command = [hung.path, "nodes 5"]

        def is_busy() -> bool:
            return len(hung.searches()) == 2
    else:
        link = tmp_path / "engine"
        link.symlink_to(stockfish)
        command = [str(link), "depth 99"]

        def is_busy() -> bool:
            seconds = seconds_computed(tmp_path)
            return len(seconds) == 2 and min(seconds) > 0.1

    parent = subprocess.Popen([sys.executable, "-c", SEARCHING, *command, FENS[5], guard], stderr=subprocess.PIPE)
    until = time.monotonic() + 300
    while not is_busy():
        assert parent.poll() is None, parent.communicate()[1].decode()
        assert time.monotonic() < until, "it does not search"
        time.sleep(0.02)
    parent.send_signal(number)
    parent.communicate(timeout=300)
    assert parent.returncode == -number
    until = time.monotonic() + 300
    while (pids := engines_in(tmp_path)) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert not pids


def engines_in(folder: Path) -> list[int]:
    """Return the processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # It has ended meanwhile.
    return found
