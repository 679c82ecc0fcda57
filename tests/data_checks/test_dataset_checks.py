"""The checks of a dataset: a sound one passes, and each planted fault is found by its own check and named."""

import copy
import math
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import CONFIG, VALUES, Dataset, Row, check, failed, game_id_in, game_of, row_of, scores_of, sound_dataset

from data_checks.board_rules import BOARD_RULES
from data_checks.dataset import MAX_FLAT_SHARE, check_dataset_tables
from data_checks.expectations import NamedCheck, Suite, prepare_great_expectations, run_suites
from data_checks.game_rules import game_rules, is_date
from data_checks.label_rules import LABEL_RULES, MIN_BOARDS_FOR_CHANCE, Edge, chance_breach
from data_checks.report import MAX_EXAMPLES, CheckReport, CheckResult, DatasetReport
from data_checks.rules import BoardReading, BoardsOfGame, GameReading
from data_checks.value_rules import value_rules
from grpo.board.phases import Phase
from grpo.dataset.table import BOARD_SCHEMA, Split
from grpo.engine.answers import Score
from grpo.settings.tree import BoardsConfig, ValuesConfig

Plant = Callable[[Dataset], object]

NO_KINGS = "8/8/8/8/8/8/8/8 w - - 0 1"
TOO_FEW = {"enough_boards", "phases_balanced", "enough_valued", "enough_labelled"}
WRONG_CELLS = {"enough_boards", "phases_balanced"}
WDL = ValuesConfig(transform="wdl")


@pytest.fixture(scope="module")
def made() -> Dataset:
    return sound_dataset()


@pytest.fixture
def sound(made: Dataset) -> Dataset:
    return copy.deepcopy(made)


@pytest.fixture(scope="module")
def known() -> dict[str, CheckReport]:
    return {}


@pytest.fixture(autouse=True)
def _remembered(known: dict[str, CheckReport], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a suite only where its frame or its checks are new: most faults change one suite of four, and each takes a quarter second."""

    def run(suites: Sequence[Suite], *, data_docs: Path | None) -> dict[str, CheckReport]:
        if data_docs is not None:
            return run_suites(suites, data_docs=data_docs)
        keys = {suite.name: f"{suite.checks}{suite.frame.to_json()}" for suite in suites}
        new = run_suites([suite for suite in suites if keys[suite.name] not in known])
        known.update({keys[name]: report for name, report in new.items()})
        return {name: known[key] for name, key in keys.items()}

    monkeypatch.setattr("data_checks.dataset.run_suites", run)


def first(dataset: Dataset, split: Split = Split.TRAIN, phase: Phase = Phase.OPENING, *, skip: int = 0) -> Row:
    return [row for row in dataset.boards if row["split"] == split and row["phase"] == phase][skip]


def listed(dataset: Dataset) -> Row:
    return next(row for row in dataset.boards if row["label_from"] == "engine")


def put(dataset: Dataset, old: Row, board: chess.Board, **changes: Any) -> Row:
    """Put another board, of a game of its own, in the place of one."""
    split = Split(old["split"])
    new = row_of(board, split=split, game_id=game_id_in(split, "other"), rng=random.Random(7), ply=board.ply()) | changes
    dataset.games[dataset.games.index(dataset.game(old))] = game_of(new)
    dataset.boards[dataset.boards.index(old)] = new
    return new


def add(dataset: Dataset, **changes: Any) -> Row:
    """Add the start position, which no game of the dataset holds, and its game."""
    row = row_of(chess.Board(), split=Split.TRAIN, game_id=game_id_in(Split.TRAIN, "another"), rng=random.Random(1))
    dataset.games.append(game_of(row))
    dataset.boards.append(row | changes)
    return row


def drop(split: Split) -> Plant:
    def plant(dataset: Dataset) -> None:
        row = first(dataset, split)
        dataset.games.remove(dataset.game(row))
        dataset.boards.remove(row)

    return plant


def setting(column: str, value: Any, split: Split = Split.TRAIN) -> Plant:
    """Return the fault of one board having another value in a column."""
    return lambda dataset: first(dataset, split).update({column: value})


def game_setting(**changes: Any) -> Plant:
    """Return the fault of the game of one board having other values in some columns."""
    return lambda dataset: dataset.game(first(dataset)).update(changes)


def changing(column: str, change: Callable[[list[Any]], object], split: Split = Split.TRAIN) -> Plant:
    """Return the fault of a list column of one board being changed in place."""

    def plant(dataset: Dataset) -> None:
        row = first(dataset, split)
        row[column] = list(row[column])
        change(row[column])

    return plant


def third(value: float | None) -> Callable[[list[Any]], object]:
    """Return the change of a list's third item."""
    return lambda values: values.__setitem__(2, value)


def reporting(**facts: Any) -> Plant:
    return lambda dataset: dataset.facts.update(facts)


def swap_phases(dataset: Dataset) -> None:
    opening, endgame = first(dataset), first(dataset, phase=Phase.ENDGAME)
    opening["phase"], endgame["phase"] = endgame["phase"], opening["phase"]


def same_position_in_train(dataset: Dataset) -> None:
    put(dataset, first(dataset, skip=1), chess.Board(first(dataset)["fen"]))


def mirrored_position_in_train(dataset: Dataset) -> None:
    put(dataset, first(dataset, skip=1), chess.Board(first(dataset)["fen"]).mirror())


def same_position_in_heldout(dataset: Dataset) -> None:
    put(dataset, first(dataset, Split.HELDOUT), chess.Board(first(dataset)["fen"]))


def same_game_in_heldout(dataset: Dataset) -> None:
    heldout = first(dataset, Split.HELDOUT)
    dataset.games.remove(dataset.game(heldout))
    heldout["game_id"] = first(dataset)["game_id"]


def only_fen_left(dataset: Dataset) -> None:
    first(dataset).update(dict.fromkeys(("key", "label", "moves", "values", "expected", "engine", "limit", "transform")))


def game_twice(dataset: Dataset) -> None:
    dataset.games.append(dict(dataset.games[0]))


def game_without_boards(dataset: Dataset) -> None:
    dataset.games.append(dataset.games[0] | {"game_id": game_id_in(Split(dataset.games[0]["split"]), "idle")})


def too_many_of_one_game(dataset: Dataset) -> None:
    """Make all 3 played training boards of the opening boards of one game, of which 2 may be."""
    rows = [first(dataset, skip=place) for place in range(3)]
    for row in rows[1:]:
        dataset.games.remove(dataset.game(row))
        row["game_id"] = rows[0]["game_id"]


def other_split_than_its_boards(dataset: Dataset) -> None:
    dataset.game(first(dataset))["split"] = "validation"


def split_not_as_drawn(dataset: Dataset) -> None:
    row = first(dataset)
    dataset.game(row)["game_id"] = row["game_id"] = game_id_in(Split.HELDOUT, "elsewhere")


def board_of_mating_moves(dataset: Dataset, **scores: Score) -> Row:
    """Put in a board of which Ra8 mates, with some scores of its own."""
    old = first(dataset, phase=Phase.ENDGAME)
    board = chess.Board("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1")
    row = row_of(
        board,
        split=Split.TRAIN,
        game_id=old["game_id"],
        rng=random.Random(3),
        scores=scores_of(board, random.Random(3)) | scores,
    )
    dataset.boards[dataset.boards.index(old)] = row
    return row


def false_mate(dataset: Dataset) -> None:
    board_of_mating_moves(dataset, a1a7=Score(1, is_mate=True, expected=1.0))


def stalemate_that_is_no_draw(dataset: Dataset) -> None:
    """Let a queen's stalemating move have a score of its own."""
    old = first(dataset, phase=Phase.ENDGAME)
    board = chess.Board("7k/8/8/6Q1/8/8/8/K7 w - - 0 1")
    scores = scores_of(board, random.Random(3))
    assert scores["g5g6"] == Score(0, expected=0.5)
    row = row_of(board, split=Split.TRAIN, game_id=old["game_id"], rng=random.Random(3), scores=scores | {"g5g6": Score(250, expected=0.7)})
    dataset.boards[dataset.boards.index(old)] = row


def value_of_another_score(dataset: Dataset) -> None:
    """Raise the best value a little: the order stays, the formula does not."""
    row = first(dataset)
    row["values"] = [value + 2e-6 if value == max(row["values"]) else value for value in row["values"]]


def worst_with_the_best_value(dataset: Dataset) -> None:
    row = first(dataset)
    row["values"] = list(row["values"])
    worst, best = (row["values"].index(pick(row["values"])) for pick in (min, max))
    row["values"][worst], row["values"][best] = row["values"][best], row["values"][worst]


def constant(dataset: Dataset) -> None:
    """Let a broken engine value everything alike, on all boards but as many as may be."""
    for row in dataset.boards[: int(MAX_FLAT_SHARE * len(dataset.boards)) + 1]:
        row.update(centipawns=[0] * len(row["moves"]), mate_in=[None] * len(row["moves"]), expected=[0.5] * len(row["moves"]))
        row["values"] = [0.5] * len(row["moves"])


def some_without_expected(dataset: Dataset) -> None:
    row = first(dataset)
    row["expected"] = [None, *row["expected"][1:]]


def worse_engine_label(dataset: Dataset) -> None:
    row = listed(dataset)
    row["label"] = row["moves"][row["values"].index(min(row["values"]))]


def label_said_to_be_the_engines(dataset: Dataset) -> None:
    first(dataset)["label_from"] = "engine"


def labels_of_the_wrong_side(dataset: Dataset) -> None:
    for row in dataset.boards:
        if row["label_from"] == "game":
            row["label"] = row["moves"][row["values"].index(min(row["values"]))]


def another_move_than_the_label(dataset: Dataset) -> None:
    dataset.moves_follow_labels = False
    dataset.game(first(dataset))["moves"][first(dataset)["ply"]] = "e2e4"


def a_move_too_few(dataset: Dataset) -> None:
    dataset.moves_follow_labels = False
    dataset.game(first(dataset))["moves"].pop()


FAULTS: dict[str, tuple[Plant, set[str], str]] = {
    # games
    "no games of a split": (
        lambda dataset: dataset.games.__setitem__(slice(None), [game for game in dataset.games if game["split"] != "heldout"]),
        {"enough_games", "board_has_game"},
        "heldout, 1 game wanted: 0 found",
    ),
    "a game twice": (game_twice, {"game_id_unique"}, "- train-opening-0-"),
    "unknown split of a game": (game_setting(split="test"), {"game_split_known", "split_as_boards"}, "- test\n"),
    "unknown result": (game_setting(result="2-0"), {"result_known"}, "- 2-0\n"),
    "a game without result": (game_setting(result=None), {"game_complete"}, "has no result"),
    "start without kings": (game_setting(start_fen=NO_KINGS), {"start_legal"}, f"{NO_KINGS} cannot occur in a game"),
    "negative plies": (game_setting(num_plies=-1), {"plies_possible"}, "has -1 plies"),
    "a game without moves": (
        game_setting(num_plies=0),
        {"plies_possible", "label_by_who_played", "ply_in_game"},
        "has 0 plies, and is no listed position: result 1-0, white_rating 1500, date 2024.02.??, labels that were played",
    ),
    "a game with a move too few": (a_move_too_few, {"moves_complete"}, "has 400 plies, 399 moves and 400 keys"),
    "negative offset": (game_setting(offset=-7), {"offset_possible"}, "offset -7"),
    "impossible rating": (game_setting(black_rating=4_001), {"ratings_possible"}, "black_rating 4001"),
    "impossible date": (game_setting(date="2023.02.29"), {"date_well_formed"}, "date '2023.02.29'"),
    "a game without boards": (game_without_boards, {"game_has_boards"}, "has no board"),
    "another split than its boards'": (
        other_split_than_its_boards,
        {"split_as_boards", "split_as_drawn"},
        "of the validation split, with boards in train",
    ),
    "a game in a split it does not belong to": (split_not_as_drawn, {"split_as_drawn"}, "is in train, and belongs to heldout"),
    "too many boards of one game": (too_many_of_one_game, {"boards_per_phase"}, "3 boards of its opening"),
    "a board without game": (setting("game_id", "nowhere"), {"game_has_boards", "board_has_game"}, "not listed: nowhere\n"),
    "a rejection that is not listed": (reporting(rejected_lines=2), {"rejections_accounted"}, "3 rejections are counted, and 2 are listed"),
    "another dataset's report": (reporting(rows=17), {"report_as_tables"}, "rows 17, and the tables have 18"),
    # boards
    "a board too few": (drop(Split.TRAIN), TOO_FEW, "train/opening, 4 boards wanted: 3 found"),
    "a phase absent": (drop(Split.HELDOUT), TOO_FEW, "heldout/opening, 1 boards wanted: 0 found"),
    "a board too many": (add, {"phases_balanced"}, "train/opening, 4 boards wanted: 5 found"),
    "unknown split": (lambda dataset: add(dataset, split="test"), {"split_known", "split_as_boards"}, "- test\n"),
    "unknown phase": (lambda dataset: add(dataset, phase="late"), {"phase_known"}, "- late\n"),
    "unknown source": (setting("source", "other.pgn"), {"source_known"}, "- other.pgn\n"),
    "no FEN": (setting("fen", None), {"nothing_missing"}, "row 0 (FEN None) has no fen"),
    "only a FEN": (only_fen_left, {"nothing_missing"}, " has no key, label, moves, values, expected, engine, limit, transform\n"),
    "no split": (setting("split", None), {"nothing_missing", "split_as_boards", *WRONG_CELLS}, "has no split"),
    "no phase": (setting("phase", None), {"nothing_missing", *WRONG_CELLS}, "has no phase"),
    "broken FEN": (setting("fen", "what?"), {"fen_legal"}, "'what?' is not a FEN"),
    "no kings": (setting("fen", NO_KINGS), {"fen_legal"}, f"{NO_KINGS} cannot occur in a game: no white king"),
    "phases swapped": (swap_phases, {"phase_as_stated"}, "is stated as endgame but is opening"),
    "another board's key": (setting("key", "8/8 w - -"), {"key_as_computed"}, "has the key '8/8 w - -' but should have"),
    "an illegal move": (changing("moves", lambda moves: moves.append("e1e8")), {"moves_legal"}, "illegal e1e8; missing none"),
    "a legal move left out": (changing("moves", lambda moves: moves.pop()), {"moves_legal"}, "illegal none; missing "),
    "after the game's end": (setting("ply", 400), {"ply_in_game"}, "is stated as ply 400 of game"),
    "a position twice": (same_position_in_train, {"key_unique"}, " -\n"),
    "a position and its mirror": (mirrored_position_in_train, {"key_unique"}, " -\n"),
    "a position in two splits": (same_position_in_heldout, {"key_unique", "key_in_one_split"}, "is in heldout and train"),
    "a game in two splits": (same_game_in_heldout, {"game_in_one_split", "split_as_boards"}, "is in heldout and train"),
    # values
    "a value too few": (changing("values", lambda values: values.pop()), {"values_complete"}, " legal moves"),
    "NaN": (changing("values", third(math.nan)), {"values_in_range"}, "values[2] = nan"),
    "above one": (changing("values", third(1.5)), {"values_in_range"}, "values[2] = 1.5"),
    "a score too few": (changing("expected", lambda scores: scores.pop()), {"scores_complete"}, " expected for "),
    "no score": (changing("centipawns", third(None)), {"one_score_a_move"}, "[2]: centipawns None and mate_in None"),
    "two scores": (changing("mate_in", third(3)), {"one_score_a_move"}, " and mate_in 3"),
    "expected above one": (changing("expected", third(1.25)), {"expected_in_range"}, "expected[2] = 1.25"),
    "another value than its score's": (value_of_another_score, {"values_as_scores"}, " is due"),
    "values in another order than scores": (worst_with_the_best_value, {"values_as_scores", "values_rise_with_scores"}, "is worth"),
    "a mate that is none": (false_mate, {"mates_are_mates"}, "a1a7 is said to mate, and does not"),
    "a stalemate that is no draw": (stalemate_that_is_no_draw, {"draws_are_draws"}, "g5g6 draws by rule, and has 250 centipawns"),
    "some moves without expected score": (some_without_expected, {"expected_throughout"}, "some of the moves have an expected score"),
    "a board without expected scores": (
        lambda dataset: first(dataset).update(expected=[None] * len(first(dataset)["moves"])),
        {"expected_throughout"},
        "none of the moves have an expected score, and on most boards all",
    ),
    "all worth the same": (constant, {"values_differ"}, "all moves are worth the same on 5 of 18 boards (27.8%), such as "),
    "no strong values": (
        setting("strong_values", None, Split.HELDOUT),
        {"strong_values_on_heldout"},
        "a board of the heldout split without strong_values",
    ),
    "strong values to learn from": (
        lambda dataset: first(dataset).update(strong_values=first(dataset)["values"]),
        {"strong_values_on_heldout"},
        "a board of the train split with strong_values",
    ),
    "a strong value too few": (
        changing("strong_values", lambda values: values.pop(), Split.HELDOUT),
        {"strong_values_complete"},
        " strong_values for ",
    ),
    "strong NaN": (changing("strong_values", third(math.nan), Split.HELDOUT), {"strong_values_in_range"}, "strong_values[2] = nan"),
    "two engines": (setting("engine", "Stockfish 16"), {"one_engine"}, "one engine: Stockfish 17.\n  - Stockfish 16\n"),
    "two limits": (setting("limit", "depth 3"), {"one_limit"}, "limit: depth 5.\n  - depth 3\n"),
    "two transforms": (setting("transform", "wdl"), {"one_transform"}, "transform: logistic.\n  - wdl\n"),
    # labels
    "unknown labeller": (setting("label_from", "coach"), {"label_from_known"}, "- coach\n"),
    "illegal label": (setting("label", "e1e8"), {"label_legal"}, "the label e1e8 is not a legal move"),
    "a player's label said to be the engine's": (
        label_said_to_be_the_engines,
        {"label_by_who_played"},
        "label_from engine on a board of a game of 400 plies",
    ),
    "an engine's label that is not best": (worse_engine_label, {"engine_label_best"}, ": the label "),
    "another move than the label": (another_move_than_the_label, {"label_as_played"}, "has e2e4 at ply"),
    "labels of the wrong side": (labels_of_the_wrong_side, {"labels_beat_chance"}, "the labels of 15 boards gain -"),
}
"""What is planted -> how, which checks must fail, and what the report must say."""


def test_a_sound_dataset_meets_every_check_and_every_check_had_something_to_look_at(sound: Dataset) -> None:
    report = check(sound)

    assert report.is_met, report.as_text()
    assert report.num_failed == 0
    assert list(report.suites) == ["games", "boards", "values", "labels"]
    results = [result for suite in report.suites.values() for result in suite.results]
    assert all(result.num_checked > 0 and result.examples == () for result in results)
    # Of all rows: 1; splits and held-out boards: 3, and so many listed positions; cells: 9; dated games: 15; boards and games: 18.
    assert {result.num_checked for result in results} == {1, 3, 9, 15, 18}


@pytest.mark.parametrize(("plant", "expected", "text"), FAULTS.values(), ids=FAULTS)
def test_a_fault_fails_its_own_checks_alone_and_is_named(sound: Dataset, plant: Plant, expected: set[str], text: str) -> None:
    plant(sound)

    report = check(sound, CONFIG.model_copy(update={"max_per_game_and_phase": 2}))

    assert failed(report) == expected, report.as_text()
    assert not report.is_met
    assert report.num_failed == len(expected)
    assert text in report.as_text()
    for suite in report.suites.values():
        assert all(result.num_unexpected >= len(result.examples) >= 1 for result in suite.results if not result.is_met)


def test_every_check_has_a_name_of_its_own_and_a_fault_that_it_finds(sound: Dataset) -> None:
    names = [result.name for suite in check(sound).suites.values() for result in suite.results]
    found = set.union(*(expected for _, expected, _ in FAULTS.values()))

    assert len(names) == len(set(names))
    assert found == set(names)


def rule_breaches(dataset: Dataset, row: Row, values: ValuesConfig = VALUES) -> dict[str, str]:
    reading = BoardReading.of(0, row, dataset.game(row)["num_plies"])
    rules = (*BOARD_RULES, *value_rules(values), *LABEL_RULES)
    return {rule.name: breach for rule in rules if (breach := rule.breach(reading))}


MORE_BREACHES: dict[str, tuple[Plant, str, str]] = {
    "empty FEN": (setting("fen", ""), "fen_legal", "'' is not a FEN"),
    "FEN without clocks": (setting("fen", chess.Board().epd()), "fen_legal", "has 4 of the 6 fields of a FEN"),
    "rival in check": (setting("fen", "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1"), "fen_legal", "opposite check"),
    "no move in the list": (changing("moves", lambda moves: moves.append(None)), "moves_legal", "illegal None; missing none"),
    "moves out of order": (changing("moves", lambda moves: moves.reverse()), "moves_legal", "not in rising order"),
    "a move twice": (changing("moves", lambda moves: moves.append(moves[0])), "moves_legal", "a move twice"),
    "before the game's start": (setting("ply", -1), "ply_in_game", "ply -1"),
    "a value too many": (changing("values", lambda values: values.append(0.5)), "values_complete", " legal moves"),
    "below zero": (changing("values", third(-0.25)), "values_in_range", "values[2] = -0.25"),
    "infinity": (changing("values", third(math.inf)), "values_in_range", "values[2] = inf"),
    "minus infinity": (changing("values", third(-math.inf)), "values_in_range", "values[2] = -inf"),
    "no number": (changing("values", third(None)), "values_in_range", "values[2] = None"),
    "a score too many": (changing("centipawns", lambda scores: scores.append(3)), "scores_complete", " centipawns for "),
    "expected NaN": (changing("expected", third(math.nan)), "expected_in_range", "expected[2] = nan"),
    "expected below zero": (changing("expected", third(-0.5)), "expected_in_range", "expected[2] = -0.5"),
}
"""Further ways to break a rule of one board."""


@pytest.mark.parametrize(("plant", "rule", "text"), MORE_BREACHES.values(), ids=MORE_BREACHES)
def test_a_rule_of_one_board_is_broken_alone_and_says_how(sound: Dataset, plant: Plant, rule: str, text: str) -> None:
    row = first(sound)
    plant(sound)

    breaches = rule_breaches(sound, row)

    assert list(breaches) == [rule]
    assert text in breaches[rule]


@pytest.mark.parametrize("values", [VALUES, WDL, ValuesConfig(transform="clipped_centipawns")], ids=lambda values: values.transform)
def test_values_of_every_transform_are_what_they_are_made_to_be(values: ValuesConfig) -> None:
    dataset = sound_dataset(values=values, seed=5)
    for row in dataset.boards:
        assert rule_breaches(dataset, row, values) == {}
    for other in {VALUES, WDL, values.model_copy(update={"transform": "clipped_centipawns"})} - {values}:
        assert set(rule_breaches(dataset, dataset.boards[0], other)) == {"values_as_scores"}


def test_a_move_whose_expected_score_belies_its_centipawns_breaks_the_order_and_not_the_formula(sound: Dataset) -> None:
    board = chess.Board()
    scores = scores_of(board, random.Random(0)) | {"e2e4": Score(30, expected=0.4), "d2d4": Score(20, expected=0.6)}
    row = row_of(board, split=Split.TRAIN, game_id=sound.games[0]["game_id"], rng=random.Random(0), values=WDL, scores=scores)

    breaches = rule_breaches(sound, row, WDL)

    assert list(breaches) == ["values_rise_with_scores"]
    assert "e2e4 (30 centipawns) is worth" in breaches["values_rise_with_scores"]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Score(1, is_mate=True), Score(2, is_mate=True)),
        (Score(9, is_mate=True), Score(5_000)),
        (Score(1), Score(0)),
        (Score(-5_000), Score(-9, is_mate=True)),
        (Score(-2, is_mate=True), Score(-1, is_mate=True)),
    ],
)
def test_scores_are_in_the_order_that_a_player_would_put_them(sound: Dataset, better: Score, worse: Score) -> None:
    board = chess.Board()
    scores = {move.uci(): Score(0) for move in board.legal_moves} | {"e2e4": better, "d2d4": worse}
    row = row_of(board, split=Split.TRAIN, game_id=sound.games[0]["game_id"], rng=random.Random(0), scores=scores)
    assert "values_rise_with_scores" not in rule_breaches(sound, row)

    row["values"] = list(row["values"])
    places = [row["moves"].index(move) for move in ("e2e4", "d2d4")]
    row["values"][places[0]], row["values"][places[1]] = row["values"][places[1]], row["values"][places[0]]
    assert "values_rise_with_scores" in rule_breaches(sound, row)


def test_an_engine_without_expected_scores_has_them_on_drawing_moves_alone(sound: Dataset) -> None:
    board = chess.Board("7k/8/8/6Q1/8/8/8/K7 w - - 0 1")
    scores = scores_of(board, random.Random(3))
    bare = {move: score if score == Score(0, expected=0.5) else score._replace(expected=None) for move, score in scores.items()}
    old = first(sound, phase=Phase.ENDGAME)
    row = row_of(board, split=Split.TRAIN, game_id=old["game_id"], rng=random.Random(3), scores=bare)
    sound.boards[sound.boards.index(old)] = row
    for other in sound.boards:
        other["expected"] = [None] * len(other["moves"]) if other is not row else other["expected"]

    assert set(row["expected"]) == {None, 0.5}
    assert check(sound).is_met


GAME = {
    "game_id": "g",
    "source": "games.pgn",
    "offset": 0,
    "split": "train",
    "start_fen": chess.STARTING_FEN,
    "num_plies": 3,
    "result": "1-0",
    "white_rating": None,
    "black_rating": None,
    "date": None,
    "moves": ["e2e4", "e7e5", "g1f3"],
    "keys": ["one", "two", "three"],
    "label_plies": [0, 2],
}


def game_breaches(config: BoardsConfig = CONFIG, boards: BoardsOfGame | None = None, **changes: Any) -> dict[str, str]:
    reading = GameReading(row_number=0, row=GAME | {"game_id": game_id_in(Split.TRAIN, "g")} | changes, boards=boards)
    return {rule.name: breach for rule in game_rules(config) if rule.name != "game_has_boards" and (breach := rule.breach(reading))}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"white_rating": 1, "black_rating": 4_000}, []),
        ({"white_rating": 0}, ["ratings_possible"]),
        ({"start_fen": "what?"}, ["start_legal"]),
        ({"num_plies": 0, "result": "*"}, []),
        ({"num_plies": 0, "result": "*", "source": "engine"}, ["plies_possible"]),
        ({"num_plies": 0, "result": "*", "white_rating": 2_000}, ["plies_possible"]),
        ({"offset": -1}, ["offset_possible"]),
        ({"date": "2024.??.??"}, []),
        ({"date": ""}, ["date_well_formed"]),
        ({"start_fen": None, "offset": None}, ["game_complete"]),
        ({"label_plies": []}, []),
        ({"moves": ["e2e4", "e7e5"]}, ["moves_complete"]),
        ({"keys": ["one", None, "three"]}, ["moves_complete"]),
        ({"label_plies": [2, 0]}, ["moves_complete"]),
        ({"label_plies": [3]}, ["moves_complete"]),
        ({"moves": None}, ["game_complete"]),
    ],
)
def test_rules_of_one_game(changes: Row, names: list[str]) -> None:
    assert list(game_breaches(**changes)) == names


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("2024.02.29", True),
        ("2024.02.??", True),
        ("2024.??.31", True),
        ("1900.02.29", False),
        ("2024.13.01", False),
        ("2024.00.01", False),
        ("2024.01.00", False),
        ("2024.04.31", False),
        ("????.??.??", False),
        ("0000.01.01", False),
        ("2024-01-01", False),
        ("24.01.01", False),
        ("2024.1.1", False),
        ("2024.01.01 ", False),
        ("٢٠٢٤.01.01", False),
    ],
)
def test_what_is_a_date(text: str, is_one: bool) -> None:
    assert is_date(text) == is_one


def test_a_listed_position_has_one_board_and_nobodys_label() -> None:
    def of(num_boards: int, labels_from: str) -> dict[str, str]:
        by_phase = Counter(opening=num_boards)
        return game_breaches(boards=BoardsOfGame(Counter(train=1), Counter({labels_from: 1}), by_phase), num_plies=0, result="*")

    assert of(1, "engine") == {}
    assert of(2, "engine")["plies_possible"].endswith("no listed position: 2 boards")
    assert of(1, "game")["plies_possible"].endswith("no listed position: labels that were played")


@pytest.mark.parametrize(
    ("source", "found", "is_known"),
    [
        ("files", "list.epd", True),
        ("files", "engine", False),
        ("engine", "engine", True),
        ("engine", "games.pgn", False),
    ],
)
def test_which_sources_are_known_is_for_the_settings_to_say(source: str, found: str, is_known: bool, sound: Dataset) -> None:
    files = CONFIG.files if source == "files" else ()
    config = BoardsConfig.model_validate(CONFIG.model_dump() | {"source": source, "files": files})
    kept = "games.pgn" if source == "files" else "engine"
    for row in sound.boards:
        game = sound.game(row)
        row["source"] = game["source"] = kept if row["label_from"] == "game" else "list.epd" if source == "files" else kept
        game["result"] = "1-0" if game["num_plies"] else "*"
    row = first(sound)
    row["source"] = sound.game(row)["source"] = found
    assert ("source_known" not in failed(check(sound, config))) == is_known


def accepting(**changes: Any) -> BoardsConfig:
    return CONFIG.model_copy(update={"shortage": "accept", **changes})


def test_an_accepted_shortage_asks_for_exactly_what_the_report_says_is_there(sound: Dataset) -> None:
    drop(Split.TRAIN)(sound)
    sound.facts["missing"] = {"train/opening": 1}
    assert check(sound, accepting()).is_met
    assert failed(check(sound)) == TOO_FEW, "not when a shortage is an error, whatever the report says"

    sound.facts["missing"] = {"train/opening": 2}
    assert failed(check(sound, accepting())) == {"phases_balanced"}
    sound.facts["missing"] = {}
    assert failed(check(sound, accepting())) == TOO_FEW


def test_an_accepted_shortage_leaves_at_least_one_board_of_each_split_and_phase(sound: Dataset) -> None:
    drop(Split.HELDOUT)(sound)
    sound.facts["missing"] = {"heldout/opening": 1}
    report = check(sound, accepting())
    assert failed(report) == TOO_FEW
    assert "heldout/opening, 1 boards wanted: 0 found" in report.as_text()


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"used_games": 4}, "used_games 4, and the tables have 18"),
        ({"games": 17}, "games 17, of which 18 are used"),
        ({"splits": {}}, "splits {}, and the tables have "),
        ({"sources": {"x": 18}}, "sources {'x': 18}, and"),
        ({"labels": {}}, "labels {}"),
        ({"phases": {}}, "phases {}"),
        ({"natural_phases": {"opening": 5, "middlegame": 6, "endgame": 6}}, "natural_phases opening 5, of which 6 are kept"),
    ],
)
def test_every_count_of_the_report_is_held_against_the_tables(facts: Row, text: str, sound: Dataset) -> None:
    from data_checks.dataset import _contradictions

    assert text in _contradictions(*sound.tables(), sound.report_facts() | facts)


def of_check(report: DatasetReport, name: str) -> CheckResult:
    [result] = [result for suite in report.suites.values() for result in suite.results if result.name == name]
    return result


def test_the_examples_of_a_fault_name_the_board(sound: Dataset) -> None:
    first(sound)["values"] = [2.0] * len(first(sound)["moves"])

    result = of_check(check(sound), "values_in_range")

    assert result.num_unexpected == 1
    more = len(first(sound)["moves"]) - 3
    assert result.examples == (f"{first(sound)['fen']}: values[0] = 2.0, values[1] = 2.0, values[2] = 2.0 and {more} more",)


def test_many_faults_are_counted_but_few_are_shown(sound: Dataset) -> None:
    for row in sound.boards:
        row["label"] = "a1h7"

    result = of_check(check(sound), "label_legal")

    assert result.num_unexpected == len(sound.boards)
    assert len(result.examples) == len(set(result.examples)) == MAX_EXAMPLES


def test_a_broken_fen_leaves_nothing_to_look_at_for_the_rules_that_need_a_board(sound: Dataset) -> None:
    first(sound)["fen"] = "what?"
    report = check(sound)

    assert of_check(report, "fen_legal").num_checked == 18
    for name in ("moves_legal", "label_legal", "phase_as_stated", "values_complete", "values_as_scores"):
        assert of_check(report, name).num_checked == 17


def test_empty_tables_fail_every_suite_for_want_of_rows() -> None:
    report = check(Dataset([], []))

    assert failed(report) == {*TOO_FEW, "enough_games"}
    assert all(suite.num_failed for suite in report.suites.values())
    assert "train/opening, 4 boards wanted: 0 found" in report.as_text()


def test_a_table_with_other_columns_is_refused(sound: Dataset) -> None:
    boards, games = sound.tables()
    facts = sound.report_facts()

    with pytest.raises(ValueError, match=r"other columns than grpo\.dataset\.table\.BOARD_SCHEMA"):
        check_dataset_tables(boards.drop_columns("key"), games, facts, CONFIG, VALUES)
    with pytest.raises(ValueError, match="build the boards again"):
        check_dataset_tables(boards.set_column(7, "ply", boards["ply"].cast("int64")), games, facts, CONFIG, VALUES)
    with pytest.raises(ValueError, match=r"other columns than grpo\.dataset\.table\.GAME_SCHEMA"):
        check_dataset_tables(boards, games.drop_columns("date"), facts, CONFIG, VALUES)


def drawn_edges(rng: random.Random, num_boards: int, skill: float) -> list[Edge]:
    """Return edges of labels drawn by exp(skill * value / spread), uniformly for no skill, on boards of 5 to 40 moves."""
    edges = []
    for _ in range(num_boards):
        values = [rng.random() ** 2 for _ in range(rng.randint(5, 40))]
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        label = rng.choices(values, [math.exp(skill * value / math.sqrt(variance)) for value in values])[0]
        edges.append(Edge(label - mean, variance))
    return edges


@pytest.mark.parametrize("num_boards", [30, 299, 300, 1_000])
def test_labels_of_weak_players_never_fail(num_boards: int) -> None:
    rng = random.Random(1)
    assert all(chance_breach(drawn_edges(rng, num_boards, 0.4)) == "" for _ in range(60))


def test_the_bound_is_three_standard_errors() -> None:
    # Of n boards with a variance of 1/4 the standard error is 1 / (2 sqrt(n)): 0.025 of 400, 0.05 of 100.
    assert chance_breach([Edge(0.0751, 0.25)] * 400) == ""
    assert chance_breach([Edge(0.0749, 0.25)] * 400) == (
        "the labels of 400 boards gain +0.0749 on average over a random legal move, and must gain more than +0.0750 (standard error 0.0250)"
    )
    assert chance_breach([Edge(-0.1499, 0.25)] * 100) == ""
    assert chance_breach([Edge(-0.1501, 0.25)] * 100)
    assert chance_breach([Edge(0.0, 0.0)] * 299) == "", "nothing can be told where all moves are worth the same"
    assert chance_breach([]) is None


def test_a_shuffled_label_column_of_a_whole_table_is_found() -> None:
    config = CONFIG.model_copy(update={"num_train": 330, "max_per_game_and_phase": 1})
    dataset = sound_dataset(config)
    rng = random.Random(3)
    played = [row for row in dataset.boards if row["label_from"] == "game"]
    assert len(played) >= MIN_BOARDS_FOR_CHANCE
    for row in played:  # A player who picks the better of two moves.
        row["label"] = max(rng.sample(row["moves"], 2), key=lambda move: row["values"][row["moves"].index(move)])
    assert check(dataset, config).is_met

    for row in played:
        row["label"] = rng.choice(row["moves"])
    report = check(dataset, config)
    assert failed(report) == {"labels_beat_chance"}
    assert f"the labels of {len(played)} boards gain" in report.as_text()


def test_nothing_is_printed_and_nothing_is_written(
    sound: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare_great_expectations()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("data_checks.dataset.run_suites", run_suites)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))  # Any temporary file is then an error.
        check(sound)

    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


HOSTILE = "<script>alert(1)</script> & ${x} $y |.pgn"


def test_data_docs_are_pages_of_all_suites_that_show_what_files_are_called_and_run_none_of_it(
    sound: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first(sound)["source"] = HOSTILE
    sound.game(first(sound)).update(source=HOSTILE, offset=-1)
    other = first(sound, skip=1)
    other["source"] = f"other {HOSTILE}"

    report = check(sound, data_docs=Path("docs"))

    assert of_check(report, "source_known").examples == (f"other {HOSTILE}",), "our own report shows it as it is"
    assert of_check(report, "offset_possible").examples[0].endswith(f"({HOSTILE} at -1): offset -1")
    pages = {path.relative_to(tmp_path / "docs").as_posix(): path.read_text() for path in (tmp_path / "docs").rglob("*.html")}
    for suite in report.suites:
        assert f"expectations/{suite}.html" in pages
        [page] = [text for name, text in pages.items() if name.startswith(f"validations/{suite}/")]
        assert "Statistics" in page
    together = "".join(pages.values())
    assert "<script>alert(1)" not in together
    assert "&lt;script&gt;alert(1)" in together
    assert "No move of a board is worth less than one with a worse score." in together
    assert sum(path.stat().st_size for path in (tmp_path / "docs").rglob("*") if path.is_file()) < 2_000_000
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


def test_great_expectations_is_imported_late_and_takes_no_warnings_away() -> None:
    program = """
import sys, warnings
import data_checks.dataset
assert not {"great_expectations", "pandas"} & set(sys.modules)
from data_checks.expectations import prepare_great_expectations
prepare_great_expectations()
assert "great_expectations" in sys.modules
warnings.warn("still heard")
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert "still heard" in ended.stderr
    assert ended.stdout == ""


def test_an_error_inside_great_expectations_is_raised_and_not_taken_for_a_finding() -> None:
    import pandas as pd

    prepare_great_expectations()
    from great_expectations.expectations import ExpectColumnValuesToBeUnique

    broken = NamedCheck(name="x", meaning="", remedy="", expectations={"x": ExpectColumnValuesToBeUnique(column="absent")})

    with pytest.raises(RuntimeError, match=r'could not run x \(x\).*The column "absent" in BatchData does not exist'):
        run_suites([Suite(name="s", checks=(broken,), frame=pd.DataFrame({"present": ["a"]}))])


@settings(max_examples=100)
@given(st.text(alphabet="pnbrqkPNBRQK12345678/ wb-KQkqah36 01", max_size=90) | st.text(max_size=20))
def test_no_text_in_place_of_a_fen_is_an_error(fen: str) -> None:
    row = dict.fromkeys(BOARD_SCHEMA.names) | {"fen": fen}
    reading = BoardReading.of(0, row)

    breaches = {rule.name: rule.breach(reading) for rule in (*BOARD_RULES, *value_rules(VALUES), *LABEL_RULES)}

    assert breaches["fen_legal"] is not None
    assert breaches["fen_legal"] == "" or fen in breaches["fen_legal"] or repr(fen) in breaches["fen_legal"]
