"""A language model in the steps: what is in their versions, what may change when a run is resumed, and what is found before any work."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo.engine.identity import EngineIdentity
from grpo.language.model import requirements as extra
from grpo.settings.roles import settings_read_by
from grpo.settings.tree import Settings, read_settings
from grpo.settings.types import StepName
from steps.pipeline.resume_changes import Change, Now, changes_since
from steps.preflight.checks import preflight
from steps.runtime.machine import Machine
from steps.store import external_inputs

LANGUAGE = read_settings('preset = "test"\npolicy.kind = "language"\nlanguage.cloning.learning_rate = 1e-4')
NETWORK = read_settings("test")


def with_language(settings: Settings = LANGUAGE, **fields: Any) -> Settings:
    """Return settings with these fields of `[language]`, sections laid over."""
    plain = settings.model_dump(mode="json")
    for name, value in fields.items():
        plain["language"][name] = {**plain["language"][name], **value} if isinstance(value, dict) else value
    return Settings.model_validate(plain)


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"cloning": {"num_steps": 5}}, {"pretrain", "baseline", "finetune", "select"}),
        ({"kl_warmup_steps": 3}, {"finetune"}),
        ({"max_questions": 2}, {"baseline", "finetune", "select"}),
    ],
)
def test_a_field_is_in_the_versions_of_the_steps_that_read_it_and_in_no_others(fields: Mapping[str, Any], steps: set[StepName]) -> None:
    changed = with_language(**fields)
    named: tuple[StepName, ...] = ("build_boards", "pretrain", "calibrate", "baseline", "finetune", "select")
    assert {step for step in named if settings_read_by(step, changed) != settings_read_by(step, LANGUAGE)} == steps
    (change,) = changes(LANGUAGE, changed)
    assert change.is_refused == ("cloning" in fields), "what made the policy cannot be allowed"
    assert not change.allowed_as


def test_a_models_folder_is_an_input_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = with_language(model=str(tmp_path))
    before = external_inputs.model_inputs(settings)
    assert before.keys() == {"model"}
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert external_inputs.model_inputs(settings) != before
    assert external_inputs.model_inputs(LANGUAGE) == {}


def test_a_hubs_model_is_an_input_by_its_commit() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert external_inputs.model_inputs(with_language(model="jrahn/RookWorld-LM-124M", revision=commit)) == {"model": commit}


# Resuming.

ENGINE = EngineIdentity(name="Scripted 1", sha256="0" * 64)
CODE = {"commit": "abc", "is_dirty": False, "lock": "l1", "language_lock": "e1"}


def changes(then: Settings, now: Settings, code: Mapping[str, Any] = CODE, **inputs: str) -> list[Change]:
    made: dict[str, Any] = {
        "join_boards": {"settings": settings_read_by("build_boards", then), "inputs": external_inputs.source_inputs(then, ENGINE)},
        "pretrain": {
            "settings": settings_read_by("pretrain", then),
            "inputs": {"device": "cpu", **external_inputs.model_inputs(then), **inputs},
        },
        "baseline": {"settings": settings_read_by("baseline", then), "inputs": {}},
        "finetune": {"settings": settings_read_by("finetune", then), "inputs": {"engine": str(ENGINE)}},
        "select": {"settings": settings_read_by("select", then), "inputs": {}},
    }
    manifests = json.loads(json.dumps({step: {"parts": parts, "code": CODE} for step, parts in made.items()}))
    return changes_since(manifests, "a", Now(settings=now, engine=ENGINE, code=code, device="cpu", action_table="a"))


@pytest.mark.parametrize(("then", "now"), [(NETWORK, LANGUAGE), (LANGUAGE, NETWORK)])
def test_another_kind_of_policy_is_the_one_difference_that_is_told(then: Settings, now: Settings) -> None:
    [change] = changes(then, now)
    assert str(change) == f"policy.kind: origin {then.policy.kind!r}, now {now.policy.kind!r}"
    assert change.is_refused
    assert not change.allowed_as


def test_other_files_of_a_model_in_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = with_language(model=str(tmp_path))
    assert changes(settings, settings) == []
    [change] = changes(settings, settings, model="other files")
    assert change.is_refused
    assert str(change).startswith("language.model's files: origin 'other files', now '")


def test_the_packages_that_count_are_those_of_the_extra() -> None:
    assert [change.field for change in changes(LANGUAGE, LANGUAGE, {**CODE, "language_lock": "e2"})] == ["code.language_lock"]
    assert changes(LANGUAGE, LANGUAGE, {**CODE, "lock": "l2"}) == []
    assert [change.field for change in changes(NETWORK, NETWORK, {**CODE, "lock": "l2"})] == ["code.lock"]


# Before any work.


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Machine.here()


def language_line(machine: Machine, settings: Settings = LANGUAGE) -> tuple[bool, str]:
    """Return what is found of the language model; nothing is changed."""
    [finding] = [each for each in preflight(settings, machine, read_only=True)[0] if each.what == "language"]
    return finding.is_fine, finding.detail


def test_a_missing_extra_is_named_with_the_command_that_installs_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert language_line(machine)[0]
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    is_fine, detail = language_line(machine)
    assert not is_fine
    assert "not installed: transformers" in detail
    assert ".[language]" in detail
    assert "`make setup`" in detail
    is_fine, detail = language_line(replace(machine, is_container=True))
    assert not is_fine
    assert "--build-arg EXTRA=language" in detail


def test_a_folder_that_is_not_there_or_holds_no_model_is_found_and_a_hubs_name_is_left_to_pretrain(
    machine: Machine, tmp_path: Path
) -> None:
    is_fine, detail = language_line(machine, with_language(model=str(tmp_path / "nowhere")))
    assert not is_fine
    assert f"language.model = '{tmp_path}/nowhere' is not an existing folder" in detail
    is_fine, detail = language_line(machine, with_language(model=str(tmp_path)))
    assert not is_fine
    assert "has no config.json" in detail
    (tmp_path / "config.json").write_text("{}")
    assert language_line(machine, with_language(model=str(tmp_path))) == (True, f"the folder {tmp_path}")
    is_fine, detail = language_line(machine, with_language(model="jrahn/RookWorld-LM-124M"))
    assert is_fine
    assert "of the hub, downloaded by `pretrain`" in detail
