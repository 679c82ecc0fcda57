"""Card parts about a policy's strength.

- Held-out regret: value that a policy's most likely moves lose on boards outside training. Only checkpoints with the lowest regret
  play against the pretrained policy (screening).
- Peak: checkpoint to resume from.
- Ladder: rated opponents ("rungs").
"""

import base64
from typing import Any, Final

import chess
import chess.svg

from grpo.match.ladder import LadderReport
from grpo.match.selection import Selection
from grpo.statistics.intervals import Unit, elo_estimate
from grpo.viewer.decisions import Decisions, NotableDecision
from steps.cards.charts import Interval, interval_parts
from steps.cards.page import CardPart, page_part

# Colors of arrows (RGBA).
_POLICY: Final = "#e0761bd0"
_ENGINE: Final = "#2563c9d0"
_BOTH: Final = "#1f9d55d0"
_BEFORE: Final = "#5d6673b0"


def gain_chart(decision: Selection) -> list[CardPart]:
    note = "Adjudicated: draws by repetition, fifty moves or the ply cap count as wins of the side that Stockfish finds better."
    bars = [Interval(label, gain, "games") for label, gain in decision.gains.items()]
    return interval_parts("Gain in Elo, by opponent", Unit.ELO, bars, zero="no gain", note=note)


def checkpoint_charts(decision: Selection) -> list[CardPart]:
    peak = decision.peak_step
    screened = {entry.candidate: elo_estimate(entry.so_far) for entry in decision.screening}
    played = [Interval(f"step {step:,}", gain, "screening") for step, gain in sorted(screened.items())]
    if (games := decision.confirmation_best_moves) is not None:
        confirmed = elo_estimate(games.score)
        played.append(Interval(f"step {peak:,}, confirmed", confirmed, "confirmation, fresh games", is_ringed=True))
    regrets = [
        Interval(f"step {step:,}", regret, "held-out boards", is_ringed=step == peak)
        for step, regret in sorted(decision.heldout_regret_best.items())
    ]
    note = f"Ring: step {peak:,}, the peak, to resume from. The verdict rests on the confirmation."
    regret_note = "Regret of the most likely moves; lower is better. Regret selects the checkpoints that play; games choose among them."
    return [
        *interval_parts("Checkpoints: Elo against the pretrained policy", Unit.ELO, played, zero="pretrained", note=note),
        *interval_parts("Checkpoints: held-out regret", Unit.REGRET, regrets, note=regret_note),
    ]


def ladder_chart(ladder: LadderReport, decision: Selection) -> list[CardPart]:
    bars = [Interval(rung.name, rung.rating, "rung") for rung in ladder.rungs]
    bars += [Interval(name, place.rating_of_all, "policy, best moves") for name, place in decision.placed.items()]
    bars.sort(key=lambda interval: -interval.estimate.value)
    return interval_parts("Ladder: Elo above a random mover", Unit.ELO, bars, note=ladder.note)


def decision_boards(decisions: Decisions | None, *, whose: str) -> list[CardPart]:
    """Return pictures of notable moves, seen by the player to move. `whose` is the policy's name."""
    if decisions is None:
        return []
    kinds = {"improved": decisions.improved, "worsened": decisions.worsened, "worst": decisions.worst, "best": decisions.best}
    shown = {kind: [_figure(decision) for decision in of_kind] for kind, of_kind in kinds.items()}
    is_compared = any(decision.before for of_kind in kinds.values() for decision in of_kind)
    return [page_part("boards", whose=whose, num_boards=decisions.num_boards, is_compared=is_compared, shown=shown)]


def _figure(decision: NotableDecision) -> dict[str, Any]:
    board = chess.Board(decision.fen)
    valued = {"chosen": decision.chosen, "best": decision.best} | ({"before": decision.before} if decision.before else {})
    moves = {which: chess.Move.from_uci(move.move) for which, move in valued.items()}
    texts = {which: f"{board.san(moves[which])} {move.value:.3f} ({move.probability:.0%})" for which, move in valued.items()}
    is_best = decision.regret == 0
    next_best = f", next best {decision.best.value - decision.margin:.3f}" if is_best else ""
    names = {"policy": "chosen", "Stockfish": "" if is_best else "best", "before GRPO": "before"}
    lines = {label: texts[which] + (next_best if which == "chosen" else "") for label, which in names.items() if which in texts}
    colors = {moves["best"]: _ENGINE, moves["chosen"]: _BOTH if moves["chosen"] == moves["best"] else _POLICY}
    if "before" in moves:
        colors = {moves["before"]: _BEFORE} | colors
    arrows = [chess.svg.Arrow(move.from_square, move.to_square, color=color) for move, color in colors.items()]
    picture = chess.svg.board(board, orientation=board.turn, arrows=arrows, size=320)
    return {
        "fen": decision.fen,
        "phase": decision.phase,
        "picture": base64.b64encode(picture.encode()).decode(),
        "lines": list(lines.items()),
        "address": f"https://lichess.org/analysis/{decision.fen.replace(' ', '_')}?color={chess.COLOR_NAMES[board.turn]}",
    }
