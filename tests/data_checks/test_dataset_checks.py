"""The checks of a dataset: a sound one passes, and each planted fault is found by its own check and named."""

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import chess
import pytest
from made_datasets import CONFIG, Dataset, Row, check, failed, game_id_in, game_of, result_of, sound_dataset
from made_language import made_up_rows

from data_checks.dataset import MIN_BOARDS_FOR_CHANCE, check_dataset_tables, least_gain
from data_checks.report import DatasetReport
from grpo.dataset.table import Split, board_table
from grpo.engine.answers import Score
from grpo.engine.move_values import value_of

LARGE = CONFIG.model_copy(update={"num_train": 90, "num_heldout": 9, "max_per_game_and_phase": 1})
NO_KINGS = "8/8/8/8/8/8/8/8 w - - 0 1"


@pytest.fixture(scope="module")
def made() -> Dataset:
    return sound_dataset()


@pytest.fixture
def sound(made: Dataset) -> Dataset:
    return copy.deepcopy(made)


def test_a_sound_dataset_meets_every_check(sound: Dataset) -> None:
    report = check(sound)
    assert report.verdict == f"all {report.num_checks} checks are met"
    assert all(result.num_checked for suite in report.suites.values() for result in suite)


# Faults of one row: a function that plants it in a board, or in its game, and the row is named by the check.


def mate_that_is_none(row: Row) -> None:
    row["centipawns"][2], row["mate_in"][2], row["values"][2] = None, 1, 1.0


def mate_that_is_missed(row: Row) -> None:
    [mating] = board_table(made_up_rows([chess.Board("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 3 40")])).to_pylist()
    mating["mate_in"][(move := mating["moves"].index("a1a8"))], mating["values"][move] = 2, value_of(Score(2, is_mate=True))
    row |= mating | {name: row[name] for name in ("game_id", "ply", "source", "label_from")}


def draw_that_is_none(row: Row) -> None:
    board = chess.Board("8/8/8/3b4/8/1k6/2N5/K7 b - - 0 1")  # Black may take the knight, and is left with a bishop alone.
    [drawn] = board_table(made_up_rows([board])).to_pylist()
    drawn["centipawns"][(move := drawn["moves"].index("b3c2"))], drawn["values"][move] = 300, value_of(Score(300))
    row |= drawn | {name: row[name] for name in ("game_id", "ply", "source", "label_from")}


def setting(**changes: Any) -> Callable[[Row], None]:
    return lambda row: row.update(changes)


def at_2(column: str, value: float | None) -> Callable[[Row], None]:
    return lambda row: row[column].__setitem__(2, value)


# Several faults of one check are told apart by what follows a space.
BOARD_FAULTS: dict[str, Callable[[Row], Any]] = {
    "nothing_missing": setting(source=None),
    "fen_legal": setting(fen=NO_KINGS),
    "phase_as_stated": lambda row: row.update(phase="endgame" if row["phase"] != "endgame" else "opening"),
    "key_as_computed": setting(key="another"),
    "moves_legal": lambda row: row["moves"].reverse(),
    "game_in_one_split": setting(split="validation"),
    "board_has_game": setting(game_id="nobody"),
    "ply_in_game": setting(ply=10_000),
    "values_complete": lambda row: row["values"].pop(),
    "values_in_range": at_2("values", math.nan),
    "one_score_a_move": at_2("mate_in", 3),
    "values_as_scores": lambda row: row["values"].__setitem__(2, abs(row["values"][2] - 0.001)),
    "mates_are_mates": mate_that_is_none,
    "mates_are_mates all": mate_that_is_missed,
    "draws_are_draws": draw_that_is_none,
    "strong_values_on_heldout": lambda row: row.update(strong_values=list(row["values"])),
    "label_legal": setting(label="a1a1"),
}
GAME_FAULTS: dict[str, Callable[[Row], Any]] = {
    "game_complete": setting(result=None),
    "moves_complete": lambda game: game["keys"].pop(),
    "key_as_computed in game": lambda game: game.update(keys=["another"] * len(game["keys"])),
    "ratings_possible": setting(white_rating=0),
    "split_as_drawn": setting(split="validation"),
    "label_as_played": lambda game: game.update(moves=["a1a1"] * len(game["moves"])),
}


@pytest.fixture(scope="module")
def faulty() -> tuple[DatasetReport, dict[str, str]]:
    """Return the report of a dataset in which each check has a fault of its own, and check -> the row that it should name."""
    dataset, named = sound_dataset(LARGE), {}
    played = [row for row in dataset.boards if row["split"] == Split.TRAIN and row["label_from"] == "game"]
    for name, plant in BOARD_FAULTS.items():
        plant(row := played.pop())
        named[name] = row["fen"]
    for name, plant in GAME_FAULTS.items():
        plant(game := dataset.game(row := played.pop()))
        named[name] = row["fen"] if name in ("label_as_played", "key_as_computed in game") else game["game_id"]
    listed = next(row for row in dataset.boards if row["label_from"] == "engine")
    listed["label"] = min(zip(listed["values"], listed["moves"], strict=True))[1]
    named["engine_label_best"] = listed["fen"]
    heldout = next(row for row in dataset.boards if row["split"] == Split.HELDOUT)
    heldout["strong_values"][2] = 1.5
    named["strong_values_in_range"] = heldout["fen"]
    twice = dataset.game(played.pop())
    dataset.games.append(dict(twice))
    named["game_id_unique"] = twice["game_id"]
    alone = game_of(played.pop()) | {"game_id": game_id_in(Split.TRAIN, "alone", LARGE)}
    dataset.games.append(alone)
    named["game_has_boards"] = alone["game_id"]
    one, other = next((one, other) for one in played for other in played if one is not other and one["phase"] == other["phase"])
    other["game_id"] = one["game_id"]
    named["boards_per_phase"] = one["game_id"]
    leaked = played.pop()
    while leaked in (one, other):
        leaked = played.pop()
    dataset.boards.append(copy.deepcopy(leaked) | {"split": "validation"})
    named["key_unique"] = leaked["fen"]
    dataset.boards[0]["engine"] = "Another"
    return check(dataset, LARGE), named


def test_each_fault_of_a_row_is_found_by_its_own_check_which_names_the_row(faulty: tuple[DatasetReport, dict[str, str]]) -> None:
    report, named = faulty
    for name, row in named.items():
        result = result_of(report, name.split()[0])
        assert not result.is_met, name
        assert result.num_unexpected >= 1
        assert any(example.startswith(row) for example in result.examples), (name, result.examples)
        assert result.remedy
    assert result_of(report, "one_engine").examples == ("engine: 2 found",)
    assert any(example.startswith("all boards: ") for example in result_of(report, "phases_balanced").examples)
    everything = {result.name for suite in report.suites.values() for result in suite}
    assert failed(report) == everything - {"values_differ", "labels_beat_chance"}
    assert f"{len(failed(report))} of {len(everything)} checks failed: games: game_complete" in report.verdict


def test_a_fault_that_hides_others_is_reported_once(sound: Dataset) -> None:
    sound.boards[0]["fen"] = "what?"
    report = check(sound)
    assert failed(report) == {"fen_legal"}
    assert result_of(report, "moves_legal").num_checked == len(sound.boards) - 1


def test_board_without_legal_moves_is_a_fault_and_not_a_crash(sound: Dataset) -> None:
    empty: Row = {name: [] for name in ("moves", "values", "centipawns", "mate_in", "strong_values")}
    sound.boards[0] |= empty | {"fen": "R5k1/5ppp/8/8/8/8/8/6K1 b - - 0 1"}  # Checkmate.
    assert "label_legal" in failed(check(sound))


def test_labels_at_random_and_boards_without_a_difference_are_found_over_the_whole_table() -> None:
    config = CONFIG.model_copy(update={"num_train": 330, "max_per_game_and_phase": 1})
    dataset, rng = sound_dataset(config), random.Random(3)
    played = [row for row in dataset.boards if row["label_from"] == "game"]
    assert len(played) >= MIN_BOARDS_FOR_CHANCE
    for row in played:
        row["label"] = rng.choice(row["moves"])
        dataset.game(row)["moves"] = [row["label"]] * 400
    for row in dataset.boards[: len(dataset.boards) // 3]:
        row |= {"values": [0.5] * len(row["moves"]), "centipawns": [0] * len(row["moves"]), "mate_in": [None] * len(row["moves"])}
    assert failed(check(dataset, config)) == {"labels_beat_chance", "values_differ"}


def test_the_bound_of_chance_is_three_standard_errors() -> None:
    # Of n boards with a variance of 1/4 the standard error is 1 / (2 sqrt(n)): 0.025 of 400, 0.05 of 100.
    assert least_gain([0.25] * 400) == pytest.approx(0.075)
    assert least_gain([0.25] * 100) == pytest.approx(-0.15), "with few boards weak players could not be told from random moves"


def test_a_shortage_lowers_what_is_asked_for(sound: Dataset) -> None:
    row = next(row for row in sound.boards if (row["split"], row["phase"]) == ("train", "opening"))
    sound.games.remove(sound.game(row))
    sound.boards.remove(row)
    sound.facts["missing"] = {"train/opening": 1}
    assert not check(sound).failed


def test_a_table_with_other_columns_is_refused(sound: Dataset) -> None:
    boards, games = sound.tables()
    with pytest.raises(ValueError, match=r"other columns than grpo\.dataset\.table\.BOARD_SCHEMA"):
        check_dataset_tables(boards.drop_columns("key"), games, sound.report(), CONFIG)
