"""Chess boards with arrows for the policy's and Stockfish's moves, from a step's `decisions.json`."""

import base64
from collections.abc import Mapping
from typing import Any, Final

import chess
import chess.svg

from steps.cards.page import CardPart, page_part

_POLICY: Final = "#e0761bd0"
_ENGINE: Final = "#2563c9d0"
_BOTH: Final = "#1f9d55d0"
_BEFORE: Final = "#5d6673b0"
_PIXELS: Final = 320


def decision_boards(found: Mapping[str, Any], *, whose: str) -> list[CardPart]:
    """Return a policy's decisions as boards seen by the player to move; `found` is from `decisions.json`, and may be empty.

    With an earlier policy's moves beside them, those come first where the two differ most.
    """
    if not found:
        return []
    kinds = {
        "Moves that GRPO improved most": (found["improved"], "GRPO improved no move."),
        "Moves that GRPO made worse": (found["worsened"], "GRPO made no move worse."),
        "Biggest mistakes": (found["worst"], "No move has regret."),
        "Best decisions (only one good move)": (found["best"], "No best move was found where only one is good."),
    }
    is_compared = any(decision["before"] for decisions, _ in kinds.values() for decision in decisions)
    shown = [
        (title, [_figure(decision) for decision in decisions], none)
        for title, (decisions, none) in list(kinds.items())[0 if is_compared else 2 :]
    ]
    return [page_part("boards", whose=whose, num_boards=found["num_boards"], is_compared=is_compared, kinds=shown)]


def _figure(decision: Mapping[str, Any]) -> dict[str, Any]:
    picture = base64.b64encode(board_svg(decision).encode()).decode()
    facts = {"fen": decision["fen"], "phase": decision["phase"], "picture": picture}
    return {**facts, "lines": decision_lines(decision), "address": analysis_address(decision["fen"])}


def analysis_address(fen: str) -> str:
    """Return the address of a position on Lichess's analysis board, seen by the player to move."""
    placement, turn, *rest = fen.split()
    return f"https://lichess.org/analysis/{'_'.join((placement, turn, *rest))}?color={'white' if turn == 'w' else 'black'}"


def decision_lines(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return whose move, and the move with its value and the policy's probability: the policy's, Stockfish's and the earlier policy's."""
    board = chess.Board(decision["fen"])

    def told(move: Mapping[str, Any]) -> str:
        return f"{board.san(chess.Move.from_uci(move['move']))} {move['value']:.3f} ({move['probability']:.0%})"

    chosen, best, before = decision["chosen"], decision["best"], decision["before"]
    second = f"next best {decision['best']['value'] - decision['margin']:.3f}"
    lines = [("policy", f"{told(chosen)}, {second}" if decision["regret"] == 0 else told(chosen))]
    if decision["regret"] > 0:
        lines.append(("Stockfish", told(best)))
    if before is not None:
        lines.append(("before GRPO", told(before)))
    return lines


def board_svg(decision: Mapping[str, Any]) -> str:
    """Return the board as SVG, seen by the player to move."""
    board = chess.Board(decision["fen"])
    chosen, best, before = (decision[which] and chess.Move.from_uci(decision[which]["move"]) for which in ("chosen", "best", "before"))
    arrows = [_arrow(chosen, _BOTH)] if chosen == best else [_arrow(best, _ENGINE), _arrow(chosen, _POLICY)]
    if before not in (None, chosen, best):
        arrows.insert(0, _arrow(before, _BEFORE))
    return chess.svg.board(board, orientation=board.turn, arrows=arrows, size=_PIXELS)


def _arrow(move: chess.Move, colour: str) -> chess.svg.Arrow:
    return chess.svg.Arrow(move.from_square, move.to_square, color=colour)
