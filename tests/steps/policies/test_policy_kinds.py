"""Each kind of policy has its bodies. What is found of a model before any work."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest

from grpo.base.errors import PlainError
from grpo.policy.files import LANGUAGE, NETWORK
from grpo.settings.tree import PolicyConfig, Settings
from steps import finetune, preflight, pretrain


def test_every_kind_that_the_settings_name_has_bodies() -> None:
    names = set(get_args(PolicyConfig.model_fields["kind"].annotation))
    assert names == {NETWORK, LANGUAGE}
    for step in (pretrain.STEP, finetune.STEP):
        assert step.variants.keys() <= names
        assert all(find_spec(step.module_for(name)) for name in names)


def found(model: str) -> str:
    given: dict[str, Any] = {"policy": {"kind": LANGUAGE}, "language": {"model": model}, "pretrain": {"learning_rate": 1e-4}}
    return preflight._language_model(Settings.model_validate(given))


def test_a_folder_without_a_model_is_found_and_a_hubs_name_is_left_to_pretrain(tmp_path: Path) -> None:
    with pytest.raises(PlainError, match=f"language.model = '{tmp_path}/nowhere' is not an existing folder"):
        found(str(tmp_path / "nowhere"))
    with pytest.raises(PlainError, match=r"has no config\.json"):
        found(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert found(str(tmp_path)) == f"the folder {tmp_path}"
    assert "RookWorld" in found("jrahn/RookWorld-LM-124M")
