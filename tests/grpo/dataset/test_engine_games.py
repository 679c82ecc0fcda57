"""Games of the engine against itself: legal, varied, and each a function of seed, unit and number alone."""

from collections.abc import Callable, Iterator
from itertools import islice, pairwise

import chess
import pytest
from scripted_engine import ScriptedEngine

from grpo.dataset.engine_games import RANDOM_MOVE_PROBABILITY, RANDOM_OPENING_PLIES, engine_games
from grpo.dataset.games import Game, Reason, Rejection
from grpo.engine.answers import EngineError
from grpo.engine.pool import EnginePool

pytestmark = pytest.mark.usefixtures("no_process_left")

MAX_PLIES = 160
Scripted = Callable[..., ScriptedEngine]
Wanted = Callable[[str], bool]


@pytest.fixture(autouse=True)
def _quick_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.dataset.engine_games.NODES", (1, 5))
    monkeypatch.setattr("grpo.dataset.engine_games.MAX_PLIES", MAX_PLIES)


@pytest.fixture
def short_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.dataset.engine_games.MAX_PLIES", 20)


@pytest.fixture
def players(stockfish: str) -> Iterator[EnginePool]:
    with EnginePool(stockfish, num_processes=1, options={"Hash": 1}) as pool:
        yield pool


def played(pool: EnginePool, count: int, *, unit: int = 0, seed: int = 3, is_wanted: Wanted = lambda _: True) -> list[Game | Rejection]:
    return list(islice(engine_games(unit=unit, seed=seed, pool=pool, is_wanted=is_wanted), count))


def final_board(game: Game) -> chess.Board:
    """Return the board after the last move, all moves being legal and the boards those before each."""
    board = game.boards[0].copy(stack=False)
    for before, move in zip(game.boards, game.moves, strict=True):
        assert before == board
        assert before.fen() == board.fen()
        assert not before.move_stack
        assert board.is_legal(move)
        board.push(move)
    return board


def test_games_are_legal_end_as_the_board_says_and_have_as_many_random_moves_as_is_said(players: EnginePool) -> None:
    games = [game for game in played(players, 10) if isinstance(game, Game)]
    assert len(games) == 10
    for number, game in enumerate(games):
        assert (game.game_id, game.source, game.offset) == (f"engine-0-{number}", "engine", number)
        board = final_board(game)
        assert game.result == board.result()
        has_ended = not any(board.legal_moves) or board.is_insufficient_material() or board.halfmove_clock >= 60
        assert len(game.moves) == MAX_PLIES or (has_ended and len(game.moves) < MAX_PLIES)
        assert game.boards[0] == chess.Board()
    assert len({game.result for game in games}) > 1, "some end, some are cut"
    assert len({game.moves[:6] for game in games}) >= 8, "openings differ"
    labels = [label for game in games for label in game.is_label[RANDOM_OPENING_PLIES:]]
    share = 1 - sum(labels) / len(labels)
    assert abs(share - RANDOM_MOVE_PROBABILITY) < 5 * (0.08 * 0.92 / len(labels)) ** 0.5


def test_a_game_depends_on_seed_unit_and_number_alone(players: EnginePool) -> None:
    once = played(players, 4)
    assert played(players, 4) == once
    # By itself, as the only one of its unit that is wanted, in whatever the engine has played before.
    assert played(players, 1, is_wanted=lambda game_id: game_id == "engine-0-2") == once[2:3]
    assert played(players, 2, is_wanted=lambda game_id: int(game_id[-1]) % 2 == 1) == once[1::2]
    everything = [*once, *played(players, 4, unit=1), *played(players, 4, seed=4)]
    begun = {(game.boards[0].fen(), game.moves) for game in everything if isinstance(game, Game)}
    assert len(begun) == 12


@pytest.mark.usefixtures("short_games")
@pytest.mark.parametrize("crashes", [[6], [6, 12], [6, 14, 15, 24]])  # Numbers of searches: at one ply, at one twice, at several.
def test_a_game_is_the_game_without_faults_unless_one_move_fails_three_times(crashes: list[int], scripted: Scripted) -> None:
    # Engines that remember the game (their hash is kept): asked afresh in the middle they answer otherwise.
    sound, faulty = scripted(has_memory=True), scripted(*({"kind": "crash", "nth": nth} for nth in crashes), has_memory=True)
    games = []
    for engine in (sound, faulty):
        with EnginePool(engine.path, num_processes=1, options={}) as pool:
            games.append(played(pool, 1))
    assert games[0] == games[1]
    fens = [search["fen"] for search in faulty.searches()]
    whole = fens[crashes[-1] :]
    for start, end in pairwise([0, *crashes, len(fens)]):
        assert fens[start:end] == whole[: end - start], "played from its start, not from the move that failed"


@pytest.mark.usefixtures("short_games")
def test_a_game_in_which_one_move_fails_three_times_is_left_out_and_counted_and_the_next_one_is_played(scripted: Scripted) -> None:
    faulty = scripted({"kind": "crash", "times": 3})
    with EnginePool(faulty.path, num_processes=1, options={}) as pool:
        rejection, game = played(pool, 2)
    assert rejection == Rejection(source="engine", offset=0, reason=Reason.ENGINE_FAILURE, detail="the engine has died")
    assert str(rejection) == "engine, game 1: engine failure (the engine has died)"
    assert isinstance(game, Game)
    assert game.game_id == "engine-0-1"


def test_an_engine_that_fails_in_game_after_game_is_given_up_with_a_clear_error(scripted: Scripted) -> None:
    broken = scripted({"kind": "none", "times": 10_000})
    with EnginePool(broken.path, num_processes=1, options={}) as pool, pytest.raises(EngineError, match="failed in 5 games in a row"):
        list(engine_games(unit=0, seed=0, pool=pool, is_wanted=lambda game_id: True))
    assert len(broken.searches()) == 5 * 3, "soon: one that hangs costs half a minute each time"
