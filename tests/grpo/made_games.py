"""Made-up files of games and positions, with which whole datasets can be built."""

import io
import random
from functools import cache
from typing import Final

import chess
import chess.pgn

HEADER: Final = '[Event "e"]\n[Site "?"]\n[Date "2020.01.02"]\n[Round "?"]\n[White "a"]\n[Black "b"]\n[Result "*"]\n'


@cache
def random_pgn(num_games: int, *, max_plies: int = 220, seed: int = 1) -> str:
    """Return games of random moves, a day apart and with ratings; with 160 plies and more they reach all phases."""
    rng = random.Random(seed)
    texts = []
    for number in range(num_games):
        board = chess.Board()
        for _ in range(max_plies):
            legal = list(board.legal_moves)
            if not legal or board.is_insufficient_material():
                break
            captures = [move for move in legal if board.is_capture(move)]
            board.push(rng.choice(captures if captures and rng.random() < 0.4 else legal))
        game = chess.pgn.Game.from_board(board)
        game.headers.update(
            {
                "White": f"white {seed} {number}",
                "Black": "b",
                "UTCDate": f"2020.{1 + number // 28:02}.{1 + number % 28:02}",
                "WhiteElo": str(1_000 + number),
                "BlackElo": "1500" if number % 2 else "?",
            }
        )
        texts.append(f"{game}\n\n")
    return "".join(texts)


def games_in(text: str) -> list[chess.pgn.Game]:
    """Return the games that python-chess reads, all without complaint."""
    stream, games = io.StringIO(text), []
    while (game := chess.pgn.read_game(stream)) is not None:
        assert game.errors == []
        games.append(game)
    return games


def _game(moves: str, *, tags: str = "") -> str:
    return f"{HEADER}{tags}\n{moves} *\n\n"


PLANTED: Final = (
    ("not a game", "This letter is no game.\n\n"),  # Only before the first tag of a file.
    ("variant", _game("1. e4", tags='[Variant "Atomic"]\n')),
    ("variant", _game("1. e4", tags='[Variant "Chess960"]\n')),
    ("variant", _game("1. e4", tags='[Variant "of my own"]\n')),
    ("illegal position", _game("1. Ka2", tags='[SetUp "1"]\n[FEN "8/8/8/8/8/8/8/K7 w - - 0 1"]\n')),
    ("illegal position", _game("1. Ka2", tags='[SetUp "1"]\n[FEN "rubbish"]\n')),
    ("illegal move", _game("1. e4 e5 2. Ke3")),
    ("illegal move", _game("1. Nf3 a6 2. d4 a5 3. Nd2")),
    ("illegal move", _game("1. e4 -- 2. d4")),
    ("no moves", _game("")),
)
"""Reason, and a game that is rejected for it, of the reasons that any PGN can have by itself."""


def with_planted_games(good: str) -> str:
    """Return the good games with a planted one between each two, for every reason, and at the end one of them a second time."""
    games = [f"[Event{text}" for text in good.split("[Event")[1:]]
    first, *planted = [text for _, text in PLANTED]
    texts = [first, *(text for pair in zip(games, planted, strict=False) for text in pair), *games[len(planted) :], games[0]]
    return "".join(texts)
