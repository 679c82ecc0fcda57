"""A language model as a player of matches and as a UCI engine."""

from collections.abc import Sequence
from typing import Final

import chess
import numpy as np

from grpo.base.seeding import numpy_stream
from grpo.board.draws import repeating_moves
from grpo.board.encoding import fen_of
from grpo.language.generate.answers import greedy_answers, sampled_answers
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.tasks import MoveAnswer, move_prompt, read_move_answer
from grpo.match.players import NUM_ROOTS, GameStreams
from grpo.match.replies import Reply, ReplyCounts
from grpo.settings.language import LanguageConfig
from grpo.uci.options import BEST_MOVE, UciOptions
from grpo.uci.search import UciSearchResult

_RETRY_TEMPERATURE: Final = 1.0  # Default of `grpo.temperature`.


class AnswerGenerator:
    """A policy that answers prompts. `config` replaces only the policy's saved `max_questions` (attempts) and `legal_moves`."""

    def __init__(self, policy: LanguagePolicy, config: LanguageConfig) -> None:
        self.policy = policy.with_legal_moves(config.legal_moves)
        self.config = config.model_copy(update={"lists_moves": policy.config.lists_moves})

    def greedy(self, prompts: Sequence[str], choices: Sequence[tuple[str, ...]] | None = None) -> list[str]:
        return [answer.text for answer in greedy_answers(self.policy, prompts, choices)]

    def unmasked(self, prompts: Sequence[str]) -> list[str]:
        return [answer.text for answer in greedy_answers(self.policy.with_legal_moves(False), prompts)]

    def sampled(
        self,
        prompts: Sequence[str],
        choices: Sequence[tuple[str, ...]] | None = None,
        *,
        temperature: float,
        streams: Sequence[np.random.Generator],
    ) -> list[str]:
        return [answer.text for answer in sampled_answers(self.policy, prompts, choices, temperature=temperature, streams=streams)]


def board_prompts(boards: Sequence[chess.Board], config: LanguageConfig) -> list[str]:
    return [move_prompt(fen_of(board), lists_moves=config.lists_moves) for board in boards]


def choices_in_game(board: chess.Board, allowed: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the legal moves (UCI) that repeat no position of the move stack, or all legal moves if each repeats one.

    A prompt has no earlier moves, so otherwise greedy answers repeat positions until the game is drawn. `allowed`, unless empty, has the
    only allowed moves (UCI).
    """
    moves = [move for move in board.legal_moves if not allowed or move.uci() in allowed]
    repeating = set(repeating_moves(board))
    return tuple(move.uci() for move in [move for move in moves if move not in repeating] or moves)


def named_move(
    board: chess.Board, answer: str, config: LanguageConfig, *, allowed: frozenset[str] = frozenset()
) -> tuple[chess.Move | None, MoveAnswer]:
    """Return the move that an answer names as best (None if missing or illegal), and the parsed answer.

    With `allowed` (moves in UCI), all other moves count as illegal.
    """
    legal = {move.uci(): move for move in board.legal_moves}
    parsed = read_move_answer(answer, num_legal=len(legal), lists_moves=config.lists_moves)
    move = None if parsed.best is None or (allowed and parsed.best not in allowed) else legal.get(parsed.best)
    return move, parsed


def moves_with_retries(
    generator: AnswerGenerator,
    boards: Sequence[chess.Board],
    *,
    temperature: float | None,
    streams: Sequence[np.random.Generator],
    allowed: frozenset[str] = frozenset(),
) -> list[Reply]:
    """Return one reply per board, without a move if no answer names a legal one.

    The first answer is sampled at `temperature`, or greedy for None. Retries are sampled at temperature 1, because greedy ones would repeat
    the answer.
    """
    replies = [Reply(move=None, counts=ReplyCounts())] * len(boards)
    config = generator.config
    prompts, choices = board_prompts(boards, config), [choices_in_game(board, allowed) for board in boards]
    rows = list(range(len(boards)))
    for attempt in range(config.max_questions):
        asked, asked_choices = [prompts[row] for row in rows], [choices[row] for row in rows]
        attempt_temperature = temperature if attempt == 0 else _RETRY_TEMPERATURE
        if attempt_temperature is None:
            answers = generator.greedy(asked, asked_choices)
        else:
            own_streams = [streams[row] for row in rows]
            answers = generator.sampled(asked, asked_choices, temperature=attempt_temperature, streams=own_streams)
        for row, answer in zip(rows, answers, strict=True):
            move, parsed = named_move(boards[row], answer, config, allowed=allowed)
            counts = ReplyCounts(
                num_moves=int(attempt == 0),
                num_answers=1,
                num_unreadable=int(parsed.best is None),
                num_illegal=int(move is None and parsed.best is not None),
            )
            replies[row] = Reply(move=move, counts=replies[row].counts + counts)
        rows = [row for row in rows if replies[row].move is None]
        if not rows:
            break
    return replies


class LanguagePlayer:
    def __init__(self, generator: AnswerGenerator, name: str, *, temperature: float | None, rng: np.random.Generator) -> None:
        """`temperature`: None is greedy. `rng` seeds one random stream per game."""
        self.name = name
        self._generator = generator
        self._temperature = temperature
        self._streams = GameStreams(int(rng.integers(NUM_ROOTS)))

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[Reply]:
        streams = [self._streams.of(game) for game in games]
        return moves_with_retries(self._generator, boards, temperature=self._temperature, streams=streams)


class LanguageMoveFinder:
    def __init__(self, generator: AnswerGenerator) -> None:
        self._generator = generator

    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Return the first allowed legal move that an answer names, or resign. A repeated UCI `go` gives the same move."""
        temperature = None if options.temperature == BEST_MOVE else options.temperature
        stream = numpy_stream(seed, "uci", num_games, board.ply())
        (reply,) = moves_with_retries(self._generator, [board], temperature=temperature, streams=[stream], allowed=allowed)
        counts = reply.counts
        remark = f"language model: {counts.num_answers} answers, {counts.num_unreadable} unreadable, {counts.num_illegal} illegal"
        if reply.move is None:
            return UciSearchResult(best=None, shown=(), remark=f"{remark}: no legal move, so it resigns")
        return UciSearchResult(best=reply.move, shown=(reply.move,), remark=remark)
