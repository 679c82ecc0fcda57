"""A step's version changes with everything that its output depends on, and with nothing else: no word changes it."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from presets import tiny_settings

from grpo.base.files import sha256_file
from grpo.settings.kinds import KINDS
from grpo.settings.tree import PolicyConfig, Settings
from steps import STEPS
from steps.run import code, versions
from steps.run.code import code_hash, code_of
from steps.run.step import Step, step_of
from steps.run.versions import describe_code, step_version

CODE = {"commit": "abc", "is_dirty": False, "lock": "lock-1"}
BODIES = {name: f"steps.{name}" for name in STEPS if name not in ("start", "end")}
VARIANTS = {f"language {name}": f"steps.language.{name}" for name in ("pretrain", "finetune")}
USUAL = PolicyConfig().network
Edit = Callable[[str, str, str], None]


def step(**changes: Any) -> Step:
    return Step(**{"name": "calibrate", "says": "", **changes})


def version(**changes: Any) -> str:
    given: dict[str, Any] = {
        "step": step(),
        "settings": {"seed": 0, "policy": {"width": 16}},
        "inputs": {"boards": "hash-1"},
        "code": CODE,
        "policy": PolicyConfig(),
    }
    return step_version(**{**given, **changes}).version


@pytest.mark.parametrize(
    "change",
    [
        {"step": step(name="baseline")},
        {"settings": {"seed": 1, "policy": {"width": 16}}},
        {"inputs": {"boards": "hash-2"}},
        {"code": {**CODE, "lock": "lock-2"}},
        {"code": {**CODE, "fresh": "run-2"}},
    ],
)
def test_each_part_changes_the_version(change: dict[str, Any]) -> None:
    assert version(**change) != version()


@pytest.mark.parametrize("policy", [PolicyConfig(kind="language"), PolicyConfig(network="afterstates")])
def test_the_code_of_the_policys_kind_and_network_is_in_the_version(policy: PolicyConfig) -> None:
    assert version(step=step(name="finetune"), policy=policy) != version(step=step(name="finetune"))


def test_a_commit_that_touches_nothing_here_does_not_change_the_version() -> None:
    assert version(code={**CODE, "commit": "def", "is_dirty": True}) == version()
    assert version(step=step(says="Other words.", shows=("boards/rows",), pages=("report.json",))) == version()


# The rule, on a small project.

PROJECT = {
    "steps/cook.py": '''
"""Cook."""
from grpo import heat
from grpo.taste import Taste, TasteError
from grpo.metrics.records import Record
from steps.cards.cook import page
from steps.names import REPORT
STEP = Step(name="cook", says="Cook.")
def body(work: "Work") -> None:
    from grpo.late import spice
    try:
        heat.boil(spice)
    except heat.HeatError as error:
        work.say(f"{error}: a pity")
        work.write(REPORT, {"why": str(error)})
    assert work, "no work"
    work.log(Record(0, {"soup": 1}))
    print("done", Taste(salt=1))
    print("served", file=work.file)
    raise TasteError(f"{work} is stale.")
def card(seen):
    return page("Cooked.")
''',
    "steps/cards/cook.py": 'def page(words): return [words, "A card."]\n',
    "steps/names.py": 'REPORT = "report.json"\n',
    "grpo/heat.py": 'class HeatError(ValueError): pass\ndef boil(spice):\n    raise HeatError("too hot")\n',
    "grpo/late.py": "spice = 1\n",
    "grpo/taste.py": "class TasteError(Exception): pass\nclass Taste:\n    salt: int = 1\n",
    "grpo/metrics/table.py": 'METRICS = {"soup": "How much."}\n',
}


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that versions take for the project."""
    monkeypatch.setattr(code, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def edit(at: Path) -> Edit:
    for name, text in PROJECT.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)

    def replace(name: str, old: str, new: str) -> None:
        text = (at / name).read_text()
        assert old in text
        (at / name).write_text(text.replace(old, new))

    return replace


def hash_of(module: str, kind: str = "network", network: str = USUAL) -> str:
    code_hash.cache_clear()
    return code_hash(module, kind, network)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("steps/cook.py", '"""Cook."""', '"""Prepare a meal."""  # Today.'),
        ("steps/cook.py", 'work: "Work"', "work: object"),
        ("steps/cook.py", "Step(name", "Step(pages=(1,), name"),
        ("steps/cook.py", "Cooked.", "Ready."),
        ("steps/cook.py", "from steps.cards.cook import page\n", ""),
        ("steps/cook.py", ": a pity", " is a pity"),
        ("steps/cook.py", '"no work"', '"there is no work"'),
        ("steps/cook.py", '"done"', '"cooked"'),
        ("steps/cook.py", "is stale", "has gone off"),
        ("grpo/heat.py", "too hot", "very hot"),
        ("steps/cards/cook.py", "A card.", "Another card."),
        ("grpo/metrics/table.py", "}\n", ', "salad": "New."}\n'),
    ],
)
def test_words_change_no_version(edit: Edit, name: str, old: str, new: str) -> None:
    before = hash_of("steps.cook")
    edit(name, old, new)
    assert hash_of("steps.cook") == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("steps/cook.py", '"soup": 1', '"soup": 2'),
        ("steps/cook.py", '"why"', '"because"'),
        ("steps/cook.py", '"served"', '"eaten"'),  # Written to a file.
        ("steps/names.py", "report.json", "facts.json"),
        ("grpo/heat.py", "raise", "spice.add(1)\n    raise"),  # `from package import module`.
        ("grpo/late.py", "1", "2"),  # Imported inside of a function.
        ("grpo/taste.py", "salt: int = 1", "salt: ClassVar = 1"),
    ],
)
def test_what_an_output_depends_on_changes_the_version(edit: Edit, name: str, old: str, new: str) -> None:
    before = hash_of("steps.cook")
    edit(name, old, new)
    assert hash_of("steps.cook") != before


# The table: one edit of a copy of this project, and the steps whose code it changes.


@pytest.fixture
def project(at: Path) -> Path:
    for package in ("steps", "grpo", "data_checks"):
        shutil.copytree(Path(versions.__file__).parents[2] / package, at / package, ignore=shutil.ignore_patterns("__pycache__"))
    return at


def test_the_network_that_the_settings_name_is_code_and_another_is_not(project: Path) -> None:
    (project / "grpo/policy/networks/other.py").write_text("class Network: pass\n")
    usual, other = (hash_of("steps.pretrain", network=name) for name in (USUAL, "other"))
    assert usual != other
    (project / "grpo/policy/networks/other.py").write_text("class Network: wide = True\n")
    assert hash_of("steps.pretrain") == usual
    assert hash_of("steps.pretrain", network="other") != other
    assert hash_of("steps.check_boards", network="other") == hash_of("steps.check_boards")


def all_hashes() -> dict[str, str]:
    of_networks = {name: hash_of(module) for name, module in BODIES.items()}
    return of_networks | {name: hash_of(module, "language") for name, module in VARIANTS.items()}


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    return all_hashes()  # A copy has the hashes of its original.


def moved(before: dict[str, str]) -> set[str]:
    return {name for name, found in all_hashes().items() if found != before[name]}


def test_words_metrics_and_settings_of_the_project_change_no_version(before: dict[str, str], project: Path) -> None:
    edits: dict[str, list[tuple[str, str]]] = {
        "grpo/metrics/table.py": [
            (r"_ROWS: Final = \(", '\\g<0>("work/new", "boards", "A new one."),'),
            (r'"Left out because the engine', '"Dropped because the engine'),
        ],
        "grpo/settings/tree.py": [
            ("must be a multiple of", "has to be a multiple of"),
            (r"    max_per_game_and_phase: ", '    new_key: int = 3\n    """A new setting."""\n    max_per_game_and_phase: '),
            ("class Settings\\(Section\\):", "class NewConfig(Section):\n    key: int = 1\n\n\nclass Settings(Section):\n    new: Any = 0"),
        ],
        "grpo/dataset/games.py": [(r'"""', '"""Said otherwise: ')],
        "grpo/train/self_play.py": [(r"raise SelfPlayError\(", 'raise SelfPlayError("Said otherwise: " + ')],
        "grpo/dataset/quotas.py": [(r"\n\n\n", "\n\n\n# A comment.\n\n\n")],
        "steps/cards/network.py": [("clipped moves", "moves that were clipped")],
    }
    for name, changes in edits.items():
        text = (project / name).read_text()
        for old, new in changes:
            text, count = re.subn(old, new, text, count=1)
            assert count, old
        (project / name).write_text(text)
        compile(text, name, "exec")
    assert moved(before) == set()


@pytest.mark.parametrize(
    ("name", "old", "new", "steps"),
    [
        ("grpo/train/objective.py", r"\n    return ", "\n    return -", {"finetune", "language finetune"}),
        ("grpo/language/learn/problem.py", r"\n        return ", "\n        return -", {"language finetune"}),
        ("grpo/viewer/pages/viewer.html", r"\Z", " ", {"select"}),
        ("steps/pages/model_card.md.j2", r"\Z", " ", {"report"}),
        ("grpo/dataset/quotas.py", r"$", "\n_NUMBER = str(3)\n", {"build_boards", "join_boards", "check_boards"}),
    ],
)
def test_an_edit_changes_exactly_the_steps_that_depend_on_it(
    before: dict[str, str], project: Path, name: str, old: str, new: str, steps: set[str]
) -> None:
    text, count = re.subn(old, new, (project / name).read_text(), count=1)
    assert count
    (project / name).write_text(text)
    assert moved(before) == steps


def test_a_search_depth_is_in_the_versions_of_the_steps_that_search_with_it() -> None:
    def read(settings: Settings) -> dict[str, Any]:
        return {name: step_of(name).settings(settings) for name in BODIES}

    one, other = read(tiny_settings()), read(tiny_settings("boards.depth = 2"))
    assert {name for name in one if one[name] != other[name]} == {"build_boards", "join_boards", "check_boards", "finetune", "select"}


def test_no_step_depends_on_tracker_store_or_card() -> None:
    views = ("steps.track", "steps.cards", "steps.run.store")
    for module in BODIES.values():
        assert not [name for name in code_of(module, "network", USUAL) if name.startswith(views)]


def test_every_data_file_of_the_packages_counts_or_is_a_view_or_a_value() -> None:
    files = {path for package in ("steps", "data_checks", "grpo") for path in (code.ROOT / package).rglob("*.*") if path.is_file()}
    patterns = {pattern.format(kind=kind) for patterns in code._DATA.values() for pattern in patterns for kind in KINDS}
    counted = {path for pattern in patterns for path in code.ROOT.glob(pattern)}
    others = {path.relative_to(code.ROOT).parent.as_posix() for path in files - counted if path.suffix not in (".py", ".pyc")}
    assert others == {"grpo/diagnosis", "grpo/settings/presets", "steps/cards", "steps/cards/kinds", "steps/run"}


# Locks.


def test_the_code_is_described_by_commit_dirty_flag_and_the_images_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = describe_code()
    assert described.keys() == {"commit", "is_dirty", "lock"}
    assert described["lock"] == sha256_file(code.ROOT / "requirements-run.lock")
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    assert describe_code() == {"commit": "unknown", "is_dirty": True, "lock": described["lock"]}, "without git"
    monkeypatch.setenv(versions.CODE, '{"commit": "of the launcher", "is_dirty": false, "lock": "of the launcher"}')
    assert describe_code() == {"commit": "of the launcher", "is_dirty": False, "lock": described["lock"]}, "in a container"


def test_files_beside_the_code_leave_a_checkout_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    for words in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m first"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    (tmp_path / "games.pgn").touch()
    assert not describe_code()["is_dirty"]
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "network.py").touch()
    assert describe_code()["is_dirty"]


def test_an_installed_package_gives_the_versions_that_a_checkout_gives(tmp_path: Path) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    for package in ("flows", "steps", "grpo", "data_checks"):
        shutil.copytree(code.ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(code.ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    modules = tuple(BODIES.values())
    asked = f"from steps.run.code import code_hash; print(*(code_hash(module, 'network', {USUAL!r}) for module in {modules!r}))"
    told = subprocess.run(
        [sys.executable, "-c", asked], cwd=installed, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [hash_of(module) for module in modules]
