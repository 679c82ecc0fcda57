"""Export of matches as PGN (text format of chess)."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Final

import chess

from grpo.engine.answers import Score
from grpo.match.forks import Tell, in_processes
from grpo.match.matches import CENTIPAWNS, DEPTH, MatchResult, PlayedGame
from grpo.viewer.annotations import AnnotatedGame, MoveNote, round_number

_ADJUDICATION: Final = {"Adjudication": f"depth {DEPTH}, above {CENTIPAWNS} centipawns"}
_LINE_WIDTH: Final = 80  # The PGN standard's export format.
_SITE: Final = "chess-grpo"  # A machine's name would be private.


def event_pgn(
    results: Sequence[MatchResult],
    *,
    event: str,
    seed: int,
    played_on: date | None = None,
    facts: Mapping[str, str] | None = None,
    annotated: Mapping[int, AnnotatedGame] | None = None,
    num_processes: int = 1,
) -> str:
    """Return the games of all `results` as PGN.

    - Tag `AdjudicatedResult`: an engine's result for the last position of a draw by repetition, fifty moves or ply cap
    - Tags `WhiteAnswers` and `BlackAnswers`: counts of all, unreadable, illegal and repeated answers, if known
    - `facts`: extra tags
    - `annotated`: index of a game, counted over all `results` -> notes. Tag `Chosen`: rule that chose the game

    Comments on annotated moves have White's score in pawns (`[%eval 0.35]`) or moves to mate (`[%eval #3]`), the move's probability, and
    the mover's win probability.
    """
    games = list(enumerate((match, game) for match in results for game in match.games))

    def text(number: int, result: MatchResult, game: PlayedGame) -> str:
        noted = (annotated or {}).get(number)
        white, black = game.white_and_black(result.first, result.second)
        tags = {
            "Event": event,
            "Site": _SITE,
            "Date": f"{played_on:%Y.%m.%d}" if played_on else "????.??.??",
            "Round": round_number(number),
            "White": white,
            "Black": black,
            "Result": game.white_result(game.score),
            **({} if chess.Board(game.opening).fen() == chess.STARTING_FEN else {"SetUp": "1", "FEN": game.opening}),
            "PlyCount": str(len(game.moves)),
            "Seed": str(seed),
            "Termination": game.end.value,
            **({} if game.adjudicated is None else {"AdjudicatedResult": game.white_result(game.adjudicated), **_ADJUDICATION}),
            **_answers(game),
            **({} if noted is None else {"Chosen": noted.why}),
            **(facts or {}),
        }
        header = "\n".join(f'[{name} "{_escaped(value)}"]' for name, value in tags.items())
        return f"{header}\n\n{_movetext(game, tags['Result'], None if noted is None else noted.notes)}\n"

    def texts(part: int, _: Tell) -> list[str]:
        return [text(number, *entry) for number, entry in games[part::num_processes]]

    parts = in_processes([partial(texts, part) for part in range(num_processes)], lambda _: None)
    return "\n".join(parts[number % num_processes][number // num_processes] for number, _ in games)


def _answers(game: PlayedGame) -> dict[str, str]:
    white, black = game.white_and_black(game.first_replies, game.second_replies)
    return {f"{color}Answers": str(counts) for color, counts in (("White", white), ("Black", black)) if counts is not None}


def _escaped(value: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", " ".join(value.split()))


def _movetext(game: PlayedGame, result: str, notes: Sequence[MoveNote] | None) -> str:
    words = []
    for ply, (board, uci) in enumerate(zip(game.boards(), game.moves, strict=False)):
        if board.turn == chess.WHITE:
            words.append(f"{board.fullmove_number}.")
        elif ply == 0 or notes is not None:
            words.append(f"{board.fullmove_number}...")  # PGN's export format repeats the number after a comment.
        words.append(board.san(chess.Move.from_uci(uci)))
        if notes is not None and (comment := _comment(notes[ply], uci, board.turn)):
            words.append(f"{{{comment}}}")
    return textwrap.fill(" ".join([*words, result]), width=_LINE_WIDTH, break_long_words=False, break_on_hyphens=False)


def _comment(note: MoveNote, move: str, mover: chess.Color) -> str:
    score = note.scores.get(move)
    # The comment on a mating move (mate in 1) has no score.
    parts = [] if score is None or (score.is_mate and score.value == 1) else [f"[%eval {_white_eval(score, mover)}]"]
    facts = [f"probability {note.probabilities[move]:.1%}"] if move in note.probabilities else []
    if (chance := note.chance(move)) is not None:
        facts.append(f"win {chance:.1%}")
    return " ".join([*parts, ", ".join(facts)] if facts else parts)


def _white_eval(score: Score, mover: chess.Color) -> str:
    # Mate in 3 before the move is mate in 2 after it.
    after = score.value - 1 if score.is_mate and score.value > 0 else score.value
    value = after if mover == chess.WHITE else -after
    return f"#{value}" if score.is_mate else f"{value / 100:.2f}"
