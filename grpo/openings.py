"""Start positions of matches: random legal plies, kept when a search finds them even enough; all distinct."""

import chess
import numpy as np

from grpo.config import EvaluationConfig
from grpo.encoding import position_key
from grpo.engine import EngineError, EnginePool, Query

_CANDIDATES_PER_ROUND = 128
_MAX_ROUNDS = 1_000
_LIMIT = "depth 6"


def make_openings(config: EvaluationConfig, *, count: int, rng: np.random.Generator, pool: EnginePool, exclude: set[str]) -> list[str]:
    """Return the FENs of `count` distinct openings, and add their keys to `exclude`, whose positions are not used.

    A deterministic pair of players plays one game from one opening, so that the number of distinct openings is the sample size.

    Raises EngineError when the openings cannot be found.
    """
    openings: list[str] = []
    for _ in range(_MAX_ROUNDS):
        candidates = []
        for _ in range(_CANDIDATES_PER_ROUND):
            board = _random_board(config.opening_plies, rng)
            if board is not None and position_key(board) not in exclude:
                exclude.add(position_key(board))
                candidates.append(board)
        answers = pool.search([Query(fen=board.fen(), limit=_LIMIT, board=board) for board in candidates])
        for board, answer in zip(candidates, answers, strict=True):
            if isinstance(answer, EngineError):
                continue
            score = next(iter(answer.scores.values()))
            if not score.is_mate and abs(score.value) <= config.max_opening_centipawns:
                openings.append(board.fen())
                if len(openings) == count:
                    return openings
    raise EngineError(
        f"found only {len(openings)} of {count} openings of {config.opening_plies} plies within"
        f" {config.max_opening_centipawns} centipawns; raise evaluation.opening_plies or evaluation.max_opening_centipawns"
    )


def _random_board(num_plies: int, rng: np.random.Generator) -> chess.Board | None:
    board = chess.Board()
    for _ in range(num_plies):
        legal = sorted(board.legal_moves, key=chess.Move.uci)
        if not legal:
            return None
        board.push(legal[int(rng.integers(len(legal)))])
    return board if any(board.legal_moves) else None
