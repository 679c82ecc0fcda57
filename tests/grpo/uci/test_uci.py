"""The engine's side of UCI, line by line: every `go` gets one best move, which is legal and the policy's; nothing else moves the board."""

import io
import re
from itertools import pairwise

import chess
import pytest
import torch
from doubles import lively_policy, some_boards

from grpo.match.policy_players import BestMovePlayer
from grpo.policy.distribution import PositionBatch
from grpo.uci.options import UciOptions
from grpo.uci.search import PolicyMoveFinder
from grpo.uci.server import NO_MOVE, UciEngine, read_position, score_after, serve

MATED = "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"
STALEMATED = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"


class Session:
    def __init__(self, *, seed: int = 0, **options: float) -> None:
        self.policy = lively_policy()
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
        before = len(self.lines)
        assert all(self.engine.handle(command) for command in commands)
        return self.lines[before:]

    def best(self, *commands: str) -> str:
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


def test_quit_ends_it_and_so_does_the_end_of_input_with_the_best_move_that_is_owed(session: Session) -> None:
    serve(session.engine, io.BytesIO(b"isready\nquit\ngo\n"))
    assert session.lines == ["readyok"]
    serve(session.engine, io.BytesIO(b"go infinite\n"))
    assert session.lines[-1].startswith("bestmove ")


@pytest.mark.parametrize(
    ("words", "fen"),
    [
        ("startpos moves e2e4 c7c5", "rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2"),
        ("fen 8/8/8/8/8/4k3/8/4K2R w K - 0 1 moves e1g1", "8/8/8/8/8/4k3/8/5RK1 b - - 1 1"),
        ("fen 7k/P7/8/8/8/8/8/K7 w - - 0 1 moves a7a8n", "N6k/8/8/8/8/8/8/K7 b - - 0 1"),
        ("fen 4k3/8/8/8/8/8/8/4K3 w - -", "4k3/8/8/8/8/8/8/4K3 w - - 0 1"),
        # Rights that cannot hold are dropped, and those that can stay.
        ("fen rnbq1rk1/8/8/8/8/8/8/R1BQK2R w KQkq - 0 1", "rnbq1rk1/8/8/8/8/8/8/R1BQK2R w KQ - 0 1"),
        (f"fen {chess.STARTING_FEN.replace('-', 'e3')}", chess.STARTING_FEN),
    ],
)
def test_positions_are_read(words: str, fen: str) -> None:
    assert read_position(words.split()).fen() == fen


def test_the_best_move_is_the_one_that_plays_in_matches(session: Session) -> None:
    boards = some_boards(8, seed=3)
    expected = BestMovePlayer(session.policy, "").choose(boards, range(len(boards)))
    assert [session.best(position(board), "go movetime 10") for board in boards] == [move.uci() for move in expected]


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("go infinite", "stop"),
        ("go ponder wtime 1000", "stop"),
        ("go ponder wtime 1000", "ponderhit"),
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


@pytest.mark.parametrize(("fen", "score"), [(MATED, "mate 0"), (STALEMATED, "cp 0")])
def test_where_the_game_is_over_there_is_no_move(fen: str, score: str, session: Session) -> None:
    assert session.says(f"position fen {fen}", "go") == [f"info depth 0 score {score}", f"bestmove {NO_MOVE}"]


def test_searchmoves_that_are_legal_are_all_that_is_played(session: Session) -> None:
    [remark] = [line for line in session.says("setoption name MultiPV value 20", "go") if line.startswith("info string policy ")]
    ranked = remark.split()[3::2]
    assert session.best("go searchmoves e2e5") == ranked[0]
    for likelier, other in pairwise(ranked[:5]):
        assert session.best(f"go searchmoves {other} e2e5 nonsense") == other
        assert session.best(f"go depth 5 searchmoves {other} {likelier} infinite", "stop") == likelier
    drawn = Session(temperature=10.0)
    assert {drawn.best("ucinewgame", f"go searchmoves {ranked[3]} {ranked[9]}") for _ in range(12)} == {ranked[3], ranked[9]}


INFO = re.compile(r"info depth 1 seldepth 1 multipv (\d+) score (cp -?\d+|mate 1) nodes 1 pv (\S+)")


@pytest.mark.parametrize(("temperature", "shown"), [(0.0, 1.0), (2.0, 2.0)])
def test_lines_are_the_policys_moves_the_chosen_one_and_then_by_falling_probability(temperature: float, shown: float) -> None:
    session = Session(temperature=temperature, multipv=218)
    for board in some_boards(3, seed=4):
        said = session.says(position(board), "go")
        lines = [info.groups() for line in said if (info := INFO.fullmatch(line))]
        words = next(line for line in said if line.startswith("info string policy ")).split()[3:]
        moves, shares = words[::2], [float(share) for share in words[1::2]]
        assert [int(number) for number, _, _ in lines] == list(range(1, board.legal_moves.count() + 1))
        assert [move for _, _, move in lines] == moves
        assert said[-1] == f"bestmove {moves[0]}"
        assert shares[1:] == sorted(shares[1:], reverse=True)
        assert temperature or shares[0] == max(shares)
        with torch.no_grad():
            distribution = session.policy.distribution(PositionBatch.from_boards([board]), temperature=shown)
        assert sorted(shares) == pytest.approx(distribution.probs[0].sort().values.tolist(), abs=6e-5)


@pytest.mark.parametrize(
    ("fen", "move", "score"),
    [
        ("4k3/8/8/3q4/2P5/8/8/4K3 w - - 0 1", "c4d5", "cp 100"),
        ("7k/P7/8/8/8/8/8/K7 w - - 0 1", "a7a8q", "cp 900"),
        ("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "a1a8", "mate 1"),
        ("7k/8/6K1/8/8/8/8/5Q2 w - - 0 1", "f1f7", "cp 0"),  # Stalemate.
    ],
)
def test_scores_count_the_men_that_a_move_leaves(fen: str, move: str, score: str) -> None:
    assert score_after(chess.Board(fen), chess.Move.from_uci(move)) == score


@pytest.mark.parametrize(
    ("words", "temperature", "multipv"),
    [
        ("name Temperature value 0.7", 0.7, 2),
        ("name temperature value 0,7", 0.7, 2),
        ("name MultiPV value 5", 1.0, 5),
        ("name SyzygyPath value C:\\some value\\here", 1.0, 2),
    ],
)
def test_options_are_set_and_unknown_ones_change_nothing(words: str, temperature: float, multipv: int, session: Session) -> None:
    found = UciOptions(temperature=1.0, multipv=2).with_option(words.split())
    assert found == UciOptions(temperature=temperature, multipv=multipv)
    assert session.says(f"setoption {words}") == []


@pytest.mark.parametrize("words", ["Temperature", "Temperature value nan", "MultiPV value 219", "MultiPV value 2.5"])
def test_a_value_that_was_not_declared_is_refused_in_one_line_and_changes_nothing(words: str, session: Session) -> None:
    before = session.says("go")
    (said,) = session.says(f"setoption name {words}")
    assert said.startswith(f"info string {words.split(maxsplit=1)[0]} ")
    assert session.says("go") == before


def test_a_seed_gives_the_same_game_again_and_another_seed_or_game_another(session: Session) -> None:
    def game(seed: int, num_games: int) -> list[str]:
        other = Session(seed=seed, temperature=5.0)
        other.says(*["ucinewgame"] * num_games)
        moves: list[str] = []
        for _ in range(6):
            moves.append(other.best(f"position startpos moves {' '.join(moves)}", "go"))
        return moves

    first = game(1, 1)
    assert game(1, 1) == first
    assert game(2, 1) != first
    assert game(1, 2) != first
