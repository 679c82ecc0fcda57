"""What must hold of the table of boards before anything learns from it."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from data_checks.board_rules import BOARD_RULES, MADE_BY_OTHER_CODE, Reading
from data_checks.expectations import NamedCheck, prepare_great_expectations, run_checks
from data_checks.report import CheckReport
from grpo.boards import BOARD_SCHEMA, Split
from grpo.config import BoardsConfig
from grpo.phases import PHASES
from grpo.sources import wanted_boards

if TYPE_CHECKING:
    import pandas as pd

_ROWS_PER_BATCH: Final = 1_024
_CELLS_REMEDY: Final = "a part of the boards is missing, doubled, or made with other settings; make the boards again with these settings"
_JOIN_REMEDY: Final = "parts of the boards were put together without dropping what they share; join them again"


def check_boards(table: pa.Table, config: BoardsConfig) -> CheckReport:
    """Return what is wrong with the boards, if anything: their number and balance, each board and its values, leaks between splits.

    Raises ValueError when the columns are not those of `grpo.boards.BOARD_SCHEMA`: there is then nothing to check.
    """
    if [(field.name, field.type) for field in table.schema] != [(field.name, field.type) for field in BOARD_SCHEMA]:
        raise ValueError(
            f"the board table has other columns than grpo.boards.BOARD_SCHEMA, so other code wrote it; make the boards again."
            f" It has:\n{table.schema.to_string(show_field_metadata=False, show_schema_metadata=False)}"
        )
    frame = _frame(table)
    return run_checks(_checks(frame, config), frame)


def _frame(table: pa.Table) -> "pd.DataFrame":
    """Return the plain text columns, and one column a rule with what `BoardRule.breach` says."""
    import pandas as pd

    columns: dict[str, list[str | None]] = {rule.name: [] for rule in BOARD_RULES}
    row_number = 0
    for batch in table.to_batches(max_chunksize=_ROWS_PER_BATCH):
        for row in batch.to_pylist():
            reading = Reading.of(row_number, row)
            for rule in BOARD_RULES:
                columns[rule.name].append(rule.breach(reading))
            row_number += 1
    for name in ("split", "phase", "key", "engine", "limit"):
        columns[name] = table[name].to_pylist()
    columns["key_in_one_split"] = _leaks("position", columns["key"], columns["split"])
    columns["game_in_one_split"] = _leaks("game", table["game_id"].to_pylist(), columns["split"])
    return pd.DataFrame(columns, dtype="str")


def _leaks(what: str, names: Sequence[str | None], splits: Sequence[str | None]) -> list[str | None]:
    """Return, row by row, in which splits the named thing is when that is more than one."""
    found: dict[str, set[str]] = {}
    for name, split in zip(names, splits, strict=True):
        if name is not None and split is not None:
            found.setdefault(name, set()).add(split)
    breaches = {name: f"the {what} {name} is in {' and '.join(sorted(where))}" if len(where) > 1 else "" for name, where in found.items()}
    return [None if name is None else breaches.get(name) for name in names]


def _checks(frame: "pd.DataFrame", config: BoardsConfig) -> list[NamedCheck]:
    prepare_great_expectations()
    from great_expectations.expectations import (
        ExpectColumnValuesToBeInSet,
        ExpectColumnValuesToBeUnique,
        ExpectTableRowCountToBeBetween,
        ExpectTableRowCountToEqual,
    )
    from great_expectations.expectations.row_conditions import Column

    def no_breach(name: str, meaning: str, remedy: str) -> NamedCheck:
        return NamedCheck(
            name=name,
            meaning=meaning,
            remedy=remedy,
            expectations={name: ExpectColumnValuesToBeInSet(column=name, value_set=[""])},
        )

    def known(column: str, names: Sequence[str]) -> NamedCheck:
        return NamedCheck(
            name=f"{column}_known",
            meaning=f"The {column} is one of {', '.join(names)}.",
            remedy=MADE_BY_OTHER_CODE,
            expectations={column: ExpectColumnValuesToBeInSet(column=column, value_set=list(names))},
        )

    def one(column: str, meaning: str) -> NamedCheck:
        [(usual, _)] = Counter(frame[column].dropna()).most_common(1) or [("none", 0)]
        return NamedCheck(
            name=f"one_{column}",
            meaning=f"{meaning}: {usual}.",
            remedy="parts made with different engines or settings were put together; make all boards again with one of them",
            expectations={column: ExpectColumnValuesToBeInSet(column=column, value_set=[usual])},
        )

    wanted = {
        f"{split}/{phase}, {count:,} boards wanted": (count, (Column("split") == split.value) & (Column("phase") == phase.value))
        for (split, phase), count in wanted_boards(config).items()
    }
    return [
        NamedCheck(
            name="enough_boards",
            meaning="Each split has at least as many boards of each phase as the settings ask for.",
            remedy=_CELLS_REMEDY,
            expectations={
                label: ExpectTableRowCountToBeBetween(min_value=count, row_condition=cell) for label, (count, cell) in wanted.items()
            },
        ),
        NamedCheck(
            name="phases_balanced",
            meaning="Each split has exactly as many boards of each phase as the settings ask for: a third of its boards.",
            remedy=_CELLS_REMEDY,
            expectations={label: ExpectTableRowCountToEqual(value=count, row_condition=cell) for label, (count, cell) in wanted.items()},
        ),
        known("split", list(Split)),
        known("phase", PHASES),
        *(no_breach(rule.name, rule.meaning, rule.remedy) for rule in BOARD_RULES),
        NamedCheck(
            name="key_unique",
            meaning="No position occurs twice, be it with colours swapped or other clocks.",
            remedy=_JOIN_REMEDY,
            expectations={"key": ExpectColumnValuesToBeUnique(column="key")},
        ),
        no_breach(
            "key_in_one_split",
            "No position is in two splits, so that none is measured on what was learned.",
            _JOIN_REMEDY,
        ),
        no_breach(
            "game_in_one_split",
            "All boards of one game are in one split, since they resemble each other.",
            "the split was not drawn from the game's id alone; make the boards again",
        ),
        one("engine", "All values come from one engine"),
        one("limit", "All values come from searches under one limit"),
    ]
