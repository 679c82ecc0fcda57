"""Moves from a language model: parses greedy or sampled answers, and retries while no legal move is named."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import chess
import numpy as np

from grpo.board.encoding import fen_of
from grpo.language.text.tasks import move_prompt, read_move_answer
from grpo.play.replies import Reply, ReplyCounts
from grpo.settings.language import LanguageConfig

_RETRY_TEMPERATURE: Final = 1.0  # The training temperature.


class AnswerGenerator(Protocol):
    """Answers batches of prompts with text."""

    config: LanguageConfig
    """Settings such as the maximum number of retries, and the number of boards for evaluations."""

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        """Return the greedy answers; equal prompts get equal answers."""

    def sampled(self, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator]) -> list[str]:
        """Return answers sampled at a temperature; each depends only on its own stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedMove:
    """The move in a parsed answer."""

    move: chess.Move | None
    """The named best move if it is legal."""
    is_unreadable: bool
    """Whether the answer names no best move at all."""
    is_whole: bool
    """Whether every field of the answer is valid."""

    def counts(self, *, is_first: bool) -> ReplyCounts:
        """Return the answer counts of this answer, the first one for a move or a retry."""
        return ReplyCounts(
            num_moves=int(is_first),
            num_answers=1,
            num_unreadable=int(self.is_unreadable),
            num_illegal=int(self.move is None and not self.is_unreadable),
        )


def named_move(board: chess.Board, answer: str, *, allowed: frozenset[str] = frozenset()) -> NamedMove:
    """Parse an answer to a board's prompt.

    Moves are in UCI notation: castling is the king's move of two squares.

    Args:
        board: Position with at least one legal move.
        answer: Answer to the board's prompt.
        allowed: Allowed moves in UCI; all legal moves if empty.
    """
    legal = {move.uci(): move for move in board.legal_moves}
    read = read_move_answer(answer, num_legal=len(legal))
    move = None if read.best is None or (allowed and read.best not in allowed) else legal.get(read.best)
    return NamedMove(move=move, is_unreadable=read.best is None, is_whole=read.is_readable)


def greedy_moves(generator: AnswerGenerator, boards: Sequence[chess.Board]) -> list[NamedMove]:
    """Return the moves of greedy answers, one for each board, without retries."""
    answers = generator.greedy([move_prompt(fen_of(board)) for board in boards])
    return [named_move(board, answer) for board, answer in zip(boards, answers, strict=True)]


def sampled_moves(
    generator: AnswerGenerator, boards: Sequence[chess.Board], *, temperature: float, streams: Sequence[np.random.Generator]
) -> list[NamedMove]:
    """Return the moves of answers sampled at a temperature, one for each board and stream, without retries."""
    answers = generator.sampled([move_prompt(fen_of(board)) for board in boards], temperature=temperature, streams=streams)
    return [named_move(board, answer) for board, answer in zip(boards, answers, strict=True)]


def moves_with_retries(
    generator: AnswerGenerator,
    boards: Sequence[chess.Board],
    *,
    temperature: float | None,
    streams: Sequence[np.random.Generator],
    allowed: frozenset[str] = frozenset(),
) -> list[Reply]:
    """Return a reply for each board, without a move if `max_questions` answers in a row named no legal one.

    The first answer is greedy or sampled. Retries are sampled at T = 1, because a greedy answer would not change. All boards whose last
    answer failed are retried as one batch.

    Args:
        generator: The language model.
        boards: Positions with at least one legal move.
        temperature: Temperature of the first answer; None for greedy.
        streams: Random stream of each board.
        allowed: Allowed moves in UCI; all legal moves if empty.
    """
    replies = [Reply(move=None, counts=ReplyCounts())] * len(boards)
    prompts = [move_prompt(fen_of(board)) for board in boards]
    rows = list(range(len(boards)))
    for attempt in range(generator.config.max_questions):
        pending_prompts = [prompts[row] for row in rows]
        if attempt == 0 and temperature is None:
            answers = generator.greedy(pending_prompts)
        else:
            answer_temperature = temperature if attempt == 0 and temperature is not None else _RETRY_TEMPERATURE
            answers = generator.sampled(pending_prompts, temperature=answer_temperature, streams=[streams[row] for row in rows])
        for row, answer in zip(rows, answers, strict=True):
            named = named_move(boards[row], answer, allowed=allowed)
            replies[row] = Reply(move=named.move, counts=replies[row].counts + named.counts(is_first=attempt == 0))
        rows = [row for row in rows if replies[row].move is None]
        if not rows:
            break
    return replies


def total(replies: Iterable[Reply]) -> ReplyCounts:
    """Return the sum of the counts of all replies."""
    return sum((reply.counts for reply in replies), ReplyCounts())
