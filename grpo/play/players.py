"""Whoever moves in a match: a policy, a UCI engine, or chance; each answers for many boards at once.

What a player draws in a game comes from a stream of that game alone, so that a game is the same whichever others are played beside it and
whenever they end. The streams go on from one match to the next: to repeat a match, make its players anew from the same named streams.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import chess
import numpy as np
import torch
from torch import Tensor

from grpo.base.seeding import numpy_stream
from grpo.board.actions import ACTION_UCI, action_move, legal_action_ids
from grpo.engine.answers import EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.play.replies import Reply
from grpo.policy.distribution import MoveDistribution, Policy, PositionBatch

_BOARDS_PER_FORWARD = 1_024
NUM_ROOTS: Final = 2**63 - 1
"""As many roots of `GameStreams` there are to draw from."""


class Player(Protocol):
    """Chooses a legal move on each of many boards, from games that have nothing to do with each other."""

    name: str

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> Sequence[chess.Move | Reply]:
        """Return a legal move for each board; each board has one. Who may fail to name one returns replies, which say so.

        Args:
            boards: positions with this player to move.
            games: the number of each board's game in its match; chance that has a part in a game may depend on it, and on no other game.
        """


class BestMovePlayer:
    """A policy's likeliest move."""

    def __init__(self, policy: Policy, name: str) -> None:
        self.name = name
        self._policy = policy

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:  # noqa: ARG002
        """Return the likeliest moves."""
        return _policy_moves(self._policy, boards, temperature=1.0, pick=lambda distribution, _: distribution.best())


class SamplingPlayer:
    """A policy's moves drawn at a temperature."""

    def __init__(self, policy: Policy, name: str, *, temperature: float, rng: torch.Generator) -> None:
        """Take one number from `rng`, from which the streams of all games follow."""
        self.name = name
        self._policy = policy
        self._temperature = temperature
        self._streams = GameStreams(int(torch.randint(NUM_ROOTS, (), generator=rng)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:
        """Return sampled moves."""
        uniforms = torch.tensor([self._streams.of(game).random() for game in games], dtype=torch.float64)
        return _policy_moves(
            self._policy,
            boards,
            temperature=self._temperature,
            pick=lambda distribution, rows: distribution.sample_at(uniforms[rows, None])[:, 0],
        )


class RandomPlayer:
    """Any legal move with equal chance."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        """Take one number from `rng`, from which the streams of all games follow."""
        self._streams = GameStreams(int(rng.integers(NUM_ROOTS)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:
        """Return random moves."""
        return [random_move(board, self._streams.of(game)) for board, game in zip(boards, games, strict=True)]


class EnginePlayer:
    """A UCI engine with a fixed limit a move, such as Stockfish at full strength with 50 nodes.

    Which engine, and how strong by its options (`Skill Level`, `UCI_Elo`), is the pool's affair. Each move is a search of its own that
    knows the position and nothing of the game before it, not even for repetitions. With a limit of nodes or depth the same position always
    gets the same answer, but for one case: Stockfish with a `Skill Level` below 20, or `UCI_LimitStrength`, draws among its lines with
    numbers seeded by the clock, and such games cannot be repeated. A `DilutedPlayer` is weaker and can.
    """

    def __init__(self, pool: EnginePool, *, limit: str, name: str) -> None:
        """Play with what follows UCI's `go` as `limit`: `nodes 50`, `depth 3`."""
        self.name = name
        self._pool = pool
        self._limit = limit

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:  # noqa: ARG002
        """Return the engine's moves.

        Raises EngineError when it fails on a board: a game cannot go on with an invented move.
        """
        answers = self._pool.search([Query(fen=fen_of(board), limit=self._limit, board=board) for board in boards])
        moves = []
        for board, answer in zip(boards, answers, strict=True):
            if isinstance(answer, EngineError):
                raise answer
            move = chess.Move.from_uci(answer.best_move)
            # The pool has seen that it is legal; what is left is castling in Chess960's way, as the king taking its own rook.
            is_own = board.occupied_co[board.turn] & chess.BB_SQUARES[move.to_square]
            moves.append(board.parse_uci(answer.best_move) if is_own else move)
        return moves


class DilutedPlayer:
    """Another player, with some of its moves replaced by random ones: rungs of a ladder below the weakest search."""

    def __init__(self, player: Player, *, share: float, rng: np.random.Generator) -> None:
        """Play a random legal move with probability `share`, else what `player` plays.

        Raises ValueError when `share` is no probability.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"a share of random moves lies in [0, 1], not {share}")
        self.name = f"{player.name}, {100 * share:g} % random"
        self._player = player
        self._share = share
        self._streams = GameStreams(int(rng.integers(NUM_ROOTS)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move | Reply]:
        """Return the moves; the other player is asked only for those that are its own."""
        moves: list[chess.Move | Reply | None] = []
        for board, game in zip(boards, games, strict=True):
            stream = self._streams.of(game)
            moves.append(random_move(board, stream) if stream.random() < self._share else None)
        own = [index for index, move in enumerate(moves) if move is None]
        if own:
            answers = self._player.choose([boards[index] for index in own], [games[index] for index in own])
            for index, answer in zip(own, answers, strict=True):
                moves[index] = answer
        return [move for move in moves if move is not None]


def random_move(board: chess.Board, rng: np.random.Generator) -> chess.Move:
    """Return a legal move, each with equal chance; the draw picks among them as sorted by their UCI texts."""
    ids = sorted(legal_action_ids(board), key=ACTION_UCI[board.turn].__getitem__)
    return action_move(ids[int(rng.integers(len(ids)))], board.turn)


def fen_of(board: chess.Board) -> str:
    """Return `board.fen()` in a third of the time, which is as long as a small search takes; standard chess only."""
    squares = ["1"] * 64
    kinds = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings)
    for color, symbols in ((chess.WHITE, "PNBRQK"), (chess.BLACK, "pnbrqk")):
        for symbol, kind in zip(symbols, kinds, strict=True):
            for square in chess.scan_forward(kind & board.occupied_co[color]):
                squares[square ^ 56] = symbol  # The eighth rank comes first.
    placement = "/".join(["".join(squares[start : start + 8]) for start in range(0, 64, 8)])
    for length in range(8, 1, -1):
        placement = placement.replace("1" * length, str(length))
    castling = board.castling_xfen() if board.castling_rights else "-"
    en_passant = chess.SQUARE_NAMES[board.ep_square] if board.ep_square is not None and board.has_legal_en_passant() else "-"
    return f"{placement} {'w' if board.turn else 'b'} {castling} {en_passant} {board.halfmove_clock} {board.fullmove_number}"


class GameStreams:
    """One stream of random numbers for each game."""

    def __init__(self, root: int) -> None:
        """Begin all streams at their start; which they are follows from `root`."""
        self._root = root
        self._streams: dict[int, np.random.Generator] = {}

    def of(self, game: int) -> np.random.Generator:
        """Return the stream of a game, where its last draw left it."""
        if game not in self._streams:
            self._streams[game] = numpy_stream(self._root, "game", game)
        return self._streams[game]


@torch.no_grad()
def _policy_moves(
    policy: Policy, boards: Sequence[chess.Board], *, temperature: float, pick: Callable[[MoveDistribution, slice], Tensor]
) -> list[chess.Move]:
    """Return the moves whose columns `pick` names, given a forward's distribution and which of the boards it is about."""
    moves: list[chess.Move] = []
    for start in range(0, len(boards), _BOARDS_PER_FORWARD):
        rows = slice(start, start + _BOARDS_PER_FORWARD)
        positions = PositionBatch.from_boards(boards[rows])
        columns = pick(policy.distribution(positions, temperature=temperature), rows).cpu()
        ids = positions.action_ids.gather(1, columns[:, None])[:, 0].tolist()
        moves += [action_move(index, board.turn) for index, board in zip(ids, boards[rows], strict=True)]
    return moves
