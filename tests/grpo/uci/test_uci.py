"""The engine's side of UCI, line by line: every `go` gets one best move, which is legal and the policy's; nothing else moves the board."""

import io
import re

import chess
import pytest
import torch
from doubles import CPU, TINY, some_boards

from grpo.match.players import BestMovePlayer
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import new_policy
from grpo.uci.options import UciError, UciOptions
from grpo.uci.search import PolicyMoveFinder
from grpo.uci.server import NO_MOVE, RESIGNATION, UciEngine, read_position, score_after, serve

MATED = "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"
STALEMATED = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"


class Session:
    """An engine and all that it has written."""

    def __init__(self, *, seed: int = 0, **options: float) -> None:
        self.policy = new_policy(TINY, seed=5, device=CPU)
        self.num_loads = 0
        self.lines: list[str] = []
        self.engine = UciEngine(
            name="chess-grpo 12 abc",
            options=UciOptions(**{"temperature": 0.0, **options}),  # type: ignore[arg-type]
            load=self._load,
            seed=seed,
            write=self.lines.append,
        )

    def _load(self) -> PolicyMoveFinder:
        self.num_loads += 1
        return PolicyMoveFinder(self.policy)

    def says(self, *commands: str) -> list[str]:
        """Return what the engine writes to these lines."""
        before = len(self.lines)
        assert all(self.engine.handle(command) for command in commands)
        return self.lines[before:]

    def best(self, *commands: str) -> str:
        """Return the one best move that it writes to these lines."""
        (line,) = (line for line in self.says(*commands) if line.startswith("bestmove"))
        return line.removeprefix("bestmove ")


@pytest.fixture
def session() -> Session:
    return Session()


def position(board: chess.Board) -> str:
    return f"position fen {board.fen()}"


def test_it_introduces_itself_without_loading_and_loads_once(session: Session) -> None:
    lines = session.says("uci")
    assert lines[0] == "id name chess-grpo 12 abc"
    assert lines[1].startswith("id author ")
    assert lines[-1] == "uciok"
    assert session.num_loads == 0
    assert session.says("isready", "go", "isready").count("readyok") == 2
    assert session.num_loads == 1


def test_options_are_declared_as_the_protocol_writes_them(session: Session) -> None:
    options = [line for line in session.says("uci") if line.startswith("option")]
    spin = r"type spin default (-?\d+) min (-?\d+) max (\d+)"
    for line in options:
        assert re.fullmatch(rf"option name \w+ ({spin}|type string default \S+|type check default (true|false))", line)
        if limits := re.search(spin, line):
            default, low, high = map(int, limits.groups())
            assert low <= default <= high < 2**31
    names = [line.split()[2] for line in options]
    assert names == ["Temperature", "MultiPV", "Hash", "Threads", "Ponder"]


@pytest.mark.parametrize("line", ["", "   ", "hello", "id name me", "readyok", "go\x00", "stop", "ponderhit", "debug on", "ucinewgame"])
def test_what_asks_nothing_is_answered_by_nothing(line: str, session: Session) -> None:
    assert session.says(line) == []


def test_words_before_a_command_are_skipped(session: Session) -> None:
    assert session.says("joho isready") == ["readyok"], "https://backscattering.de/chess/uci/"


def test_quit_ends_it_and_so_does_the_end_of_input_with_the_best_move_that_is_owed(session: Session) -> None:
    serve(session.engine, io.BytesIO(b"isready\nquit\ngo\n"))
    assert session.lines == ["readyok"]
    serve(session.engine, io.BytesIO(b"go infinite\n"))
    assert session.lines[-1].startswith("bestmove ")


@pytest.mark.parametrize(
    ("words", "fen"),
    [
        ("startpos", chess.STARTING_FEN),
        ("startpos moves e2e4 c7c5", "rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2"),
        (f"fen {MATED}", MATED),
        ("fen 8/8/8/8/8/4k3/8/4K2R w K - 0 1 moves e1g1", "8/8/8/8/8/4k3/8/5RK1 b - - 1 1"),
        ("fen 7k/P7/8/8/8/8/8/K7 w - - 0 1 moves a7a8n", "N6k/8/8/8/8/8/8/K7 b - - 0 1"),
        ("fen 4k3/8/8/8/8/8/8/4K3 w - -", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"),
        # Rights that cannot hold are dropped, and those that can stay.
        ("fen 4k3/8/8/8/8/8/4P3/4K3 w KQkq - 0 1", "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"),
        ("fen rnbq1rk1/8/8/8/8/8/8/R1BQK2R w KQkq - 0 1", "rnbq1rk1/8/8/8/8/8/8/R1BQK2R w KQ - 0 1"),
        (f"fen {chess.STARTING_FEN.replace('-', 'e3')}", chess.STARTING_FEN),
    ],
)
def test_positions_are_read(words: str, fen: str) -> None:
    assert read_position(words.split()).fen() == fen


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "write `position startpos`"),
        ("startpos e2e4", "write `position startpos`"),
        ("fen hello", "not a FEN"),
        ("fen 4k3/8/8/8/8/8/4R3/4K3 w - - 0 1", "OPPOSITE_CHECK"),
        ("startpos moves e2e5", "move 1, 'e2e5', is illegal"),
        ("startpos moves e2e4 e7e5 e1e8 d7d5", "move 3, 'e1e8', is illegal"),
        ("fen 8/8/8/8/8/4k3/8/4K2R w K - 0 1 moves e1h1", "move 1, 'e1h1', is illegal"),
        ("fen 7k/P7/8/8/8/8/8/K7 w - - 0 1 moves a7a8", "move 1, 'a7a8', is illegal"),
    ],
)
def test_a_position_that_is_none_is_refused_and_no_move_is_named_for_the_one_before(words: str, reason: str, session: Session) -> None:
    with pytest.raises(UciError, match=re.escape(reason)):
        read_position(words.split())
    (said,) = session.says("position fen 4k3/8/8/8/8/8/8/R3K3 w Q - 0 1", f"position {words}")
    assert said.startswith("info string ")
    assert reason in said
    assert session.best("go") == RESIGNATION
    assert session.says("go infinite", "stop")[-1] == f"bestmove {RESIGNATION}"
    assert session.best("position startpos", "go") != RESIGNATION


def test_the_best_move_is_the_one_that_plays_in_matches(session: Session) -> None:
    boards = some_boards(30, seed=3)
    expected = BestMovePlayer(session.policy, "").choose(boards, range(len(boards)))
    assert [session.best(position(board), "go movetime 10") for board in boards] == [move.uci() for move in expected]


@pytest.mark.parametrize(
    "line",
    [
        *("go", "go depth 3", "go nodes 100", "go movetime 50", "go wtime 100 winc 0", "go wtime 0 btime 0"),
        *("go wtime -5 btime -5 movestogo 1", "go mate 2", "go depth", "go depth x", "go perft 3", "go searchmoves"),
        *("go searchmoves e2e4 depth 2", "go what is this"),
    ],
)
def test_with_limits_of_whatever_kind_it_moves_at_once_and_once(line: str, session: Session) -> None:
    said = session.says(line)
    assert said[-1].startswith("bestmove ")
    assert sum(line.startswith("bestmove") for line in said) == 1
    assert all(line.startswith(("info ", "bestmove ")) for line in said)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("go infinite", "stop"),
        ("go ponder wtime 1000", "stop"),
        ("go ponder wtime 1000", "ponderhit"),
        ("go searchmoves a2a3 infinite", "stop"),
    ],
)
def test_a_search_without_end_tells_its_move_only_when_it_may(begin: str, end: str, session: Session) -> None:
    said = session.says(begin)
    assert said
    assert not any(line.startswith("bestmove") for line in said)
    assert session.says("isready", "position startpos moves d2d4", "ucinewgame") == ["readyok"]
    (told,) = session.says(end)
    assert chess.Move.from_uci(told.removeprefix("bestmove ")) in chess.Board().legal_moves, "of the board it was asked about"
    assert session.says(end) == []


def test_a_second_go_ends_the_first_whose_move_comes_first(session: Session) -> None:
    session.says("go infinite", "position startpos moves e2e4")
    said = [line.split()[1] for line in session.says("go depth 1") if line.startswith("bestmove")]
    assert len(said) == 2
    assert chess.Move.from_uci(said[0]) in chess.Board().legal_moves
    assert chess.Move.from_uci(said[1]) in chess.Board("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1").legal_moves
    assert session.says("stop") == []


@pytest.mark.parametrize(("fen", "score"), [(MATED, "mate 0"), (STALEMATED, "cp 0")])
def test_where_the_game_is_over_there_is_no_move(fen: str, score: str, session: Session) -> None:
    assert session.says(f"position fen {fen}", "go") == [f"info depth 0 score {score}", f"bestmove {NO_MOVE}"]
    assert session.says("go infinite")[-1].startswith("info")
    assert session.says("stop") == [f"bestmove {NO_MOVE}"]


def test_searchmoves_that_are_legal_are_all_that_is_played(session: Session) -> None:
    unrestricted = session.best("go")
    others = [move.uci() for move in chess.Board().legal_moves if move.uci() != unrestricted]
    for move in others:
        assert session.best(f"go searchmoves {move} e2e5 nonsense") == move
    for move in others[:4]:
        assert session.best(f"go depth 5 searchmoves {others[0]} {move} infinite", "stop") in (others[0], move)
    assert session.best("go searchmoves e2e5") == unrestricted
    drawn = Session(temperature=10.0)
    assert {drawn.best("ucinewgame", f"go searchmoves {others[3]} {others[9]}") for _ in range(20)} == {others[3], others[9]}


INFO = re.compile(r"info depth 1 seldepth 1 multipv (\d+) score (cp -?\d+|mate 1) nodes 1 pv (\S+)")


def test_lines_are_the_policys_moves_by_falling_probability(session: Session) -> None:
    for board in some_boards(10, seed=4):
        said = session.says("setoption name MultiPV value 218", position(board), "go")
        lines = [info.groups() for line in said if (info := INFO.fullmatch(line))]
        words = next(line for line in said if line.startswith("info string policy ")).split()[3:]
        moves, shares = words[::2], [float(share) for share in words[1::2]]
        assert [int(number) for number, _, _ in lines] == list(range(1, board.legal_moves.count() + 1))
        assert [move for _, _, move in lines] == moves
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(1, abs=0.006)
        assert said[-1] == f"bestmove {moves[0]}"
        with torch.no_grad():
            distribution = session.policy.distribution(PositionBatch.from_boards([board]), temperature=1.0)
        assert sorted(shares, reverse=True) == pytest.approx(distribution.probs[0].sort(descending=True).values.tolist(), abs=6e-5)


@pytest.mark.parametrize(
    ("fen", "move", "score"),
    [
        (chess.STARTING_FEN, "e2e4", "cp 0"),
        ("4k3/8/8/3q4/8/2R5/8/4K3 w - - 0 1", "c3c5", "cp -400"),
        ("4k3/8/8/3q4/2P5/8/8/4K3 w - - 0 1", "c4d5", "cp 100"),
        ("4k3/8/8/3q4/8/2N5/8/4K3 w - - 0 1", "c3b5", "cp -600"),
        ("4k3/8/8/3q4/8/2N5/8/4K3 b - - 0 1", "d5d4", "cp 600"),
        ("7k/P7/8/8/8/8/8/K7 w - - 0 1", "a7a8q", "cp 900"),
        ("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "a1a8", "mate 1"),
        ("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1", "f1f7", "cp 0"),  # Stalemate.
        ("4k3/8/8/8/8/8/3p4/4K3 w - - 0 1", "e1d2", "cp 0"),  # Bare kings.
        ("4k3/8/8/8/4Pp2/8/8/4K3 b - e3 0 1", "f4e3", "cp 100"),
    ],
)
def test_scores_count_the_men_that_a_move_leaves(fen: str, move: str, score: str) -> None:
    assert score_after(chess.Board(fen), chess.Move.from_uci(move)) == score


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("name Temperature value 0.7", {"temperature": 0.7}),
        ("name temperature value 0,7", {"temperature": 0.7}),
        ("name TEMPERATURE value 0", {"temperature": 0.0}),
        ("name MultiPV value 5", {"multipv": 5}),
        ("name Hash value 4096", {}),
        ("name SyzygyPath value C:\\some value\\here", {}),
    ],
)
def test_options_are_set_and_unknown_ones_change_nothing(words: str, expected: dict[str, float], session: Session) -> None:
    before = UciOptions(temperature=1.0, multipv=2)
    after = before.with_option(words.split())
    assert {name: getattr(after, name) for name in ("temperature", "multipv")} == {
        "temperature": 1.0,
        "multipv": 2,
        **expected,
    }
    assert session.says(f"setoption {words}") == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("name Temperature", "Temperature is no number"),
        ("name Temperature value hot", "Temperature is no number"),
        ("name Temperature value nan", "Temperature must be 0 (best move), or between 0.01 and 10"),
        ("name Temperature value 1e-9", "Temperature must be"),
        ("name MultiPV value 0", "MultiPV must be between 1 and 218"),
        ("name MultiPV value 219", "MultiPV must be between 1 and 218"),
        ("name MultiPV value 2.5", "MultiPV is no number, or no whole one"),
    ],
)
def test_a_value_that_was_not_declared_is_refused_in_one_line_and_changes_nothing(words: str, reason: str, session: Session) -> None:
    with pytest.raises(UciError, match=re.escape(reason)):
        UciOptions(temperature=0.0).with_option(words.split())
    before = session.says("go")
    (said,) = session.says(f"setoption {words}")
    assert said.startswith("info string ")
    assert reason in said
    assert session.says("go") == before


def test_a_seed_gives_the_same_game_again_and_another_seed_or_game_another(session: Session) -> None:
    def game(seed: int, num_games: int) -> list[str]:
        other = Session(seed=seed, temperature=5.0)
        other.says(*["ucinewgame"] * num_games)
        moves: list[str] = []
        for _ in range(12):
            moves.append(other.best(f"position startpos moves {' '.join(moves)}", "go"))
        return moves

    first = game(1, 1)
    assert game(1, 1) == first
    assert game(2, 1) != first
    assert game(1, 2) != first
