"""PGN export of a match: players, opening, result, termination and adjudicated result of every game."""

import re
import textwrap
from collections.abc import Mapping
from typing import Final

import chess

from grpo.play.matches import MatchResult, PlayedGame
from grpo.reading.pgn_split import TAG_NAME

_LINE_WIDTH: Final = 80  # The PGN standard's export format.
_UNKNOWN: Final = {"Site": "?", "Date": "????.??.??"}
_WRITTEN_HERE: Final = frozenset(
    (
        *("Event", "Round", "White", "Black", "Result", "SetUp", "FEN", "Seed", "PlyCount", "Termination"),
        *("AdjudicatedResult", "Adjudication", "WhiteAnswers", "BlackAnswers"),
    )
)
_RESULTS: Final = {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}


def match_pgn(result: MatchResult, *, event: str, seed: int, facts: Mapping[str, str] | None = None) -> str:
    """Return the match's games as PGN, in order; the tag `Round` is `pair.game`, counted from 1. Equal matches give equal texts.

    `Result` is the result as played. `AdjudicatedResult` is that of the adjudicated score, if there is one. `WhiteAnswers` and
    `BlackAnswers` have the answer counts of a player that can fail to name a legal move.

    Args:
        result: The match.
        event: Value of the `Event` tag.
        seed: Root seed of the match's random streams.
        facts: Further tags of every game; of the standard tags only `Site` and `Date`.

    Raises ValueError if a fact's name is not a valid tag name, or is written by this function.
    """
    facts = facts or {}
    for name in facts:
        if name in _WRITTEN_HERE or not re.fullmatch(TAG_NAME, name):
            raise ValueError(
                f"{name!r} cannot be a further tag: {'the match itself writes it' if name in _WRITTEN_HERE else 'it is not a tag name'}"
            )
    texts = []
    for index, game in enumerate(result.games):
        board = chess.Board(game.opening)
        players = (result.first, result.second) if game.first_is_white else (result.second, result.first)
        tags = {
            "Event": event,
            **{name: facts.get(name, unknown) for name, unknown in _UNKNOWN.items()},
            "Round": f"{index // 2 + 1}.{index % 2 + 1}",
            "White": players[0],
            "Black": players[1],
            "Result": _white_result(game, game.score),
            **({} if board.fen() == chess.STARTING_FEN else {"SetUp": "1", "FEN": game.opening}),
            "PlyCount": str(len(game.moves)),
            "Seed": str(seed),
            "Termination": game.end.value,
            **_adjudication(result, game),
            **_answers(game),
            **{name: value for name, value in facts.items() if name not in _UNKNOWN},
        }
        header = "\n".join(f'[{name} "{_escaped(value)}"]' for name, value in tags.items())
        texts.append(f"{header}\n\n{_movetext(board, game.moves, tags['Result'])}\n")
    return "\n".join(texts)


def _white_result(game: PlayedGame, first_score: float) -> str:
    return _RESULTS[first_score if game.first_is_white else 1 - first_score]


def _adjudication(result: MatchResult, game: PlayedGame) -> dict[str, str]:
    if result.adjudication is None or game.adjudicated is None:
        return {}
    rule = f"depth {result.adjudication.depth}, above {result.adjudication.centipawns} centipawns"
    return {"AdjudicatedResult": _white_result(game, game.adjudicated), "Adjudication": rule}


def _answers(game: PlayedGame) -> dict[str, str]:
    """Return the tags with answer counts, for players that can fail to name a legal move."""
    white, black = (game.first_replies, game.second_replies) if game.first_is_white else (game.second_replies, game.first_replies)
    return {f"{colour}Answers": str(counts) for colour, counts in (("White", white), ("Black", black)) if counts is not None}


def _escaped(value: str) -> str:
    """Return a tag's value on one line, with quotes and backslashes escaped."""
    return re.sub(r'(["\\])', r"\\\1", " ".join(value.split()))


def _movetext(board: chess.Board, moves: tuple[str, ...], result: str) -> str:
    """Return the moves in SAN; `board` is advanced to the end of the game."""
    words = []
    for ply, uci in enumerate(moves):
        if board.turn == chess.WHITE:
            words.append(f"{board.fullmove_number}.")
        elif ply == 0:
            words.append(f"{board.fullmove_number}...")
        words.append(board.san_and_push(chess.Move.from_uci(uci)))
    return textwrap.fill(" ".join([*words, result]), width=_LINE_WIDTH, break_long_words=False, break_on_hyphens=False)
