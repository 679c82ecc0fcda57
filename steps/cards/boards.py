"""Chess boards with arrows for the policy's and Stockfish's moves, from a step's `decisions.json`."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from steps.cards.html import Html, block, heading, paragraph, text

_POLICY: Final = "#e0761bd0"
_ENGINE: Final = "#2563c9d0"
_BOTH: Final = "#1f9d55d0"
_BEFORE: Final = "#5d6673b0"
_PIXELS: Final = 320


def decision_boards(found: Mapping[str, Any], *, whose: str) -> Html:
    """Return a policy's decisions as boards seen by the player to move; `found` is from `decisions.json`.

    With an earlier policy's moves beside them, those come first where the two differ most.
    """
    kinds = {
        "Moves that GRPO improved most": (found["improved"], "GRPO improved no move."),
        "Moves that GRPO made worse": (found["worsened"], "GRPO made no move worse."),
        "Biggest mistakes": (found["worst"], "No move has regret."),
        "Best decisions (only one good move)": (found["best"], "No best move was found where only one is good."),
    }
    is_compared = any(decision["before"] for decisions, _ in kinds.values() for decision in decisions)
    if not is_compared:
        kinds = {title: kinds[title] for title in list(kinds)[2:]}
    legend = (
        f"{found['num_boards']:,} held-out positions, evaluated by a deeper search. Orange: policy's move; blue: Stockfish's; green: both"
        f" agree{'; grey: the move before GRPO' if is_compared else ''}. Beside each move its value for the player to move (0 to 1) and the"
        " policy's probability at T = 1. Boards are turned to the player to move."
    )
    titled = (markup for title, (decisions, none) in kinds.items() for markup in (heading(title, 3), _boards(decisions, none)))
    return block(heading(f"Boards: decisions of {whose}"), paragraph(legend, "soft"), *titled)


def _boards(decisions: Sequence[Mapping[str, Any]], none: str) -> str:
    return f'<div class="boards">{"".join(map(_figure, decisions))}</div>' if decisions else paragraph(none)


def _figure(decision: Mapping[str, Any]) -> str:
    lines = decision_lines(decision)
    words = "; ".join(f"{label} {number}" for label, number in lines)
    picture = base64.b64encode(board_svg(decision).encode()).decode()
    rows = "".join(f"<dt>{text(label)}</dt><dd>{text(number)}</dd>" for label, number in lines)
    return (
        f'<figure><img alt="{text(decision["fen"])}: {text(words)}" src="data:image/svg+xml;base64,{picture}">'
        f'<figcaption><dl>{rows}</dl><a href="{text(analysis_address(decision["fen"]))}" target="_blank" rel="noreferrer">'
        f"Analyse on Lichess</a> ({text(decision['phase'])})</figcaption></figure>"
    )


def analysis_address(fen: str) -> str:
    """Return the address of a position on Lichess's analysis board, seen by the player to move."""
    placement, turn, *rest = fen.split()
    return f"https://lichess.org/analysis/{'_'.join((placement, turn, *rest))}?color={'white' if turn == 'w' else 'black'}"


def decision_lines(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return whose move, and the move with its value and the policy's probability: the policy's, Stockfish's and the earlier policy's."""
    import chess

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
    import chess.svg

    board = chess.Board(decision["fen"])
    chosen, best, before = (decision[which] and chess.Move.from_uci(decision[which]["move"]) for which in ("chosen", "best", "before"))
    arrows = [_arrow(chosen, _BOTH)] if chosen == best else [_arrow(best, _ENGINE), _arrow(chosen, _POLICY)]
    if before not in (None, chosen, best):
        arrows.insert(0, _arrow(before, _BEFORE))
    return chess.svg.board(board, orientation=board.turn, arrows=arrows, size=_PIXELS)


def _arrow(move: Any, colour: str) -> Any:
    import chess.svg

    return chess.svg.Arrow(move.from_square, move.to_square, color=colour)
