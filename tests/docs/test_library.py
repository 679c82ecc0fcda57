"""The examples of docs/library.md run as they stand, one after the other."""

import re
from pathlib import Path
from typing import Any

import chess
import pytest
import torch
from doubles import some_boards
from made_boards import write_boards

from grpo.learning.checkpoints import save_policy
from grpo.policy.distribution import new_policy
from grpo.settings.tree import PolicyConfig

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


@pytest.fixture(scope="module")
def names(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the names that all blocks leave, run in a folder with a policy and a dataset."""
    folder = tmp_path_factory.mktemp("library")
    config = PolicyConfig(width=16, hidden_width=16)
    (folder / "champion").mkdir()
    save_policy(folder / "champion", new_policy(config, seed=1, device=torch.device("cpu")), config)
    (folder / "boards").mkdir()
    write_boards(folder / "boards", some_boards(40), num_train=30)
    left: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CHESS_GRPO_STOCKFISH", stockfish)
        for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
            exec(compile(block, str(PAGE), "exec"), left)
    return left


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
