"""The network of docs/library.md, in a file of its own, through imitation, GRPO, checkpoints and a game."""

import sys
from pathlib import Path

import chess
import pytest
import torch
from doubles import CPU
from made_work import work_in
from page_code import blocks
from tiny_training import finetune, prepare, settings

from grpo.base.errors import PlainError
from grpo.base.files import read_json
from grpo.policy import kind, networks
from grpo.policy.files import FACTS, IncompatibleError
from grpo.policy.policy import NetworkPolicy
from grpo.settings.tree import Settings
from steps import pretrain
from steps.common.policies.open import open_policy
from steps.names import CHECKPOINTS

NAME = "linear"


def test_a_network_of_ones_own_is_trained_saved_and_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = [block for block in blocks("library.md") if block.startswith(f"# grpo/policy/networks/{NAME}.py")]
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / f"{NAME}.py").write_text(code)
    changes = {"policy": {"network": NAME, "width": 16}, "pretrain": {"num_steps": 4, "steps_per_validation": 2, "batch_size": 8}}
    given = Settings.model_validate(settings(num_steps=2).model_dump() | changes)
    with pytest.raises(PlainError, match=r"grpo/policy/networks/linear\.py"):
        kind.check(given)
    monkeypatch.setattr(networks, "__path__", [*networks.__path__, str(tmp_path / "networks")])
    (tmp_path / "networks" / "wide.py").write_text(code.replace(".gather(1, positions.action_ids)", ""))
    with pytest.raises(AssertionError, match=r"logits have the shape \(1, \d+\), legal moves \(1, 20\)"):
        kind.check(Settings.model_validate(given.model_dump() | {"policy": {"network": "wide"}}))
    assert NAME in kind.check(given)
    prepare(tmp_path / "inputs")
    pretrain.body(work_in(tmp_path / "pretrained", given, inputs={"join_boards": tmp_path / "inputs" / "boards"}))
    inputs = tmp_path / "both"
    inputs.mkdir()
    (inputs / "boards").symlink_to(tmp_path / "inputs" / "boards")
    (inputs / "network").symlink_to(tmp_path / "pretrained")
    made = finetune(tmp_path / "home", inputs, given) / CHECKPOINTS / "step-00000002"
    assert read_json(made / FACTS)["policy"]["network"] == NAME
    start, trained = (NetworkPolicy.load(folder, CPU).network.state_dict() for folder in (tmp_path / "pretrained", made))
    assert start.keys() == {"layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"}
    assert any(not torch.equal(trained[name], weights) for name, weights in start.items())
    [move] = open_policy(made, CPU).player("own", temperature=None, seed=0, stream=()).choose([chess.Board()], [0])
    assert chess.Board().is_legal(move)
    monkeypatch.undo()
    sys.modules.pop(f"{networks.__name__}.{NAME}")
    with pytest.raises(IncompatibleError, match=r"grpo/policy/networks/linear\.py does not exist"):
        NetworkPolicy.load(made, CPU)
