"""How a language model is asked for a move: its best answer or one drawn; and again, by rule, while no legal move is named."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import chess
import numpy as np

from grpo.language.text.tasks import move_prompt, read_move_answer
from grpo.play.players import fen_of
from grpo.play.replies import Reply, ReplyCounts
from grpo.settings.language import LanguageConfig

_AGAIN_TEMPERATURE: Final = 1.0  # The distribution that was trained.


class Speaker(Protocol):
    """Whoever answers prompts in words."""

    config: LanguageConfig
    """Of which count here: how often it is asked, and on how many boards it is judged."""

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        """Return the answers of the likeliest token each time: equal prompts get equal answers."""

    def drawn(self, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator]) -> list[str]:
        """Return answers drawn at a temperature, each from a stream of its own, on which it depends alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedMove:
    """What an answer says of a board."""

    move: chess.Move | None
    """The best move that it names, where that is legal."""
    is_unreadable: bool
    """Whether it names no best move at all."""
    is_whole: bool
    """Whether every field of the answer can be read."""

    def counts(self, *, is_first: bool) -> ReplyCounts:
        """Return what it adds to a player's counts, being the first answer for a move or a later one."""
        return ReplyCounts(
            num_moves=int(is_first),
            num_answers=1,
            num_unreadable=int(self.is_unreadable),
            num_illegal=int(self.move is None and not self.is_unreadable),
        )


def named_move(board: chess.Board, answer: str, *, allowed: frozenset[str] = frozenset()) -> NamedMove:
    """Return what an answer says of a board.

    A move is legal as UCI writes it: castling is the king's move of two squares.

    Args:
        board: with at least one legal move.
        answer: to the board's prompt.
        allowed: moves in UCI of which it must be one, any legal one when empty.
    """
    legal = {move.uci(): move for move in board.legal_moves}
    read = read_move_answer(answer, num_legal=len(legal))
    move = None if read.best is None or (allowed and read.best not in allowed) else legal.get(read.best)
    return NamedMove(move=move, is_unreadable=read.best is None, is_whole=read.is_readable)


def greedy_moves(speaker: Speaker, boards: Sequence[chess.Board]) -> list[NamedMove]:
    """Return what the best answers say, one for each board; nobody is asked twice."""
    answers = speaker.greedy([move_prompt(fen_of(board)) for board in boards])
    return [named_move(board, answer) for board, answer in zip(boards, answers, strict=True)]


def drawn_moves(
    speaker: Speaker, boards: Sequence[chess.Board], *, temperature: float, streams: Sequence[np.random.Generator]
) -> list[NamedMove]:
    """Return what answers drawn at a temperature say, one for each board and stream; nobody is asked twice."""
    answers = speaker.drawn([move_prompt(fen_of(board)) for board in boards], temperature=temperature, streams=streams)
    return [named_move(board, answer) for board, answer in zip(boards, answers, strict=True)]


def asked_moves(
    speaker: Speaker,
    boards: Sequence[chess.Board],
    *,
    temperature: float | None,
    streams: Sequence[np.random.Generator],
    allowed: frozenset[str] = frozenset(),
) -> list[Reply]:
    """Return a move for each board, or none where `max_questions` answers in a row named no legal one.

    The first answer is the best one, or drawn; those after it are drawn at T = 1, for a best answer would be the same again. All boards
    whose last answer failed are asked again at once.

    Args:
        speaker: who is asked.
        boards: each with a legal move.
        temperature: of the first answer; None for the best one.
        streams: of each board, from which alone its answers are drawn.
        allowed: moves in UCI of which each must be one, any legal one when empty.
    """
    replies = [Reply(move=None, counts=ReplyCounts())] * len(boards)
    prompts = [move_prompt(fen_of(board)) for board in boards]
    rows = list(range(len(boards)))
    for question in range(speaker.config.max_questions):
        asked = [prompts[row] for row in rows]
        if question == 0 and temperature is None:
            answers = speaker.greedy(asked)
        else:
            drawn_at = temperature if question == 0 and temperature is not None else _AGAIN_TEMPERATURE
            answers = speaker.drawn(asked, temperature=drawn_at, streams=[streams[row] for row in rows])
        for row, answer in zip(rows, answers, strict=True):
            named = named_move(boards[row], answer, allowed=allowed)
            replies[row] = Reply(move=named.move, counts=replies[row].counts + named.counts(is_first=question == 0))
        rows = [row for row in rows if replies[row].move is None]
        if not rows:
            break
    return replies


def total(replies: Iterable[Reply]) -> ReplyCounts:
    """Return the counts of all replies together."""
    return sum((reply.counts for reply in replies), ReplyCounts())
