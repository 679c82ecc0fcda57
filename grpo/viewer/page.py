"""The game viewer: annotated games as one HTML file that needs no network."""

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import chess
import chess.svg

from grpo.match.matches import MatchResult
from grpo.viewer.annotations import AnnotatedGame, MoveNote, round_number

_PAGES: Final = Path(__file__).parent / "pages"
_NUM_SHOWN: Final = 5
_DIGITS: Final = 4


def viewer_page(result: MatchResult, annotated: Mapping[int, AnnotatedGame], *, title: str, event: str) -> str:
    """`annotated`: index of a game -> notes, in the order of the page."""
    games = [_game_facts(result, index, noted) for index, noted in annotated.items()]
    return offline_page("viewer.html", title=title, data={"title": title, "event": event, "games": games})


def offline_page(template: str, *, title: str, data: Mapping[str, Any]) -> str:
    """Return a page from a template of the folder `pages`, with style, script, pieces and data inside."""
    # A text with "</script>" would end the script element around the JSON.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    parts = {"$TITLE": html.escape(title), "$PIECES": _pieces(), "$DATA": text}
    files = {"$STYLE": "style.css", "$BOARD": "board.js", "$BODY": template, "": "page.html"}
    parts |= {mark: _PAGES.joinpath(name).read_text(encoding="utf-8") for mark, name in files.items()}
    return re.sub(r"\$[A-Z]+", lambda mark: parts[mark[0]], parts[""])  # One pass, so a `$DATA` inside the data stays.


def _pieces() -> str:
    names = {letter: ("w" if letter.isupper() else "b") + letter.upper() for letter in chess.svg.PIECES}
    symbols = [f'<symbol id="{names[letter]}" viewBox="0 0 45 45">{drawing}</symbol>' for letter, drawing in chess.svg.PIECES.items()]
    return f'<svg width="0" height="0" style="position:absolute" aria-hidden="true">{"".join(symbols)}</svg>'


def _game_facts(result: MatchResult, index: int, noted: AnnotatedGame) -> dict[str, Any]:
    game = result.games[index]
    white, black = game.white_and_black(result.first, result.second)
    boards = [board.copy() for board in game.boards()]
    best = noted.notes[0].best()
    # Each position gets White's win probability after the move that led to the position; the opening, after the engine's best move.
    scored = [(noted.notes[0].chance(best), boards[0].turn)]
    scored += [(note.chance(uci), board.turn) for note, uci, board in zip(noted.notes, game.moves, boards, strict=False)]
    chances = [_rounded(chance if chance is None or mover == chess.WHITE else 1 - chance) for chance, mover in scored]
    options = [_options(note, board, uci) for note, board, uci in zip(noted.notes, boards, game.moves, strict=False)]
    return {
        "why": noted.why,
        "round": round_number(index),
        "white": white,
        "black": black,
        "result": game.white_result(game.score),
        "end": game.end.value,
        "start": game.opening,
        "isFirstBlack": not game.first_is_white,
        "moves": [{"uci": uci, "san": board.san(chess.Move.from_uci(uci))} for board, uci in zip(boards, game.moves, strict=False)],
        "positions": [
            {"placement": board.board_fen(), "isWhiteToMove": board.turn == chess.WHITE, "white": chance, **shown}
            for board, chance, shown in zip(boards, chances, [*options, {}], strict=True)
        ],
    }


def _options(note: MoveNote, board: chess.Board, played: str) -> dict[str, Any]:
    """Return `options`, `likeliest` (None if unknown) and `best` (None if the search failed).

    An option is [UCI, SAN, probability, win probability]. Options are the five most probable moves (the five best if probabilities are
    unknown), the move played, and the engine's best move.
    """
    order = note.probabilities or {move: note.chance(move) or 0.0 for move in note.scores}
    ranked = sorted(order, key=lambda move: -order[move])
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
