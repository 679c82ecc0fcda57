"""The board checks: a sound table passes, and each planted fault is found by its own check and named."""

import copy
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_checks.board_rules import BOARD_RULES, Reading
from data_checks.boards import check_boards
from data_checks.expectations import NamedCheck, prepare_great_expectations, run_checks
from data_checks.report import MAX_EXAMPLES, CheckReport
from grpo.actions import action_move, legal_action_ids
from grpo.boards import BOARD_SCHEMA, Position, Split, board_row, board_table
from grpo.config import BoardsConfig
from grpo.encoding import position_key
from grpo.phases import Phase, phase_of
from grpo.sources import wanted_boards
from grpo.values import ValueTable

Row = dict[str, Any]
Rows = list[Row]
Plant = Callable[[Rows], object]

CONFIG = BoardsConfig(num_train=12, num_validation=3, num_heldout=3)
NO_KINGS = "8/8/8/8/8/8/8/8 w - - 0 1"
TOO_FEW = {"enough_boards", "phases_balanced"}


def row_of(board: chess.Board, *, split: Split, game_id: str, rng: random.Random) -> Row:
    """Return a sound row with made-up values."""
    moves = tuple(action_move(index, board.turn).uci() for index in legal_action_ids(board))

    def values() -> ValueTable:
        return ValueTable(
            moves=moves,
            win_probabilities=np.array([rng.random() for _ in moves], dtype=np.float32),
            centipawns=(0,) * len(moves),
            mate_in=(None,) * len(moves),
        )

    position = Position(
        fen=board.fen(),
        key=position_key(board),
        phase=phase_of(board),
        split=split,
        move_played=rng.choice(moves),
        game_id=game_id,
        ply=board.ply(),
        source="engine",
        offset=0,
    )
    strong = values() if split == Split.HELDOUT else None
    return board_row(position, values(), strong, engine="Stockfish 17", limit="depth 2")


def random_game(rng: random.Random) -> Iterator[chess.Board]:
    """Yield the positions of a game of random moves, many of them captures, so that it gets to an endgame."""
    board = chess.Board()
    while moves := list(board.legal_moves):
        yield board.copy(stack=False)
        captures = list(board.generate_legal_captures())
        board.push(rng.choice(captures if captures and rng.random() < 0.5 else moves))


@pytest.fixture(scope="module")
def sound_rows() -> Rows:
    """Exactly the boards that CONFIG asks for, each from a game of its own."""
    rng = random.Random(0)
    rows: Rows = []
    for (split, phase), count in wanted_boards(CONFIG).items():
        for number in range(count):
            board = next(
                board
                for _ in range(100)
                for board in random_game(rng)
                if phase_of(board) == phase and board.legal_moves.count() > 8 and board.fullmove_number > 3
            )
            rows.append(row_of(board, split=split, game_id=f"{split}-{phase}-{number}", rng=rng))
    return rows


@pytest.fixture
def rows(sound_rows: Rows) -> Rows:
    return copy.deepcopy(sound_rows)


def failed(report: CheckReport) -> set[str]:
    return {result.name for result in report.results if not result.is_met}


def first(rows: Rows, split: Split = Split.TRAIN, phase: Phase = Phase.OPENING, *, skip: int = 0) -> Row:
    return [row for row in rows if row["split"] == split and row["phase"] == phase][skip]


def another(**changes: Any) -> Row:
    """Return the start position as a row more, which no game of the table holds."""
    return row_of(chess.Board(), split=Split.TRAIN, game_id="another", rng=random.Random(1)) | changes


def setting(column: str, value: Any, split: Split = Split.TRAIN) -> Plant:
    """Return the fault of one board having another value in a column."""
    return lambda rows: first(rows, split).update({column: value})


def changing(column: str, change: Callable[[list[Any]], object], split: Split = Split.TRAIN) -> Plant:
    """Return the fault of a list column of one board being changed in place."""

    def plant(rows: Rows) -> None:
        row = first(rows, split)
        row[column] = list(row[column])
        change(row[column])

    return plant


def put(value: float | None) -> Callable[[list[Any]], object]:
    """Return the change of a list's third item."""
    return lambda values: values.__setitem__(2, value)


def swap_phases(rows: Rows) -> None:
    opening, endgame = first(rows), first(rows, phase=Phase.ENDGAME)
    opening["phase"], endgame["phase"] = endgame["phase"], opening["phase"]


def same_position_in_train(rows: Rows) -> None:
    first(rows, skip=1).update(first(rows) | {"game_id": "a game with the same moves"})


def mirrored_position_in_train(rows: Rows) -> None:
    twin = chess.Board(first(rows)["fen"]).mirror()
    first(rows, skip=1).update(row_of(twin, split=Split.TRAIN, game_id="its mirror", rng=random.Random(2)))


def same_position_in_heldout(rows: Rows) -> None:
    leaked = chess.Board(first(rows)["fen"])
    first(rows, Split.HELDOUT).update(row_of(leaked, split=Split.HELDOUT, game_id="its twin", rng=random.Random(3)))


def only_fen_left(rows: Rows) -> None:
    first(rows).update(dict.fromkeys(("key", "move_played", "game_id", "moves", "values", "engine", "limit")))


FAULTS: dict[str, tuple[Plant, set[str], str]] = {
    "a board too few": (lambda rows: rows.remove(first(rows)), TOO_FEW, "train/opening, 4 boards wanted: 3 found"),
    "a phase absent": (lambda rows: rows.remove(first(rows, Split.HELDOUT)), TOO_FEW, "heldout/opening, 1 boards wanted: 0 found"),
    "a board too many": (lambda rows: rows.append(another()), {"phases_balanced"}, "train/opening, 4 boards wanted: 5 found"),
    "unknown split": (lambda rows: rows.append(another(split="test")), {"split_known"}, "- test\n"),
    "unknown phase": (lambda rows: rows.append(another(phase="late")), {"phase_known"}, "- late\n"),
    "no FEN": (setting("fen", None), {"nothing_missing"}, "row 0 (FEN None) has no fen"),
    "only a FEN": (only_fen_left, {"nothing_missing"}, " has no key, move_played, game_id, moves, values, engine, limit\n"),
    "no split": (setting("split", None), {"nothing_missing", *TOO_FEW}, "has no split"),
    "no phase": (setting("phase", None), {"nothing_missing", *TOO_FEW}, "has no phase"),
    "broken FEN": (setting("fen", "what?"), {"fen_legal"}, "'what?' is not a FEN"),
    "no kings": (setting("fen", NO_KINGS), {"fen_legal"}, f"{NO_KINGS} cannot occur in a game: no white king"),
    "phases swapped": (swap_phases, {"phase_as_stated"}, "is stated as endgame but is opening"),
    "another board's key": (setting("key", "8/8 w - -"), {"key_as_computed"}, "has the key '8/8 w - -' but should have"),
    "an illegal move": (changing("moves", lambda moves: moves.append("e1e8")), {"moves_legal"}, "illegal e1e8; missing none"),
    "a legal move left out": (changing("moves", lambda moves: moves.pop()), {"moves_legal"}, "illegal none; missing "),
    "illegal label": (setting("move_played", "e1e8"), {"label_legal"}, "the label e1e8 is not a legal move"),
    "a value too few": (changing("values", lambda values: values.pop()), {"values_complete"}, " legal moves"),
    "NaN": (changing("values", put(math.nan)), {"values_in_range"}, "values[2] = nan"),
    "above one": (changing("values", put(1.5)), {"values_in_range"}, "values[2] = 1.5"),
    "no strong values": (
        setting("strong_values", None, Split.HELDOUT),
        {"strong_values_on_heldout"},
        "a board of the heldout split without strong_values",
    ),
    "strong values to learn from": (
        lambda rows: first(rows).update(strong_values=first(rows)["values"]),
        {"strong_values_on_heldout"},
        "a board of the train split with strong_values",
    ),
    "a strong value too few": (
        changing("strong_values", lambda values: values.pop(), Split.HELDOUT),
        {"strong_values_complete"},
        " strong_values for ",
    ),
    "strong NaN": (
        changing("strong_values", put(math.nan), Split.HELDOUT),
        {"strong_values_in_range"},
        "strong_values[2] = nan",
    ),
    "a position twice": (same_position_in_train, {"key_unique"}, " -\n"),
    "a position and its mirror": (mirrored_position_in_train, {"key_unique"}, " -\n"),
    "a position in two splits": (same_position_in_heldout, {"key_unique", "key_in_one_split"}, "is in heldout and train"),
    "a game in two splits": (
        setting("game_id", "validation-opening-0"),
        {"game_in_one_split"},
        "the game validation-opening-0 is in train and validation",
    ),
    "two engines": (setting("engine", "Stockfish 16"), {"one_engine"}, "one engine: Stockfish 17.\n  - Stockfish 16\n"),
    "two limits": (setting("limit", "depth 3"), {"one_limit"}, "under one limit: depth 2.\n  - depth 3\n"),
}
"""What is planted -> how, which checks must fail, and what the report must say."""

MORE_BREACHES: dict[str, tuple[Plant, str, str]] = {
    "empty FEN": (setting("fen", ""), "fen_legal", "'' is not a FEN"),
    "FEN without clocks": (setting("fen", chess.Board().epd()), "fen_legal", "has 4 of the 6 fields of a FEN"),
    "rival in check": (setting("fen", "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1"), "fen_legal", "opposite check"),
    "no move in the list": (changing("moves", lambda moves: moves.append(None)), "moves_legal", "illegal None; missing none"),
    "moves out of order": (changing("moves", lambda moves: moves.reverse()), "moves_legal", "not in rising order"),
    "a move twice": (changing("moves", lambda moves: moves.append(moves[0])), "moves_legal", "a move twice"),
    "a value too many": (changing("values", lambda values: values.append(0.5)), "values_complete", " legal moves"),
    "below zero": (changing("values", put(-0.25)), "values_in_range", "values[2] = -0.25"),
    "infinity": (changing("values", put(math.inf)), "values_in_range", "values[2] = inf"),
    "minus infinity": (changing("values", put(-math.inf)), "values_in_range", "values[2] = -inf"),
    "no number": (changing("values", put(None)), "values_in_range", "values[2] = None"),
}
"""Further ways to break a rule of one board."""


def test_a_sound_table_meets_every_check_and_every_check_had_something_to_look_at(rows: Rows) -> None:
    report = check_boards(board_table(rows), CONFIG)

    assert report.is_met, report.as_text()
    assert report.num_failed == 0
    assert all(result.num_checked > 0 and result.examples == () for result in report.results)
    assert {result.num_checked for result in report.results} == {9, 18, 3}  # cells, boards, held-out boards


@pytest.mark.parametrize(("plant", "expected", "text"), FAULTS.values(), ids=FAULTS)
def test_a_fault_fails_its_own_check_alone_and_is_named(rows: Rows, plant: Plant, expected: set[str], text: str) -> None:
    plant(rows)

    report = check_boards(board_table(rows), CONFIG)

    assert failed(report) == expected
    assert not report.is_met
    assert report.num_failed == len(expected)
    assert text in report.as_text()
    assert all(result.num_unexpected >= len(result.examples) >= 1 for result in report.results if not result.is_met)


@pytest.mark.parametrize(("plant", "rule", "text"), MORE_BREACHES.values(), ids=MORE_BREACHES)
def test_a_rule_of_one_board_is_broken_alone_and_says_how(rows: Rows, plant: Plant, rule: str, text: str) -> None:
    plant(rows)
    reading = Reading.of(0, first(rows))

    breaches = {rule.name: breach for rule in BOARD_RULES if (breach := rule.breach(reading))}

    assert list(breaches) == [rule]
    assert text in breaches[rule]


def test_every_check_has_a_fault_that_it_finds() -> None:
    found = set.union(*(expected for _, expected, _ in FAULTS.values()))

    assert found == {result.name for result in check_boards(board_table([]), CONFIG).results}


def test_the_examples_of_a_fault_name_the_board(rows: Rows) -> None:
    first(rows)["values"] = [2.0] * len(first(rows)["moves"])

    [result] = [result for result in check_boards(board_table(rows), CONFIG).results if not result.is_met]

    assert result.num_unexpected == 1
    more = len(first(rows)["moves"]) - 3
    assert result.examples == (f"{first(rows)['fen']}: values[0] = 2.0, values[1] = 2.0, values[2] = 2.0 and {more} more",)


def test_a_position_that_occurs_twice_is_named_by_its_key_once(rows: Rows) -> None:
    same_position_in_train(rows)

    [result] = [result for result in check_boards(board_table(rows), CONFIG).results if not result.is_met]

    assert result.examples == (first(rows)["key"],)
    assert result.num_unexpected == 2


def test_many_faults_are_counted_but_few_are_shown(rows: Rows) -> None:
    for row in rows:
        row["move_played"] = "a1h7"

    [result] = [result for result in check_boards(board_table(rows), CONFIG).results if not result.is_met]

    assert result.num_unexpected == len(rows)
    assert len(result.examples) == len(set(result.examples)) == MAX_EXAMPLES


def test_a_broken_fen_leaves_nothing_to_look_at_for_the_rules_that_need_a_board(rows: Rows) -> None:
    first(rows)["fen"] = "what?"

    num_checked = {result.name: result.num_checked for result in check_boards(board_table(rows), CONFIG).results}

    assert num_checked["fen_legal"] == len(rows)
    assert num_checked["moves_legal"] == num_checked["label_legal"] == num_checked["phase_as_stated"] == len(rows) - 1


def test_an_empty_table_fails_for_want_of_boards() -> None:
    report = check_boards(board_table([]), CONFIG)

    assert failed(report) == TOO_FEW
    assert "train/opening, 4 boards wanted: 0 found" in report.as_text()


def test_a_table_with_other_columns_is_refused(rows: Rows) -> None:
    table = board_table(rows)

    with pytest.raises(ValueError, match=r"other columns than grpo\.boards\.BOARD_SCHEMA"):
        check_boards(table.drop_columns("key"), CONFIG)
    with pytest.raises(ValueError, match="make the boards again"):
        check_boards(table.set_column(6, "ply", table["ply"].cast("int64")), CONFIG)


def test_nothing_is_printed_and_nothing_is_written(
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare_great_expectations()
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))  # Any temporary file is then an error.
        check_boards(board_table(rows), CONFIG)

    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_great_expectations_is_imported_late_and_takes_no_warnings_away() -> None:
    program = """
import sys, warnings
import data_checks.boards
assert not {"great_expectations", "pandas"} & set(sys.modules)
from data_checks.expectations import prepare_great_expectations
prepare_great_expectations()
assert "great_expectations" in sys.modules
warnings.warn("still heard")
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)

    assert "still heard" in ended.stderr
    assert ended.stdout == ""


def test_an_error_inside_great_expectations_is_raised_and_not_taken_for_a_finding() -> None:
    import pandas as pd

    prepare_great_expectations()
    from great_expectations.expectations import ExpectColumnValuesToBeUnique

    check = NamedCheck(name="x", meaning="", remedy="", expectations={"x": ExpectColumnValuesToBeUnique(column="absent")})

    with pytest.raises(RuntimeError, match=r'could not run x \(x\).*The column "absent" in BatchData does not exist'):
        run_checks([check], pd.DataFrame({"present": ["a"]}))


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="pnbrqkPNBRQK12345678/ wb-KQkqah36 01", max_size=90) | st.text(max_size=20))
def test_no_text_in_place_of_a_fen_is_an_error(fen: str) -> None:
    row = dict.fromkeys(BOARD_SCHEMA.names) | {"fen": fen}

    breaches = {rule.name: rule.breach(Reading.of(0, row)) for rule in BOARD_RULES}

    assert breaches["fen_legal"] is not None
    assert breaches["fen_legal"] == "" or fen in breaches["fen_legal"] or repr(fen) in breaches["fen_legal"]
