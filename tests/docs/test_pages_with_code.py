"""The examples of docs/library.md run as they stand, one after the other."""

from typing import Any

import pytest
import torch
from page_code import names_left_by


@pytest.fixture(scope="module")
def names(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the names that all blocks of the page leave."""
    return names_left_by("library.md", tmp_path_factory.mktemp("library"), stockfish)


def test_every_legal_move_has_a_value_and_a_probability_and_the_mate_is_the_best(names: dict[str, Any]) -> None:
    legal = {move.uci() for move in names["board"].legal_moves}
    assert set(names["table"].moves) == set(names["probabilities"]) == legal
    assert names["best"] == "f3f7"


def test_an_opponent_of_ones_own_plays_pairs_of_games(names: dict[str, Any]) -> None:
    assert (names["result"].num_openings, len(names["result"].games)) == (2, 4)


def test_a_reward_of_ones_own_is_learnt_by_a_copy(names: dict[str, Any]) -> None:
    assert names["rates"][-1] > names["rates"][0]
    trained, start = names["trainer"].policy.network.state_dict(), names["policy"].network.state_dict()
    assert any(not torch.equal(trained[name], start[name]) for name in start)


def test_a_controller_of_ones_own_is_used(names: dict[str, Any]) -> None:
    assert names["temperatures"] == pytest.approx([1.5, 1.4, 1.32])
