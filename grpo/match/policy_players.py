"""Policies as players of a match."""

from collections.abc import Callable, Sequence

import chess
import torch
from torch import Tensor

from grpo.board.actions import action_move
from grpo.match.players import NUM_ROOTS, GameStreams
from grpo.policy.distribution import MoveDistribution, MovePolicy, PositionBatch

_BOARDS_PER_FORWARD = 1_024


class BestMovePlayer:
    def __init__(self, policy: MovePolicy, name: str) -> None:
        self.name = name
        self._policy = policy

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:  # noqa: ARG002
        return _policy_moves(self._policy, boards, temperature=1.0, pick=lambda distribution, _: distribution.best())


class SamplingPlayer:
    """All games' random streams are seeded with one number, which `rng` draws."""

    def __init__(self, policy: MovePolicy, name: str, *, temperature: float, rng: torch.Generator) -> None:
        self.name = name
        self._policy = policy
        self._temperature = temperature
        self._streams = GameStreams(int(torch.randint(NUM_ROOTS, (), generator=rng)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:
        uniforms = torch.tensor([self._streams.of(game).random() for game in games], dtype=torch.float64)

        def pick(distribution: MoveDistribution, rows: slice) -> Tensor:
            return distribution.sample_at(uniforms[rows, None])[:, 0]

        return _policy_moves(self._policy, boards, temperature=self._temperature, pick=pick)


@torch.no_grad()
def _policy_moves(
    policy: MovePolicy, boards: Sequence[chess.Board], *, temperature: float, pick: Callable[[MoveDistribution, slice], Tensor]
) -> list[chess.Move]:
    """`pick` gets the distribution of one forward pass and the slice of `boards` that it covers.

    `pick` returns the chosen moves' columns in `PositionBatch.action_ids`, one per board.
    """
    moves: list[chess.Move] = []
    for start in range(0, len(boards), _BOARDS_PER_FORWARD):
        rows = slice(start, start + _BOARDS_PER_FORWARD)
        positions = PositionBatch.from_boards(boards[rows])
        columns = pick(policy.distribution(positions, temperature=temperature), rows).cpu()
        ids = positions.action_ids.gather(1, columns[:, None])[:, 0].tolist()
        moves += [action_move(index, board.turn) for index, board in zip(ids, boards[rows], strict=True)]
    return moves
