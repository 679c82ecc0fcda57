"""A step's version changes with everything that its output depends on, and with nothing else."""

import sys
from pathlib import Path
from typing import Any

import pytest

from steps.store import versions
from steps.store.versions import code_hash, describe_code, imported_modules, installed_lock, step_version

CODE = {"commit": "abc", "is_dirty": False, "lock": "lock-1", "language_lock": "language-1"}


def version(**changes: Any) -> str:
    given: dict[str, Any] = {
        "step": "pretrain",
        "module": "steps.bodies.pretrain",
        "settings": {"seed": 0, "policy": {"channels": 16}},
        "inputs": {"boards": "hash-1"},
        "code": CODE,
    }
    return step_version(**{**given, **changes}).version


def test_equal_parts_give_equal_versions_whatever_the_order_of_keys() -> None:
    assert version() == version(settings={"policy": {"channels": 16}, "seed": 0})


@pytest.mark.parametrize(
    "change",
    [
        {"step": "baseline"},
        {"module": "steps.bodies.baseline"},
        {"settings": {"seed": 1, "policy": {"channels": 16}}},
        {"inputs": {"boards": "hash-2"}},
        {"code": {**CODE, "lock": "lock-2"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_part_changes_the_version(change: dict[str, Any]) -> None:
    assert version(**change) != version()


def test_a_commit_that_touches_nothing_here_does_not_change_the_version() -> None:
    assert version(code={**CODE, "commit": "def", "is_dirty": True}) == version()


def test_the_language_models_packages_count_where_its_settings_are_read_and_nowhere_else() -> None:
    other = {**CODE, "language_lock": "language-2"}
    assert version(code=other) == version()
    of_language = {"seed": 0, "language": {"model": "small"}}
    assert version(settings=of_language, code=other) != version(settings=of_language)
    assert version(settings=of_language, code={**CODE, "lock": "lock-2"}) == version(settings=of_language), "its lock holds those too"


def test_the_sources_of_a_step_are_followed_through_the_project() -> None:
    found = imported_modules("steps.bodies.pretrain")
    assert {
        "steps.bodies.pretrain",
        "steps.bodies.build_boards",
        "steps.step_io.work",
        "grpo.learning.imitation",
        "grpo.policy.network",
        "grpo.board.actions",
    } <= found.keys()
    assert all(path.is_file() for path in found.values())


def test_no_step_depends_on_tracker_store_or_flow() -> None:
    for body in ("build_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "select", "report"):
        found = imported_modules(f"steps.bodies.{body}").keys()
        assert f"steps.bodies.{body}" in found
        assert not [name for name in found if name.startswith(("steps.tracking", "steps.store", "steps.pipeline", "steps.cards"))]


def test_making_boards_does_not_depend_on_how_a_policy_is_trained() -> None:
    assert (
        not {"grpo.learning.trainer", "grpo.policy.network", "grpo.learning.imitation"}
        & imported_modules("steps.bodies.build_boards").keys()
    )


def test_a_changed_line_in_an_imported_module_changes_the_code_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("steps/body.py", "from grpo.deep import x\n"), ("grpo/deep.py", "x = 1\n"), ("grpo/other.py", "y = 1\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(versions, "ROOT", tmp_path)

    def fresh_hash() -> str:
        code_hash.cache_clear()
        imported_modules.cache_clear()
        versions._digest_of_code.cache_clear()
        return code_hash("steps.body")

    before = fresh_hash()
    (tmp_path / "grpo/other.py").write_text("y = 2\n")
    assert fresh_hash() == before
    (tmp_path / "grpo/deep.py").write_text("x = 2\n")
    assert fresh_hash() != before
    monkeypatch.undo()
    code_hash.cache_clear()
    imported_modules.cache_clear()


def test_the_code_is_described_by_commit_dirty_flag_and_lock() -> None:
    described = describe_code()
    assert described.keys() == {"commit", "is_dirty", "lock", "language_lock"}
    assert len(described["lock"]) == len(described["language_lock"]) == 64


def test_a_tool_of_developers_changes_no_version_and_a_package_of_the_steps_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("requirements.lock", "requirements-run.lock"):
        (tmp_path / name).write_text("ruff==1\n")
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setitem(versions.LOCKS, "lock", tmp_path / versions.LOCK.name)
    before = describe_code()["lock"]
    (tmp_path / "requirements.lock").write_text("ruff==2\n")
    assert describe_code()["lock"] == before
    (tmp_path / "requirements-run.lock").write_text("ruff==2\n")
    assert describe_code()["lock"] != before


def test_the_lock_of_versions_is_the_images() -> None:
    assert versions.LOCK == versions.ROOT / "requirements-run.lock"
    assert versions.LOCK.is_file()


def test_an_environment_says_which_lock_it_was_installed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert installed_lock() == ""
    lock = describe_code()["lock"]
    (tmp_path / "run-lock").write_text(f"{lock}\n")  # As `sha256sum | cut` of infra/install.sh leaves it.
    assert installed_lock() == lock
    assert installed_lock(versions.LANGUAGE_LOCK) == "", "an environment without the extra says nothing of its lock"
    (tmp_path / "language-lock").write_text(f"{describe_code()['language_lock']}\n")
    assert installed_lock(versions.LANGUAGE_LOCK) == describe_code()["language_lock"]


def test_without_git_the_commit_is_unknown_and_counts_as_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    assert describe_code()["commit"] == "unknown"
    assert describe_code()["is_dirty"] is True
