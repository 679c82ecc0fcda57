"""Quality of moves by Lichess's formulas (https://lichess.org/page/accuracy).

Sources: `WinPercent` (lichess-org/scalachess, eval.scala); `AccuracyPercent`, `AccuracyCP` and `Advice` (lichess-org/lila). Lichess
compares scores before and after a game's move; here, the move is compared with the board's best move.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from grpo.engine.move_values import LICHESS_SLOPE, centipawns_of
from grpo.metrics.shared import MOVE_QUALITY

_LIMIT: Final = 1_000.0  # Cuts scores (1/100 pawn), also of mates. Lichess judges moves that lose or allow a mate more strictly.
_BLUNDER: Final = 0.3  # A blunder drops the winning chances (from -1 to 1) by at least this.


def move_quality(best: NDArray[np.float64], played: NDArray[np.float64]) -> dict[str, float]:
    """Return the means of `MOVE_QUALITY`: centipawns lost, accuracy in percent, fraction of blunders.

    `best`, `played`: values (`value_of`) of N boards' best and played moves, [N] each.
    """
    before, after = (centipawns_of(values, limit=_LIMIT) for values in (best, played))
    drop = np.tanh(LICHESS_SLOPE * before / 2) - np.tanh(LICHESS_SLOPE * after / 2)
    # 50 makes percent of win probability; 1 is lila's bonus.
    accuracy = np.clip(103.1668100711649 * np.exp(-0.04354415386753951 * 50 * drop) - 3.166924740191411 + 1, 0, 100)
    columns = (before - after, accuracy, drop >= _BLUNDER)
    return {name: float(column.mean()) for name, column in zip(MOVE_QUALITY, columns, strict=True)}
