"""A language model in the steps: what is in their versions, what may change when a run is resumed, and what is found before any work."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo.engine.identity import EngineIdentity
from grpo.language.model import loading
from grpo.language.model import requirements as extra
from grpo.settings.language import LanguageConfig
from grpo.settings.roles import may_change, settings_read_by
from grpo.settings.tree import Settings, read_settings
from steps.pipeline.resume_changes import Change, Now, changes_since
from steps.preflight.checks import preflight
from steps.runtime.machine import Machine
from steps.store import external_inputs

LANGUAGE = read_settings('preset = "test"\npolicy.kind = "language"\nlanguage.cloning.learning_rate = 1e-4')
NETWORK = read_settings("test")
STEPS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "pretrain": partial(settings_read_by, "pretrain"),
    "baseline": partial(settings_read_by, "baseline"),
    "finetune": partial(settings_read_by, "finetune"),
    "select": partial(settings_read_by, "select"),
}
# Field -> a value that is not its default, and the steps that must be made anew with it.
FIELDS: Mapping[str, tuple[Any, set[str]]] = {
    "model": ("jrahn/RookWorld-LM-124M", set(STEPS)),
    "revision": ("abc", set(STEPS)),
    "small": ({"width": 64}, set(STEPS)),
    "cloning": ({"num_steps": 5}, set(STEPS)),
    "environment_share": (0.5, set(STEPS)),
    "num_history_moves": (4, set(STEPS)),
    "max_answer_tokens": (99, set(STEPS)),
    "answers_per_forward": (8, set(STEPS)),
    "min_parse_rate": (0.5, set(STEPS)),
    "num_gate_prompts": (8, set(STEPS)),
    "kl_warmup_steps": (3, {"finetune"}),
    "reward_warmup_steps": (3, {"finetune"}),
    "max_questions": (2, {"baseline", "finetune", "select"}),
    "num_heldout_boards": (9, {"baseline", "finetune", "select"}),
}


def with_language(settings: Settings = LANGUAGE, **fields: Any) -> Settings:
    """Return settings with these fields of `[language]`, sections laid over."""
    plain = settings.model_dump(mode="json")
    for name, value in fields.items():
        plain["language"][name] = {**plain["language"][name], **value} if isinstance(value, dict) else value
    return Settings.model_validate(plain)


@pytest.mark.parametrize("field", LanguageConfig.model_fields)
def test_a_field_is_in_the_versions_of_the_steps_that_read_it_and_in_no_others(field: str) -> None:
    value, steps = FIELDS[field]
    changed = with_language(**{field: value})
    assert {step for step, slice_of in STEPS.items() if slice_of(changed) != slice_of(LANGUAGE)} == steps
    assert settings_read_by("build_boards", changed) == settings_read_by("build_boards", LANGUAGE)
    assert settings_read_by("calibrate", changed) == settings_read_by("calibrate", LANGUAGE) == settings_read_by("calibrate", NETWORK), (
        "both kinds climb one ladder"
    )


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


@pytest.mark.parametrize("field", LanguageConfig.model_fields)
def test_of_each_field_it_is_decided_whether_it_may_change(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "hub_commit", lambda language: "a commit")
    value, _ = FIELDS[field]
    found = changes(LANGUAGE, with_language(**{field: value}))
    assert found
    for change in found:
        assert change.field.startswith(f"language.{field}")
        assert change.is_refused == (not may_change(f"language.{field}"))
        assert not change.allowed_as, "what made the policy cannot be allowed"


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
