"""The step that clones a language model: what it leaves, that it is the same again, and that what cannot be read goes no further."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from listeners import Listener
from small_language import boards_table, cloned_folder

from grpo.base.files import read_json
from grpo.language.learn.parse_rate_gate import UnreadableError
from grpo.language.model.loading import load_language_policy
from grpo.learning.checkpoints import weights_hash
from grpo.settings.tree import Settings, read_settings
from steps.bodies.language_pretrain import pretrain_language
from steps.step_io.names import BOARDS, REPORT
from steps.step_io.work import Work

CPU = torch.device("cpu")


def settings(**language: object) -> Settings:
    base = {
        "small": "{width = 32, num_layers = 1, num_heads = 2}",
        "cloning": "{num_steps = 4, batch_size = 8, steps_per_validation = 2}",
        "num_gate_prompts": 4,
        "max_answer_tokens": 100,
        "min_parse_rate": 0.0,
    }
    lines = [f"language.{name} = {value}" for name, value in {**base, **language}.items()]
    return read_settings("\n".join(['preset = "test"', 'policy.kind = "language"', *lines]))


def pretrained(tmp_path: Path, name: str, config: Settings) -> tuple[Path, Listener]:
    boards, folder = tmp_path / "boards", tmp_path / name
    boards.mkdir(exist_ok=True)
    folder.mkdir()
    pq.write_table(boards_table(), boards / BOARDS)
    taken = Listener()
    pretrain_language(config, boards, CPU, Work(folder, (taken,)))
    return folder, taken


def test_it_leaves_a_policy_and_a_report_and_tells_how_it_went(tmp_path: Path) -> None:
    folder, taken = pretrained(tmp_path, "first", settings())
    report = read_json(folder / REPORT)
    policy, _ = load_language_policy(folder, CPU)
    assert report["weights"] == weights_hash(policy)
    assert report["model"] == "small"
    assert report["commit"] == ""
    assert report["num_steps"] == 4
    assert report["best_step"] in (2, 4)
    assert report["num_parameters"] == sum(weights.numel() for weights in policy.network.parameters())
    assert min(report["clone_validation_loss/move"], report["clone_validation_loss/environment"]) > 0
    assert {task: rate["num"] for task, rate in report["parse_rates"].items()} == {"move": 4, "environment": 4}
    assert [record.step for record in taken.records] == [2, 4, 4]
    assert {"language/clone_loss", "language/parse_rate/move", "language/legal_rate"} <= taken.metrics.keys()
    assert taken.progresses == [(2, 4, "steps"), (4, 4, "steps")]


def test_random_weights_get_no_further_and_leave_nothing(tmp_path: Path) -> None:
    given = settings(min_parse_rate=0.5, cloning="{num_steps = 0}")
    with pytest.raises(UnreadableError, match=r"random weights: .*clone first: language\.cloning\.num_steps"):
        pretrained(tmp_path, "random", given)
    assert list((tmp_path / "random").iterdir()) == []


def test_a_cloned_model_of_a_folder_passes_as_it_comes(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(cloned_folder(), model)
    folder, _ = pretrained(
        tmp_path, "taken", settings(model=f'"{model}"', min_parse_rate=0.5, num_gate_prompts=16, cloning="{num_steps = 0}")
    )
    report = read_json(folder / REPORT)
    assert report["num_steps"] == report["best_step"] == 0
    assert report["weights"] == weights_hash(load_language_policy(cloned_folder(), CPU)[0])
    assert "clone_loss" not in report
