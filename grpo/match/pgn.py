"""PGN export of a match: players, opening, result, termination and adjudicated result of every game."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Final

import chess
import chess.pgn

from grpo.engine.answers import Score
from grpo.match.annotations import AnnotatedGame, MoveNote, round_number
from grpo.match.matches import MatchResult, PlayedGame

_LINE_WIDTH: Final = 80  # The PGN standard's export format.
_SITE: Final = "chess-grpo"  # As online services do; the name of a machine is nobody's business.
_WRITTEN_HERE: Final = frozenset(
    (
        *("Event", "Site", "Date", "Round", "White", "Black", "Result", "SetUp", "FEN", "Seed", "PlyCount", "Termination"),
        *("AdjudicatedResult", "Adjudication", "WhiteAnswers", "BlackAnswers", "Chosen"),
    )
)
_RESULTS: Final = {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}


def match_pgn(
    result: MatchResult,
    *,
    event: str,
    seed: int,
    played_on: date | None,
    facts: Mapping[str, str] | None = None,
    first_round: int = 1,
    annotated: Mapping[int, AnnotatedGame] | None = None,
) -> str:
    """Return the match's games as PGN, in order; the tag `Round` is `pair.game`. Equal matches give equal texts.

    `Result` is the result as played. `AdjudicatedResult` is that of the adjudicated score, if there is one. `WhiteAnswers` and
    `BlackAnswers` have the answer counts of a player that can fail to name a legal move.

    Args:
        result: The match.
        event: Value of the `Event` tag.
        seed: Root seed of the match's random streams.
        played_on: Value of the `Date` tag; None writes PGN's `????.??.??`, so that equal runs give equal files on any day.
        facts: Further tags of every game.
        first_round: Number of the first pair, for a match that continues an event.
        annotated: Index of a game -> its notes. Such a game has the tag `Chosen`, and after each move a comment with the engine's score for
            White (`[%eval 0.35]`, pawns or `#` and moves to mate), the mover's probability of the move and win probability after it.

    Raises ValueError if a fact's name is not a valid tag name, or is written by this function.
    """
    facts, annotated = facts or {}, annotated or {}
    for name in facts:
        if name in _WRITTEN_HERE or not chess.pgn.TAG_NAME_REGEX.match(name):
            raise ValueError(
                f"{name!r} cannot be a further tag: {'the match itself writes it' if name in _WRITTEN_HERE else 'it is not a tag name'}"
            )
    texts = []
    for index, game in enumerate(result.games):
        board = chess.Board(game.opening)
        players = (result.first, result.second) if game.first_is_white else (result.second, result.first)
        tags = {
            "Event": event,
            "Site": _SITE,
            "Date": f"{played_on:%Y.%m.%d}" if played_on else "????.??.??",
            "Round": round_number(index, first_round),
            "White": players[0],
            "Black": players[1],
            "Result": _white_result(game, game.score),
            **({} if board.fen() == chess.STARTING_FEN else {"SetUp": "1", "FEN": game.opening}),
            "PlyCount": str(len(game.moves)),
            "Seed": str(seed),
            "Termination": game.end.value,
            **_adjudication(result, game),
            **_answers(game),
            **({"Chosen": annotated[index].why} if index in annotated else {}),
            **facts,
        }
        header = "\n".join(f'[{name} "{_escaped(value)}"]' for name, value in tags.items())
        notes = annotated[index].notes if index in annotated else None
        texts.append(f"{header}\n\n{_movetext(board, game.moves, tags['Result'], notes)}\n")
    return "\n".join(texts)


def event_pgn(results: Sequence[MatchResult], *, event: str, seed: int, annotated: Mapping[int, AnnotatedGame] | None = None) -> str:
    """Return the matches of an event as PGN without a date; rounds count through the event. `annotated` is of its first match."""
    texts: list[str] = []
    first_round = 1
    for result in results:
        notes = None if texts else annotated
        texts.append(match_pgn(result, event=event, seed=seed, played_on=None, first_round=first_round, annotated=notes))
        first_round += len(result.games) // 2
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


def _movetext(board: chess.Board, moves: tuple[str, ...], result: str, notes: tuple[MoveNote, ...] | None) -> str:
    """Return the moves in SAN, with their comments; `board` is advanced to the end of the game."""
    words = []
    for ply, uci in enumerate(moves):
        if board.turn == chess.WHITE:
            words.append(f"{board.fullmove_number}.")
        elif ply == 0 or notes is not None:
            words.append(f"{board.fullmove_number}...")  # Also after a comment, by the standard's export format.
        comment = "" if notes is None else _comment(notes[ply], uci, board.turn)
        words.append(board.san_and_push(chess.Move.from_uci(uci)))
        if comment:
            words.append(f"{{{comment}}}")
    return textwrap.fill(" ".join([*words, result]), width=_LINE_WIDTH, break_long_words=False, break_on_hyphens=False)


def _comment(note: MoveNote, move: str, mover: chess.Color) -> str:
    score = note.scores.get(move)
    # The engine counts from before the move: one that mates leaves nothing to state.
    parts = [] if score is None or (score.is_mate and score.value == 1) else [f"[%eval {_white_eval(score, mover)}]"]
    facts = [f"probability {note.probabilities[move]:.1%}"] if move in note.probabilities else []
    if (chance := note.chance(move)) is not None:
        facts.append(f"win {chance:.1%}")
    return " ".join([*parts, ", ".join(facts)] if facts else parts)


def _white_eval(score: Score, mover: chess.Color) -> str:
    after = score.value - 1 if score.is_mate and score.value > 0 else score.value
    value = after if mover == chess.WHITE else -after
    return f"#{value}" if score.is_mate else f"{value / 100:.2f}"
