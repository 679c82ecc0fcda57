"""Each kind of policy is whole: whoever adds one is told by these tests what it still lacks. What is found of a model before any work."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
from made_runs import machine_of

from grpo import language as extra
from grpo.policy.files import LANGUAGE
from grpo.settings.tree import PolicyConfig, Settings
from steps import finetune, pretrain
from steps.policies.kinds import KINDS
from steps.policies.open import _OPENERS
from steps.run.machine import Machine


def test_every_kind_that_the_settings_name_has_a_row_an_opener_and_bodies() -> None:
    names = set(get_args(PolicyConfig.model_fields["kind"].annotation))
    assert KINDS.keys() == _OPENERS.keys() == names
    for step in (pretrain.STEP, finetune.STEP):
        assert step.variants.keys() <= names
        assert all(find_spec(step.module_for(name)) for name in names)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return machine_of(tmp_path)


def found(machine: Machine, model: str = "small") -> tuple[bool, str]:
    given: dict[str, Any] = {"policy": {"kind": LANGUAGE}, "language": {"model": model, "cloning": {"learning_rate": 1e-4}}}
    look = KINDS[LANGUAGE].preflight
    assert look is not None
    return look(Settings.model_validate(given), machine)


def test_a_missing_extra_is_named_with_the_command_that_installs_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(machine) == (True, "small, built in")
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    is_fine, detail = found(machine)
    assert not is_fine
    assert "not installed: transformers" in detail
    assert "`make setup`" in detail
    is_fine, detail = found(replace(machine, is_container=True))
    assert not is_fine
    assert "--build-arg EXTRA=language" in detail


def test_a_folder_without_a_model_is_found_and_a_hubs_name_is_left_to_pretrain(machine: Machine, tmp_path: Path) -> None:
    is_fine, detail = found(machine, str(tmp_path / "nowhere"))
    assert not is_fine
    assert f"language.model = '{tmp_path}/nowhere' is not an existing folder" in detail
    is_fine, detail = found(machine, str(tmp_path))
    assert not is_fine
    assert "has no config.json" in detail
    (tmp_path / "config.json").write_text("{}")
    assert found(machine, str(tmp_path)) == (True, f"the folder {tmp_path}")
    assert found(machine, "jrahn/RookWorld-LM-124M")[0]
