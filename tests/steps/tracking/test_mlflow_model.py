"""A registered policy is a model that MLflow loads where this checkout is not, and that plays as the policy does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess
import mlflow
import pandas as pd
import pytest
import torch
from doubles import CPU, TINY, some_boards
from speakers import naming

from grpo.base.files import write_json
from grpo.board.actions import action_move
from grpo.learning.checkpoints import save_policy
from grpo.metrics.table import Record, tracked_name
from grpo.policy.distribution import NetworkPolicy, PositionBatch, new_policy
from grpo.settings.language import LanguageConfig
from grpo.settings.tree import PolicyConfig
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.names import HISTORY, REPORT
from steps.step_io.work import record_row
from steps.store.outputs import StepOutput, Store
from steps.store.versions import ROOT
from steps.tracking.registry import MODEL, Choice, Chosen
from steps.tracking.tags import LOGGED_MODEL, POLICY_OUTPUT, ROLE
from steps.tracking.tracker import Tracker

URI = f"models:/{MODEL}@{CHAMPION}"
BOARDS = some_boards(20)
START = chess.STARTING_FEN
MATED = "7k/6Q1/6K1/8/8/8/8/8 b - - 0 1"
PEAK_AT, CANDIDATE = 4, 6
SMALL = LanguageConfig.model_validate(
    {"small": {"width": 16, "num_layers": 1, "num_heads": 1}, "max_answer_tokens": 16, "max_questions": 2, "num_heldout_boards": 4}
)
REGRET = {PEAK_AT: 0.05, CANDIDATE: 0.06}


@dataclass
class Registered:
    """A run that has registered a policy as champion and peak."""

    machine: Machine
    policy: NetworkPolicy
    run: str
    """MLflow's id of the parent."""
    child: str
    """And of the child run `select`."""
    output: StepOutput


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Registered:
    home = give_tables(tmp_path_factory.mktemp("home"))
    machine = Machine(stockfish="", home=home, tracking_uri=f"sqlite:///{home / 'mlflow.db'}", device="cpu", num_threads=1)
    policy = new_policy(TINY, seed=0, device=CPU)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    store = Store(home)
    with store.writing("select", "a-version", {"parts": {"step": "select"}}) as folder:
        for alias in (CHAMPION, PEAK):
            (folder / alias).mkdir()
            save_policy(folder / alias, policy, TINY)
        (folder / PEAK / "optimiser.safetensors").write_text("the rest of a checkpoint")
        record = Record(CANDIDATE, {"selection/verdict_elo": 40.0, "selection/heldout_regret": REGRET[CANDIDATE]})
        (folder / HISTORY).write_text(json.dumps(record_row(record)) + "\n")
        write_json(folder / REPORT, {"heldout_regret_best": {str(step): {"mean": mean, "stderr": 0.01} for step, mean in REGRET.items()}})
    output = store.find("select", "a-version")
    assert output is not None
    tracker = Tracker(machine)
    run = tracker.start_flow_run(metaflow_run="7", settings={}, tags={}, note="")
    with tracker.child(run, "join_boards", {}) as boards:
        boards.dataset(name="test boards, 3", digest="d" * 64, source="file:///boards", profile={"num_rows": 3})
    choose(tracker, run, output)
    [child] = tracker.search("tags.`chess_grpo.step` = 'select'")
    return Registered(machine=machine, policy=policy, run=run, child=child.info.run_id, output=output)


def choose(tracker: Tracker, run: str, output: StepOutput) -> None:
    """Do what the step `select` does of its output."""
    folder = Store(tracker._machine.home).folder("select", output["version"])
    peak, champion = (Choice(policy_step=step, initial_weights="w", low=0.6) for step in (PEAK_AT, CANDIDATE))
    with tracker.child(run, "select", {"metaflow.run": "7"}) as child:
        child.output(output, folder, is_archived=True)
        child.choose(Chosen(flow_run=run, description="", peak=peak, champion=champion, is_beaten=False, seen=None))
        child.finished(output)


@pytest.fixture
def loaded(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> Any:
    use(registered, monkeypatch)
    return mlflow.pyfunc.load_model(URI)


def use(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, registered.machine.tracking_uri)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_fresh_process_without_this_checkout_gets_the_policys_probabilities(
    temperature: float, registered: Registered, tmp_path: Path
) -> None:
    fens = [board.fen() for board in BOARDS]
    asked = (
        "import json, sys, mlflow\n"
        f"model = mlflow.pyfunc.load_model({URI!r})\n"
        f"found = model.predict({fens!r}, params={{'temperature': {temperature}, 'num_moves': 218}})\n"
        "import grpo\n"
        "print(json.dumps([grpo.__file__, 'steps' in sys.modules, found['moves'].tolist(), found['probabilities'].tolist()]))\n"
    )
    place, has_steps, moves, probabilities = ask_in_a_process(registered.machine, asked, tmp_path)
    assert ROOT not in Path(place).parents, "the library is the model's own"
    assert not has_steps
    for board, named, found in zip(BOARDS, moves, probabilities, strict=True):
        positions = PositionBatch.from_boards([board])
        with torch.no_grad():
            expected = registered.policy.distribution(positions, temperature=temperature).probs[0].tolist()
        by_move = dict(zip([action_move(index, board.turn).uci() for index in positions.action_ids[0].tolist()], expected, strict=True))
        assert found == pytest.approx([by_move.pop(move) for move in named], abs=1e-6)
        assert found == sorted(found, reverse=True)
        assert not by_move, "every legal move is named"


def ask_in_a_process(machine: Machine, code: str, cwd: Path, *arguments: str) -> Any:
    """Return what Python code prints last, as JSON, in a process that does not see this checkout."""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": machine.tracking_uri}
    environment.pop("PYTHONPATH", None)
    # Without the site's packages of this checkout: an editable install would give `grpo` too.
    hidden = f"import sys; sys.meta_path = [each for each in sys.meta_path if 'editable' not in str(each)]\n{code}"
    done = subprocess.run([sys.executable, "-c", hidden, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_model_names_its_packages_and_has_no_more_than_the_policy(registered: Registered, loaded: Any) -> None:
    folder = Path(mlflow.artifacts.download_artifacts(f"models:/{MODEL}@{PEAK}"))
    assert sorted(path.name for path in (folder / "artifacts" / "policy").iterdir()) == ["policy.json", "weights.safetensors"]
    pinned = [line.partition("==") for line in (folder / "requirements.txt").read_text().split()]
    assert {name for name, _, _ in pinned} >= {"mlflow", "torch", "safetensors", "chess"}
    assert all(number for _, _, number in pinned)
    assert loaded.metadata.run_id == registered.child
    assert not list(folder.rglob("__pycache__"))


def test_at_temperature_0_the_likeliest_move_is_played_and_above_it_the_seed_draws(loaded: Any) -> None:
    [best] = loaded.predict([START], params={"temperature": 0.0, "num_moves": 3}).to_dict("records")
    assert best["move"] == best["moves"][0]
    assert best["probability"] == best["probabilities"][0]
    assert len(best["moves"]) == 3
    one, again, other = (loaded.predict([START] * 50, params={"seed": seed})["move"].tolist() for seed in (1, 1, 2))
    assert one == again != other
    assert len(set(one)) > 5


def test_a_position_without_moves_has_none_and_what_is_no_position_is_named(loaded: Any) -> None:
    over, going = loaded.predict([MATED, START]).to_dict("records")
    assert (over["moves"], over["probabilities"]) == ([], [])
    assert pd.isna(over["move"])
    assert len(going["moves"]) == 5
    with pytest.raises(ValueError, match=r"row 1: 'e4' is not a FEN"):
        loaded.predict([START, "e4"])
    with pytest.raises(ValueError, match="temperature must be 0 or above"):
        loaded.predict([START], params={"temperature": -1.0})


def test_the_logged_model_is_linked_to_its_runs_dataset_and_metrics(registered: Registered) -> None:
    client = Tracker(registered.machine).client
    versions = {alias: client.get_model_version_by_alias(MODEL, alias) for alias in (CHAMPION, PEAK)}
    models = {alias: client.get_logged_model(version.tags[LOGGED_MODEL]) for alias, version in versions.items()}
    for alias, model in models.items():
        assert model.source_run_id == registered.child
        assert model.status == "READY"
        assert model.tags[POLICY_OUTPUT] == f"{registered.output['output_hash']}/{alias}"
    for run in (registered.run, registered.child):
        linked = {each.model_id: each.step for each in client.get_run(run).outputs.model_outputs}
        assert linked == {models[CHAMPION].model_id: CANDIDATE, models[PEAK].model_id: PEAK_AT}
    found = {alias: {each.key: (each.value, each.dataset_name) for each in model.metrics} for alias, model in models.items()}
    assert found[CHAMPION] == {
        "selection/verdict_elo": (40.0, "test boards, 3"),
        "selection/heldout_regret": (REGRET[CANDIDATE], "test boards, 3"),
    }
    assert found[PEAK] == {tracked_name("heldout/regret_best"): (REGRET[PEAK_AT], "test boards, 3")}


def test_a_run_with_the_same_output_shares_the_logged_model(registered: Registered) -> None:
    tracker = Tracker(registered.machine)
    before = tracker.client.search_logged_models([tracker.experiment])
    again = tracker.start_flow_run(metaflow_run="8", settings={}, tags={}, note="")
    choose(tracker, again, registered.output)
    assert {model.model_id for model in tracker.client.search_logged_models([tracker.experiment])} == {each.model_id for each in before}
    assert {each.model_id for each in tracker.client.get_run(again).outputs.model_outputs} == {each.model_id for each in before}
    newest = max(tracker.client.search_model_versions(f"name = '{MODEL}'"), key=lambda each: int(each.version))
    assert newest.tags[LOGGED_MODEL] in {each.model_id for each in before}
    assert newest.tags[ROLE] in (CHAMPION, PEAK)


def test_an_output_that_is_lost_leaves_versions_of_the_policys_folder(registered: Registered, capfd: pytest.CaptureFixture[str]) -> None:
    tracker = Tracker(registered.machine)
    before = {each.version for each in tracker.client.search_model_versions(f"name = '{MODEL}'")}
    choice = Choice(policy_step=CANDIDATE, initial_weights="w", low=0.1)
    with tracker.child(registered.run, "select", {"metaflow.run": "7"}) as child:
        child._output = StepOutput(step="select", version="lost", output_hash="0" * 64, reused=False)
        child.choose(Chosen(flow_run=registered.run, description="", peak=choice, champion=choice, is_beaten=False, seen=None))
    made = [each for each in tracker.client.search_model_versions(f"name = '{MODEL}'") if each.version not in before]
    assert sorted(each.source.rpartition("/")[2] for each in made) == [CHAMPION, PEAK]
    assert not any(LOGGED_MODEL in each.tags for each in made)
    assert "are no models that MLflow loads" in capfd.readouterr().out


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> tuple[Machine, Path]:
    """Return the tracking store of a run that has registered a tiny language model, and MLflow's model of it as files."""
    from grpo.language.model.loading import load_model, save_language_policy

    home = give_tables(tmp_path_factory.mktemp("home"))
    machine = Machine(stockfish="", home=home, tracking_uri=f"sqlite:///{home / 'mlflow.db'}", device="cpu", num_threads=1)
    policy = load_model(SMALL, seed=0, device=CPU)
    store = Store(home)
    with store.writing("select", "a-version", {"parts": {"step": "select"}}) as folder:
        for alias in (CHAMPION, PEAK):
            (folder / alias).mkdir()
            save_language_policy(folder / alias, policy, PolicyConfig(kind="language"))
        (folder / HISTORY).touch()
        write_json(folder / REPORT, {})
    output = store.find("select", "a-version")
    assert output is not None
    tracker = Tracker(machine)
    choose(tracker, tracker.start_flow_run(metaflow_run="7", settings={}, tags={}, note=""), output)
    version = tracker.client.get_model_version_by_alias(MODEL, PEAK)
    return machine, Path(version.source.removeprefix("file://"))


def test_a_language_model_has_the_same_interface(language_model: tuple[Machine, Path], tmp_path: Path) -> None:
    machine, folder = language_model
    asked = (
        "import json, sys, mlflow\n"
        f"model = mlflow.pyfunc.load_model('models:/{MODEL}@{PEAK}')\n"
        "import grpo\n"
        "from grpo.language.generate.player import AnswerGenerator\n"
        "untaught = model.predict([sys.argv[1]], params={'temperature': 0.5})\n"
        "answers = lambda self, prompts, **_: [sys.argv[3]] * len(prompts)\n"
        "AnswerGenerator.greedy = AnswerGenerator.sampled = answers\n"
        "found = model.predict([sys.argv[1], sys.argv[2], sys.argv[1]], params={'temperature': 0.0})\n"
        "print(json.dumps([grpo.__file__, list(untaught.columns), found['moves'].tolist(), found['move'][0]]))\n"
    )
    place, columns, moves, move = ask_in_a_process(machine, asked, tmp_path, START, MATED, naming("e2e4"))
    assert folder in Path(place).parents, "the library is the model's own"
    assert columns == ["move", "probability", "moves", "probabilities"]
    assert moves == [["e2e4"], [], ["e2e4"]]
    assert move == "e2e4"
