"""Examples of both text tasks (`grpo.language.text.tasks`) from the dataset: prompts with target answers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import chess
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grpo.board.actions import ACTION_UCI, ID_OF_UCI
from grpo.board.draws import drawing_moves
from grpo.board.encoding import fen_of
from grpo.dataset.labels import further_positions
from grpo.dataset.table import Split
from grpo.language.text.tasks import (
    NUM_MOVES,
    EnvironmentAnswer,
    MoveAnswer,
    Reading,
    TextTask,
    environment_prompt,
    move_prompt,
    read_environment_answer,
    read_move_answer,
    write_environment_answer,
    write_move_answer,
)
from grpo.settings.language import LanguageConfig

MATE_PAWNS: Final = 1_000  # Mate in n moves is MATE_PAWNS - n / 100 (n = 3: 999.97), as in RookWorld's data; negative for the loser.
MAX_PAWNS: Final = 990  # Other evaluations are clipped to [-990, 990] pawns, so none looks like a mate.

_ILLEGAL_MOVE_SHARE: Final = 0.05  # Fraction of environment examples with an illegal move, which teach the flag `truncated`.
_COLUMNS: Final = ("fen", "moves", "values", "centipawns", "mate_in")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example(ABC):
    task: ClassVar[TextTask]
    prompt: str
    target: str  # Answer to imitate.
    fen: str  # Position in the prompt.

    @abstractmethod
    def read(self, text: str) -> Reading:
        """Parse an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveExample(Example):
    """Each tuple has one entry per legal move, by ascending action id (`grpo.board.actions`)."""

    task = TextTask.MOVE
    moves: tuple[str, ...]  # UCI.
    values: tuple[float, ...]  # Values in [0, 1] for the player to move (`grpo.engine.move_values`).
    evaluations: tuple[float, ...]  # The engine's scores, in pawns for the player to move.
    lists_moves: bool = True  # Whether the answer lists moves and evaluations before the best move.

    def read(self, text: str) -> MoveAnswer:
        return read_move_answer(text, num_legal=len(self.moves), lists_moves=self.lists_moves)


class PlayedExample(Example):
    """A position and the move to imitate, without values, so without a grade."""

    task = TextTask.MOVE

    @classmethod
    def of(cls, fen: str, move: str) -> "PlayedExample":
        return cls(prompt=move_prompt(fen, lists_moves=False), target=f" {move}", fen=fen)

    def read(self, text: str) -> MoveAnswer:
        return read_move_answer(text, lists_moves=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentExample(Example):
    task = TextTask.ENVIRONMENT
    move: str  # UCI.
    new_fen: str  # Position after the move; unchanged after an illegal move.
    reward: float  # Number that the answer must predict; not the reward of GRPO.
    terminated: bool  # By checkmate or a draw that needs no claim (such as stalemate).
    truncated: bool

    def read(self, text: str) -> EnvironmentAnswer:
        return read_environment_answer(text)


def move_example(row: Mapping[str, Any], *, lists_moves: bool = True) -> MoveExample:
    """Make an example of a row of the board table. The target lists the five best moves, best first, or has the best alone.

    Moves of equal value stay in order of action id.
    """
    fen, moves, values = row["fen"], tuple(row["moves"]), tuple(row["values"])
    evaluations = tuple(pawns(score, mate) for score, mate in zip(row["centipawns"], row["mate_in"], strict=True))
    order = sorted(range(len(moves)), key=lambda column: -values[column])[:NUM_MOVES]
    target = f" {moves[order[0]]}"
    if lists_moves:
        target = write_move_answer([moves[column] for column in order], [evaluations[column] for column in order], moves[order[0]])
    return MoveExample(
        prompt=move_prompt(fen, lists_moves=lists_moves),
        target=target,
        fen=fen,
        moves=moves,
        values=values,
        evaluations=evaluations,
        lists_moves=lists_moves,
    )


def pawns(centipawns: int | None, mate_in: int | None) -> float:
    """Return an engine's score in pawns. Exactly one argument is not None."""
    if mate_in is not None:
        return (MATE_PAWNS - min(abs(mate_in), 99) / 100) * (1 if mate_in > 0 else -1)
    assert centipawns is not None
    return max(-MAX_PAWNS, min(MAX_PAWNS, centipawns / 100))


def environment_example(board: chess.Board, move: str, *, num_history_moves: int) -> EnvironmentExample:
    """Make an example of a move (UCI). The prompt's history is the last `num_history_moves` moves, this move included.

    The example's reward is RookWorld's: checkmate 1, draw 0.5, illegal move -1, otherwise 0.001.
    """
    after, outcome = board.copy(), None
    truncated = chess.Move.from_uci(move) not in board.legal_moves
    if not truncated:
        after.push_uci(move)
        outcome = after.outcome()
    reward = -1.0 if truncated else 0.001 if outcome is None else 0.5 if outcome.winner is None else 1.0
    history = [*(earlier.uci() for earlier in board.move_stack), move][-num_history_moves:] if num_history_moves else []
    return EnvironmentExample(
        prompt=environment_prompt(board.fen(), move, history),
        target=write_environment_answer(after.fen(), reward, terminated=outcome is not None, truncated=truncated),
        fen=board.fen(),
        move=move,
        new_fen=after.fen(),
        reward=reward,
        terminated=outcome is not None,
        truncated=truncated,
    )


class LanguageBoards:
    def __init__(self, table: pa.Table, split: Split, config: LanguageConfig) -> None:
        """Keep the split's rows of the board table (`BOARD_SCHEMA`). Raises ValueError if the split has no rows."""
        self._table, self._config = table.filter(pc.equal(table["split"], split.value)).select(_COLUMNS).combine_chunks(), config
        if not len(self):
            raise ValueError(f"the dataset has no boards in its {split} split")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def example(self, index: int, task: TextTask, *, rng: np.random.Generator) -> Example:
        """Return a random example of the board with this index.

        Move examples exchange colors half of the time, because a model learns each color separately. Environment examples:

        - Half use a move that ends the game, if the board has one.
        - The others use a random legal move. Half of them first play 1 to `num_history_moves - 1` random moves, as a history for the
          prompt, because the dataset stores no earlier moves.
        - In `_ILLEGAL_MOVE_SHARE` of all examples, an illegal move replaces the move.
        """
        # Another order of the draws would give other examples.
        row: dict[str, Any] = self._table.slice(index, 1).to_pylist()[0]
        if task == TextTask.MOVE:
            fen, moves = _of_random_color(row["fen"], row["moves"], rng)
            return move_example({**row, "fen": fen, "moves": moves}, lists_moves=self._config.lists_moves)
        board = chess.Board(row["fen"])
        moves = _ending_moves(board, row) if rng.random() < 0.5 else []
        num_history_moves = self._config.num_history_moves
        if not moves and num_history_moves > 1 and rng.random() < 0.5:
            board = _after_random_moves(board, int(rng.integers(1, num_history_moves)), rng)
        if rng.random() < _ILLEGAL_MOVE_SHARE:
            moves = _illegal_moves(board)
        moves = moves or [move.uci() for move in board.legal_moves]
        return environment_example(board, moves[int(rng.integers(len(moves)))], num_history_moves=num_history_moves)

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """Return `count` examples of random boards. No board appears twice, unless there are fewer than `count` boards.

        `count * language.environment_share` of them are of the environment task. A fraction is rounded up or down at random.
        """
        num_environment = int(count * self._config.environment_share + rng.random())
        tasks = rng.permutation([TextTask.ENVIRONMENT] * num_environment + [TextTask.MOVE] * (count - num_environment))
        indices = rng.choice(len(self), size=count, replace=count > len(self))
        return [self.example(int(index), TextTask(str(task)), rng=rng) for index, task in zip(indices, tasks, strict=True)]


class ImitationBoards(LanguageBoards):
    """Training boards. If an answer is the best move alone, move examples are boards and positions of games, with the move to imitate."""

    def __init__(self, boards: pa.Table, games: pa.Table, config: LanguageConfig, *, max_positions: int) -> None:
        """`max_positions` limits boards and positions of games together; boards are never cut.

        The tables have `BOARD_SCHEMA` and `GAME_SCHEMA`. Raises ValueError without training boards.
        """
        super().__init__(boards, Split.TRAIN, config)
        self._played: list[tuple[str, str]] = []  # FEN and move (UCI).
        if not config.lists_moves:
            train = boards.filter(pc.equal(boards["split"], Split.TRAIN.value))
            self._played += zip(train["fen"].to_pylist(), train["label"].to_pylist(), strict=True)
            further = further_positions(boards, games, count=max_positions - len(self._played))
            self._played += ((fen_of(board), ACTION_UCI[board.turn][played]) for board, played in further)

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        examples = super().draw(rng, count)
        if not self._played:
            return examples
        rows = rng.choice(len(self._played), size=count, replace=count > len(self._played))
        played = [_of_random_color(fen, [move], rng) for fen, move in (self._played[row] for row in rows)]
        return [
            PlayedExample.of(fen, move) if example.task == TextTask.MOVE else example
            for example, (fen, [move]) in zip(examples, played, strict=True)
        ]


def _of_random_color(fen: str, moves: Sequence[str], rng: np.random.Generator) -> tuple[str, list[str]]:
    """Return a position and moves (UCI), with colors exchanged half of the time."""
    if rng.random() < 0.5:
        return fen, list(moves)
    board = chess.Board(fen)
    return fen_of(board.mirror()), [ACTION_UCI[not board.turn][ID_OF_UCI[board.turn][move]] for move in moves]


def _ending_moves(board: chess.Board, row: Mapping[str, Any]) -> list[str]:
    """Return the moves (UCI) that give checkmate or a draw that needs no claim."""
    ending = [move for move, mate in zip(row["moves"], row["mate_in"], strict=True) if mate == 1]
    for move in drawing_moves(board):
        board.push(move)
        if board.is_game_over():
            ending.append(move.uci())
        board.pop()
    return ending


def _illegal_moves(board: chess.Board) -> list[str]:
    legal = {move.uci() for move in board.legal_moves}
    own = {chess.square_name(square) for square in chess.scan_forward(board.occupied_co[board.turn])}
    return [move for move in ACTION_UCI[board.turn] if move[:2] in own and move not in legal]


def _after_random_moves(board: chess.Board, num_moves: int, rng: np.random.Generator) -> chess.Board:
    """Play up to `num_moves` random legal moves on `board`, and return it. Stop before a move that would end the game."""
    for _ in range(num_moves):
        legal = list(board.legal_moves)  # `random_move` orders the moves otherwise, so a seed would give other examples.
        board.push(legal[int(rng.integers(len(legal)))])
        if board.is_game_over():
            board.pop()
            break
    return board
