"""Players of a match. `policy_players` has the players that need torch.

A player keeps one random stream per game number: game 3 of the player's next match continues game 3's stream.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import chess
import numpy as np

from grpo.base.seeding import numpy_stream
from grpo.board.actions import random_move
from grpo.board.encoding import fen_of
from grpo.engine.answers import EngineError, IllegalMoveError
from grpo.engine.pool import NUM_ATTEMPTS, EnginePool, Query
from grpo.match.replies import Reply, ReplyCounts

NUM_ROOTS: Final = 2**63 - 1  # Exclusive limit of `GameStreams` roots.


class Player(Protocol):
    name: str

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> Sequence[chess.Move | Reply]:
        """Return for each board a legal move, or a `Reply`, which may forfeit the game.

        On each board, this player is to move and has a legal move. `games` has each board's game number, which selects the random stream.
        """


class RandomPlayer:
    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._streams = GameStreams(int(rng.integers(NUM_ROOTS)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:
        return [random_move(board, self._streams.of(game)) for board, game in zip(boards, games, strict=True)]


class EnginePlayer:
    """`limit` is the argument of UCI's `go`, such as `nodes 50`.

    The engine gets a FEN without earlier moves, and so sees no repetitions. After `NUM_ATTEMPTS` searches without a legal move, `choose`
    raises EngineError. With `says`, the engine instead loses the game, and `says` gets a line about the loss.
    """

    def __init__(self, pool: EnginePool, *, limit: str, name: str, says: Callable[[str], None] | None = None) -> None:
        self.name = name
        self._pool = pool
        self._limit = limit
        self._says = says

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move | Reply]:
        queries = [Query(fen=fen_of(board), limit=self._limit, board=board, needs_scores=False) for board in boards]
        moves: list[chess.Move | Reply] = []
        for board, game, answer in zip(boards, games, self._pool.search(queries, gives_up=self._says is None), strict=True):
            if isinstance(answer, EngineError):
                if self._says is None:
                    raise answer
                self._says(f"game {game + 1}: {self.name} loses: {answer}")
                # Only the last attempt's error is known, so all attempts count alike.
                moves.append(Reply(move=None, counts=_counts([answer] * NUM_ATTEMPTS, num_legal=0)))
                continue
            move = board.parse_uci(answer.best_move)  # Converts castling in Chess960's form (king takes own rook).
            moves.append(move if self._says is None else Reply(move=move, counts=_counts(answer.failed, num_legal=1)))
        return moves


def _counts(failed: Sequence[EngineError], *, num_legal: int) -> ReplyCounts:
    """`failed`: one move's failed searches. `num_legal`: 1 if the last search gave a legal move, else 0."""
    num_illegal = sum(isinstance(error, IllegalMoveError) for error in failed)
    return ReplyCounts(num_moves=1, num_answers=len(failed) + num_legal, num_unreadable=len(failed) - num_illegal, num_illegal=num_illegal)


class DilutedPlayer:
    """Plays a random legal move with probability `random_fraction`, else `player`'s move."""

    def __init__(self, player: Player, *, random_fraction: float, rng: np.random.Generator) -> None:
        self.name = f"{player.name}, {100 * random_fraction:g} % random"
        self._player = player
        self._random_fraction = random_fraction
        self._streams = GameStreams(int(rng.integers(NUM_ROOTS)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move | Reply]:
        moves: list[chess.Move | Reply | None] = []
        for board, game in zip(boards, games, strict=True):
            stream = self._streams.of(game)
            moves.append(random_move(board, stream) if stream.random() < self._random_fraction else None)
        open_rows = [row for row, move in enumerate(moves) if move is None]
        if open_rows:
            answers = self._player.choose([boards[row] for row in open_rows], [games[row] for row in open_rows])
            for row, answer in zip(open_rows, answers, strict=True):
                moves[row] = answer
        return [move for move in moves if move is not None]


class GameStreams:
    """One random stream per game, determined by `root` and the game's number."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._streams: dict[int, np.random.Generator] = {}

    def of(self, game: int) -> np.random.Generator:
        if game not in self._streams:
            self._streams[game] = numpy_stream(self._root, "game", game)
        return self._streams[game]
