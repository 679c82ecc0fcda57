"""States from self-play: boards of games that the policy plays against itself, each with a value for every legal move.

A round is a set of games, whose boards are the states of the next `grpo.self_play_steps` steps. A ply is one player's move.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import chess
import numpy as np
import torch
from torch import Tensor

from grpo.base.errors import PlainError
from grpo.base.seeding import numpy_stream, torch_stream
from grpo.board.actions import push_random_moves
from grpo.board.encoding import position_key
from grpo.match.matches import End, PlayedGame, play_match
from grpo.match.policy_players import SamplingPlayer
from grpo.policy.distribution import MovePolicy, PositionBatch
from grpo.settings.grpo import GrpoConfig
from grpo.train.states import States, Values, states_of_step, valued_states

TEMPERATURE: Final = 0.25
"""Sampling temperature: low, because evaluation games use the most likely moves; above 0, because fewer games then end by repetition (50 %
at 0, 10 % at 0.7)."""
OPENING_PLIES: Final = 6
"""Maximum random plies of an opening."""
MAX_PLIES: Final = 160
"""A longer game is cut off."""
_MIN_OPENINGS_PER_BATCH: Final = 32  # Openings played at once; each gives two games, with exchanged colors.
_STATES_PER_OPENING: Final = 40  # A low estimate, so one batch usually suffices.
_MIN_BATCHES: Final = 4  # A round may play this many batches, plus one game per wanted state, before SelfPlayError.
_MIN_STRIDE: Final = 3  # Plies between a game's states, because neighbors are nearly equal.
_MAX_STATES_PER_GAME: Final = 32  # Long games have many aimless moves.
_POSITIONS: Final = ("encodings", "action_ids", "is_legal", "repeats")  # Fields of `PositionBatch` that a checkpoint stores.


def restored_round(tensors: Mapping[str, Tensor], prepared: Callable[[PositionBatch], PositionBatch]) -> States:
    """Return the round that `SelfPlay.state` stored. `prepared` computes the features, which are not stored."""
    fields: dict[str, Any] = {name: tensors[name] for name in _POSITIONS}
    return States(positions=prepared(PositionBatch(**fields)), values=tensors["values"], phases=tensors["phases"])


class SelfPlayError(PlainError, RuntimeError):
    """Self-play gave too few states."""


@dataclass(kw_only=True, eq=False)
class SelfPlay:
    values: Values
    config: GrpoConfig
    size: int
    """Self-play states per step."""
    first_step: int
    """Step of round 0; steps count from 0."""
    seed: int
    exclude: Container[str]
    """Keys (`position_key`) of positions that must not be states."""
    num_processes: int
    prepared: Callable[[PositionBatch], PositionBatch]
    """`with_reference` of the KL's frozen policy. After a resume, the trained policy would cache other replies, which changes rounding."""
    say: Callable[[str], None]
    _round: int | None = None
    _states: States | None = None
    _metrics: dict[str, float] = field(default_factory=dict)

    def states(self, step: int, policy: MovePolicy) -> States:
        """Return a step's states. `policy` first plays a round if one is due. Raises SelfPlayError."""
        number, step_of_round = divmod(step - self.first_step, self.config.self_play_steps)
        if step_of_round:
            self._metrics = {}
        if self._states is None or number != self._round:
            self._states = self._play_round(number, policy)
            self._round = number
        order, images = ("own_games", number, "order"), ("own_games", number, "reflection")
        return states_of_step(self._states, step_of_round, self.size, seed=self.seed, order=order, images=images)

    def round_metrics(self) -> dict[str, float]:
        """Return the last round's metrics; {} after `restore`, or once `states` has returned a later step of the round."""
        return dict(self._metrics)

    def state(self) -> dict[str, Tensor]:
        """Return the round, which a resumed run cannot play again: the policy has changed."""
        if self._states is None:
            return {}
        positions = {name: getattr(self._states.positions, name) for name in _POSITIONS}
        return {"round": torch.tensor(self._round), **positions, "values": self._states.values, "phases": self._states.phases}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._metrics = {}
        if tensors:
            self._round = int(tensors["round"])
            self._states = restored_round(tensors, self.prepared)

    def _play_round(self, number: int, policy: MovePolicy) -> States:
        self.say(f"self-play round {number + 1}: games for {self.config.self_play_states:,} states")
        boards, games = self._play_games(number, policy)
        states, indices = valued_states(boards, self.values)
        num_dropped = len(boards) - len(indices)
        if states is None or len(states) < self.size:
            raise SelfPlayError(
                f"self-play, round {number + 1}: the engine failed on {num_dropped} of {len(boards)} positions; fewer remain than the"
                f" {self.size} states that a step uses. Check the engine, or raise grpo.self_play_states"
            )
        ends = [game.end for game in games]
        self._metrics = {
            "self_play/games": float(len(ends)),
            "self_play/dropped": float(num_dropped),
            "self_play/decisive": ends.count(End.CHECKMATE) / len(ends),
            "self_play/repeated": ends.count(End.REPETITION) / len(ends),
        }
        return replace(states, positions=self.prepared(states.positions))

    def _play_games(self, number: int, policy: MovePolicy) -> tuple[list[chess.Board], list[PlayedGame]]:
        config = self.config
        opening_rng = numpy_stream(self.seed, "own_games", number, "openings")
        choice_rng = numpy_stream(self.seed, "own_games", number, "positions")
        player = SamplingPlayer(policy, "policy", temperature=TEMPERATURE, rng=torch_stream(self.seed, "own_games", number, "moves"))
        num_openings = max(_MIN_OPENINGS_PER_BATCH, config.self_play_states // _STATES_PER_OPENING)
        boards: dict[str, chess.Board] = {}
        games: list[PlayedGame] = []
        max_games = _MIN_BATCHES * 2 * num_openings + config.self_play_states
        while len(boards) < config.self_play_states:
            if len(games) >= max_games:
                raise SelfPlayError(
                    f"self-play, round {number + 1}: {len(games)} games gave only {len(boards)} distinct positions with at least two legal"
                    f" moves and not held out, {config.self_play_states} are needed. The policy repeats its games, or they are too short:"
                    " lower grpo.self_play_states"
                )
            openings = random_openings(num_openings, max_plies=OPENING_PLIES, rng=opening_rng)
            numbered = dict(enumerate(openings, len(games) // 2))
            played = play_match(player, player, numbered, max_plies=MAX_PLIES, num_processes=self.num_processes).games
            games += played
            for game in played:
                for board in _boards_at(game, taken_plies(len(game.moves), choice_rng)):
                    if board.legal_moves.count() > 1 and (key := position_key(board)) not in self.exclude:
                        boards.setdefault(key, board)
        # Drop surplus boards at random, not the last games' boards.
        kept = np.sort(choice_rng.permutation(len(boards))[: config.self_play_states])
        distinct_boards = list(boards.values())
        return [distinct_boards[index] for index in kept], games


def state_counts(states_per_step: int, share: float) -> tuple[int, int]:
    """Return a step's numbers of states from the dataset, at least one, and from self-play (the fraction `share`).

    >>> state_counts(256, 0.33)
    (172, 84)
    """
    num_own = min(round(share * states_per_step), states_per_step - 1)
    return states_per_step - num_own, num_own


def random_openings(count: int, *, max_plies: int, rng: np.random.Generator) -> list[str]:
    """Return FENs after 0 to `max_plies` random plies, each with a legal move."""
    openings: list[str] = []
    while len(openings) < count:
        board = chess.Board()
        push_random_moves(board, int(rng.integers(max_plies + 1)), rng)
        if any(board.legal_moves):
            openings.append(board.fen())
    return openings


def taken_plies(num_plies: int, rng: np.random.Generator) -> range:
    """Return a game's plies, from 0, whose positions (before the move) become states.

    Ply 0 is left out, because the policy did not choose the opening.
    """
    # `-(-a // b)` rounds up. `| 1` makes the stride odd, which takes both players' positions.
    stride = max(_MIN_STRIDE, -(-(num_plies - 1) // _MAX_STATES_PER_GAME)) | 1
    return range(1 + int(rng.integers(stride)), num_plies, stride)


def _boards_at(game: PlayedGame, plies: Sequence[int]) -> Iterator[chess.Board]:
    board = chess.Board(game.opening)
    for ply, move in enumerate(game.moves):
        if ply in plies:
            # The stack of moves shows repetitions; positions before the last pawn move or capture cannot recur.
            yield board.copy(stack=board.halfmove_clock)
        board.push(chess.Move.from_uci(move))
