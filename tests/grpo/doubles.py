"""Stand-ins for tests of learning and playing: boards with made-up values, policies whose numbers are written down, scripted opponents."""

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import chess
import numpy as np
import torch
from torch import Tensor

from grpo.board.actions import action_move, legal_action_ids
from grpo.board.encoding import decode, encode, position_key
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BoardArrays
from grpo.engine.answers import EngineError
from grpo.engine.move_values import ValueTable
from grpo.policy.distribution import MoveDistribution, PositionBatch
from grpo.policy.networks.afterstates import Scorer
from grpo.policy.policy import NetworkPolicy, new_policy
from grpo.settings.grpo import FieldNotesRecovery, GrpoConfig
from grpo.settings.tree import PolicyConfig
from grpo.train.network_problem import NetworkProblem
from grpo.train.objective import Batch, group_advantages
from grpo.train.states import DatasetStates, States, Values
from grpo.train.trainer import Trainer

TINY: Final = PolicyConfig(width=16, hidden_width=8)
FIELD_NOTES: Final = FieldNotesRecovery(
    entropy_floor=1.5,
    entropy_critical=0.5,
    steps_threshold=100,
    max_entropy_coefficient=1.5,
)
"""The recovery controller of the field notes, with their numbers."""
CPU: Final = torch.device("cpu")

NetworkTrainer = Trainer[NetworkPolicy, States, Batch[States], States]
BoardMove = Callable[[chess.Board, chess.Move], float]
_EPDS: Final[dict[Hashable, tuple[str, str]]] = {}


def made_up_number(board: chess.Board, move: chess.Move) -> float:
    """Return a number in [0, 1) that depends on position and move alone, and is that of their left-right mirror image."""
    # Writing the position anew for each of its moves takes most of the time of a step of a tiny network.
    key = board._transposition_key()
    if key not in _EPDS:
        _EPDS[key] = board.epd(), board.transform(chess.flip_horizontal).epd()
    own, image = _EPDS[key]
    mirrored = chess.Move(move.from_square ^ 7, move.to_square ^ 7, promotion=move.promotion)
    digest = hashlib.sha256(min(f"{own} {move.uci()}", f"{image} {mirrored.uci()}").encode()).digest()
    return int.from_bytes(digest[:3], "big") / 2**24


def some_boards(count: int, *, seed: int = 0, max_plies: int = 120) -> list[chess.Board]:
    """Return distinct positions of random play, each with at least two legal moves, Black to move in about half."""
    rng = np.random.default_rng(seed)
    boards: dict[str, chess.Board] = {}
    while len(boards) < count:
        board = chess.Board()
        for _ in range(int(rng.integers(4, max_plies))):
            legal = list(board.legal_moves)
            if not legal:
                break
            board.push(legal[int(rng.integers(len(legal)))])
        if board.legal_moves.count() >= 2:
            boards[board.epd()] = board.copy(stack=False)
    return list(boards.values())


def legal_moves(board: chess.Board) -> list[chess.Move]:
    return [action_move(index, board.turn) for index in legal_action_ids(board)]


def fake_arrays(boards: Sequence[chess.Board], value: BoardMove = made_up_number, played: Sequence[str] | None = None) -> BoardArrays:
    """Return the boards with these values; the move played is the first of the table where no UCI is given."""
    batch = PositionBatch.from_boards(boards)
    values = np.zeros(tuple(batch.is_legal.shape), dtype=np.float32)
    columns = np.zeros(len(boards), dtype=np.int64)
    for index, board in enumerate(boards):
        moves = legal_moves(board)
        values[index, : len(moves)] = [value(board, move) for move in moves]
        if played is not None:
            columns[index] = [move.uci() for move in moves].index(played[index])
    return BoardArrays(
        encodings=encode(boards),
        action_ids=batch.action_ids.numpy(),
        is_legal=batch.is_legal.numpy(),
        values=values,
        played=columns,
        phases=np.array([PHASES.index(phase_of(board)) for board in boards], dtype=np.int64),
    )


def boards_of(states: States) -> list[chess.Board]:
    return [decode(row) for row in states.positions.encodings.numpy()]


def name_of(board: chess.Board) -> str:
    """Return a name that a position and its mirror images share."""
    return min(position_key(board), position_key(board.transform(chess.flip_horizontal)))


def names_of(states: States) -> list[str]:
    return [name_of(board) for board in boards_of(states)]


def check_states(states: States) -> None:
    for row, board in enumerate(boards_of(states)):
        moves = [action_move(index, board.turn) for index in states.positions.action_ids[row, states.positions.is_legal[row]].tolist()]
        assert sorted(map(str, moves)) == sorted(map(str, board.legal_moves))
        assert np.allclose(states.values[row, : len(moves)], [made_up_number(board, move) for move in moves], atol=1e-6)
        assert not states.values[row, len(moves) :].any()
        assert PHASES[int(states.phases[row])] is phase_of(board)


class WrittenPolicy:
    """A policy whose logit of each move is given by a function of the board and the move, as they stand on the real board."""

    def __init__(self, logit: BoardMove) -> None:
        self._logit = logit
        self._rows: dict[bytes, list[float]] = {}

    def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
        logits: Tensor = torch.zeros(positions.is_legal.shape, dtype=torch.float64)
        for row, encoding in enumerate(positions.encodings.numpy()):
            key = encoding.tobytes()
            if key not in self._rows:
                board = decode(encoding)
                self._rows[key] = [self._logit(board, move) for move in legal_moves(board)]
            logits[row, : len(self._rows[key])] = torch.tensor(self._rows[key])
        return MoveDistribution.from_logits(logits.float(), positions.is_legal, temperature=temperature)


def written_probabilities(table: Mapping[str, Mapping[str, float]]) -> WrittenPolicy:
    """Return the policy with these probabilities: placement of the pieces -> UCI -> probability; a move left out is impossible."""
    return WrittenPolicy(lambda board, move: float(np.log(table[board.board_fen()].get(move.uci(), 0.0) or 1e-30)))


class MadeUpValues:
    """Values of all boards by a function; those of boards on which it fails are errors, as when an engine died."""

    def __init__(self, value: BoardMove = made_up_number, fails_on: Callable[[chess.Board], bool] = lambda _: False) -> None:
        self._value, self._fails_on = value, fails_on
        self.asked: list[chess.Board] = []
        """All boards that values were asked of."""

    def __call__(self, boards: Sequence[chess.Board]) -> list[ValueTable | EngineError]:
        self.asked += [board.copy() for board in boards]
        return [EngineError("made up") if self._fails_on(board) else self._table(board) for board in boards]

    def _table(self, board: chess.Board) -> ValueTable:
        moves = legal_moves(board)
        values = np.array([self._value(board, move) for move in moves], dtype=np.float32)
        return ValueTable(moves=tuple(move.uci() for move in moves), values=values, scores=())


def sampled_moves(old: MoveDistribution, columns_BG: Tensor, values_BA: Tensor, temperature: float = 1.0) -> Batch[None]:
    rewards = values_BA.gather(1, columns_BG)
    return Batch(
        states=None,
        state_weights=torch.ones(len(rewards)),
        columns=columns_BG,
        weights=torch.full_like(rewards, 1 / columns_BG.shape[1]),
        old_log_probs=old.log_prob(columns_BG),
        rewards=rewards,
        advantages=group_advantages(rewards),
        temperature=temperature,
        old=old,
    )


def sharpened(policy: NetworkPolicy, factor: float) -> NetworkPolicy:
    with torch.no_grad():
        for scorer in (module for module in policy.network.modules() if isinstance(module, Scorer)):
            for parameter in (*scorer.score.parameters(), *scorer.short_cut.parameters()):
                parameter.mul_(factor)
    return policy


def saved_policy(folder: Path, seed: int) -> Path:
    """Save a tiny fresh policy, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    new_policy(TINY, seed=seed, device=CPU).save(folder)
    return folder


def lively_policy(seed: int = 1) -> NetworkPolicy:
    """Return a policy whose every layer counts, unlike a fresh one's, with an entropy of about 1.7."""
    policy = new_policy(TINY, seed=seed, device=CPU)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=rng))
    return sharpened(policy, 3)


def trainer_of(
    config: GrpoConfig,
    arrays: BoardArrays,
    *,
    policy: NetworkPolicy | None = None,
    reference: NetworkPolicy | None = None,
    dataset: DatasetStates | None = None,
    seed: int = 0,
    first_step: int = 0,
    values: Values | None = None,
    **changes: Any,
) -> NetworkTrainer:
    """Return a trainer on these boards; policy and reference are lively and equal if they are not given, further values made up."""
    config = GrpoConfig(**{**config.model_dump(), **changes})
    dataset = dataset or DatasetStates(arrays, states_per_step=config.states_per_step, seed=seed)
    problem = NetworkProblem(reference or lively_policy(), dataset, config, seed=seed, values=values or MadeUpValues())
    return Trainer(problem, policy or lively_policy(), config, seed=seed, first_step=first_step)


def largest_difference(one: NetworkPolicy, other: NetworkPolicy) -> float:
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    return max((a.detach().double() - b.detach().double()).abs().max().item() for a, b in pairs)
