"""Prompts with the answers that the dataset's value tables give: to clone from, to ask, and to grade by."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import chess
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grpo.board.actions import ACTION_UCI
from grpo.board.draws import drawing_moves
from grpo.dataset.table import Split
from grpo.language.text.tasks import (
    NUM_MOVES,
    EnvironmentAnswer,
    LanguageTask,
    MoveAnswer,
    Reading,
    environment_prompt,
    move_prompt,
    read_environment_answer,
    read_move_answer,
    write_environment_answer,
    write_move_answer,
)
from grpo.settings.language import LanguageConfig

MATE_PAWNS: Final = 1_000
"""Mate in n is this less n / 100, being mated its mirror image: 999.97 is mate in three, as in RookWorld's data."""
MAX_PAWNS: Final = 990
"""Every other evaluation is cut here, so that none looks like a mate."""

LEGAL_REWARD: Final = 0.001
MATE_REWARD: Final = 1.0
DRAW_REWARD: Final = 0.5
ILLEGAL_REWARD: Final = -1.0
"""Of an environment answer, for who moved, as RookWorld's arbiter gives them."""

_COLUMNS: Final = ("fen", "moves", "values", "centipawns", "mate_in")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example(ABC):
    """A prompt of one task, and the answer to it."""

    prompt: str
    target: str
    """What follows the prompt in the answer that gets all points."""
    fen: str
    """The position that the prompt tells."""
    index: int
    """Of the board among its split's; several examples may come from one."""

    @property
    @abstractmethod
    def task(self) -> LanguageTask:
        """Return what is asked for."""

    @abstractmethod
    def read(self, text: str) -> Reading:
        """Return what can be read of an answer to this prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveExample(Example):
    """Choose a move; the lists run in parallel over all legal moves, in rising order of action id."""

    moves: tuple[str, ...]
    """UCI."""
    values: tuple[float, ...]
    """In [0, 1] for the mover, by the reward's search."""
    evaluations: tuple[float, ...]
    """Pawns for the mover."""

    @property
    def task(self) -> LanguageTask:
        """Return `Task.MOVE`."""
        return LanguageTask.MOVE

    def read(self, text: str) -> MoveAnswer:
        """Return what can be read of an answer; boards with fewer than five legal moves want fewer."""
        return read_move_answer(text, num_legal=len(self.moves))


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentExample(Example):
    """Say what a move does."""

    move: str
    """UCI; now and then no legal one."""
    history: tuple[str, ...]
    """Moves up to this one, itself the last."""
    new_fen: str
    """After the move; an illegal one changes nothing."""
    reward: float
    terminated: bool
    """Whether the game is over: mate, stalemate, too little material, or 75 moves without progress."""
    truncated: bool
    """Whether the move was illegal."""

    @property
    def task(self) -> LanguageTask:
        """Return `Task.ENVIRONMENT`."""
        return LanguageTask.ENVIRONMENT

    def read(self, text: str) -> EnvironmentAnswer:
        """Return what can be read of an answer."""
        return read_environment_answer(text)


def move_example(
    fen: str,
    moves: Sequence[str],
    values: Sequence[float],
    *,
    centipawns: Sequence[int | None],
    mate_in: Sequence[int | None],
    index: int,
) -> MoveExample:
    """Return the example of a board with its value table.

    The target lists the best moves by `values`, the best first; of equal ones the first by action id, as everywhere in the dataset.
    """
    evaluations = [pawns(score, mate) for score, mate in zip(centipawns, mate_in, strict=True)]
    order = sorted(range(len(moves)), key=lambda column: -values[column])[:NUM_MOVES]
    target = write_move_answer([moves[column] for column in order], [evaluations[column] for column in order], moves[order[0]])
    return MoveExample(
        prompt=move_prompt(fen),
        target=target,
        fen=fen,
        index=index,
        moves=tuple(moves),
        values=tuple(values),
        evaluations=tuple(evaluations),
    )


def pawns(centipawns: int | None, mate_in: int | None) -> float:
    """Return a score as an answer tells it: pawns to two decimals, mates beyond `MAX_PAWNS`; one of the two is None."""
    if mate_in is not None:
        return (MATE_PAWNS - min(abs(mate_in), 99) / 100) * (1 if mate_in > 0 else -1)
    assert centipawns is not None
    return max(-MAX_PAWNS, min(MAX_PAWNS, centipawns / 100))


def environment_example(board: chess.Board, move: str, *, num_told: int, index: int) -> EnvironmentExample:
    """Return the example of a move on a board; its history are the last moves of the board's own stack and the move, `num_told` in all.

    Rewards and flags are those of RookWorld's arbiter for who moved: mate 1, draw 0.5, an illegal move -1 (and the position stays), else
    0.001.
    """
    after = board.copy()
    truncated = chess.Move.from_uci(move) not in board.legal_moves
    if not truncated:
        after.push_uci(move)
    outcome = None if truncated else after.outcome()
    if truncated:
        reward = ILLEGAL_REWARD
    elif outcome is None:
        reward = LEGAL_REWARD
    else:
        reward = DRAW_REWARD if outcome.winner is None else MATE_REWARD
    history = ([one.uci() for one in board.move_stack] + [move])[-num_told:] if num_told else []
    return EnvironmentExample(
        prompt=environment_prompt(board.fen(), move, history),
        target=write_environment_answer(after.fen(), reward, terminated=outcome is not None, truncated=truncated),
        fen=board.fen(),
        index=index,
        move=move,
        history=tuple(history),
        new_fen=after.fen(),
        reward=reward,
        terminated=outcome is not None,
        truncated=truncated,
    )


class LanguageBoards:
    """One split of the dataset as examples of both tasks."""

    def __init__(self, table: pa.Table, config: LanguageConfig) -> None:
        """`table` has the columns of `BOARD_SCHEMA`, and at least one row."""
        self._table, self._config = table.select(_COLUMNS).combine_chunks(), config

    @classmethod
    def of_table(cls, table: pa.Table, split: Split, *, config: LanguageConfig) -> "LanguageBoards":
        """Return the boards of one split, in the table's order; raises ValueError when there are none."""
        own = table.filter(pc.equal(table["split"], split.value))
        if not own.num_rows:
            raise ValueError(f"the dataset has no boards in its {split} split")
        return cls(own, config)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def example(self, index: int, task: LanguageTask, *, rng: np.random.Generator) -> Example:
        """Return an example from one board: of the policy task always the same; of the environment task one that is drawn.

        The moves before a board are not in the dataset, so that a history is made, not remembered: half of the environment examples are of
        the board itself, told without a past, and half of a position that up to `num_history_moves - 1` random legal moves lead to from
        it. The move is a random legal one; but one that ends the game half the time where the board itself has such a move, and an illegal
        one of the mover's men in a share `illegal_move_share`.
        """
        row = self._row(index)
        if task == LanguageTask.MOVE:
            return move_example(row["fen"], row["moves"], row["values"], centipawns=row["centipawns"], mate_in=row["mate_in"], index=index)
        board = chess.Board(row["fen"])
        moves = _ending_moves(board, row) if rng.random() < 0.5 else []
        num_told = self._config.num_history_moves
        if not moves and num_told > 1 and rng.random() < 0.5:
            board = _played_on(board, int(rng.integers(1, num_told)), rng)
        if rng.random() < self._config.illegal_move_share:
            moves = _illegal_moves(board)
        moves = moves or [move.uci() for move in board.legal_moves]
        return environment_example(board, moves[int(rng.integers(len(moves)))], num_told=num_told, index=index)

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """Return examples of random boards, each board once while they last; `environment_share` of them, rounded at random, of that task.

        The tasks come in random order, so that any part of the list has its share of both.
        """
        num_environment = int(count * self._config.environment_share + rng.random())
        tasks = rng.permutation([LanguageTask.ENVIRONMENT] * num_environment + [LanguageTask.MOVE] * (count - num_environment))
        indices = rng.choice(len(self), size=count, replace=count > len(self))
        return [self.example(int(index), LanguageTask(str(task)), rng=rng) for index, task in zip(indices, tasks, strict=True)]

    def _row(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no board {index} among {len(self)}")
        row: dict[str, Any] = self._table.slice(index, 1).to_pylist()[0]
        return row


def _ending_moves(board: chess.Board, row: dict[str, Any]) -> list[str]:
    """Return the legal moves that mate, by the board's value table, or end the game in a draw that nobody has to claim."""
    mating = [move for move, mate in zip(row["moves"], row["mate_in"], strict=True) if mate == 1]
    return mating + [move.uci() for move in drawing_moves(board) if _after(board, move).is_game_over()]


def _after(board: chess.Board, move: chess.Move) -> chess.Board:
    after = board.copy(stack=False)
    after.push(move)
    return after


def _illegal_moves(board: chess.Board) -> list[str]:
    """Return what looks like a move of one of the mover's men, and is none."""
    legal = {move.uci() for move in board.legal_moves}
    own = {chess.square_name(square) for square in chess.scan_forward(board.occupied_co[board.turn])}
    return [move for move in ACTION_UCI[board.turn] if move[:2] in own and move not in legal]


def _played_on(board: chess.Board, num_moves: int, rng: np.random.Generator) -> chess.Board:
    """Return the board after so many random moves, or fewer: the game is never over."""
    for _ in range(num_moves):
        legal = list(board.legal_moves)
        board.push(legal[int(rng.integers(len(legal)))])
        if board.is_game_over():
            board.pop()
            break
    return board
