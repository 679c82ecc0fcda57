"""An exported policy is a whole folder that every command takes for a model."""

import argparse
import sys
from pathlib import Path

import pytest
from doubles import CPU, TINY

from grpo.base.errors import PlainError
from grpo.base.files import sha256_file, verified_manifest
from grpo.learning.checkpoints import save_policy
from grpo.policy.distribution import new_policy
from steps.cli.export import add_commands
from steps.runs.find_policy import find_policy
from steps.runtime.machine import Machine


def export(source: Path, out: Path) -> int:
    """Do what the command does, as the console does it."""
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    given = parser.parse_args(["export", str(source), str(out)])
    try:
        return int(given.run(given))
    except PlainError as error:
        print(error, file=sys.stderr)
        return 1


def test_the_folder_has_the_weights_a_card_and_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    source, out = tmp_path / "policy", tmp_path / "deep" / "out"
    source.mkdir()
    save_policy(source, new_policy(TINY, seed=0, device=CPU), TINY)
    (source / "optimiser.safetensors").write_text("the rest of a checkpoint")
    assert export(source, out) == 0
    assert sorted(verified_manifest(out)["files"]) == ["README.md", "policy.json", "weights.safetensors"]
    found = find_policy(str(out), Machine.here())
    assert (found.run, found.policy_step) == ("policy", None), "of whom it was exported"
    assert found.weights_hash == sha256_file(source / "weights.safetensors")
    card = (out / "README.md").read_text()
    assert sha256_file(source / "weights.safetensors") in card
    assert "its strength is unknown here" in card.lower()


def test_a_folder_that_is_there_is_refused_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    assert export(tmp_path / "policy", tmp_path / "out") == 1
    assert "already exists" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []
