"""Games of the engine against itself, varied by random moves and node limits."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import chess
import numpy as np

from grpo.base.seeding import numpy_stream
from grpo.board.actions import random_move
from grpo.dataset.games import ENGINE, Game, Reason, Rejection
from grpo.engine.answers import EngineError
from grpo.engine.pool import NUM_ATTEMPTS, REMEDY, EnginePool

MAX_IDLE_GAMES: Final = 300  # A unit ends after so many games in a row without a selected position.
_MAX_FAILED_IN_A_ROW: Final = 5  # games

# Nodes (searched positions) per move; each side of a game draws one of these limits.
NODES: Final = (60, 240, 960)
RANDOM_OPENING_PLIES: Final = 6  # Each game starts with 0 to this many random legal plies (moves of one player).
RANDOM_MOVE_PROBABILITY: Final = 0.08  # After the opening.
MAX_PLIES: Final = 200  # Longer games are truncated.


def engine_games(*, unit: int, seed: int, pool: EnginePool, is_wanted: Callable[[str], bool]) -> Iterator[Game | Rejection]:
    """Yield games without end, except games whose id `is_wanted` rejects. A game depends only on seed, unit and number.

    A game in which the engine fails is replayed. After `NUM_ATTEMPTS` failures at one ply, it becomes a Rejection. Raises EngineError if
    five games in a row fail.
    """
    num_failed_in_a_row = 0
    for number in count():
        game_id = f"{ENGINE}-{unit}-{number}"
        if not is_wanted(game_id):
            continue
        game: Game | None = None
        failures: Counter[int] = Counter()
        while game is None:
            played: list[str] = []
            try:
                # A move also depends on the engine's memory of earlier searches, so the whole game is replayed.
                game = _game(number, game_id=game_id, rng=numpy_stream(seed, "engine_game", unit, number), pool=pool, played=played)
            except EngineError as error:
                failures[len(played)] += 1
                if failures[len(played)] == NUM_ATTEMPTS:
                    failure = str(error)
                    break
        num_failed_in_a_row = 0 if game else num_failed_in_a_row + 1
        if num_failed_in_a_row == _MAX_FAILED_IN_A_ROW:
            raise EngineError(f"the engine failed in {num_failed_in_a_row} games in a row, last: {failure}; {REMEDY}")
        yield game or Rejection(source=ENGINE, offset=number, reason=Reason.ENGINE_FAILURE, detail=failure)


def _game(number: int, *, game_id: str, rng: np.random.Generator, pool: EnginePool, played: list[str]) -> Game:
    """Append each move to `played`, also before an error."""
    nodes = {color: int(rng.choice(NODES)) for color in chess.COLORS}
    board, start = chess.Board(), chess.STARTING_FEN
    num_random = int(rng.integers(0, RANDOM_OPENING_PLIES + 1))
    boards: list[chess.Board] = []
    is_label: list[bool] = []
    is_fresh = True
    while len(played) < MAX_PLIES and not _is_over(board):
        is_random = len(played) < num_random or rng.random() < RANDOM_MOVE_PROBABILITY
        if is_random:
            move = random_move(board, rng)
        else:
            best_move = pool.best_move(start, " ".join(played), f"nodes {nodes[board.turn]}", is_fresh=is_fresh)
            is_fresh = False
            try:
                move = board.parse_uci(best_move)
            except ValueError as error:
                raise EngineError(f"{board.fen()}: the engine's move is not legal ({error})") from None
        boards.append(board.copy(stack=False))
        is_label.append(not is_random)
        played.append(move.uci())
        board.push(move)
    return Game(
        game_id=game_id,
        source=ENGINE,
        offset=number,
        boards=tuple(boards),
        moves=tuple(board.move_stack),
        is_label=tuple(is_label),
        result=board.result(),
    )


def _is_over(board: chess.Board) -> bool:
    return board.halfmove_clock >= 60 or board.is_insufficient_material() or not any(board.legal_moves)
