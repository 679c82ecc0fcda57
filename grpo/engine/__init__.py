"""UCI engines over raw pipes: pooled, deadlined, respawned; they raise, and never invent a score."""

from grpo.engine.answers import Answer, EngineError, Score, parse_answer
from grpo.engine.identity import EngineIdentity, EngineMissingError, identify
from grpo.engine.pool import MAX_LINES, PLAYING_HASH_MIB, EnginePool, Query, verify

__all__ = [
    "MAX_LINES",
    "PLAYING_HASH_MIB",
    "Answer",
    "EngineError",
    "EngineIdentity",
    "EngineMissingError",
    "EnginePool",
    "Query",
    "Score",
    "identify",
    "parse_answer",
    "verify",
]
