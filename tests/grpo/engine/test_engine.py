"""Engine processes, real and scripted: every fault is survived or named, no score is invented, nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import chess
import pytest
from scripted_engine import ScriptedEngine, move_scores

from grpo.board import MAX_LEGAL_MOVES
from grpo.engine.answers import EngineAnswer, EngineError, IllegalMoveError, Score, parse_answer
from grpo.engine.identity import EngineMissingError, identify
from grpo.engine.pool import EnginePool, Query

pytestmark = pytest.mark.usefixtures("no_process_left")

FENS = [
    chess.STARTING_FEN,
    "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3",
    "r1bqkb1r/pppp1ppp/2n2n2/1B2p3/4P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "4k3/8/8/8/8/8/4P3/4K3 b - - 0 1",
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
]
ALL_LINES: dict[str, str | int] = {"MultiPV": MAX_LEGAL_MOVES, "Hash": 1}
Scripted = Callable[..., ScriptedEngine]


def query(fen: str) -> Query:
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
    with EnginePool(path, num_processes=num_processes, options=ALL_LINES) as pool:
        return pool.search(queries)


def expected(fen: str) -> EngineAnswer:
    scores = move_scores(fen, sorted(move.uci() for move in chess.Board(fen).legal_moves), "")
    return EngineAnswer(best_move=scores[0][1], scores={move: Score(value) for value, move in scores})


EXPECTED = [expected(fen) for fen in FENS]


def test_the_scores_are_those_of_the_last_iteration_in_which_every_line_was_searched() -> None:
    text = (
        b"info string NNUE evaluation\n"
        b"info depth 1 seldepth 1 multipv 1 score cp 40 nodes 30 pv e2e4\n"
        b"info depth 1 seldepth 1 multipv 2 score cp 30 nodes 30 pv d2d4\n"
        b"info depth 2 seldepth 2 multipv 1 score cp 10 lowerbound nodes 60 pv d2d4\n"
        b"info depth 2 seldepth 2 multipv 1 score cp 60 nodes 70 pv d2d4\n"
        b"info depth 2 seldepth 2 multipv 1 score cp 50 nodes 90 pv d2d4 d7d5\n"
        b"info depth 2 nodes 90 score mate -3 seldepth 3 multipv 2 pv e2e4 e7e5\n"
        b"info depth 2 seldepth 2 multipv 1 score cp 5 upperbound nodes 95 pv d2d4\n"
        b"info depth 3 seldepth 3 multipv 1 score cp 99 nodes 120 pv d2d4 d7d5\n"
        b"bestmove d2d4 ponder d7d5\n"
    )
    for num_lines in (None, 2):
        answer = parse_answer(text, num_lines=num_lines)
        assert answer.best_move == "d2d4"
        assert answer.scores == {"d2d4": Score(50), "e2e4": Score(-3, is_mate=True)}
    with pytest.raises(EngineError, match="scored 2 of 3 moves"):
        parse_answer(text, num_lines=3)


@pytest.mark.parametrize(
    "text",
    [
        b"info depth 0 score mate 0\nbestmove (none)\n",
        b"info depth 1 score cp 3 pv e2e4\nbestmove 0000\n",
        b"info depth 1 score cp 3 pv e2e4\nbestmove\n",
        b"info depth 1 score cp 3 pv e2e4\ninfo string bestmove e2e4\n",
        b"bestmove e2e4\n",
        b"info depth 1 score cp 3 lowerbound pv e2e4\nbestmove e2e4\n",
        b"info depth 1 score mate -2147483649 pv e2e4\nbestmove e2e4\n",
    ],
)
@pytest.mark.parametrize("num_lines", [None, 1])
def test_an_answer_without_a_move_or_a_score_is_an_error_and_never_a_zero(text: bytes, num_lines: int | None) -> None:
    with pytest.raises(EngineError):
        parse_answer(text, num_lines=num_lines)


def test_an_engine_that_changes_is_another_engine(scripted: Scripted) -> None:
    path = scripted().path
    before = identify(path)
    with Path(path).open("a") as file:
        file.write("# changed\n")
    after = identify(path)
    assert before.name == after.name == "Scripted 1"
    assert before.sha256 != after.sha256


def test_a_missing_engine_is_refused_with_the_remedy() -> None:
    for ask in (identify, partial(EnginePool, num_processes=1, options={})):
        with pytest.raises(EngineMissingError, match=r"no engine at 'none'.*CHESS_GRPO_STOCKFISH"):
            ask("none")


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


@pytest.mark.parametrize("kind", ["crash", "hang with a child", "flood", "garbage", "illegal best move", "half of the moves", "shallow"])
@pytest.mark.usefixtures("patience")
def test_after_one_fault_the_answers_are_those_of_a_run_without_it(kind: str, scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.process.MAX_ANSWER_BYTES", 1 << 20)
    faulty = scripted({"kind": kind, "nth": 3})
    assert answers_of(faulty.path, QUERIES) == EXPECTED
    searches = faulty.searches()
    [struck] = [search for search in searches if search["fault"] is not None]
    again = [search for search in searches if search["fen"] == struck["fen"] and search["fault"] is None]
    assert [search["pid"] != struck["pid"] for search in again] == [True], "asked again, once, on a fresh process"


@pytest.mark.parametrize(("kind", "num_processes"), [("crash", 1), ("garbage", 2)])
def test_a_position_that_fails_three_times_is_an_error_in_its_place_and_no_other_is_touched(
    kind: str, num_processes: int, scripted: Scripted
) -> None:
    faulty = scripted({"kind": kind, "fen": FENS[2], "times": 99})
    answers = answers_of(faulty.path, QUERIES, num_processes=num_processes)
    assert isinstance(answers[2], EngineError)
    assert FENS[2] in str(answers[2])
    assert answers[:2] + answers[3:] == EXPECTED[:2] + EXPECTED[3:]
    asked = [search["pid"] for search in faulty.searches() if search["fen"] == FENS[2]]
    assert len(asked) == len(set(asked)) == 3, "three attempts, each on a process of its own"


def test_the_two_searches_of_a_query_are_two_questions_each_of_which_may_fail_twice(scripted: Scripted) -> None:
    first = Query(fen=FENS[1], limit="depth 1", moves=QUERIES[1].moves, then=lambda _: QUERIES[1])
    faulty = scripted(*({"kind": "crash", "nth": nth} for nth in (1, 3, 5)))
    assert answers_of(faulty.path, [first]) == EXPECTED[1:2]
    assert [search["limit"] for search in faulty.searches()] == ["depth 1", *["depth 1", "depth 2"] * 3]


@pytest.mark.usefixtures("patience")
def test_an_engine_that_computes_in_silence_is_not_taken_for_hung(scripted: Scripted) -> None:
    computing = scripted({"kind": "computes", "nth": 1, "seconds": 2.0})
    assert answers_of(computing.path, QUERIES[:1]) == EXPECTED[:1]
    assert len(computing.searches()) == 1


def test_an_engine_that_never_comes_to_an_end_is_given_up_and_the_depth_blamed(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.engine.process.BUSY_SECONDS", 0.3)
    monkeypatch.setattr("grpo.engine.pool.NUM_ATTEMPTS", 1)
    [answer] = answers_of(scripted({"kind": "chatters for ever"}).path, QUERIES[:1])
    assert "boards.depth" in str(answer)


def test_an_engine_that_dies_on_every_search_is_given_up_with_a_clear_error(scripted: Scripted) -> None:
    broken = scripted({"kind": "crash", "times": 10_000})
    with pytest.raises(EngineError, match=r"5 searches in a row .*CHESS_GRPO_STOCKFISH"):
        answers_of(broken.path, QUERIES * 5)
    assert len(broken.searches()) == 5 * 3, "no position more than it takes"


@pytest.mark.parametrize(("kind", "how"), [("last words", ""), ("killed", r" \(Illegal instruction\)")])
def test_what_an_engine_wrote_before_it_died_is_in_the_error(kind: str, how: str, scripted: Scripted) -> None:
    [answer] = answers_of(scripted({"kind": kind, "times": 99}).path, QUERIES[:1])
    assert re.search(rf"the engine has died{how}; it wrote: ERROR: The network file was not loaded\. / cannot go on$", str(answer))


def test_an_engine_that_fails_on_one_of_ten_positions_is_given_up_with_its_last_error(scripted: Scripted) -> None:
    broken = scripted({"kind": "illegal best move", "fen": FENS[5], "times": 10_000})
    with pytest.raises(EngineError, match=r"10 of 100 searches failed .*a1a1 is not legal"):
        answers_of(broken.path, ([QUERIES[5], *QUERIES[:5], *QUERIES[:5]]) * 30)
    with EnginePool(broken.path, num_processes=1, options=ALL_LINES) as pool:
        answers = pool.search(QUERIES[5:] * 6, gives_up=False)
    assert all(isinstance(answer, IllegalMoveError) for answer in answers)


def test_an_answer_after_failures_has_their_errors(scripted: Scripted) -> None:
    [answer] = answers_of(scripted({"kind": "crash", "nth": 1}, {"kind": "illegal best move", "nth": 2}).path, QUERIES[:1])
    assert isinstance(answer, EngineAnswer)
    assert [type(error) for error in answer.failed] == [EngineError, IllegalMoveError]


def test_a_pool_whose_engine_does_not_start_fails_and_does_not_hang(scripted: Scripted) -> None:
    [answer] = answers_of(scripted(starts=False).path, QUERIES[:1])
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


@pytest.mark.parametrize("multi_pv", [None, 217])
def test_an_engine_with_too_few_lines_may_play_and_is_refused_for_tables_at_once(multi_pv: int | None, scripted: Scripted) -> None:
    poor = scripted(multi_pv=multi_pv)
    with EnginePool(poor.path, num_processes=2, options=ALL_LINES) as pool:
        assert pool.best_move(FENS[0], "", "nodes 5", is_fresh=True) == EXPECTED[0].best_move
        with pytest.raises(EngineMissingError, match=rf"^Scripted 1 .* {multi_pv or 1} moves .*CHESS_GRPO_STOCKFISH"):
            pool.search(QUERIES)
    assert len(poor.searches()) == 1, "at once: nothing was searched in vain"


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


def test_answers_that_nobody_waits_for_any_more_are_never_taken_for_those_of_the_next_call(scripted: Scripted) -> None:
    healthy = scripted({"kind": "sleeps", "nth": 2, "seconds": 0.2})
    with EnginePool(healthy.path, num_processes=1, options=ALL_LINES) as pool:
        answers = pool.answers(QUERIES)
        assert next(answers) == EXPECTED[0]
        with pytest.raises(AssertionError, match="one call at a time"):
            pool.search(QUERIES[3:])
        answers.close()  # type: ignore[attr-defined]
        assert pool.search(QUERIES[3:]) == EXPECTED[3:]


SEARCHING = """
import signal, sys
from grpo.engine.pool import EnginePool, Query
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background jobs are started without.
with EnginePool(sys.argv[1], num_processes=2, options={}) as pool:
    pool.search([Query(fen=sys.argv[2], limit="nodes 5")] * 9)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_however_the_process_ends_its_engines_end_too(number: signal.Signals, scripted: Scripted) -> None:
    # That they have ended is what `no_process_left` looks for. They ignore SIGTERM, and the end of their input.
    hung = scripted({"kind": "hang", "times": 99})
    parent = subprocess.Popen([sys.executable, "-c", SEARCHING, hung.path, FENS[5]], stderr=subprocess.PIPE)
    until = time.monotonic() + 300
    while len(hung.searches()) < 2:
        assert parent.poll() is None, parent.communicate()[1].decode()
        assert time.monotonic() < until, "it does not search"
        time.sleep(0.02)
    parent.send_signal(number)
    parent.communicate(timeout=300)
    assert parent.returncode == -number
