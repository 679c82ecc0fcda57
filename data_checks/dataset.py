"""Checks of a dataset before training, in four suites. `data_checks.columns` explains label, score, strong value and key."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from data_checks.columns import Columns, board_columns, game_columns
from data_checks.expectations import Check, Suite, prepare_great_expectations, run_suites
from data_checks.report import DatasetReport
from grpo.dataset.pgn import MAX_RATING
from grpo.dataset.quotas import QuotaCell, boards_per_cell
from grpo.dataset.reports import JoinedBoards
from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA
from grpo.settings.tree import BoardsConfig

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

TOLERANCE: Final = 1e-6
"""Rounding of float32 values."""
MAX_FLAT_SHARE: Final = 0.25
"""Largest fraction of boards whose moves all have the same value. Boards from engine games have 0.5 %."""
MIN_BOARDS_FOR_CHANCE: Final = 300
"""Fewest labels from games. With fewer, chance can hide that weak players' moves beat random moves."""
_NUM_STANDARD_ERRORS: Final = 3.0
_OTHER_CODE: Final = "other code made the boards, or they were edited; make them again from an empty store"
_ENGINE: Final = "the engine's answers were cut short or mixed up; check the engine, and make the boards again from an empty store"
_SOURCE: Final = "a source was misread or is damaged; look at the game at the row's source and offset"
_JOIN: Final = "parts were joined without removing their common positions or games; join them again"
_CELLS: Final = "a part is missing, occurs twice, or has other settings; make the boards again with these settings"


def check_dataset_tables(
    boards: pa.Table,
    games: pa.Table,
    dataset: JoinedBoards,
    config: BoardsConfig,
    *,
    data_docs: Path | None = None,
) -> DatasetReport:
    """Raises ValueError if a table has another schema. `data_docs`: folder for Great Expectations' pages; None: no pages."""
    for name, table, schema in (("board", boards, BOARD_SCHEMA), ("game", games, GAME_SCHEMA)):
        if [(field.name, field.type) for field in table.schema] != [(field.name, field.type) for field in schema]:
            raise ValueError(
                f"the {name} table has other columns than grpo.dataset.table.{name.upper()}_SCHEMA, because other code wrote it;"
                f" build the boards again. It has:\n{table.schema.to_string(show_field_metadata=False, show_schema_metadata=False)}"
            )
    prepare_great_expectations()
    columns = board_columns(boards, games)
    # Boards reported as missing are not wanted.
    wanted = {cell: count - dataset.missing.get("/".join(cell), 0) for cell, count in boards_per_cell(config).items()}
    suites = (
        Suite(name="games", checks=_game_checks(config), columns=game_columns(games, boards, config)),
        Suite(name="boards", checks=_board_checks(wanted), columns=columns),
        Suite(name="values", checks=_value_checks(), columns=columns),
        Suite(name="labels", checks=_label_checks(columns), columns=columns),
    )
    return DatasetReport(suites=run_suites(suites, data_docs=data_docs))


def _between(*columns: str, low: float | None = 0, high: float | None = 0) -> "dict[str, Expectation]":
    """Expect numbers in [low, high], by default in [0, 0], because most columns count faults."""
    from great_expectations.expectations import ExpectColumnValuesToBeBetween

    return {column: ExpectColumnValuesToBeBetween(column=column, min_value=low, max_value=high) for column in columns}


def _unique(column: str) -> "dict[str, Expectation]":
    from great_expectations.expectations import ExpectColumnValuesToBeUnique

    return {column: ExpectColumnValuesToBeUnique(column=column)}


def _game_checks(config: BoardsConfig) -> list[Check]:
    most = config.max_per_game_and_phase
    return [
        Check("game_complete", "Every required column is filled.", _OTHER_CODE, _between("missing")),
        Check("game_id_unique", "No game occurs twice.", _JOIN, _unique("game_id")),
        Check("moves_complete", "Each ply has a move and a key; each label has a ply of the game.", _OTHER_CODE, _between("ply_faults")),
        Check(
            "ratings_possible",
            f"A rating is unknown or in [1, {MAX_RATING:,}].",
            _SOURCE,
            _between("white_rating", "black_rating", low=1, high=MAX_RATING),
        ),
        Check("game_has_boards", "Every game has boards.", _JOIN, _between("num_boards", low=1, high=None)),
        Check("boards_per_phase", f"At most {most} boards of a phase come from one game.", _CELLS, _between("most_of_a_phase", high=most)),
        Check("split_as_drawn", "The hash of a game's id gives its split.", _CELLS, _between("split_faults")),
    ]


def _board_checks(wanted: Mapping[QuotaCell, int]) -> list[Check]:
    from great_expectations.expectations import ExpectColumnValuesToNotBeNull, ExpectTableRowCountToEqual
    from great_expectations.expectations.row_conditions import Column

    counts: dict[str, Expectation] = {"all boards": ExpectTableRowCountToEqual(value=sum(wanted.values()))}
    for (split, phase), count in wanted.items():
        condition = (Column("split") == split.value) & (Column("phase") == phase.value)
        counts[f"{split}/{phase}, {count:,} wanted"] = ExpectTableRowCountToEqual(value=count, row_condition=condition)
    return [
        Check(
            "phases_balanced",
            "Each split has the wanted boards of each phase, except boards reported as missing.",
            _CELLS,
            counts,
        ),
        Check("nothing_missing", "Every required column is filled.", _OTHER_CODE, _between("missing")),
        Check("fen_legal", "Every FEN has six fields and can occur in a game.", _SOURCE, _between("fen_faults")),
        Check("phase_as_stated", "The stored phase follows from the phase rule.", _OTHER_CODE, _between("phase_faults")),
        Check("key_as_computed", "The key is the key of the FEN, and the game's.", _OTHER_CODE, _between("key_faults", "game_key_faults")),
        Check("moves_legal", "The moves are the legal moves, in rising order of action id.", _ENGINE, _between("move_faults")),
        Check(
            "board_has_game",
            "The game table has every board's game.",
            _JOIN,
            {"num_plies": ExpectColumnValuesToNotBeNull(column="num_plies")},
        ),
        Check("ply_in_game", "A board's ply is a ply of its game, or 0 for a position from a list.", _SOURCE, _between("ply_faults")),
        Check("key_unique", "No position occurs twice, also with swapped colors or in two splits.", _JOIN, _unique("key")),
        Check("game_in_one_split", "Every board is in its game's split.", _JOIN, _between("split_faults")),
    ]


def _value_checks() -> list[Check]:
    from great_expectations.expectations import ExpectColumnMeanToBeBetween, ExpectColumnUniqueValueCountToBeBetween

    return [
        Check("values_complete", "Each legal move has one value.", _ENGINE, _between("values_lost")),
        Check("values_in_range", "Every value is in [0, 1].", _ENGINE, _between("lowest_value", "highest_value", high=1)),
        Check("one_score_a_move", "Each move has either centipawns or a mate distance.", _ENGINE, _between("score_faults")),
        Check(
            "values_as_scores",
            f"The values follow from the scores, to {TOLERANCE:g}.",
            _CELLS,
            _between("value_error", high=TOLERANCE),
        ),
        Check("mates_are_mates", "Moves that mate, and no others, have the score mate in 1.", _ENGINE, _between("false_mates")),
        Check("draws_are_draws", "A move that draws by rule has the score 0.", _OTHER_CODE, _between("false_draws")),
        Check("strong_values_on_heldout", "Only held-out boards have strong values.", _OTHER_CODE, _between("strong_faults")),
        Check(
            "strong_values_in_range",
            "On held-out boards each legal move has one strong value, in [0, 1].",
            _ENGINE,
            _between("strong_lost") | _between("lowest_strong", "highest_strong", high=1),
        ),
        Check(
            "values_differ",
            f"All moves have the same value on at most {MAX_FLAT_SHARE:.0%} of the boards.",
            "the engine gives all moves the same score; check the scores, or choose other positions",
            {"share of flat boards": ExpectColumnMeanToBeBetween(column="is_flat", max_value=MAX_FLAT_SHARE)},
        ),
        Check(
            "one_engine",
            "One engine at one limit gave all values.",
            "parts of different engines or settings were joined; make all boards again",
            {name: ExpectColumnUniqueValueCountToBeBetween(column=name, max_value=1) for name in ("engine", "limit")},
        ),
    ]


def _label_checks(columns: Columns) -> list[Check]:
    from great_expectations.expectations import ExpectColumnMeanToBeBetween

    checks = [
        Check("label_legal", "The label (the move to imitate) is legal.", _SOURCE, _between("label_faults")),
        Check("engine_label_best", "An engine's label is a best move.", _OTHER_CODE, _between("label_loss", high=TOLERANCE)),
        Check("label_as_played", "A played label is the game's move at the board's ply.", _OTHER_CODE, _between("unplayed_labels")),
    ]
    if variances := [variance for variance in columns["label_variance"] if variance is not None]:
        checks.append(
            Check(
                "labels_beat_chance",
                f"Played moves are better than random moves: the mean gain exceeds {_NUM_STANDARD_ERRORS:g} standard errors"
                f" (-{_NUM_STANDARD_ERRORS:g} with fewer than {MIN_BOARDS_FOR_CHANCE} boards).",
                "labels were mixed up, values are the other side's, or the players move at random",
                {"mean gain": ExpectColumnMeanToBeBetween(column="label_gain", min_value=least_gain(variances))},
            )
        )
    return checks


def least_gain(variances: list[float]) -> float:
    """Return the limit of the mean gain. A label's gain is its value minus the mean value of the board's moves.

    `variances`: variance of each labeled board's values. A random label has this variance and the mean gain 0.

    - From 300 boards on, the limit is 3 standard errors, which random labels exceed in one of 740 datasets.
    - With fewer boards, the limit is -3 standard errors.
    """
    standard_error = math.sqrt(math.fsum(variances)) / len(variances)
    return (1 if len(variances) >= MIN_BOARDS_FOR_CHANCE else -1) * _NUM_STANDARD_ERRORS * standard_error
