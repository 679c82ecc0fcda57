"""A small sound dataset, made up in memory: games from a file, listed positions, and scores that rules and values agree with."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import chess
import pyarrow as pa
from made_language import made_up_rows

from data_checks.dataset import check_dataset_tables
from data_checks.report import CheckResult, DatasetReport
from grpo.board.encoding import position_key
from grpo.board.phases import PHASES, Phase, phase_of
from grpo.dataset.quotas import boards_per_cell, split_fractions, split_of_game
from grpo.dataset.reports import JoinedBoards
from grpo.dataset.table import GAME_SCHEMA, Split, board_table, phase_counts
from grpo.settings.tree import BoardsConfig

Row = dict[str, Any]

CONFIG = BoardsConfig(files=("games.pgn", "list.epd"), num_train=12, num_validation=3, num_heldout=3)


@dataclass
class Dataset:
    """Tables as rows, and what the report says otherwise than they do."""

    boards: list[Row]
    games: list[Row]
    facts: dict[str, Any] = field(default_factory=dict)

    def game(self, row: Row) -> Row:
        return next(game for game in self.games if game["game_id"] == row["game_id"])

    def tables(self) -> tuple[pa.Table, pa.Table]:
        return board_table(self.boards), pa.Table.from_pylist(self.games, schema=GAME_SCHEMA)

    def report(self) -> JoinedBoards:
        """Return what the join would report of these tables, less what was planted."""
        phases = phase_counts([row["phase"] for row in self.boards])
        found = {
            "rows": len(self.boards),
            "games": len(self.games) + 5,
            "used_games": len(self.games),
            "phases": phases,
            "natural_phases": {phase: 3 * kept + 1 for phase, kept in phases.items()},
            "splits": dict(Counter(row["split"] for row in self.boards)),
            "sources": dict(Counter(row["source"] for row in self.boards)),
            "labels": dict(Counter(row["label_from"] for row in self.boards)),
            "rejected": {"illegal move": 2, "filtered: min_rating": 1},
            "first_rejected": (),
            "duplicates": 4,
            "left_out": {"judged": 1},
            "missing": {},
        }
        return JoinedBoards.model_construct(**found | self.facts)  # Not validated: a planted fault may be a missing source.


def check(dataset: Dataset, config: BoardsConfig = CONFIG, **options: Any) -> DatasetReport:
    return check_dataset_tables(*dataset.tables(), dataset.report(), config, **options)


def failed(report: DatasetReport) -> set[str]:
    return {result.name for suite in report.suites.values() for result in suite if not result.is_met}


def result_of(report: DatasetReport, name: str) -> CheckResult:
    return next(result for suite in report.suites.values() for result in suite if result.name == name)


def game_id_in(split: Split, name: str, config: BoardsConfig = CONFIG) -> str:
    """Return an id that begins with the name and belongs to the split."""
    return next(game_id for number in count() if split_of_game(game_id := f"{name}-{number}", split_fractions(config)) == split)


def game_of(row: Row, *, start_fen: str = chess.STARTING_FEN, num_plies: int = 400) -> Row:
    """Return the game of a board; of one without a player's label, a listed position."""
    listed = row["label_from"] == "engine"
    return {
        "game_id": row["game_id"],
        "source": row["source"],
        "offset": row["offset"],
        "split": row["split"],
        "start_fen": row["fen"] if listed else start_fen,
        "num_plies": 0 if listed else num_plies,
        "result": "*" if listed else "1-0",
        "white_rating": None if listed else 1_500,
        "black_rating": None,
        "date": None if listed else "2024.02.??",
        "moves": [] if listed else [row["label"]] * num_plies,
        "keys": [] if listed else [row["key"]] * num_plies,
        "label_plies": [] if listed else [row["ply"]],
    }


def random_boards(rng: random.Random) -> Iterator[chess.Board]:
    """Yield for ever different positions, with a choice, of games of random moves, many of them captures, so that they get to endgames."""
    seen: set[str] = set()
    while True:
        board = chess.Board()
        while board.fullmove_number <= 100 and (moves := list(board.legal_moves)):
            if position_key(board) not in seen and len(moves) > 8 and board.fullmove_number > 3:
                seen.add(position_key(board))
                yield board.copy(stack=False)
            captures = list(board.generate_legal_captures())
            board.push(rng.choice(captures if captures and rng.random() < 0.5 else moves))


def sound_dataset(config: BoardsConfig = CONFIG, *, seed: int = 0) -> Dataset:
    """Return exactly the boards that are asked for, each of a game of its own; of each phase one training board is a listed position."""
    rng = random.Random(seed)
    waiting: dict[Phase, list[chess.Board]] = {phase: [] for phase in PHASES}
    wanted = boards_per_cell(config)
    needed = {phase: sum(number for (_, its), number in wanted.items() if its == phase) for phase in PHASES}
    for board in random_boards(rng):
        waiting[phase_of(board)].append(board)
        if all(len(waiting[phase]) >= needed[phase] for phase in PHASES):
            break
    rows = []
    for (split, phase), number in wanted.items():
        for place in range(number):
            board = waiting[phase].pop()
            [row] = made_up_rows([board], split=split)
            row |= {"game_id": game_id_in(split, f"{split}-{phase}-{place}", config), "source": "list.epd"}
            if split != Split.TRAIN or place < number - 1:
                row |= {"source": "games.pgn", "label_from": "game", "ply": board.ply()}
            rows.append(row)
    rows = board_table(rows).to_pylist()
    return Dataset(rows, [game_of(row) for row in rows])
