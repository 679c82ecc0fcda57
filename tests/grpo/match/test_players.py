"""Players: legal moves from the right side of the board, seeded where there is chance, and never an invented move."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import chess
import numpy as np
import pytest
from doubles import CPU, TINY, WrittenPolicy, made_up_number, some_boards
from scripted_engine import ScriptedEngine, move_scores

from grpo.base.seeding import numpy_stream, torch_stream
from grpo.engine.answers import EngineError
from grpo.engine.pool import EnginePool
from grpo.match import policy_players
from grpo.match.players import DilutedPlayer, EnginePlayer, Player, RandomPlayer
from grpo.match.policy_players import BestMovePlayer, SamplingPlayer
from grpo.policy.policy import new_policy

BOARDS = some_boards(24)

pytestmark = pytest.mark.usefixtures("no_process_left")


def moves_of(player: Player, boards: Sequence[chess.Board]) -> list[chess.Move]:
    return player.choose(boards, range(len(boards)))


def network_player(seed: int = 0) -> BestMovePlayer:
    return BestMovePlayer(new_policy(TINY, seed=seed, device=CPU), "network")


def random_player(seed: int = 0) -> RandomPlayer:
    return RandomPlayer(numpy_stream(seed, "random"))


def sampling_player(seed: int = 0, temperature: float = 1.0) -> SamplingPlayer:
    return SamplingPlayer(new_policy(TINY, seed=0, device=CPU), "sampled", temperature=temperature, rng=torch_stream(seed, "sampled"))


def diluted_player(seed: int = 0, share: float = 0.5) -> DilutedPlayer:
    return DilutedPlayer(sampling_player(seed), random_fraction=share, rng=numpy_stream(seed, "diluted"))


@pytest.mark.parametrize("make", [network_player, random_player, sampling_player, diluted_player])
def test_every_move_is_legal_on_the_board_at_its_place_and_no_board_is_touched(make: Callable[[], Player]) -> None:
    before = [board.fen() for board in BOARDS]
    moves = moves_of(make(), BOARDS)
    assert [board.is_legal(move) for board, move in zip(BOARDS, moves, strict=True)] == [True] * len(BOARDS)
    assert [board.fen() for board in BOARDS] == before


@pytest.mark.parametrize("make", [random_player, sampling_player, diluted_player])
def test_what_is_drawn_in_a_game_depends_neither_on_the_other_games_nor_on_their_order_nor_on_which_have_ended(
    make: Callable[..., Player], monkeypatch: pytest.MonkeyPatch
) -> None:
    games, shuffled = list(range(24)), random.Random(0).sample(range(24), 24)
    together, alone, mixed, few, cut = (make() for _ in range(5))
    first = together.choose(BOARDS, games)
    second = together.choose(BOARDS, games)
    assert second != first, "not the same draws over and over"
    assert make(seed=1).choose(BOARDS, games) != first
    assert [alone.choose([BOARDS[game]], [game])[0] for game in games for _ in range(2)] == [
        move for pair in zip(first, second, strict=True) for move in pair
    ], "each game from its first move to its last before the next"
    assert mixed.choose([BOARDS[game] for game in shuffled], shuffled) == [first[game] for game in shuffled]
    monkeypatch.setattr(policy_players, "_BOARDS_PER_FORWARD", 5)
    assert cut.choose(BOARDS, games) == first, "however many boards one forward pass takes"
    few.choose(BOARDS, games)
    assert few.choose(BOARDS[1::3], games[1::3]) == second[1::3], "the others are over"


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_moves_are_drawn_as_often_as_the_policy_at_that_temperature_says(temperature: float) -> None:
    board = chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1")
    logits = {"a1a2": 1.0, "a1b1": 0.0, "a1b2": -1.0}
    player = SamplingPlayer(
        WrittenPolicy(lambda board, move: logits[move.uci()]), "drawn", temperature=temperature, rng=torch_stream(0, "draws")
    )
    weights = {move: np.exp(logit / temperature) for move, logit in logits.items()}
    counts = Counter(move.uci() for move in moves_of(player, [board] * 3_000))
    for move, weight in weights.items():
        expected = weight / sum(weights.values())
        assert counts[move] / 3_000 == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 3_000) ** 0.5)


# A player some of whose moves are random.


class Watched(BestMovePlayer):
    def __init__(self) -> None:
        super().__init__(WrittenPolicy(made_up_number), "made up")
        self.asked: list[list[int]] = []

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:
        self.asked.append(list(games))
        return super().choose(boards, games)


def test_no_share_of_random_moves_is_the_player_itself_and_the_whole_share_never_asks_it() -> None:
    inner = Watched()
    itself = moves_of(inner, BOARDS)
    likeliest = [max(made_up_number(board, move) for move in board.legal_moves) for board in BOARDS]
    assert [made_up_number(board, move) for board, move in zip(BOARDS, itself, strict=True)] == likeliest, "by both colors"
    assert moves_of(DilutedPlayer(inner, random_fraction=0, rng=numpy_stream(0, "none")), BOARDS) == itself
    inner.asked.clear()
    chance = moves_of(DilutedPlayer(inner, random_fraction=1, rng=numpy_stream(0, "all")), [chess.Board()] * 2_000)
    assert inner.asked == []
    counts = Counter(move.uci() for move in chance)
    assert len(counts) == 20
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 43.8


def test_a_quarter_of_the_moves_are_random_and_the_others_are_the_players_on_their_own_boards() -> None:
    inner = Watched()
    boards = BOARDS * 25
    mixed = DilutedPlayer(inner, random_fraction=0.25, rng=numpy_stream(0, "quarter"))
    moves = moves_of(mixed, boards)
    [asked] = inner.asked
    own = Watched().choose([boards[game] for game in asked], asked)
    assert [moves[game] for game in asked] == own
    assert len(asked) == pytest.approx(450, abs=4 * (600 * 0.25 * 0.75) ** 0.5)
    assert mixed.name == "made up, 25 % random"


# The engine as a player.


def scripted_best(board: chess.Board) -> str:
    return move_scores(board.fen(), sorted(move.uci() for move in board.legal_moves), "")[0][1]


def engine_moves(path: str, boards: Sequence[chess.Board], limit: str = "nodes 37") -> list[str]:
    with EnginePool(path, num_processes=1, options={"Hash": 1}) as pool:
        return [move.uci() for move in moves_of(EnginePlayer(pool, limit=limit, name="37 nodes"), boards)]


def test_the_engines_best_move_is_played_after_a_fresh_search_of_so_many_nodes(scripted: Callable[..., ScriptedEngine]) -> None:
    engine = scripted()
    assert engine_moves(engine.path, BOARDS[:6]) == [scripted_best(board) for board in BOARDS[:6]]
    expected = [(board.fen(), "nodes 37", True) for board in BOARDS[:6]]
    assert [(search["fen"], search["limit"], search["is_fresh"]) for search in engine.searches()] == expected


@pytest.mark.parametrize("kind", ["crash", "illegal best move"])
def test_an_engine_that_fails_on_a_board_ends_the_match_and_no_move_is_invented(kind: str, scripted: Callable[..., ScriptedEngine]) -> None:
    engine = scripted({"kind": kind, "fen": BOARDS[2].fen(), "times": 99}, positions=[board.fen() for board in BOARDS[:4]])
    with pytest.raises(EngineError):
        engine_moves(engine.path, BOARDS[:4])


def test_an_engine_need_not_say_what_its_moves_are_worth(scripted: Callable[..., ScriptedEngine]) -> None:
    """Engines with an opening book say none; UCI demands only `bestmove`."""
    engine = scripted({"kind": "no score", "times": 99})
    boards = BOARDS[:3]
    assert engine_moves(engine.path, boards) == [scripted_best(board) for board in boards]
    assert engine_moves(engine.path, boards, limit="depth 3") == [scripted_best(board) for board in boards]
    assert len(engine.searches()) == 6, "none was repeated"


def test_an_engine_may_stop_below_its_depth_as_many_do_with_a_single_legal_move(scripted: Callable[..., ScriptedEngine]) -> None:
    engine = scripted({"kind": "shallow", "times": 99})
    board = chess.Board("k7/8/1K6/8/8/8/8/6R1 b - - 0 1")
    assert engine_moves(engine.path, [board], limit="depth 3") == ["a8b8"]
    assert len(engine.searches()) == 1
