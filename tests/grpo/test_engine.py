"""Engine processes, real and scripted: every fault is survived or named, no score is invented, nothing is left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import chess
import pytest
from scripted_engine import ScriptedEngine, move_scores

from grpo import engine
from grpo.engine import MAX_LINES, Answer, EngineError, EngineMissingError, EnginePool, Query, Score, identify, parse_answer

pytestmark = pytest.mark.usefixtures("no_process_left")

FENS = [
    chess.STARTING_FEN,
    "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3",
    "r1bqkb1r/pppp1ppp/2n2n2/1B2p3/4P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "4k3/8/8/8/8/8/4P3/4K3 b - - 0 1",
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
]
QUERIES = [Query(fen=fen, limit="depth 2") for fen in FENS]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shorten the deadline of a search, so that hung engines are noticed soon; healthy ones still have a hundred times what they need."""
    monkeypatch.setattr(engine, "_DEADLINE_SECONDS", 0.8)
    return 0.8


def answers_of(path: str, queries: Sequence[Query], *, num_processes: int = 1) -> list[Answer | EngineError]:
    """Return what a pool of its own answers."""
    with EnginePool(path, num_processes=num_processes, options={"MultiPV": MAX_LINES, "Hash": 1}) as pool:
        return pool.search(queries)


def expected(fen: str) -> Answer:
    """Return the scripted engine's answer when nothing goes wrong."""
    scores = move_scores(fen, sorted(move.uci() for move in chess.Board(fen).legal_moves), "")
    return Answer(best_move=scores[0][1], scores={move: Score(value) for value, move in scores})


# What an answer says.


def test_the_scores_are_those_of_the_last_iteration_in_which_every_line_was_searched() -> None:
    answer = parse_answer(
        "info string NNUE evaluation\n"
        "info depth 1 seldepth 1 multipv 1 score cp 40 nodes 30 pv e2e4\n"
        "info depth 1 seldepth 1 multipv 2 score cp 30 nodes 30 pv d2d4\n"
        "info depth 2 seldepth 2 multipv 1 score cp 50 nodes 90 pv d2d4 d7d5\n"
        "info depth 2 seldepth 3 multipv 2 score mate -3 nodes 90 pv e2e4 e7e5\n"
        "info depth 3 seldepth 3 multipv 1 score cp 99 nodes 120 pv d2d4 d7d5\n"
        "bestmove d2d4 ponder d7d5\n"
    )
    assert answer.best_move == "d2d4"
    assert answer.scores == {"d2d4": Score(50), "e2e4": Score(-3, is_mate=True)}


def test_a_later_line_of_one_iteration_replaces_an_earlier_one_and_bounds_are_no_scores() -> None:
    answer = parse_answer(
        "info depth 5 seldepth 6 score cp 10 lowerbound nodes 30 pv e2e4\n"
        "info depth 5 seldepth 6 score cp 70 wdl 100 800 100 nodes 30 pv e2e4\n"
        "info depth 5 currmove d2d4 currmovenumber 2\n"
        "info depth 5 seldepth 6 score cp 5 upperbound nodes 30 pv e2e4\n"
        "bestmove e2e4\n"
    )
    assert answer.scores == {"e2e4": Score(70)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("info depth 0 score mate 0\nbestmove (none)\n", r"the engine found no move: 'bestmove \(none\)'"),
        ("info depth 1 score cp 3 pv e2e4\nbestmove 0000\n", "the engine found no move: 'bestmove 0000'"),
        ("bestmove\n", "the engine found no move: 'bestmove'"),
        ("bestmove e2e4\n", "the engine gave no score"),
        ("info depth 1 score cp 3 lowerbound pv e2e4\nbestmove e2e4\n", "the engine gave no score"),
    ],
)
def test_an_answer_without_a_move_or_a_score_is_an_error_and_never_a_zero(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        parse_answer(text)


def test_lines_after_the_best_move_are_not_taken_for_it() -> None:
    answer = parse_answer("info depth 1 multipv 1 score cp 3 pv e2e4\nbestmove e2e4\ninfo string thank you\n")
    assert answer.best_move == "e2e4"


# Which engine it is.


def test_an_engine_is_known_by_its_name_and_by_the_hash_of_its_file(stockfish: str) -> None:
    identity = identify(stockfish)
    [digest] = subprocess.run(["sha256sum", stockfish], capture_output=True, text=True, check=True).stdout.split()[:1]
    assert identity.name.startswith("Stockfish ")
    assert identity.sha256 == digest
    assert str(identity) == f"{identity.name} (sha256 {digest[:16]})"


def test_a_link_to_an_engine_is_the_same_engine(stockfish: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(stockfish)
    assert identify(str(link)) == identify(stockfish)


def test_an_engine_that_changes_is_another_engine(scripted: Callable[..., ScriptedEngine]) -> None:
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
def test_a_program_that_is_no_engine_is_refused_with_the_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch, within: Callable[[float], AbstractContextManager[None]]
) -> None:
    monkeypatch.setattr(engine, "_START_SECONDS", 0.3)
    with (
        within(2),
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
    scripted: Callable[..., ScriptedEngine],
    monkeypatch: pytest.MonkeyPatch,
    within: Callable[[float], AbstractContextManager[None]],
) -> None:
    monkeypatch.setattr(engine, "_START_SECONDS", 0.5)
    with within(2), pytest.raises(EngineMissingError, match="is not a usable UCI engine"):
        identify(scripted(start=start).path)


def test_what_is_no_engine_is_found_out_in_less_than_five_seconds() -> None:
    # `cat` answers nothing for ever, so that the preflight takes exactly this long.
    assert engine._START_SECONDS < 5


def test_an_engine_may_start_slowly(scripted: Callable[..., ScriptedEngine]) -> None:
    slow = scripted(start="slow", start_seconds=0.3)
    assert identify(slow.path).name == "Scripted 1"
    assert answers_of(slow.path, QUERIES[:1]) == [expected(FENS[0])]


# Searches that go well.


def test_one_search_scores_every_legal_move_for_the_mover(stockfish: str) -> None:
    # White mates in one; Black, to move in the mirror, does too; in the third the mover is a queen down.
    fens = ["6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "r3k3/8/8/8/8/8/5PPP/6K1 b - - 0 1", "3qk3/8/8/8/8/8/8/4K3 w - - 0 1"]
    white, black, lost = answers_of(stockfish, [Query(fen=fen, limit="depth 3") for fen in fens])
    assert isinstance(white, Answer)
    assert isinstance(black, Answer)
    assert isinstance(lost, Answer)
    for fen, answer in zip(fens, (white, black, lost), strict=True):
        assert set(answer.scores) == {move.uci() for move in chess.Board(fen).legal_moves}
    assert (white.best_move, white.scores["a1a8"]) == ("a1a8", Score(1, is_mate=True))
    assert (black.best_move, black.scores["a8a1"]) == ("a8a1", Score(1, is_mate=True))
    assert all(score.value < -300 for score in lost.scores.values())


def test_answers_come_in_the_order_of_the_queries(scripted: Callable[..., ScriptedEngine]) -> None:
    delayed = scripted({"kind": "slow pieces", "fen": FENS[0]})
    assert answers_of(delayed.path, QUERIES, num_processes=3) == [expected(fen) for fen in FENS]


def test_no_queries_have_no_answers_and_start_no_process(scripted: Callable[..., ScriptedEngine]) -> None:
    assert answers_of(scripted(start="dies").path, []) == []


def test_scores_depend_neither_on_the_order_of_the_queries_nor_on_the_number_of_processes(
    stockfish: str, random_boards: list[chess.Board]
) -> None:
    queries = [Query(fen=board.fen(), limit="depth 4") for board in random_boards[3::211]]
    once = answers_of(stockfish, queries)
    assert len(queries) > 20
    assert all(isinstance(answer, Answer) for answer in once)
    assert answers_of(stockfish, queries[::-1])[::-1] == once
    assert answers_of(stockfish, queries, num_processes=3) == once
    # The test above has teeth: with a kept hash the order does matter.
    kept = [Query(fen=query.fen, limit=query.limit, is_fresh=False) for query in queries]
    assert answers_of(stockfish, kept[::-1])[::-1] != answers_of(stockfish, kept)


def test_the_hash_is_cleared_before_a_search_exactly_when_it_must_be_fresh(scripted: Callable[..., ScriptedEngine]) -> None:
    healthy = scripted(has_memory=True)
    kept = Query(fen=FENS[0], limit="nodes 9", is_fresh=False)
    fresh = Query(fen=FENS[0], limit="nodes 9")
    with EnginePool(healthy.path, num_processes=1, options={}) as pool:
        first, with_memory, cleared = pool.search([fresh, kept, fresh])
    assert [search["is_fresh"] for search in healthy.searches()] == [True, False, True]
    assert [search["limit"] for search in healthy.searches()] == ["nodes 9"] * 3
    assert first == cleared != with_memory


def test_an_engine_process_is_used_again_and_again(scripted: Callable[..., ScriptedEngine]) -> None:
    healthy = scripted()
    with EnginePool(healthy.path, num_processes=2, options={}) as pool:
        for _ in range(3):
            pool.search(QUERIES)
        assert pool.num_respawns == 0
    assert len({search["pid"] for search in healthy.searches()}) <= 2
    assert len(healthy.searches()) == 3 * len(QUERIES)


def test_every_process_has_one_thread_and_the_options_that_were_asked_for(tmp_path: Path, stockfish: str) -> None:
    spy = tmp_path / "spy"
    spy.write_text(f'#!/bin/sh\ntee "{tmp_path}/said" | "{stockfish}"\n')
    spy.chmod(0o755)
    with EnginePool(str(spy), num_processes=1, options={"Hash": 3, "MultiPV": 5}) as pool:
        [answer] = pool.search(QUERIES[:1])
    assert isinstance(answer, Answer)
    assert len(answer.scores) == 5
    said = (tmp_path / "said").read_text().splitlines()
    assert {"setoption name Threads value 1", "setoption name Hash value 3", "setoption name MultiPV value 5"} <= set(said)


@pytest.mark.parametrize("kind", ["dribble", "slow pieces", "chatter"])
def test_an_answer_may_come_in_pieces_or_with_chatter(kind: str, scripted: Callable[..., ScriptedEngine], patience: float) -> None:
    assert answers_of(scripted({"kind": kind, "times": 99}).path, QUERIES[3:5]) == [expected(fen) for fen in FENS[3:5]]


# Searches that go wrong.


@pytest.mark.parametrize(
    ("kind", "num_processes"),
    [("crash", 1), ("crash", 2), ("crash midway", 1), ("hang", 1), ("hang", 3), ("none", 1), ("garbage", 1), ("no score", 2), ("flood", 1)],
)
def test_after_one_fault_the_answers_are_those_of_a_run_without_it(
    kind: str,
    num_processes: int,
    scripted: Callable[..., ScriptedEngine],
    patience: float,
    within: Callable[[float], AbstractContextManager[None]],
) -> None:
    faulty = scripted({"kind": kind, "nth": 3})
    with within(10), EnginePool(faulty.path, num_processes=num_processes, options={}) as pool:
        assert pool.search(QUERIES) == [expected(fen) for fen in FENS]
        assert pool.num_respawns == 1
    searches = faulty.searches()
    assert len(searches) == len(QUERIES) + 1
    [struck] = [search for search in searches if search["fault"] is not None]
    [again] = [search for search in searches if search["fen"] == struck["fen"] and search["fault"] is None]
    assert again["pid"] != struck["pid"], "asked again, on a fresh process"


def test_an_illegal_best_move_is_a_fault_and_is_asked_for_again(scripted: Callable[..., ScriptedEngine]) -> None:
    liar = scripted({"kind": "illegal best move", "nth": 2})
    assert answers_of(liar.path, QUERIES[:3]) == [expected(fen) for fen in FENS[:3]]


@pytest.mark.parametrize(("kind", "num_processes"), [("crash", 1), ("crash", 3), ("none", 1), ("garbage", 2)])
def test_a_position_that_fails_three_times_is_an_error_in_its_place_and_no_other_is_touched(
    kind: str, num_processes: int, scripted: Callable[..., ScriptedEngine]
) -> None:
    faulty = scripted({"kind": kind, "fen": FENS[2], "times": 99})
    answers = answers_of(faulty.path, QUERIES, num_processes=num_processes)
    assert isinstance(answers[2], EngineError)
    assert FENS[2] in str(answers[2])
    del answers[2]
    assert answers == [expected(fen) for fen in FENS if fen != FENS[2]]
    asked = [search["pid"] for search in faulty.searches() if search["fen"] == FENS[2]]
    assert len(asked) == len(set(asked)) == 3, "three attempts, each on a process of its own"


def test_a_position_on_which_the_engine_always_hangs_is_given_up(
    scripted: Callable[..., ScriptedEngine], monkeypatch: pytest.MonkeyPatch, within: Callable[[float], AbstractContextManager[None]]
) -> None:
    monkeypatch.setattr(engine, "_DEADLINE_SECONDS", 0.5)
    faulty = scripted({"kind": "hang with a child", "fen": FENS[4], "times": 99})
    with within(10):
        [answer] = answers_of(faulty.path, [QUERIES[4]])
    assert isinstance(answer, EngineError)
    assert str(answer) == f"{FENS[4]}: no answer in 0.5 s"


def test_a_hung_engine_does_not_hold_up_its_neighbour(
    scripted: Callable[..., ScriptedEngine], patience: float, within: Callable[[float], AbstractContextManager[None]]
) -> None:
    faulty = scripted({"kind": "hang", "nth": 1})
    queries = [QUERIES[0], *QUERIES[1:] * 20]
    with within(15):
        assert answers_of(faulty.path, queries, num_processes=2) == [expected(query.fen) for query in queries]
    first, second = (index for index, search in enumerate(faulty.searches()) if search["fen"] == FENS[0])
    assert first <= 1
    assert second > 20, "the other process went on answering until the hung one was noticed"


def test_an_engine_that_dies_on_every_search_is_given_up_with_a_clear_error(scripted: Callable[..., ScriptedEngine]) -> None:
    broken = scripted({"kind": "crash", "times": 10_000})
    with pytest.raises(
        EngineError, match=r"5 searches in a row failed on fresh processes, last: .*the engine has died; run it by hand, or reinstall it"
    ):
        answers_of(broken.path, QUERIES * 5)
    assert len(broken.searches()) == 5 * 3, "no position more than it takes"


def test_the_failures_in_a_row_are_counted_across_calls(scripted: Callable[..., ScriptedEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    # Engine games ask one position a call: without this a dead engine is tried for hours.
    monkeypatch.setattr(engine, "_MAX_FAILURES_IN_A_ROW", 2)
    broken = scripted({"kind": "crash", "times": 10_000})

    def search_one_by_one() -> None:
        with EnginePool(broken.path, num_processes=1, options={}) as pool:
            for query in QUERIES:
                pool.search([query])

    with pytest.raises(EngineError, match="in a row"):
        search_one_by_one()
    assert len(broken.searches()) == 2 * 3


def test_failures_with_successes_between_them_do_not_stop_the_pool(
    scripted: Callable[..., ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_MAX_FAILURES_IN_A_ROW", 2)
    faulty = scripted({"kind": "crash", "fen": FENS[0], "times": 10_000})
    answers = answers_of(faulty.path, [QUERIES[0], QUERIES[1]] * 3)
    assert [isinstance(answer, EngineError) for answer in answers] == [True, False] * 3


@pytest.mark.parametrize("start", ["dies", "silent", "floods"])
def test_a_pool_whose_engine_does_not_start_fails_and_does_not_hang(
    start: str,
    scripted: Callable[..., ScriptedEngine],
    monkeypatch: pytest.MonkeyPatch,
    within: Callable[[float], AbstractContextManager[None]],
) -> None:
    monkeypatch.setattr(engine, "_START_SECONDS", 0.2)
    with within(4):
        [answer] = answers_of(scripted(start=start).path, QUERIES[:1])
    assert isinstance(answer, EngineError)


def test_processes_that_die_between_two_searches_cost_no_answer(scripted: Callable[..., ScriptedEngine]) -> None:
    # Out of memory, the kernel kills all of them at once: no position is to blame.
    healthy = scripted()
    with EnginePool(healthy.path, num_processes=3, options={}) as pool:
        pool.search(QUERIES * 3)
        pids = {search["pid"] for search in healthy.searches()}
        assert len(pids) == 3
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        assert pool.search(QUERIES) == [expected(fen) for fen in FENS]


def test_an_interrupted_search_leaves_no_process(scripted: Callable[..., ScriptedEngine]) -> None:
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
    pool.search(QUERIES)
    pool.close()
    pool.close()
