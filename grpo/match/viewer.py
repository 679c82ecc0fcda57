"""The game viewer: annotated games as one HTML file that needs no network, with boards, moves, probabilities and win-probability curve."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import chess
import chess.svg

from grpo.match.annotations import AnnotatedGame, MoveNote, positions, round_number

# No part of a step's version, which hashes code: a page that looks better is no reason to play a run's games again.
_PAGES: Final = Path(__file__).parent / "pages"
_NUM_SHOWN: Final = 5  # Most probable moves of a position.
_RESULTS: Final = {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}
_DIGITS: Final = 4


def viewer_page(games: Sequence[AnnotatedGame], *, title: str, event: str) -> str:
    """Return the page.

    Args:
        games: The games, the first one shown first.
        title: Heading of the page.
        event: The PGN event in which `AnnotatedGame.index` counts.
    """
    words = (
        "Games chosen by rule. Probabilities are the policy's at temperature 1; values are win probabilities by the engine's search of the"
        " reward. Keys: left and right arrow, Home, End, f to flip."
    )
    if not games:
        words = "No game has a move: there is nothing to show."
    facts = {"title": title, "words": words, "event": event, "games": [_game_facts(game) for game in games]}
    return offline_page("viewer.html", title=title, data=facts)


def offline_page(template: str, *, title: str, data: Mapping[str, Any]) -> str:
    """Return a page of the folder `pages` with style sheet, pieces, board code and data in it."""
    # JSON inside of a script element: no text can close the element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    parts = {"$TITLE": html.escape(title), "$STYLE": _read("style.css"), "$PIECES": _pieces(), "$BOARD": _read("board.js"), "$DATA": text}
    # In one pass, so that nothing in a part is taken for a mark.
    return re.sub(r"\$[A-Z]+", lambda mark: parts[mark[0]], _read(template))


def _read(name: str) -> str:
    return (_PAGES / name).read_text(encoding="utf-8")


def _pieces() -> str:
    """Return the pieces of python-chess as symbols `wN`, `bQ`, ... for `<use>`."""
    symbols = [
        f'<symbol id="{"w" if letter.isupper() else "b"}{letter.upper()}" viewBox="0 0 45 45">{drawing}</symbol>'
        for letter, drawing in chess.svg.PIECES.items()
    ]
    return f'<svg width="0" height="0" style="position:absolute" aria-hidden="true">{"".join(symbols)}</svg>'


def _game_facts(noted: AnnotatedGame) -> dict[str, Any]:
    game = noted.game
    boards = positions(game)
    moves = [chess.Move.from_uci(uci) for uci in game.moves]
    white_score = game.score if game.first_is_white else 1 - game.score
    return {
        "why": noted.why,
        "round": round_number(noted.index),
        "white": noted.white,
        "black": noted.black,
        "result": _RESULTS[white_score],
        "end": game.end.value,
        "start": game.opening,
        "startNumber": boards[0].fullmove_number,
        "startsWhite": boards[0].turn == chess.WHITE,
        "isFirstBlack": not game.first_is_white,
        "moves": [{"uci": move.uci(), "san": board.san(move)} for board, move in zip(boards, moves, strict=False)],
        "positions": [
            {
                "placement": board.board_fen(),
                "white": _white_chance(noted, ply, board),
                **(_options(noted.notes[ply], board, game.moves[ply]) if ply < len(moves) else {}),
            }
            for ply, board in enumerate(boards)
        ],
    }


def _white_chance(noted: AnnotatedGame, ply: int, board: chess.Board) -> float | None:
    """Return White's win probability in a position: after the move that led to it, at the start after the best move."""
    if ply == 0:
        best = noted.notes[0].best()
        chance, mover = None if best is None else noted.notes[0].chance(best), board.turn
    else:
        chance, mover = noted.notes[ply - 1].chance(noted.game.moves[ply - 1]), not board.turn
    if chance is None:
        return None
    return round(chance if mover == chess.WHITE else 1 - chance, _DIGITS)


def _options(note: MoveNote, board: chess.Board, played: str) -> dict[str, Any]:
    """Return the most probable moves, or without probabilities the best, always with the move played and the engine's best."""
    by = note.probabilities or {move: note.chance(move) or 0.0 for move in note.scores}
    ranked = sorted(by, key=lambda move: -by[move])
    best, likeliest = note.best(), ranked[0] if note.probabilities else None
    shown = dict.fromkeys([*ranked[:_NUM_SHOWN], played, *([] if best is None else [best])])
    return {
        "options": [
            [move, board.san(chess.Move.from_uci(move)), _rounded(note.probabilities.get(move)), _rounded(note.chance(move))]
            for move in shown
        ],
        "likeliest": likeliest,
        "best": best,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
