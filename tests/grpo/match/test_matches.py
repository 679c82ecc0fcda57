"""Games: how they end, whose score it is, that many at once are the same as one at a time, and adjudication of the undecided."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import chess
import pytest
from doubles import CPU, TINY, some_boards
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from grpo.base.seeding import numpy_stream, torch_stream
from grpo.engine.answers import EngineError
from grpo.engine.pool import EnginePool
from grpo.match.forks import ForkError, Tell, in_processes
from grpo.match.ladder import Rung
from grpo.match.matches import UNDECIDED, End, MatchReport, MatchResult, Pairing, PlayedGame, adjudicate, play_match, play_matches
from grpo.match.players import RandomPlayer
from grpo.match.policy_players import BestMovePlayer, SamplingPlayer
from grpo.match.replies import ReplyCounts
from grpo.policy.policy import new_policy
from grpo.statistics.intervals import paired_interval

pytestmark = pytest.mark.usefixtures("no_process_left")
OPENINGS = [board.fen() for board in some_boards(6, max_plies=30)]
FOOLS_MATE = "f2f3 e7e5 g2g4 d8h4"


class Line:
    """Plays the moves of one line, whichever color it has; after its end, the first legal move."""

    name = "line"

    def __init__(self, moves: str) -> None:
        self._moves = moves.split()

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:
        return [chess.Move.from_uci(self._moves[len(board.move_stack)]) for board in boards]


def played(moves: str, *, opening: str = chess.STARTING_FEN, max_plies: int = 400) -> PlayedGame:
    """Return the game in which both sides play a line, seen from White."""
    result = play_match(Line(moves), Line(moves), [opening], max_plies=max_plies)
    white, black = result.games
    assert (white.first_is_white, black.first_is_white) == (True, False)
    assert white.moves == black.moves
    assert white.end == black.end
    assert white.score + black.score == 1
    return white


# How a game ends.


@pytest.mark.parametrize(
    ("opening", "moves", "end", "white_score"),
    [
        ("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "a1a8", End.CHECKMATE, 1.0),
        ("r3k3/8/8/8/8/8/5PPP/6K1 b - - 0 1", "a8a1", End.CHECKMATE, 0.0),
        ("7k/4Q3/6K1/8/8/8/8/8 w - - 0 1", "e7f7", End.STALEMATE, 0.5),
        ("4k3/8/8/8/8/8/4p3/4K3 w - - 0 1", "e1e2", End.MATERIAL, 0.5),
        ("4k3/8/8/8/8/8/4p3/4KB2 w - - 0 1", "e1e2", End.MATERIAL, 0.5),  # King and bishop against king.
        ("4k3/8/8/8/8/8/8/R3K3 w - - 99 80", "a1a2", End.FIFTY_MOVES, 0.5),
        ("7k/8/6K1/8/8/8/8/R7 w - - 99 80", "a1a8", End.CHECKMATE, 1.0),  # Mate comes before the fifty moves.
        ("7k/4Q3/6K1/8/8/8/8/8 w - - 99 80", "e7f7", End.STALEMATE, 0.5),
        ("4k3/8/8/8/8/8/8/4KN1n w - - 0 1", "f1e3 h1g3 e3d1 g3h1 d1e3 h1g3 e3d1 g3h1 d1e3", End.REPETITION, 0.5),
    ],
)
def test_each_way_to_end_a_game(opening: str, moves: str, end: End, white_score: float) -> None:
    game = played(moves, opening=opening)
    assert (game.end, game.score, game.moves) == (end, white_score, tuple(moves.split()))


KINGS = "e8e7 e1e2 e7e8 e2e1 " * 4


@pytest.mark.parametrize(
    ("opening", "moves", "num_plies"),
    [
        ("4k2r/8/8/8/8/8/8/4K2R b - - 0 1", KINGS, 8),
        ("4k2r/8/8/8/8/8/8/4K2R b Kk - 0 1", KINGS, 10),  # At first with rights to castle: the kings on e2 and e7 come three times.
        ("4k3/8/8/8/7p/8/3P4/4K3 w - - 0 1", f"d2d4 {KINGS}", 9),  # An en-passant square without a legal capture makes no difference.
        ("4k3/8/8/8/4p3/8/3P4/4K3 w - - 0 1", f"d2d4 {KINGS}", 10),
    ],
)
def test_a_position_with_other_castling_rights_or_an_en_passant_capture_is_another_one(opening: str, moves: str, num_plies: int) -> None:
    game = played(moves, opening=opening)
    assert (game.end, len(game.moves)) == (End.REPETITION, num_plies)


@pytest.mark.parametrize(("max_plies", "end", "num_plies"), [(3, End.PLY_CAP, 3), (4, End.CHECKMATE, 4)])
def test_a_mate_on_the_last_ply_that_is_allowed_is_a_mate(max_plies: int, end: End, num_plies: int) -> None:
    game = played(FOOLS_MATE, max_plies=max_plies)
    assert (game.end, len(game.moves)) == (end, num_plies)
    assert game.score == (0.5 if end == End.PLY_CAP else 0.0)


# Few pieces, so that games of random moves end in all ways.
ENDGAMES = [
    "4k3/8/8/8/8/8/8/R3K3 w Q - 0 1",
    "4k3/7p/8/8/8/8/P7/4K3 w - - 0 1",
    "8/8/8/3k4/8/8/3q4/K7 b - - 60 1",
    "4k2r/8/8/8/8/8/8/4K2R w Kk - 0 1",
    "6k1/5ppp/8/8/8/8/8/RR2K3 w - - 20 1",
    "7k/5Q2/8/5K2/8/8/8/8 w - - 0 1",
    "4k3/1p1p1p1p/1P1P1P1P/8/8/p1p1p1p1/P1P1P1P1/4K3 w - - 0 1",  # The kings have their own last ranks, and nothing else can move.
]


def test_every_random_game_ends_where_and_as_the_rules_of_python_chess_say() -> None:
    # python-chess looks back through the game where this code keeps count.
    games = [
        game
        for seed in range(5)
        for game in play_match(*(RandomPlayer(numpy_stream(seed, side)) for side in ("first", "second")), ENDGAMES, max_plies=150).games
    ]
    for game in games:
        board = chess.Board(game.opening)
        for ply, move in enumerate(game.moves):
            assert ends_by_the_rules(board) is None, f"{game.opening} went on after {ply} plies of {' '.join(game.moves)}"
            board.push(board.parse_uci(move))
        expected = ends_by_the_rules(board) or (End.PLY_CAP if len(game.moves) == 150 else None)
        assert game.end == expected
        winner = (not board.turn) if expected == End.CHECKMATE else None
        assert game.score == (0.5 if winner is None else float(winner == (chess.WHITE if game.first_is_white else chess.BLACK)))
    assert {game.end for game in games} == set(End) - {End.FORFEIT}, "every way that the board knows is among them"


def ends_by_the_rules(board: chess.Board) -> End | None:
    if board.is_checkmate():
        return End.CHECKMATE
    if board.is_stalemate():
        return End.STALEMATE
    if board.is_insufficient_material():
        return End.MATERIAL
    if board.is_repetition(3):
        return End.REPETITION
    return End.FIFTY_MOVES if board.halfmove_clock >= 100 else None


# Whose score it is.


def test_scores_of_pairs_and_what_the_sample_is_worked_by_hand() -> None:
    other = "4k3/8/8/8/8/8/8/R3K3 w Q - 0 1"
    later = "4k3/8/8/8/8/8/8/R3K3 w Q - 0 30"  # The same opening, with another move number.
    games = (
        PlayedGame(opening=other, first_is_white=True, moves=("a1a2",), end=End.PLY_CAP, score=0.5, adjudicated=1.0),
        PlayedGame(opening=other, first_is_white=False, moves=("a1a2",), end=End.REPETITION, score=0.5),
        PlayedGame(opening=later, first_is_white=True, moves=("a1a2",), end=End.FIFTY_MOVES, score=0.5, adjudicated=0.5),
        PlayedGame(opening=later, first_is_white=False, moves=("a1a3",), end=End.CHECKMATE, score=0.0),
        PlayedGame(opening=chess.STARTING_FEN, first_is_white=True, moves=(), end=End.STALEMATE, score=0.5),
        PlayedGame(opening=chess.STARTING_FEN, first_is_white=False, moves=(), end=End.MATERIAL, score=0.5),
    )
    result = MatchResult(first="a", second="b", games=games, is_adjudicated=True)
    assert result.num_openings == 2
    assert result.pair_scores() == [0.5, 0.25, 0.5]
    assert result.pair_scores(adjudicated=True) == [0.75, 0.25, 0.5]
    assert result.interval() == paired_interval([0.5, 0.25, 0.5])
    report = result.report()
    assert (report.wins, report.draws, report.losses) == (0, 5, 1)
    assert (report.adjudicated, report.num_failed) == (paired_interval([0.75, 0.25, 0.5]), 1)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=40).filter(lambda scores: len(scores) % 2 == 0))
def test_score_and_interval_of_a_stored_match_follow_from_its_five_counts_of_pairs(scores: list[float]) -> None:
    games = [game(chess.STARTING_FEN, End.CHECKMATE, score=score) for score in scores]
    result = match_of(*(replace(each, second_replies=ReplyCounts(num_moves=1, num_answers=2, num_illegal=2)) for each in games))
    stored = MatchReport.model_validate_json(result.report().model_dump_json())
    assert stored == result.report()
    again = paired_interval([place / 4 for place, count in enumerate(stored.pairs) for _ in range(count)])
    assert again.num_pairs == stored.score.num_pairs == len(scores) // 2
    assert (again.value, again.low, again.high) == pytest.approx((stored.score.value, stored.score.low, stored.score.high), abs=1e-12)
    answers = stored.answers["second"]
    assert (answers.num_retries, answers.num_forfeits) == (len(scores), len(scores))


# Many at once.


def test_all_boards_in_lock_step_play_the_games_that_they_play_one_at_a_time() -> None:
    first, second = (BestMovePlayer(new_policy(TINY, seed=seed, device=CPU), str(seed)) for seed in (0, 1))
    together = play_match(first, second, OPENINGS[:3], max_plies=8).games
    assert list(together) == [game for opening in OPENINGS[:3] for game in play_match(first, second, [opening], max_plies=8).games]


def test_processes_share_the_openings_with_engines_of_their_own_and_play_the_same_games(stockfish: str) -> None:
    def games(num_processes: int) -> tuple[PlayedGame, ...]:
        told: list[int] = []
        with EnginePool(stockfish, num_processes=2, options={"Hash": 1}) as pool:
            engine = Rung(nodes=1, random_share=0.3).player(pool, numpy_stream(0, "rung"))
            sampling = SamplingPlayer(new_policy(TINY, seed=0, device=CPU), "policy", temperature=1.0, rng=torch_stream(0, "policy"))
            result = play_match(
                engine, sampling, dict(enumerate(OPENINGS[:5], 3)), max_plies=12, on_games_done=told.append, num_processes=num_processes
            )
        assert told[-1] == 10
        return result.games

    assert games(1) == games(2) == games(9)


@pytest.mark.parametrize("num_processes", [1, 2, 3, 4])
def test_matches_played_together_have_the_games_of_each_alone(num_processes: int) -> None:
    def players(number: int) -> tuple[SamplingPlayer, RandomPlayer]:
        policy = new_policy(TINY, seed=0, device=CPU)
        sampling = SamplingPlayer(policy, f"policy {number}", temperature=1.0, rng=torch_stream(number, "policy"))
        return sampling, RandomPlayer(numpy_stream(number, "random"))

    openings = [OPENINGS[:3], dict(enumerate(OPENINGS[2:6], 7)), OPENINGS[4:5]]
    alone = [play_match(*players(number), part, max_plies=10) for number, part in enumerate(openings)]
    pairings = [
        Pairing(first=first, second=second, openings=part) for (first, second), part in zip(map(players, range(3)), openings, strict=True)
    ]
    told: list[int] = []
    assert play_matches(pairings, max_plies=10, on_games_done=told.append, num_processes=num_processes) == alone
    assert told[-1] == 16


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("ends", "error", "words"), [("refuses", EngineError, "no engine"), ("dies", ForkError, "exit code -9")])
def test_what_ends_one_of_the_processes_ends_the_others(ends: str, error: type[Exception], words: str, place: int) -> None:
    def task(tell: Tell) -> None:
        if ends == "refuses":
            raise EngineError("no engine")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(error, match=words):
        in_processes([(task, lambda _: time.sleep(600))[number ^ place] for number in (0, 1)], print)
    assert multiprocessing.active_children() == []


# Adjudication.

# The same but for the colors.
WHITE_TO_MOVE = "k7/8/8/8/8/1r6/8/K7 w - - 7 40"
BLACK_TO_MOVE = "k7/8/1R6/8/8/8/8/K7 b - - 7 40"


def game(opening: str, end: End, *, first_is_white: bool = True, moves: str = "", score: float = 0.5) -> PlayedGame:
    return PlayedGame(opening=opening, first_is_white=first_is_white, moves=tuple(moves.split()), end=end, score=score)


def match_of(*games: PlayedGame) -> MatchResult:
    return MatchResult(first="a", second="b", games=games)


def adjudicated_by(engine: ScriptedEngine, result: MatchResult) -> MatchResult:
    with EnginePool(engine.path, num_processes=1, options={}) as pool:
        return adjudicate(result, pool)


@pytest.mark.parametrize(
    ("score", "mover_score"),
    [("cp 251", 1.0), ("cp 250", 0.5), ("cp 0", 0.5), ("cp -250", 0.5), ("cp -251", 0.0), ("mate 5", 1.0), ("mate -5", 0.0)],
)
def test_a_value_above_the_threshold_wins_for_the_mover_whichever_color_and_player_that_is(
    score: str, mover_score: float, scripted: Callable[..., ScriptedEngine]
) -> None:
    engine = scripted(scores={move: score for fen in (WHITE_TO_MOVE, BLACK_TO_MOVE) for move in map(str, chess.Board(fen).legal_moves)})
    games = [
        game(opening, end, first_is_white=white)
        for end in sorted(UNDECIDED)
        for opening in (WHITE_TO_MOVE, BLACK_TO_MOVE)
        for white in (True, False)
    ]
    result = adjudicated_by(engine, match_of(*games))
    scores = [mover_score, 1 - mover_score, 1 - mover_score, mover_score]
    assert [one.adjudicated for one in result.games] == scores * len(UNDECIDED)
    assert {one.score for one in result.games} == {0.5}, "as played"


def test_games_that_the_board_has_decided_are_not_looked_at(scripted: Callable[..., ScriptedEngine]) -> None:
    engine = scripted()
    games = [game(WHITE_TO_MOVE, end, score=score) for end in sorted(set(End) - UNDECIDED) for score in (0.0, 1.0)]
    result = adjudicated_by(engine, match_of(*games))
    assert engine.searches() == []
    assert result.games == tuple(games)


def test_the_final_position_is_searched_once_afresh_to_the_depth_with_a_new_count_of_fifty_moves(
    scripted: Callable[..., ScriptedEngine],
) -> None:
    engine = scripted()
    moves = "a1a2 b3b4 a2a1"
    drawn = [game(WHITE_TO_MOVE, End.FIFTY_MOVES, moves=moves, first_is_white=white) for white in (True, False)]
    result = adjudicated_by(engine, match_of(*drawn))
    board = chess.Board(WHITE_TO_MOVE)
    for move in moves.split():
        board.push_uci(move)
    board.halfmove_clock = 0
    assert [(search["fen"], search["limit"], search["is_fresh"]) for search in engine.searches()] == [(board.fen(), "depth 10", True)]
    first, second = (one.adjudicated for one in result.games)
    assert first is not None
    assert second == 1 - first, "one value, seen from both players"


def test_a_search_that_fails_leaves_the_draw_and_is_counted(scripted: Callable[..., ScriptedEngine]) -> None:
    board = chess.Board(WHITE_TO_MOVE)
    board.halfmove_clock = 0
    engine = scripted(
        {"kind": "none", "fen": board.fen(), "times": 99},
        scores={move.uci(): "cp 900" for move in chess.Board(BLACK_TO_MOVE).legal_moves},
        positions=[fen.replace(" 7 ", " 0 ") for fen in (WHITE_TO_MOVE, BLACK_TO_MOVE)],
    )
    games = [game(opening, End.PLY_CAP) for opening in (WHITE_TO_MOVE, WHITE_TO_MOVE, BLACK_TO_MOVE, BLACK_TO_MOVE)]
    result = adjudicated_by(engine, match_of(*games))
    assert [one.adjudicated for one in result.games] == [None, None, 0.0, 0.0]
    assert result.report().num_failed == 2
    assert result.pair_scores(adjudicated=True) == [0.5, 0.0]
