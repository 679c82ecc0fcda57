"""States from self-play, in rounds that follow the policy as it changes."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from grpo.match.players import SamplingPlayer
from grpo.policy.distribution import MovePolicy, PositionBatch
from grpo.settings.grpo import GrpoConfig
from grpo.train.states import States, Values, of_step, valued_states

TEMPERATURE: Final = 0.25
"""Sampling temperature of both players. Far below 1, so that the games resemble evaluation games with best moves: at 0.7, a tenth of the
games end by repetition, with best moves half."""
OPENING_PLIES: Final = 6
"""Each game starts with up to this many random legal plies from the initial position."""
MAX_PLIES: Final = 160
"""Longer games are cut there."""
_MIN_OPENINGS_PER_BATCH: Final = 32  # Two games each, the colors changed, and all in lock-step.
_STATES_PER_OPENING: Final = 40  # Somewhat less than two games give, so that one batch is enough: a move costs less in a large one.
_MIN_BATCHES: Final = 4  # That many, and one game a state on top, before a round is given up.
_MIN_STRIDE: Final = 3  # Neighboring plies are nearly the same position; odd, so that a game gives both sides' positions.
_MAX_STATES_PER_GAME: Final = 32  # A long game is thinned out: its shuffling would outnumber the short ones' decisions.


_POSITIONS: Final = ("encodings", "action_ids", "is_legal", "repeats")


class SelfPlayError(PlainError, RuntimeError):
    """Self-play did not give enough states."""


@dataclass(kw_only=True, eq=False)
class SelfPlay:
    """Positions from the policy's games against itself, valued once a round."""

    values: Values
    """Of the states."""
    config: GrpoConfig
    size: int
    """States of a step."""
    first_step: int
    """Where rounds are counted from."""
    seed: int
    """Root of the random streams."""
    exclude: Container[str]
    """Keys of positions that are never states."""
    num_processes: int
    """Processes that share the games."""
    say: Callable[[str], None]
    """Is told when a round begins, which takes longer than many steps."""
    _round: int | None = None
    _states: States | None = None
    _metrics: dict[str, float] = field(default_factory=dict)

    def states(self, step: int, policy: MovePolicy) -> States:
        """Return the states of a step; if its round's are not at hand, the policy plays the round as it is now.

        Raises SelfPlayError when games or engine give too few states.
        """
        number, step_of_round = divmod(step - self.first_step, self.config.self_play_steps)
        if step_of_round:
            self._metrics = {}
        if self._states is None or number != self._round:
            self._states = self._play_round(number, policy)
            self._round = number
        order, images = ("own_games", number, "order"), ("own_games", number, "reflection")
        return of_step(self._states, step_of_round, self.size, seed=self.seed, order=order, images=images)

    def round_metrics(self) -> dict[str, float]:
        """Return the metrics of the round that was played for the step last asked for; nothing while its states are used."""
        return dict(self._metrics)

    def state(self) -> dict[str, Tensor]:
        """Return the round: its number, and its states, for the policy that played them will be gone; nothing before the first."""
        if self._states is None:
            return {}
        positions = {name: getattr(self._states.positions, name) for name in _POSITIONS}
        return {"round": torch.tensor(self._round), **positions, "values": self._states.values, "phases": self._states.phases}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._metrics = {}
        if tensors:
            self._round = int(tensors["round"])
            fields: dict[str, Any] = {name: tensors[name] for name in _POSITIONS}
            positions = PositionBatch(**fields).with_features()
            self._states = States(positions=positions, values=tensors["values"], phases=tensors["phases"])

    def _play_round(self, number: int, policy: MovePolicy) -> States:
        self.say(f"self-play round {number + 1}: games for {self.config.self_play_states:,} states")
        boards, games = self._play_games(number, policy)
        states, kept = valued_states(boards, self.values)
        num_dropped = len(boards) - len(kept)
        if states is None or len(states) < self.size:
            raise SelfPlayError(
                f"self-play, round {number}: the engine failed on {num_dropped} of {len(boards)} positions, and what is left is fewer"
                f" than the {self.size} states of a step. Look at the engine (engine.path), or raise self_play_states"
            )
        ends = [game.end for game in games]
        self._metrics = {
            "self_play/games": float(len(ends)),
            "self_play/dropped": float(num_dropped),
            "self_play/decisive": ends.count(End.CHECKMATE) / len(ends),
            "self_play/repeated": ends.count(End.REPETITION) / len(ends),
        }
        return states

    def _play_games(self, number: int, policy: MovePolicy) -> tuple[list[chess.Board], list[PlayedGame]]:
        """Return a round's boards and the games that gave them."""
        config = self.config
        opening_rng = numpy_stream(self.seed, "own_games", number, "openings")
        choice_rng = numpy_stream(self.seed, "own_games", number, "positions")
        player = SamplingPlayer(policy, "policy", temperature=TEMPERATURE, rng=torch_stream(self.seed, "own_games", number, "moves"))
        num_openings = max(_MIN_OPENINGS_PER_BATCH, config.self_play_states // _STATES_PER_OPENING)
        found: dict[str, chess.Board] = {}
        games: list[PlayedGame] = []
        max_games = _MIN_BATCHES * 2 * num_openings + config.self_play_states
        while len(found) < config.self_play_states:
            if len(games) >= max_games:
                raise SelfPlayError(
                    f"self-play, round {number}: {len(games)} games gave only {len(found)} distinct positions with a choice of moves, and"
                    f" {config.self_play_states} are asked for. The policy plays the same over and over, or its games are too short: lower"
                    " self_play_states"
                )
            openings = random_openings(num_openings, max_plies=OPENING_PLIES, rng=opening_rng)
            numbered = dict(enumerate(openings, len(games) // 2))
            played = play_match(player, player, numbered, max_plies=MAX_PLIES, num_processes=self.num_processes).games
            games += played
            for game in played:
                for board in _boards_at(game, taken_plies(len(game.moves), choice_rng)):
                    if board.legal_moves.count() > 1 and (key := position_key(board)) not in self.exclude:
                        found.setdefault(key, board)
        boards = list(found.values())
        # The last batch gives too many: left out are some of all games, and not all of the last ones.
        kept = np.sort(choice_rng.permutation(len(boards))[: config.self_play_states])
        return [boards[index] for index in kept], games


def state_counts(states_per_step: int, share: float) -> tuple[int, int]:
    """Return how many states of a step are of the dataset and how many of self-play; at least one is of the dataset.

    >>> state_counts(256, 0.33)
    (172, 84)
    """
    num_own = min(round(share * states_per_step), states_per_step - 1)
    return states_per_step - num_own, num_own


def random_openings(count: int, *, max_plies: int, rng: np.random.Generator) -> list[str]:
    """Return the FENs of positions with a legal move after 0 to `max_plies` random plies; some can be equal."""
    openings: list[str] = []
    while len(openings) < count:
        board = chess.Board()
        push_random_moves(board, int(rng.integers(max_plies + 1)), rng)
        if any(board.legal_moves):
            openings.append(board.fen())
    return openings


def taken_plies(num_plies: int, rng: np.random.Generator) -> range:
    """Return the plies of a game before which its position is taken: spread evenly, from a random offset.

    Ply 0 never is: its position is chance's, not the policy's.
    """
    stride = max(_MIN_STRIDE, -(-(num_plies - 1) // _MAX_STATES_PER_GAME)) | 1
    return range(1 + int(rng.integers(stride)), num_plies, stride)


def _boards_at(game: PlayedGame, plies: Sequence[int]) -> Iterator[chess.Board]:
    board = chess.Board(game.opening)
    for ply, move in enumerate(game.moves):
        if ply in plies:
            yield board.copy(stack=board.halfmove_clock)  # No move repeats what lies before a capture or a pawn's move.
        board.push(chess.Move.from_uci(move))
