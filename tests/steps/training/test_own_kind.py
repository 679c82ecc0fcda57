"""A third kind of policy is its own files and a row in each of two tables: no other file of the product names a kind."""

import re
from pathlib import Path

import chess
import pytest
import toy_kind
from doubles import CPU
from jinja2 import FileSystemLoader
from made_documents import made_results
from made_runs import machine_of
from made_work import work_in

from grpo.base.files import read_json
from grpo.language.model.policy import LanguagePolicy
from grpo.policy import checkpoints
from grpo.policy.files import FACTS, IncompatibleError, is_policy, policy_kind
from grpo.policy.policy import NetworkPolicy
from grpo.settings import kinds as library
from grpo.settings.names import declared
from grpo.settings.tree import ConfigError, Settings, read_settings
from steps import STEPS
from steps.cards import page as cards
from steps.cards.page import Seen
from steps.common.policies.open import open_policy
from steps.finetune import card as finetune_card
from steps.job.preflight import preflight
from steps.pages import templates
from steps.pretrain import card as pretrain_card
from steps.run import kinds as pipeline
from steps.run.code import code_of
from steps.run.outside import OUTSIDE, unread_by_pretrain
from steps.run.step import Outside, step_of
from steps.track import mlflow_model

ROOT = Path(__file__).parents[3]
PRODUCT = ("grpo", "steps", "data_checks", "flows", "infra")
TABLES = ("grpo/settings/kinds.py", "steps/run/kinds.py")
DEFAULT = "grpo/settings/tree.py"
"""Has the sections, and which kind is the default."""
OWN = ("grpo/policy/policy.py", "grpo/language/", "steps/language/")
"""Own files of a kind, besides the files that are named after a kind."""
NAMED = re.compile(r"""\b(NETWORK|LANGUAGE)\b|is_language\b|\bkind\b.{0,3} [!=]= ["']""")


@pytest.fixture
def _toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library.KINDS, toy_kind.NAME, toy_kind.KIND)
    monkeypatch.setitem(pipeline.PARTS, toy_kind.NAME, toy_kind.PARTS)
    for room, name, text in ((cards, "toy.html.j2", toy_kind.CARD), (templates, "toy.md.j2", toy_kind.WORDS)):
        folder = tmp_path / room.__name__
        (folder / "kinds").mkdir(parents=True)
        (folder / "kinds" / name).write_text(text)
        loader = room._environment().loader
        assert isinstance(loader, FileSystemLoader)
        monkeypatch.setattr(loader, "searchpath", [*loader.searchpath, str(folder)])


def codes(kind: str) -> dict[str, dict[str, str]]:
    """Return the code that each step depends on for a kind; not `code_hash`, whose cache other tests share."""
    return {step: code_of(step_of(step).variant(kind).module, kind, "afterstates") for step in STEPS[1:-1]}


def test_only_the_tables_and_a_kinds_own_files_name_a_kind() -> None:
    paths = {path.relative_to(ROOT).as_posix(): path for room in PRODUCT for path in (ROOT / room).rglob("*") if path.is_file()}
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.suffix in (".py", ".j2")}
    assert {name for name, text in texts.items() if NAMED.search(text)} >= set(TABLES)
    own = tuple(name for name in texts if name.startswith(OWN) or Path(name).name.partition(".")[0] in library.KINDS)
    naming = {name for name, text in texts.items() if NAMED.search(text)} - set(own)
    assert naming == {*TABLES, DEFAULT}


@pytest.mark.usefixtures("_toy")
def test_a_kind_of_ones_own_goes_through_settings_checks_versions_training_games_cards_and_pages(tmp_path: Path) -> None:
    given = read_settings('policy.kind = "toy"')
    assert (given.pretrain.num_steps, given.grpo.kl_coefficient) == (0, 0.0)
    with pytest.raises(ConfigError, match="a toy has no reference"):
        read_settings('policy.kind = "toy"\ngrpo.kl_coefficient = 0.1')
    machine = machine_of(tmp_path)
    assert "a toy of seed 0" in [check.detail for check in preflight(given, machine) if check.what == "toy"]
    assert OUTSIDE[Outside.MODEL](given, machine) == {"toy": "begins with nothing"}
    assert unread_by_pretrain("toy") == {}

    step, made = step_of("pretrain"), tmp_path / "pretrained"
    assert "language" not in step_of("finetune").settings(given)
    toy_kind.body(work_in(made, declared(given, step.reads_for("toy"))))
    assert (policy_kind(made), is_policy(made)) == ("toy", True)
    policy = open_policy(made, CPU, settings=given)
    assert len(policy.weights) == 64
    [move] = policy.player("toy", temperature=None, seed=0, stream=()).choose([chess.Board()], [0])
    assert move == chess.Move.from_uci("a2a3")

    seen = Seen(settings=given.model_dump(mode="json"), folder=made)
    assert "Imitation of nothing" in str(pretrain_card(seen)[0])
    assert "A toy of 0 steps." in str(pretrain_card(seen)[0])
    assert len(finetune_card(Seen(settings=seen.settings))) == 2, "the head and the events, no chart"
    results = made_results(tmp_path).model_copy(update={"kind": "toy", "pretraining": {"num_steps": 0}})
    text = templates.page("model_card", results=results, run="17", policy_step=0, described=read_json(made / FACTS), hashes={})
    assert "A toy that plays the first legal move,\ntrained by imitation of nothing only." in text
    assert "- A toy learns nothing.\n" in text
    assert "- The toy imitated for 0 steps.\n" in text
    assert "in the last steps: 1.71 toy nats." in text


@pytest.mark.usefixtures("_toy")
def test_a_model_of_a_kind_of_ones_own_is_registered_and_resumes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_kind.body(work_in(made := tmp_path / "policy", Settings()))
    monkeypatch.setattr(mlflow_model, "save_model", lambda **given: asked.update(given))
    asked: dict[str, object] = {}
    (tmp_path / "files").mkdir()
    made.rename(tmp_path / "files" / mlflow_model.POLICY)
    (tmp_path / "model").mkdir()
    mlflow_model.write_model(tmp_path / "files", tmp_path / "model" / "new")
    assert not any("transformers" in str(each) for each in asked["pip_requirements"])  # type: ignore[attr-defined]
    ranked = toy_kind.load_ranker(tmp_path / "files" / mlflow_model.POLICY, CPU)
    assert ranked(chess.Board()) == (["a2a3"], [])
    monkeypatch.setattr(checkpoints, "verified_manifest", lambda folder: {})
    for kind in (NetworkPolicy, LanguagePolicy):
        with pytest.raises(IncompatibleError, match="holds a policy of kind 'toy', this run trains a policy of kind"):
            checkpoints.load_checkpoint(tmp_path / "files" / mlflow_model.POLICY, CPU, kind)


def test_a_row_of_another_kind_changes_no_version_and_a_row_of_ones_own_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = codes("network")
    monkeypatch.setitem(library.KINDS, toy_kind.NAME, toy_kind.KIND)
    monkeypatch.setitem(pipeline.PARTS, toy_kind.NAME, toy_kind.PARTS)
    assert codes("network") == before
    monkeypatch.setitem(pipeline.PARTS, "network", toy_kind.PARTS)
    after = codes("network")
    assert {step for step in before if after[step] != before[step]} == {"pretrain", "baseline", "screen", "confirm", "select"}
