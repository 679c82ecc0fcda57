"""Chess boards with arrows for the policy's and Stockfish's moves, from a step's `decisions.json`."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from steps.cards.html import Html, block, heading, paragraph, text

_POLICY: Final = "#e0761bd0"
_ENGINE: Final = "#2563c9d0"
_BOTH: Final = "#1f9d55d0"
_PIXELS: Final = 320


def decision_boards(found: Mapping[str, Any], *, whose: str) -> Html:
    """Return a policy's worst and best decisions as boards seen by the player to move; `found` is from `decisions.json`."""
    words = (
        f"Held-out boards, {found['num_boards']:,} in all; the likeliest move at T = 1, values by the stronger search. Arrows: orange for"
        " the policy's move, blue for Stockfish's, green where both are the same."
    )
    worst, best = found["worst"], found["best"]
    return block(
        heading(f"Worst and best decisions of {whose}"),
        paragraph(words, "soft"),
        heading("Largest regret", 3),
        _boards(worst, "No decision has regret."),
        heading("Best move played, where the second best costs most", 3),
        _boards(best, "On no board was a single best move played."),
    )


def _boards(decisions: Sequence[Mapping[str, Any]], none: str) -> str:
    return f'<div class="boards">{"".join(map(_figure, decisions))}</div>' if decisions else paragraph(none)


def _figure(decision: Mapping[str, Any]) -> str:
    words = decision_words(decision)
    picture = base64.b64encode(board_svg(decision).encode()).decode()
    return (
        f'<figure><img alt="{text(decision["fen"])}: {text(words)}" src="data:image/svg+xml;base64,{picture}">'
        f"<figcaption>{text(words)}<br><code>{text(decision['fen'])}</code></figcaption></figure>"
    )


def decision_words(decision: Mapping[str, Any]) -> str:
    """Return a sentence about a decision: moves, probabilities and values."""
    import chess

    board = chess.Board(decision["fen"])

    def move(evaluated: Mapping[str, Any]) -> str:
        return board.san(chess.Move.from_uci(evaluated["move"]))

    chosen, best, before = decision["chosen"], decision["best"], decision["before"]
    side = "White" if board.turn else "Black"
    if decision["regret"] > 0:
        sentence = (
            f"{side} plays {move(chosen)} ({chosen['probability']:.0%}), value {chosen['value']:.3f}; Stockfish's {move(best)}"
            f" ({best['probability']:.0%} in the policy) has value {best['value']:.3f}: regret {decision['regret']:.3f}"
        )
    else:
        sentence = (
            f"{side} plays {move(chosen)} ({chosen['probability']:.0%}), value {chosen['value']:.3f}, like Stockfish; the second best"
            f" move is {decision['margin']:.3f} worse"
        )
    if before is not None:
        same = before["move"] == chosen["move"]
        sentence += f"; pretrained: {'the same' if same else move(before)} ({before['probability']:.0%}), value {before['value']:.3f}"
    return f"{decision['phase'].capitalize()}. {sentence}."


def board_svg(decision: Mapping[str, Any]) -> str:
    """Return the board as SVG, seen by the player to move."""
    import chess.svg

    board = chess.Board(decision["fen"])
    chosen, best = (chess.Move.from_uci(decision[which]["move"]) for which in ("chosen", "best"))
    arrows = [_arrow(chosen, _BOTH)] if chosen == best else [_arrow(best, _ENGINE), _arrow(chosen, _POLICY)]
    return chess.svg.board(board, orientation=board.turn, arrows=arrows, size=_PIXELS)


def _arrow(move: Any, colour: str) -> Any:
    import chess.svg

    return chess.svg.Arrow(move.from_square, move.to_square, color=colour)
