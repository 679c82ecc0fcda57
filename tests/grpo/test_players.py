"""Players: legal moves from the right side of the board, seeded where there is chance, and never an invented move."""

from collections import Counter
from collections.abc import Callable, Iterator

import chess
import numpy as np
import pytest
import torch
from doubles import CPU, TINY, WrittenPolicy, made_up_number, some_boards
from scripted_engine import ScriptedEngine, move_scores

from grpo import players
from grpo.engine import EngineError, EnginePool, Query
from grpo.players import BestMovePlayer, EnginePlayer, Player, RandomPlayer, SamplingPlayer
from grpo.policy import new_policy
from grpo.seeding import numpy_stream, torch_stream

torch.set_num_threads(1)

BOARDS = some_boards(60)


def prefers(*wanted: str) -> WrittenPolicy:
    """Return a policy that plays these moves, whatever the board, with odds of e^9 to 1 for each place in the list."""
    return WrittenPolicy(lambda board, move: 9.0 * (len(wanted) - wanted.index(move.uci())) if move.uci() in wanted else 0.0)


def test_the_best_move_of_a_written_policy_is_played_by_both_colours() -> None:
    white, black = chess.Board(), chess.Board()
    black.push_uci("a2a3")
    player = BestMovePlayer(prefers("g1f3", "g8f6"), "knights")
    assert [move.uci() for move in player.choose([white, black, white])] == ["g1f3", "g8f6", "g1f3"]
    assert player.name == "knights"


@pytest.mark.parametrize("promotion", ["n", "b", "r", "q"])
def test_promotions_castling_and_en_passant_are_played_as_they_stand_on_the_board(promotion: str) -> None:
    player = BestMovePlayer(prefers(f"a7a8{promotion}", f"a2a1{promotion}", "e8c8", "e5d6", "e4d3"), "odd moves")
    fens = {
        "7k/P7/8/8/8/8/8/K7 w - - 0 1": f"a7a8{promotion}",
        "k7/8/8/8/8/8/p7/7K b - - 0 1": f"a2a1{promotion}",
        "r3k2r/8/8/8/8/8/8/4K3 b kq - 0 1": "e8c8",
        "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1": "e5d6",
        "4k3/8/8/8/3Pp3/8/8/4K3 b - d3 0 1": "e4d3",
    }
    assert [move.uci() for move in player.choose([chess.Board(fen) for fen in fens])] == list(fens.values())


def test_the_best_move_is_the_one_with_the_highest_number_on_every_board() -> None:
    chosen = BestMovePlayer(WrittenPolicy(made_up_number), "made up").choose(BOARDS)
    assert chosen == [max(board.legal_moves, key=lambda move, board=board: made_up_number(board, move)) for board in BOARDS]  # type: ignore[misc]


def network_player(seed: int = 0) -> BestMovePlayer:
    """Return a fresh network's best moves."""
    return BestMovePlayer(new_policy(TINY, seed=seed, device=CPU), "network")


def random_player(seed: int = 0) -> RandomPlayer:
    """Return a seeded random mover."""
    return RandomPlayer(numpy_stream(seed, "random"))


def sampling_player(seed: int = 0, temperature: float = 1.0) -> SamplingPlayer:
    """Return a fresh network's seeded moves."""
    return SamplingPlayer(new_policy(TINY, seed=0, device=CPU), "sampled", temperature=temperature, rng=torch_stream(seed, "sampled"))


@pytest.mark.parametrize("make", [network_player, random_player, sampling_player])
def test_every_move_is_legal_on_the_board_at_its_place_and_no_board_is_touched(make: Callable[[], Player]) -> None:
    before = [board.fen() for board in BOARDS]
    moves = make().choose(BOARDS)
    assert [board.is_legal(move) for board, move in zip(BOARDS, moves, strict=True)] == [True] * len(BOARDS)
    assert [board.fen() for board in BOARDS] == before


@pytest.mark.parametrize("size", [1, 7, 59, 60])
def test_best_moves_do_not_depend_on_how_many_boards_are_asked_at_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = network_player().choose(BOARDS)
    assert [move for start in range(0, 60, size) for move in network_player().choose(BOARDS[start : start + size])] == whole
    monkeypatch.setattr(players, "_BOARDS_PER_FORWARD", size)
    assert network_player().choose(BOARDS) == whole


def test_draws_over_several_forwards_stay_with_their_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(players, "_BOARDS_PER_FORWARD", 7)
    moves = sampling_player().choose(BOARDS)
    assert len(moves) == len(BOARDS)
    assert all(board.is_legal(move) for board, move in zip(BOARDS, moves, strict=True))


@pytest.mark.parametrize("make", [random_player, sampling_player])
def test_one_seed_gives_one_series_of_moves_that_goes_on_and_another_seed_another(make: Callable[[int], Player]) -> None:
    one, same, other = make(0), make(0), make(1)
    first = one.choose(BOARDS)
    assert same.choose(BOARDS) == first
    assert other.choose(BOARDS) != first
    assert one.choose(BOARDS) != first, "not the same draws over and over"


def test_a_network_without_chance_answers_the_same_each_time() -> None:
    player = network_player()
    assert player.choose(BOARDS) == player.choose(BOARDS) == network_player().choose(BOARDS)
    assert network_player(seed=1).choose(BOARDS) != player.choose(BOARDS)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_moves_are_drawn_as_often_as_the_policy_at_that_temperature_says(temperature: float) -> None:
    board = chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1")
    logits = {"a1a2": 1.0, "a1b1": 0.0, "a1b2": -1.0}
    player = SamplingPlayer(
        WrittenPolicy(lambda board, move: logits[move.uci()]), "drawn", temperature=temperature, rng=torch_stream(0, "draws")
    )
    weights = {move: np.exp(logit / temperature) for move, logit in logits.items()}
    counts = Counter(move.uci() for move in player.choose([board] * 3_000))
    for move, weight in weights.items():
        expected = weight / sum(weights.values())
        assert counts[move] / 3_000 == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 3_000) ** 0.5)


def test_a_random_mover_gives_every_legal_move_an_equal_chance() -> None:
    counts = Counter(move.uci() for move in random_player().choose([chess.Board()] * 2_000))
    assert len(counts) == 20
    # Chi-squared with 19 degrees of freedom is above 43.8 once in a thousand.
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 43.8


# The engine as a player.


@pytest.fixture
def pool_of() -> Iterator[Callable[..., EnginePool]]:
    """Return a maker of pools that are closed at the end."""
    made: list[EnginePool] = []

    def make(path: str, *, num_processes: int = 1) -> EnginePool:
        made.append(EnginePool(path, num_processes=num_processes, options={"Hash": 1}))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def scripted_best(board: chess.Board) -> str:
    """Return what the scripted engine plays."""
    return move_scores(board.fen(), sorted(move.uci() for move in board.legal_moves), "")[0][1]


@pytest.mark.usefixtures("no_process_left")
def test_the_engines_best_move_is_played_after_a_fresh_search_of_so_many_nodes(
    scripted: Callable[..., ScriptedEngine], pool_of: Callable[..., EnginePool]
) -> None:
    engine = scripted()
    player = EnginePlayer(pool_of(engine.path), nodes=37)
    assert [move.uci() for move in player.choose(BOARDS[:12])] == [scripted_best(board) for board in BOARDS[:12]]
    assert player.name == "stockfish-37-nodes"
    searches = engine.searches()
    assert [search["fen"] for search in searches] == [board.fen() for board in BOARDS[:12]]
    assert {search["limit"] for search in searches} == {"nodes 37"}
    assert all(search["is_fresh"] for search in searches)


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("kind", ["none", "crash", "no score", "garbage"])
def test_an_engine_that_fails_on_a_board_ends_the_match_and_no_move_is_invented(
    kind: str, scripted: Callable[..., ScriptedEngine], pool_of: Callable[..., EnginePool]
) -> None:
    engine = scripted({"kind": kind, "fen": BOARDS[2].fen(), "times": 99})
    with pytest.raises(EngineError):
        EnginePlayer(pool_of(engine.path), nodes=1).choose(BOARDS[:4])


@pytest.mark.usefixtures("no_process_left")
def test_an_engine_that_insists_on_an_illegal_move_is_an_engine_error(
    scripted: Callable[..., ScriptedEngine], pool_of: Callable[..., EnginePool]
) -> None:
    engine = scripted({"kind": "illegal best move", "fen": BOARDS[2].fen(), "times": 99})
    with pytest.raises(EngineError):
        EnginePlayer(pool_of(engine.path), nodes=1).choose(BOARDS[:4])


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("kind", ["none", "crash", "illegal best move"])
def test_after_one_fault_the_engine_plays_what_it_would_have_played_without_it(
    kind: str, scripted: Callable[..., ScriptedEngine], pool_of: Callable[..., EnginePool]
) -> None:
    engine = scripted({"kind": kind, "nth": 3})
    player = EnginePlayer(pool_of(engine.path), nodes=1)
    assert [move.uci() for move in player.choose(BOARDS[:6])] == [scripted_best(board) for board in BOARDS[:6]]


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("nodes", [1, 50])
def test_real_answers_depend_neither_on_how_many_boards_are_asked_nor_in_which_order_nor_on_the_number_of_processes(
    nodes: int, stockfish: str, pool_of: Callable[..., EnginePool]
) -> None:
    one, two = (EnginePlayer(pool_of(stockfish, num_processes=count), nodes=nodes) for count in (1, 2))
    boards = BOARDS[:24]
    together = one.choose(boards)
    assert [move for board in boards for move in one.choose([board])] == together
    assert one.choose(boards[::-1])[::-1] == together
    assert two.choose(boards) == together
    assert all(board.is_legal(move) for board, move in zip(boards, together, strict=True))


@pytest.mark.usefixtures("no_process_left")
def test_the_real_engine_mates_when_it_can_and_castles_like_a_king(stockfish: str, pool_of: Callable[..., EnginePool]) -> None:
    pool = pool_of(stockfish)
    mate = chess.Board("6k1/5ppp/8/8/8/8/8/R3K3 w Q - 0 1")
    [move] = EnginePlayer(pool, nodes=500).choose([mate])
    assert move.uci() == "a1a8"
    castling = chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1")
    [answer] = pool.search([Query(fen=castling.fen(), limit="nodes 50 searchmoves e1g1")])
    assert not isinstance(answer, EngineError)
    assert castling.parse_uci(answer.best_move) == chess.Move.from_uci("e1g1")
