"""Chess boards with arrows for the policy's and Stockfish's moves, from a step's `decisions.json`."""

import base64
from collections.abc import Mapping
from typing import Any, Final

import chess
import chess.svg

from steps.cards.page import page_part
from steps.cards.state import CardPart

_POLICY: Final = "#e0761bd0"
_ENGINE: Final = "#2563c9d0"
_BOTH: Final = "#1f9d55d0"
_BEFORE: Final = "#5d6673b0"
_KINDS: Final = ("improved", "worsened", "worst", "best")


def decision_boards(found: Mapping[str, Any], *, whose: str) -> list[CardPart]:
    """Return a policy's decisions as boards seen by the player to move; `found` is from `decisions.json`, and may be empty.

    With an earlier policy's moves beside them, those come first where the two differ most.
    """
    if not found:
        return []
    shown = {kind: [_figure(decision) for decision in found[kind]] for kind in _KINDS}
    is_compared = any(decision["before"] for kind in _KINDS for decision in found[kind])
    return [page_part("boards", whose=whose, num_boards=found["num_boards"], is_compared=is_compared, shown=shown)]


def _figure(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Return a board's picture, whose move is which with its value and the policy's probability, and where to analyse it."""
    board = chess.Board(decision["fen"])
    moves = {which: chess.Move.from_uci(decision[which]["move"]) for which in ("chosen", "best", "before") if decision[which]}
    told = {
        which: f"{board.san(move)} {decision[which]['value']:.3f} ({decision[which]['probability']:.0%})" for which, move in moves.items()
    }
    is_best = decision["regret"] == 0
    second = f", next best {decision['best']['value'] - decision['margin']:.3f}" if is_best else ""
    names = {"policy": "chosen", "Stockfish": "" if is_best else "best", "before GRPO": "before"}
    lines = {whose: told[which] + (second if which == "chosen" else "") for whose, which in names.items() if which in told}
    colours = {moves["best"]: _ENGINE, moves["chosen"]: _BOTH if moves["chosen"] == moves["best"] else _POLICY}
    if "before" in moves:
        colours = {moves["before"]: _BEFORE} | colours
    arrows = [chess.svg.Arrow(move.from_square, move.to_square, color=colour) for move, colour in colours.items()]
    picture = chess.svg.board(board, orientation=board.turn, arrows=arrows, size=320)
    return {
        "fen": decision["fen"],
        "phase": decision["phase"],
        "picture": base64.b64encode(picture.encode()).decode(),
        "lines": list(lines.items()),
        "address": f"https://lichess.org/analysis/{decision['fen'].replace(' ', '_')}?color={chess.COLOR_NAMES[board.turn]}",
    }
