"""Dataset checks before training: four suites, of games, boards, values and labels."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from data_checks.board_rules import BOARD_RULES
from data_checks.expectations import NamedCheck, Suite, guarded, prepare_great_expectations, run_suites
from data_checks.game_rules import PGN_RESULTS, game_rules
from data_checks.label_rules import CHANCE_MEANING, LABEL_RULES, LABELLERS, Edge, chance_breach
from data_checks.report import DatasetReport
from data_checks.rules import JOIN_REMEDY, MADE_BY_OTHER_CODE, BoardReading, BoardsOfGame, GameReading, R, RowRule
from data_checks.value_rules import share_expected, value_rules
from grpo.board.phases import PHASES
from grpo.dataset.engine_games import ENGINE
from grpo.dataset.quotas import QuotaCell, boards_per_cell
from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA, Split, phase_counts
from grpo.settings.tree import BoardsConfig, ValuesConfig

if TYPE_CHECKING:
    import pandas as pd

MAX_FLAT_SHARE: Final = 0.25
"""Largest fraction of boards whose moves all have the same value, which have zero advantage; in engine games it is 0.5 % (dead draws)."""
_ROWS_PER_BATCH: Final = 1_024
_NUM_NAMED: Final = 3
_CELLS_REMEDY: Final = "a part of the boards is missing, doubled, or made with other settings; make the boards again with these settings"
_MIXED_REMEDY: Final = "parts made with different engines or settings were put together; make all boards again with one of them"
_REPORT_REMEDY: Final = "tables and report are of different datasets, or changed by hand; join the parts again"

Columns = dict[str, list[str | None]]


def check_dataset_tables(
    boards: pa.Table,
    games: pa.Table,
    facts: Mapping[str, Any],
    config: BoardsConfig,
    values: ValuesConfig,
    *,
    data_docs: Path | None = None,
) -> DatasetReport:
    """Run all checks of a dataset and return their report.

    Args:
        boards: Table of `grpo.dataset.table.BOARD_SCHEMA`.
        games: Table of `grpo.dataset.table.GAME_SCHEMA`.
        facts: Report of the step that joined the units.
        config: Settings of the dataset; the paths of files are not used.
        values: Settings of the values.
        data_docs: Folder for Great Expectations' Data Docs; None writes none.

    Raises ValueError if the columns are not those of the schemas.
    """
    for name, table, schema in (("board", boards, BOARD_SCHEMA), ("game", games, GAME_SCHEMA)):
        if [(field.name, field.type) for field in table.schema] != [(field.name, field.type) for field in schema]:
            raise ValueError(
                f"the {name} table has other columns than grpo.dataset.table.{name.upper()}_SCHEMA, so other code wrote it;"
                f" build the boards again. It has:\n{table.schema.to_string(show_field_metadata=False, show_schema_metadata=False)}"
            )
    least = _least_boards(config, facts)
    rules = value_rules(values)
    columns = _board_columns(boards, games, rules)
    prepare_great_expectations()
    suites = [
        _games_suite(boards, games, facts, config),
        _boards_suite(columns, games, config, least),
        _values_suite(columns, values, rules, sum(least.values())),
        _labels_suite(columns, sum(least.values())),
    ]
    return DatasetReport(suites=run_suites(suites, data_docs=data_docs))


def _least_boards(config: BoardsConfig, facts: Mapping[str, Any]) -> dict[QuotaCell, int]:
    """Return the minimum number of boards per cell: the quota, minus missing boards if a shortage is accepted, but at least one."""
    missing: Mapping[str, int] = facts["missing"] if config.shortage == "accept" else {}
    wanted = boards_per_cell(config)
    return {(split, phase): max(1, count - missing.get(f"{split}/{phase}", 0)) for (split, phase), count in wanted.items()}


def _board_columns(boards: pa.Table, games: pa.Table, rules: Sequence[RowRule[BoardReading]]) -> Columns:
    """Return the text columns of the frames: one column per rule with the result of its `breach`, and those of checks over all boards."""
    num_plies = dict(zip(games["game_id"].to_pylist(), games["num_plies"].to_pylist(), strict=True))
    all_rules = (*BOARD_RULES, *rules, *LABEL_RULES)
    columns: Columns = {rule.name: [] for rule in all_rules}
    edges: list[Edge] = []
    expected: list[str | None] = []
    fens: list[str | None] = boards["fen"].to_pylist()
    flat: list[str | None] = []
    num_valued = 0
    row_number = 0
    for batch in boards.to_batches(max_chunksize=_ROWS_PER_BATCH):
        for row in batch.to_pylist():
            reading = BoardReading.of(row_number, row, num_plies.get(row["game_id"]))
            for rule in all_rules:
                columns[rule.name].append(rule.breach(reading))
            edge = Edge.of(reading)
            if edge is not None:
                edges.append(edge)
            expected.append(share_expected(reading))
            of_moves = reading.values
            num_valued += of_moves is not None
            if of_moves is not None and min(of_moves) == max(of_moves):
                flat.append(row["fen"])
            row_number += 1
    for name in ("split", "phase", "source", "label_from", "key", "engine", "limit", "transform"):
        columns[name] = boards[name].to_pylist()
    columns["key_in_one_split"] = _leaks("position", columns["key"], columns["split"])
    columns["game_in_one_split"] = _leaks("game", boards["game_id"].to_pylist(), columns["split"])
    columns["label_as_played"] = _not_as_played(boards, games)
    columns["expected_throughout"] = _not_throughout(expected, fens)
    columns["values_differ"] = _once(_too_flat(flat, num_valued), len(fens))
    columns["labels_beat_chance"] = _once(chance_breach(edges), len(fens))
    return columns


def _once(breach: str | None, num_rows: int) -> list[str | None]:
    """Return the result of a check over all rows as a column whose first row has it."""
    return [breach, *[None] * (num_rows - 1)][:num_rows]


def _leaks(what: str, names: Sequence[str | None], splits: Sequence[str | None]) -> list[str | None]:
    """Return for each row the splits of the named thing if there is more than one."""
    found: dict[str, set[str]] = {}
    for name, split in zip(names, splits, strict=True):
        if name is not None and split is not None:
            found.setdefault(name, set()).add(split)
    breaches = {name: f"the {what} {name} is in {' and '.join(sorted(where))}" if len(where) > 1 else "" for name, where in found.items()}
    return [None if name is None else breaches.get(name) for name in names]


def _not_as_played(boards: pa.Table, games: pa.Table) -> list[str | None]:
    """Return for each row whether its label, if it was played, is another move than its game has at that ply."""
    moves_of = dict(zip(games["game_id"].to_pylist(), games["moves"].to_pylist(), strict=True))

    def breach(fen: str | None, game_id: str | None, ply: int | None, label: str | None, label_from: str | None) -> str | None:
        moves = moves_of.get(game_id)
        if label_from != "game" or moves is None or ply is None or label is None or not 0 <= ply < len(moves):
            return None
        return "" if moves[ply] == label else f"{fen}: the label is {label}, and game {game_id} has {moves[ply]} at ply {ply}"

    rows = (boards[name].to_pylist() for name in ("fen", "game_id", "ply", "label", "label_from"))
    return [breach(*row) for row in zip(*rows, strict=True)]


def _not_throughout(shares: Sequence[str | None], fens: Sequence[str | None]) -> list[str | None]:
    """Return for each row whether its expected scores differ from most boards, which have them for all moves or for none."""
    [(usual, _)] = Counter(share for share in shares if share in ("all", "none")).most_common(1) or [("all", 0)]

    def breach(share: str, fen: str | None) -> str:
        return "" if share == usual else f"{fen}: {share} of the moves have an expected score, and on most boards {usual}"

    return [None if share is None else breach(share, fen) for share, fen in zip(shares, fens, strict=True)]


def _too_flat(flat: Sequence[str | None], num_valued: int) -> str | None:
    if not num_valued:
        return None
    share = len(flat) / num_valued
    if share <= MAX_FLAT_SHARE:
        return ""
    return f"all moves are worth the same on {len(flat):,} of {num_valued:,} boards ({share:.1%}), such as {flat[0]}"


def _frame(columns: Mapping[str, Iterable[str | None]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame({name: [guarded(text) for text in texts] for name, texts in columns.items()}, dtype="str")


def _no_breach(name: str, meaning: str, remedy: str) -> NamedCheck:
    from great_expectations.expectations import ExpectColumnValuesToBeInSet

    return NamedCheck(
        name=name,
        meaning=meaning,
        remedy=remedy,
        expectations={name: ExpectColumnValuesToBeInSet(column=name, value_set=[""])},
    )


def _hold(rules: Iterable[RowRule[R]]) -> list[NamedCheck]:
    return [_no_breach(rule.name, rule.meaning, rule.remedy) for rule in rules]


def _among(name: str, column: str, known: Sequence[str], meaning: str, remedy: str) -> NamedCheck:
    from great_expectations.expectations import ExpectColumnValuesToBeInSet

    return NamedCheck(
        name=name,
        meaning=meaning,
        remedy=remedy,
        expectations={column: ExpectColumnValuesToBeInSet(column=column, value_set=[guarded(text) for text in known])},
    )


def _known(column: str, known: Sequence[str]) -> NamedCheck:
    return _among(f"{column}_known", column, known, f"The {column} is one of {', '.join(known)}.", MADE_BY_OTHER_CODE)


def _unique(name: str, column: str, meaning: str) -> NamedCheck:
    from great_expectations.expectations import ExpectColumnValuesToBeUnique

    return NamedCheck(name=name, meaning=meaning, remedy=JOIN_REMEDY, expectations={column: ExpectColumnValuesToBeUnique(column=column)})


def _at_least(name: str, what: str, count: int) -> NamedCheck:
    """Return the check of the minimum number of rows, because every other check holds for an empty table."""
    from great_expectations.expectations import ExpectTableRowCountToBeBetween

    return NamedCheck(
        name=name,
        meaning=f"There are at least {count:,} {what}.",
        remedy=_CELLS_REMEDY,
        expectations={f"{count:,} {what} wanted": ExpectTableRowCountToBeBetween(min_value=count)},
    )


def _games_suite(boards: pa.Table, games: pa.Table, facts: Mapping[str, Any], config: BoardsConfig) -> Suite:
    from great_expectations.expectations import ExpectTableRowCountToBeBetween
    from great_expectations.expectations.row_conditions import Column

    of_games = _boards_of_games(boards)
    rules = game_rules(config)
    readings = [
        GameReading(row_number=number, row=row, boards=of_games.get(row["game_id"])) for number, row in enumerate(games.to_pylist())
    ]
    columns: Columns = {rule.name: [rule.breach(reading) for reading in readings] for rule in rules}
    columns |= {name: games[name].to_pylist() for name in ("game_id", "split", "result")}
    columns["board_has_game"] = _once(_orphans(of_games, games), games.num_rows)
    columns["rejections_accounted"] = _once(_unaccounted(facts), games.num_rows)
    columns["report_as_tables"] = _once(_contradictions(boards, games, facts), games.num_rows)
    checks = (
        NamedCheck(
            name="enough_games",
            meaning="Each split has games.",
            remedy=_CELLS_REMEDY,
            expectations={
                f"{split}, 1 game wanted": ExpectTableRowCountToBeBetween(min_value=1, row_condition=Column("split") == split.value)
                for split in Split
            },
        ),
        _unique("game_id_unique", "game_id", "No game is there twice, so that none is in two splits."),
        _among("game_split_known", "split", list(Split), f"A game's split is one of {', '.join(Split)}.", MADE_BY_OTHER_CODE),
        _among("result_known", "result", PGN_RESULTS, f"The result is one of {', '.join(PGN_RESULTS)}.", MADE_BY_OTHER_CODE),
        *_hold(rules),
        _no_breach("board_has_game", "The game of every board is in the table of games.", JOIN_REMEDY),
        _no_breach("rejections_accounted", "The report counts as many rejections as there are lines in the list of them.", _REPORT_REMEDY),
        _no_breach("report_as_tables", "The report's counts are those of the tables, and no more was kept than was met.", _REPORT_REMEDY),
    )
    return Suite(name="games", checks=checks, frame=_frame(columns))


def _boards_of_games(boards: pa.Table) -> dict[str, BoardsOfGame]:
    found: dict[str, BoardsOfGame] = {}
    columns = [boards[name].to_pylist() for name in ("game_id", "split", "label_from", "phase")]
    for game_id, split, label_from, phase in zip(*columns, strict=True):
        if game_id is not None:
            of_game = found.setdefault(game_id, BoardsOfGame(Counter(), Counter(), Counter()))
            of_game.splits[str(split)] += 1
            of_game.labels_from[str(label_from)] += 1
            of_game.by_phase[str(phase)] += 1
    return found


def _orphans(of_games: Mapping[str, BoardsOfGame], games: pa.Table) -> str:
    absent = sorted(of_games.keys() - set(games["game_id"].to_pylist()))
    if not absent:
        return ""
    num_boards = sum(of_games[game_id].num_boards for game_id in absent)
    more = f" and {len(absent) - _NUM_NAMED:,} more" if len(absent) > _NUM_NAMED else ""
    return f"{num_boards:,} boards are of games that are not listed: {', '.join(absent[:_NUM_NAMED])}{more}"


def _unaccounted(facts: Mapping[str, Any]) -> str:
    counted, listed = sum(facts["rejected"].values()), facts["rejected_lines"]
    return "" if counted == listed else f"{counted:,} rejections are counted, and {listed:,} are listed"


def _contradictions(boards: pa.Table, games: pa.Table, facts: Mapping[str, Any]) -> str:
    phases = phase_counts(boards["phase"].to_pylist())
    counted: dict[str, Any] = {
        "rows": boards.num_rows,
        "used_games": games.num_rows,
        "phases": phases,
        **{
            name: dict(Counter(boards[column].to_pylist()))
            for name, column in (("splits", "split"), ("sources", "source"), ("labels", "label_from"))
        },
    }
    wrong = [f"{name} {facts[name]}, and the tables have {found}" for name, found in counted.items() if facts[name] != found]
    if facts["games"] < games.num_rows:
        wrong.append(f"games {facts['games']:,}, of which {games.num_rows:,} are used")
    wrong += [
        f"natural_phases {phase} {facts['natural_phases'][phase]:,}, of which {kept:,} are kept"
        for phase, kept in phases.items()
        if facts["natural_phases"][phase] < kept
    ]
    return f"the report has {'; '.join(wrong)}" if wrong else ""


def _boards_suite(columns: Columns, games: pa.Table, config: BoardsConfig, least: Mapping[QuotaCell, int]) -> Suite:
    from great_expectations.expectations import ExpectTableRowCountToBeBetween, ExpectTableRowCountToEqual
    from great_expectations.expectations.row_conditions import Column

    cells = {
        f"{split}/{phase}, {count:,} boards wanted": (count, (Column("split") == split.value) & (Column("phase") == phase.value))
        for (split, phase), count in least.items()
    }
    asked = "as the settings ask for" + (", less those that the report calls missing" if config.shortage == "accept" else "")
    checks = (
        NamedCheck(
            name="enough_boards",
            meaning=f"Each split has at least as many boards of each phase {asked}.",
            remedy=_CELLS_REMEDY,
            expectations={
                label: ExpectTableRowCountToBeBetween(min_value=count, row_condition=cell) for label, (count, cell) in cells.items()
            },
        ),
        NamedCheck(
            name="phases_balanced",
            meaning=f"Each split has exactly as many boards of each phase {asked}.",
            remedy=_CELLS_REMEDY,
            expectations={label: ExpectTableRowCountToEqual(value=count, row_condition=cell) for label, (count, cell) in cells.items()},
        ),
        _known("split", list(Split)),
        _known("phase", PHASES),
        _among(
            "source_known",
            "source",
            _sources(games, config),
            f"The source is {'engine games' if config.source == 'engine' else 'a file that games are listed of'}.",
            MADE_BY_OTHER_CODE,
        ),
        *_hold(BOARD_RULES),
        _unique("key_unique", "key", "No position occurs twice, be it with colours swapped or other clocks."),
        _no_breach("key_in_one_split", "No position is in two splits, so that none is measured on what was learned.", JOIN_REMEDY),
        _no_breach(
            "game_in_one_split",
            "All boards of one game are in one split, since they resemble each other.",
            "the split was not drawn from the game's id alone; make the boards again",
        ),
    )
    names = ("split", "phase", "source", "key", "key_in_one_split", "game_in_one_split", *(rule.name for rule in BOARD_RULES))
    return Suite(name="boards", checks=checks, frame=_frame({name: columns[name] for name in names}))


def _sources(games: pa.Table, config: BoardsConfig) -> list[str]:
    if config.source == "engine":
        return [ENGINE]
    return sorted({source for source in games["source"].to_pylist() if source is not None} - {ENGINE})


def _values_suite(columns: Columns, values: ValuesConfig, rules: Sequence[RowRule[BoardReading]], least: int) -> Suite:
    [(engine, _)] = Counter(name for name in columns["engine"] if name is not None).most_common(1) or [("none", 0)]
    limit = f"depth {values.depth}"
    checks = (
        _at_least("enough_valued", "boards with values", least),
        *_hold(rules),
        _no_breach("expected_throughout", "All moves of all boards have an expected score by the engine, or none has.", _MIXED_REMEDY),
        _no_breach(
            "values_differ",
            f"On at most {MAX_FLAT_SHARE:.0%} of the boards all moves are worth the same.",
            "the engine answers everything alike, or the transform flattens what it says; look at the scores, or choose livelier positions",
        ),
        _among("one_engine", "engine", [engine], f"All values come from one engine: {engine}.", _MIXED_REMEDY),
        _among("one_limit", "limit", [limit], f"All values come from searches under the settings' limit: {limit}.", _MIXED_REMEDY),
        _among(
            "one_transform",
            "transform",
            [values.transform],
            f"All values are made by the settings' transform: {values.transform}.",
            _MIXED_REMEDY,
        ),
    )
    names = ("engine", "limit", "transform", "expected_throughout", "values_differ", *(rule.name for rule in rules))
    return Suite(name="values", checks=checks, frame=_frame({name: columns[name] for name in names}))


def _labels_suite(columns: Columns, least: int) -> Suite:
    checks = (
        _at_least("enough_labelled", "boards with a label", least),
        _known("label_from", LABELLERS),
        *_hold(LABEL_RULES),
        _no_breach("label_as_played", "A label that was played is the move of its game at that ply.", MADE_BY_OTHER_CODE),
        _no_breach(
            "labels_beat_chance",
            CHANCE_MEANING,
            "labels and boards got mixed up, or values are of the wrong side; if players do move at random, there is nothing to imitate",
        ),
    )
    names = ("label_from", "label_as_played", "labels_beat_chance", *(rule.name for rule in LABEL_RULES))
    return Suite(name="labels", checks=checks, frame=_frame({name: columns[name] for name in names}))
