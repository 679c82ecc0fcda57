"""The examples of docs/library.md and docs/extending.md run as they stand, one after the other."""

from typing import Any

import chess
import pytest
import torch
from page_code import names_left_by


@pytest.fixture(scope="module")
def names(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the names that all blocks of the library's page leave."""
    return names_left_by("library.md", tmp_path_factory.mktemp("library"), stockfish)


@pytest.fixture(scope="module")
def extended(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the names that all blocks of the page on extending leave."""
    return names_left_by("extending.md", tmp_path_factory.mktemp("extending"), stockfish)


def test_every_legal_move_has_a_value_and_the_mate_is_the_best(names: dict[str, Any]) -> None:
    assert set(names["table"].moves) == {move.uci() for move in names["board"].legal_moves}
    assert names["best"] == "f3f7"
    assert names["value"] > 0.99


def test_probabilities_are_the_same_by_column_and_by_name(names: dict[str, Any]) -> None:
    assert set(names["probabilities"]) == {move.uci() for move in names["board"].legal_moves}
    assert max(names["probabilities"].values()) == pytest.approx(float(names["moves"].probs[0].max()), abs=1e-6)


def test_the_match_is_of_pairs(names: dict[str, Any]) -> None:
    assert (names["result"].num_openings, len(names["result"].games)) == (2, 4)
    assert names["score"].low <= names["score"].score <= names["score"].high


def test_the_trainer_trains_a_copy(names: dict[str, Any]) -> None:
    assert len(names["records"]) == 3
    trained, start = names["trainer"].policy.network.state_dict(), names["policy"].network.state_dict()
    assert any(not torch.equal(trained[name], start[name]) for name in start)


def test_the_data_frame_has_the_dataset_and_the_made_history_its_collapse(names: dict[str, Any]) -> None:
    assert len(names["frame"]) == 40
    assert chess.Board(names["frame"].fen[0]).is_valid()
    assert "entropy_collapse" in names["diagnosis"].names


def test_an_opponent_of_ones_own_plays_both_colors(extended: dict[str, Any]) -> None:
    assert len(extended["against_greedy"].games) == 2
    board = chess.Board("4k3/8/8/3q4/4P3/8/8/4K3 w - - 0 1")
    assert extended["Greedy"]().choose([board], [0]) == [chess.Move.from_uci("e4d5")]


def test_a_reward_of_ones_own_is_learnt(extended: dict[str, Any]) -> None:
    assert 0 < extended["checks"].sum() < extended["arrays"].is_legal.sum()
    assert extended["rates"][-1] > extended["rates"][0]
    mate, quiet = extended["Score"](2, is_mate=True), extended["Score"](500)
    assert extended["is_best"]([quiet, mate], extended["ValuesConfig"]()) == [0.0, 1.0]


def test_a_controller_and_a_network_of_ones_own_are_used(extended: dict[str, Any]) -> None:
    assert extended["temperatures"] == pytest.approx([1.5, 1.4, 1.32])
    assert extended["linear_trainer"].num_steps_done == 1
    assert extended["Warming"]().knobs() == {"temperature": 1.0}


def test_a_preset_of_ones_own_overrides_what_it_is_based_on(extended: dict[str, Any]) -> None:
    assert (extended["mine"].grpo.num_steps, extended["mine"].seed, extended["mine"].policy.width) == (30, 7, 64)
