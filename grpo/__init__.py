"""The learning library: boards, move values, policy, objective, games. Names load their modules when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from grpo.engine.move_values import value_tables
    from grpo.engine.pool import EnginePool
    from grpo.match.matches import play_match
    from grpo.match.policy_players import BestMovePlayer
    from grpo.policy.distribution import MoveDistribution, PositionBatch
    from grpo.policy.policy import NetworkPolicy, new_policy
    from grpo.settings.tree import read_settings
    from grpo.train.imitation import imitate
    from grpo.train.network_problem import NetworkProblem
    from grpo.train.states import DatasetStates
    from grpo.train.trainer import Trainer

__all__ = [
    "BestMovePlayer",
    "DatasetStates",
    "EnginePool",
    "MoveDistribution",
    "NetworkPolicy",
    "NetworkProblem",
    "PositionBatch",
    "Trainer",
    "imitate",
    "new_policy",
    "play_match",
    "read_settings",
    "value_tables",
]
_MODULES: Final = {
    "BestMovePlayer": "grpo.match.policy_players",
    "DatasetStates": "grpo.train.states",
    "EnginePool": "grpo.engine.pool",
    "MoveDistribution": "grpo.policy.distribution",
    "NetworkPolicy": "grpo.policy.policy",
    "PositionBatch": "grpo.policy.distribution",
    "NetworkProblem": "grpo.train.network_problem",
    "Trainer": "grpo.train.trainer",
    "imitate": "grpo.train.imitation",
    "new_policy": "grpo.policy.policy",
    "play_match": "grpo.match.matches",
    "read_settings": "grpo.settings.tree",
    "value_tables": "grpo.engine.move_values",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
