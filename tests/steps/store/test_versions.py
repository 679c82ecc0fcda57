"""A step's version changes with everything that its output depends on, and with nothing else."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steps.step_io.spec import StepSpec
from steps.store import versions
from steps.store.versions import code_hash, describe_code, imported_modules, installed_lock, step_version

CODE = {"commit": "abc", "is_dirty": False, "lock": "lock-1", "language_lock": "language-1"}


def version(**changes: Any) -> str:
    given: dict[str, Any] = {
        "spec": StepSpec(name="pretrain", body="steps.bodies.pretrain"),
        "settings": {"seed": 0, "policy": {"width": 16}},
        "inputs": {"boards": "hash-1"},
        "code": CODE,
    }
    return step_version(**{**given, **changes}).version


@pytest.mark.parametrize(
    "change",
    [
        {"spec": StepSpec(name="baseline", body="steps.bodies.pretrain")},
        {"spec": StepSpec(name="pretrain", body="steps.bodies.baseline")},
        {"settings": {"seed": 1, "policy": {"width": 16}}},
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


BODIES = (
    "build_boards",
    "join_boards",
    "check_boards",
    "pretrain",
    "language_pretrain",
    "calibrate",
    "baseline",
    "finetune",
    "language_finetune",
    "screen",
    "select",
    "report",
)
"""In the order of the flow: of two, only the later can be downstream of the other."""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a copy of the project's packages that versions are computed of."""
    for package in ("steps", "grpo", "data_checks"):
        shutil.copytree(versions.ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    yield tmp_path
    monkeypatch.undo()
    forget()


def forget() -> None:
    code_hash.cache_clear()
    imported_modules.cache_clear()


def hashes() -> dict[str, str]:
    forget()
    return {body: code_hash(f"steps.bodies.{body}") for body in BODIES}


def test_no_sentence_in_any_module_changes_a_version(tree: Path) -> None:
    before = hashes()
    for path in tree.rglob("*.py"):
        parsed = ast.parse(path.read_text())
        for node in ast.walk(parsed):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                node.value.value = "Said otherwise."
        for_types = "if TYPE_CHECKING:\n    from steps.tracking.tracker import Tracker\n" if "TYPE_CHECKING" in path.read_text() else ""
        path.write_text(f"# A comment.\n{ast.unparse(parsed)}\n# Another.\n{for_types}")
    assert hashes() == before


def test_a_constant_in_a_body_changes_its_steps_version_and_none_upstream(tree: Path) -> None:
    before = hashes()
    for number, body in enumerate(BODIES):
        module = tree / "steps" / "bodies" / f"{body}.py"
        module.write_text(f"{module.read_text()}\n_NUMBER = {number}\n")
        # `select` imports the contest that `screen` opens, and comes after it in any case.
        earlier, before = before, hashes()
        assert {name for name in BODIES if earlier[name] != before[name]} == ({"screen", "select"} if body == "screen" else {body})
    module.write_text(module.read_text().replace(f"_NUMBER = {number}", "_NUMBER = -1"))
    assert {name for name, found in hashes().items() if found != before[name]} == {body}, "its value counts"


def test_a_constant_of_a_library_module_changes_the_steps_that_import_it_and_no_others(tree: Path) -> None:
    before = hashes()
    module = tree / "grpo" / "learning" / "objective.py"
    module.write_text(f"{module.read_text()}\n_NUMBER = 3\n")
    assert {name for name, found in hashes().items() if found != before[name]} == {"finetune", "language_finetune"}


def test_what_a_step_shows_and_publishes_is_in_no_version(tree: Path) -> None:
    before = hashes()
    module = tree / "steps" / "bodies" / "pretrain.py"
    text = module.read_text()
    module.write_text(text.replace('"imitation/top1", ', ""))
    assert module.read_text() != text
    assert hashes() == before


def test_the_diagnosis_and_the_other_kind_of_policy_are_not_in_the_version_of_finetune() -> None:
    found = imported_modules("steps.bodies.finetune").keys()
    assert {"grpo.learning.trainer", "grpo.learning.objective", "grpo.control.controller"} <= found
    diagnosis = [name for name in found if name.startswith("grpo.diagnosis.")]
    assert diagnosis == ["grpo.diagnosis.conditions"], "the thresholds of the alarms, which steer training"
    assert not [name for name in found if name.startswith("grpo.language.")]


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


def test_the_locks_of_versions_are_the_images() -> None:
    for lock in versions.LOCKS.values():
        assert lock.resolve() == versions.ROOT / lock.name


def test_an_installed_package_gives_the_versions_that_a_checkout_gives(tmp_path: Path) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    for package in ("flows", "steps", "grpo", "data_checks"):
        shutil.copytree(versions.ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(versions.ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    asked = "from steps.store import versions; print(versions.__file__, versions.hash_of_all_steps())"
    environment = {"PATH": os.environ["PATH"]}
    told = subprocess.run([sys.executable, "-c", asked], cwd=installed, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [str(installed / "steps/store/versions.py"), versions.hash_of_all_steps()]


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
