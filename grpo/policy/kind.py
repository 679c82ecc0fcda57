"""Functions of the policy kind `network`; `grpo.settings.kinds.Kind` describes them."""

from collections.abc import Callable
from pathlib import Path

import chess
import torch

from grpo.board.actions import action_move
from grpo.policy.distribution import PositionBatch
from grpo.policy.files import IncompatibleError
from grpo.policy.networks import is_network
from grpo.policy.policy import NetworkPolicy, new_policy
from grpo.settings.tree import Settings


def check(settings: Settings) -> str:
    """Try the network on a position. Raises IncompatibleError for a missing network."""
    name = settings.policy.network
    if not is_network(name):
        raise IncompatibleError(f"policy.network = {name!r}: put it into grpo/policy/networks/{name}.py")
    policy = new_policy(settings.policy, seed=0, device=torch.device("cpu"))
    with torch.no_grad():
        policy.distribution(PositionBatch.from_boards([chess.Board()]), temperature=1.0)
    return f"policy.network = {name!r}"


def start_hashes(settings: Settings) -> dict[str, str]:  # noqa: ARG001
    """Empty, because the settings determine a new network's weights."""
    return {}


def load_ranker(folder: Path, device: torch.device) -> Callable[[chess.Board], tuple[list[str], list[float]]]:
    """Return a function: board -> legal moves in UCI, likeliest first, and their probabilities at temperature 1."""
    policy = NetworkPolicy.load(folder, device)

    @torch.no_grad()
    def ranked(board: chess.Board) -> tuple[list[str], list[float]]:
        positions = PositionBatch.from_boards([board])
        probabilities = policy.distribution(positions, temperature=1.0).probs[0].tolist()
        moves = [action_move(index, board.turn).uci() for index in positions.action_ids[0].tolist()]
        pairs = sorted(zip(moves, probabilities, strict=True), key=lambda pair: -pair[1])
        return [move for move, _ in pairs], [probability for _, probability in pairs]

    return ranked
