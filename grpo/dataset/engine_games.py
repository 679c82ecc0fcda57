"""Engine self-play games as data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import chess
import numpy as np

from grpo.base.seeding import numpy_stream
from grpo.dataset.games import Game, Reason, Rejection
from grpo.engine.answers import EngineError
from grpo.engine.pool import EnginePool

ENGINE: Final = "engine"
"""The source of engine games."""
MAX_IDLE_GAMES: Final = 300
"""Number of engine games in a row without a new board after which a unit stops."""
_NUM_TRIES: Final = 2
_MAX_FAILED_IN_A_ROW: Final = 5  # Games: one that hangs costs a minute.


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineGames:
    """How the games are played: deliberately varied."""

    nodes: tuple[int, ...] = (60, 240, 960)
    """Node limits. Each side of each game draws one at random, so that strong and weak players meet. Below about 200 nodes the
    communication with the engine dominates the cost of a move."""
    random_opening_plies: int = 6
    """Each game starts with up to this many random legal plies."""
    random_move_probability: float = 0.08
    """Probability that a later move is random. A random move is never a label."""
    max_plies: int = 200
    """Games are truncated after this many plies."""


def engine_games(
    config: EngineGames,
    *,
    unit: int,
    seed: int,
    pool: EnginePool,
    is_wanted: Callable[[str], bool],
) -> Iterator[Game | Rejection]:
    """Yield games without end.

    A game depends only on seed, unit and its number. Games whose id `is_wanted` rejects are not played. A game during which the
    engine failed is replayed from its seed; after a second failure it is yielded as a Rejection.

    Raises EngineError if the engine fails in several games in a row.
    """
    num_failed_in_a_row = 0
    number = -1
    while True:
        number += 1
        game_id = f"{ENGINE}-{unit}-{number}"
        if not is_wanted(game_id):
            continue
        # The engine's hash makes a move depend on earlier searches, so a game that failed half-way is replayed as a whole.
        for _ in range(_NUM_TRIES):
            try:
                game = _game(config, number, game_id=game_id, rng=numpy_stream(seed, "engine_game", unit, number), pool=pool)
            except EngineError as error:
                failure = error
                continue
            num_failed_in_a_row = 0
            yield game
            break
        else:
            num_failed_in_a_row += 1
            if num_failed_in_a_row >= _MAX_FAILED_IN_A_ROW:
                raise EngineError(
                    f"the engine failed in {num_failed_in_a_row} games in a row, last: {failure};"
                    " run it by hand, reinstall it, or set CHESS_GRPO_STOCKFISH to another engine"
                )
            yield Rejection(source=ENGINE, offset=number, reason=Reason.ENGINE_FAILURE, detail=str(failure)[:120])


def _game(config: EngineGames, number: int, *, game_id: str, rng: np.random.Generator, pool: EnginePool) -> Game:
    nodes = {color: int(rng.choice(config.nodes)) for color in chess.COLORS}
    board, start = chess.Board(), chess.STARTING_FEN
    num_random = int(rng.integers(0, config.random_opening_plies + 1))
    boards: list[chess.Board] = []
    moves: list[chess.Move] = []
    played: list[str] = []
    is_label: list[bool] = []
    is_fresh = True
    while len(played) < config.max_plies and not _is_over(board):
        is_random = len(played) < num_random or rng.random() < config.random_move_probability
        if is_random:
            legal = sorted(board.legal_moves, key=chess.Move.uci)
            if not legal:
                break
            move = legal[int(rng.integers(len(legal)))]
        else:
            best_move = pool.best_move(start, " ".join(played), f"nodes {nodes[board.turn]}", is_fresh=is_fresh)
            if not best_move:
                if any(board.legal_moves):
                    raise EngineError(f"{board.fen()}: the engine found no move")
                break
            is_fresh = False
            move = _read(best_move, board)
        boards.append(board.copy(stack=False))
        is_label.append(not is_random)
        moves.append(move)
        played.append(move.uci())
        board.push(move)
        if board.was_into_check():
            raise EngineError(f"{boards[-1].fen()}: {move} is not legal")
    return Game(
        game_id=game_id,
        source=ENGINE,
        offset=number,
        boards=tuple(boards),
        moves=tuple(moves),
        is_label=tuple(is_label),
        result=board.result(),
    )


def _read(text: str, board: chess.Board) -> chess.Move:
    """Return the engine's move if it is pseudo-legal; the caller checks after the push that the king is not in check, which is cheaper."""
    try:
        move = chess.Move.from_uci(text)
    except chess.InvalidMoveError:
        raise EngineError(f"{board.fen()}: {text!r} is no move") from None
    if not board.is_pseudo_legal(move):
        raise EngineError(f"{board.fen()}: {text} is not legal")
    return move


def _is_over(board: chess.Board) -> bool:
    # Cheaper than `board.is_game_over()`: the engine reports when there is no move. Games also end early after 30 moves without progress.
    has_enough = board.pawns | board.rooks | board.queens
    return board.halfmove_clock >= 60 or (not has_enough and board.is_insufficient_material())
