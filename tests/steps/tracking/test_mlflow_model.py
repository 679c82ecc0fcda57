"""A registered network is a model that MLflow loads, serves and evaluates, and that plays as the policy does, without torch."""

import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import chess
import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from doubles import CPU, TINY
from mlflow.models import validate_serving_input
from mlflow.models.model import Model
from speakers import naming
from toggled_server import free_port

from grpo.base.files import write_json
from grpo.board.actions import legal_action_ids
from grpo.board.onnx_policy import legal_moves
from grpo.learning.checkpoints import save_policy
from grpo.metrics.table import Record, tracked_name
from grpo.policy.distribution import NetworkPolicy, PositionBatch, new_policy
from grpo.settings.language import LanguageConfig
from grpo.settings.tree import PolicyConfig
from steps.export.network import export_onnx, random_play_positions
from steps.runs.find_policy import named_policy
from steps.runs.index import find_run
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.names import HISTORY, REPORT, onnx_name
from steps.step_io.work import record_row
from steps.store.outputs import StepOutput, Store
from steps.tracking.mlflow_model import policy_metrics, requirements
from steps.tracking.registry import MODEL, Choice, Chosen, Registry, Version
from steps.tracking.tags import LOGGED_MODEL, POLICY_OUTPUT, ROLE
from steps.tracking.tracker import Tracker

URI = f"models:/{MODEL}@{CHAMPION}"
ALL = {"num_moves": 218}
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
        export_onnx(folder / CHAMPION, folder / onnx_name(CHAMPION))
        (folder / onnx_name(PEAK)).write_bytes((folder / onnx_name(CHAMPION)).read_bytes())
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


@torch.no_grad()
def assert_equal_to_the_policys(policy: NetworkPolicy, found: pd.DataFrame, boards: list[chess.Board], temperature: float) -> None:
    """Assert that all legal moves of all boards have the policy's probabilities, to 1e-5."""
    expected = policy.distribution(PositionBatch.from_boards(boards), temperature=temperature).probs.double().numpy()
    assert len(found) == len(boards)
    for board, row, moves, probabilities in zip(boards, expected, found["moves"], found["probabilities"], strict=True):
        by_move = {move.uci(): row[column] for column, move in enumerate(legal_moves(board))}
        assert sorted(moves) == sorted(move.uci() for move in board.legal_moves)
        np.testing.assert_allclose(probabilities, [by_move[move] for move in moves], rtol=0, atol=1e-5)
        assert probabilities == sorted(probabilities, reverse=True)


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.prove)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_model_gives_every_legal_move_the_policys_probability(
    count: int, temperature: float, registered: Registered, loaded: Any
) -> None:
    boards = random_play_positions(count, seed=1)
    found = loaded.predict([board.fen() for board in boards], params={"temperature": temperature, **ALL})
    assert_equal_to_the_policys(registered.policy, found, boards, temperature)


def test_at_temperature_0_the_likeliest_move_is_played_and_above_it_the_seed_draws(loaded: Any) -> None:
    [best] = loaded.predict([START], params={"temperature": 0.0, "num_moves": 3}).to_dict("records")
    assert best["move"] == best["moves"][0]
    assert best["probability"] == best["probabilities"][0]
    assert len(best["moves"]) == 3
    one, again, other = (loaded.predict([START] * 50, params={"seed": seed})["move"].tolist() for seed in (1, 1, 2))
    assert one == again != other
    assert len(set(one)) > 5
    anew = [loaded.predict([START] * 50, params={"seed": -1})["move"].tolist() for _ in range(2)]
    assert anew[0] != anew[1]


def test_moves_are_drawn_as_often_as_their_probability_says(loaded: Any) -> None:
    found = loaded.predict([START] * 1_000, params={"temperature": 1.0, "seed": 3, "num_moves": 1})
    likeliest, probability = found["moves"][0][0], found["probabilities"][0][0]
    assert abs((found["move"] == likeliest).mean() - probability) < 4 * (probability * (1 - probability) / 1_000) ** 0.5


@pytest.mark.filterwarnings("ignore:.*validate_serving_input:FutureWarning")  # It does in this process what a server does.
def test_a_list_a_table_and_a_served_request_are_asked_alike(registered: Registered, loaded: Any) -> None:
    expected = loaded.predict([START]).to_dict("records")
    assert loaded.predict(pd.DataFrame({"fen": [START]})).to_dict("records") == expected
    assert loaded.predict(pd.Series([START])).to_dict("records") == expected
    served = validate_serving_input(URI, json.dumps({"dataframe_split": {"columns": ["fen"], "data": [[START]]}}))
    assert served.to_dict("records") == expected


def test_a_position_without_moves_has_none_and_what_is_no_position_is_named(loaded: Any) -> None:
    over, going = loaded.predict([MATED, START]).to_dict("records")
    assert (over["moves"], over["probabilities"]) == ([], [])
    assert pd.isna(over["move"])
    assert len(going["moves"]) == 5
    for fen, why in (
        ("e4", r"row 1: 'e4' is not a FEN"),
        ("8/8/8/8/8/8/8/8 w - - 0 1", "row 1: .* is not a legal position: .*NO_WHITE_KING"),
    ):
        with pytest.raises(ValueError, match=why):
            loaded.predict([START, fen])
    for params in ({"temperature": -1.0}, {"num_moves": 0}, {"seed": -2}):
        with pytest.raises(ValueError, match="temperature must be 0 or above, num_moves at least 1, and seed -1 or above"):
            loaded.predict([START], params=params)


def test_it_is_asked_by_another_process_without_torch_and_without_this_project(registered: Registered, tmp_path: Path) -> None:
    asked = (
        "import json, sys, mlflow\n"
        f"found = mlflow.pyfunc.load_model({URI!r}).predict([{START!r}])\n"
        "print(json.dumps([found['move'][0], [name for name in ('torch', 'grpo', 'steps') if name in sys.modules]]))\n"
    )
    environment = {**os.environ, "MLFLOW_TRACKING_URI": registered.machine.tracking_uri}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    move, imported = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
    assert chess.Move.from_uci(move) in chess.Board().legal_moves


def test_the_model_says_what_it_takes_and_needs(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    use(registered, monkeypatch)
    folder = Path(mlflow.artifacts.download_artifacts(URI))
    version = Tracker(registered.machine).client.get_model_version_by_alias(MODEL, CHAMPION)
    described = Model.load(folder)
    signature = described.signature
    assert [param.name for param in signature.params] == ["temperature", "num_moves", "seed"]
    assert signature.outputs.input_names() == ["move", "probability", "moves", "probabilities"]
    assert (described.run_id, described.model_id) == (registered.child, version.tags[LOGGED_MODEL])
    pinned = (folder / "requirements.txt").read_text().split()
    assert pinned == requirements()
    assert {line.partition("==")[0] for line in pinned} == {"mlflow", "onnxruntime", "chess", "numpy", "pandas"}
    assert all("==" in line for line in pinned)
    flavors = yaml.safe_load((folder / "MLmodel").read_text())["flavors"]
    assert list(flavors) == ["python_function"]
    assert not list(folder.rglob("__pycache__"))


def test_the_logged_model_is_linked_to_its_runs_dataset_and_metrics(registered: Registered) -> None:
    client = Tracker(registered.machine).client
    versions = {alias: client.get_model_version_by_alias(MODEL, alias) for alias in (CHAMPION, PEAK)}
    models = {alias: client.get_logged_model(version.tags[LOGGED_MODEL]) for alias, version in versions.items()}
    for alias, model in models.items():
        assert {"name": MODEL, "version": str(versions[alias].version)} in json.loads(model.tags["mlflow.modelVersions"])
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


def test_what_the_output_says_of_a_policy_is_not_said_of_another(registered: Registered) -> None:
    folder = Store(registered.machine.home).folder("select", registered.output["version"])
    assert policy_metrics(folder, CANDIDATE)["selection/verdict_elo"] == 40.0
    assert policy_metrics(folder, PEAK_AT) == {"heldout/regret_best": REGRET[PEAK_AT]}
    assert policy_metrics(folder, 0) == {}


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


def test_policies_are_found_by_their_names_with_a_model_and_without(registered: Registered) -> None:
    machine = registered.machine
    for name, role in ((CHAMPION, CHAMPION), (PEAK, PEAK), ("v1", PEAK), ("v2", CHAMPION)):
        found = named_policy(name, machine, role=CHAMPION)
        assert (found.role, found.policy_step) == (role, CANDIDATE if role == CHAMPION else PEAK_AT)
        assert found.output["output_hash"] == registered.output["output_hash"]
        assert found.fetch(machine).folder == Store(machine.home).folder("select", registered.output["version"]) / role
    older = registered_before(registered)
    found = named_policy(f"v{older.number}", machine, role=CHAMPION)
    assert (found.role, found.policy_step) == (PEAK, PEAK_AT)
    assert {policy.role for policy in find_run(registered.run, machine).policies} == {CHAMPION, PEAK}


@pytest.mark.parametrize("is_lost", [False, True], ids=["a journal of an older version", "an output that is lost"])
def test_without_the_output_the_policys_folder_is_registered(
    is_lost: bool, registered: Registered, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = Tracker(registered.machine)
    before = {each.version for each in tracker.client.search_model_versions(f"name = '{MODEL}'")}
    choice = Choice(policy_step=CANDIDATE, initial_weights="w", low=0.1)
    with tracker.child(registered.run, "select", {"metaflow.run": "7"}) as child:
        child._output = StepOutput(step="select", version="lost", output_hash="0" * 64, reused=False) if is_lost else None
        child.choose(Chosen(flow_run=registered.run, description="", peak=choice, champion=choice, is_beaten=False, seen=None))
    made = [each for each in tracker.client.search_model_versions(f"name = '{MODEL}'") if each.version not in before]
    assert sorted(each.source.rpartition("/")[2] for each in made) == [CHAMPION, PEAK]
    assert not any(LOGGED_MODEL in each.tags for each in made)
    assert ("are no models that MLflow loads" in capfd.readouterr().out) == is_lost


def registered_before(registered: Registered) -> Version:
    """Register a version as it was done when versions were no models: its source is the policy's folder, and no tag says its role."""
    tracker = Tracker(registered.machine)
    version = Registry(tracker).register(
        holder=registered.child,
        folder=PEAK,
        flow_run=registered.run,
        policy_step=PEAK_AT,
        initial_weights="w",
        low=0.5,
        description="",
    )
    tracker.client.delete_model_version_tag(MODEL, str(version.number), ROLE)
    return version


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # Of MLflow 3.17's own code.
def test_mlflow_evaluates_it_on_boards(registered: Registered, loaded: Any) -> None:
    boards = random_play_positions(20, seed=2)
    held_out = pd.DataFrame(
        {"fen": [board.fen() for board in boards], "best_move": [next(iter(board.legal_moves)).uci() for board in boards]}
    )
    moves = loaded.predict(held_out[["fen"]], params={"temperature": 0.0})["move"]
    agreement = mlflow.models.make_metric(
        eval_fn=lambda predictions, targets: float((predictions == targets).mean()), greater_is_better=True, name="agreement"
    )
    result = mlflow.models.evaluate(URI, held_out, targets="best_move", predictions="move", extra_metrics=[agreement])
    assert result.metrics["agreement"] == (moves == held_out["best_move"]).mean()
    assert all(legal_action_ids(board) for board in boards)


@pytest.mark.prove
def test_it_is_served_where_only_its_own_requirements_are_installed(
    registered: Registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(registered, monkeypatch)
    bin_folder = fresh_environment(tmp_path / "fresh", Path(mlflow.artifacts.download_artifacts(URI)) / "requirements.txt")
    boards = random_play_positions(1_000, seed=1)
    request = {"inputs": [board.fen() for board in boards], "params": {"temperature": 1.0, **ALL}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"PATH": f"{bin_folder}:{environment['PATH']}"}
    run = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    # Loaded by pyfunc.
    asked = (
        "import importlib.util, json, mlflow\n"
        "assert importlib.util.find_spec('torch') is None and importlib.util.find_spec('grpo') is None\n"
        "request = json.load(open('request.json'))\n"
        f"found = mlflow.pyfunc.load_model({URI!r}).predict(request['inputs'], params=request['params'])\n"
        "found.to_json('loaded.json', orient='records', double_precision=15)\n"
    )
    run([bin_folder / "python", "-c", asked])
    assert_equal_to_the_policys(registered.policy, pd.read_json(tmp_path / "loaded.json"), boards, 1.0)
    # Served, and asked by curl.
    port = free_port()
    serve = [bin_folder / "mlflow", "models", "serve", "-m", URI, "-p", str(port), "-h", "127.0.0.1", "--env-manager", "local"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        run(["curl", "--silent", "--fail", "--retry", "120", "--retry-delay", "2", "--retry-connrefused", f"{address}/ping"])
        kind = ["-H", "Content-Type: application/json"]
        done = run(["curl", "--silent", "--show-error", "--fail-with-body", *kind, "-d", "@request.json", f"{address}/invocations"])
        answers = pd.DataFrame(json.loads(done.stdout)["predictions"])
        refused = subprocess.run(
            ["curl", "--silent", *kind, "-d", '{"inputs": ["e4"]}', f"{address}/invocations"], capture_output=True, text=True, check=True
        )
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    assert_equal_to_the_policys(registered.policy, answers, boards, 1.0)
    assert "row 0: 'e4' is not a FEN" in refused.stdout
    # And as the recipe of an image.
    run([bin_folder / "mlflow", "models", "generate-dockerfile", "-m", URI, "-d", "image"])
    assert "policy.onnx" in [path.name for path in (tmp_path / "image").rglob("*.onnx")]
    assert (
        "requirements.txt" in (tmp_path / "image" / "Dockerfile").read_text() or "mlflow" in (tmp_path / "image" / "Dockerfile").read_text()
    )


def fresh_environment(folder: Path, needed: Path) -> Path:
    """Make an environment with these requirements and nothing else, and return its folder of programs."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", "-r", needed], check=True)
    return folder / "bin"


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
        (folder / PEAK / "optimiser.safetensors").write_text("the rest of a checkpoint")
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
        "from grpo.language.generate.generator import PolicyAnswerGenerator\n"
        "untaught = model.predict([sys.argv[1]], params={'temperature': 0.5})\n"
        "answers = lambda self, prompts, **_: [sys.argv[3]] * len(prompts)\n"
        "PolicyAnswerGenerator.greedy = PolicyAnswerGenerator.sampled = answers\n"
        "found = model.predict([sys.argv[1], sys.argv[2], sys.argv[1]], params={'temperature': 0.0})\n"
        "print(json.dumps([grpo.__file__, list(untaught.columns), found['moves'].tolist(), found['move'][0]]))\n"
    )
    environment = {**os.environ, "MLFLOW_TRACKING_URI": machine.tracking_uri}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", asked, START, MATED, naming("e2e4")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    place, columns, moves, move = json.loads(done.stdout.splitlines()[-1])
    assert folder in Path(place).parents, "the library is the model's own"
    assert columns == ["move", "probability", "moves", "probabilities"]
    assert moves == [["e2e4"], [], ["e2e4"]]
    assert move == "e2e4"


def test_the_model_of_a_language_model_has_its_policy_and_no_optimizer(language_model: tuple[Machine, Path]) -> None:
    _, folder = language_model
    names = {path.name for path in (folder / "artifacts" / "policy").iterdir()}
    assert {"model.safetensors", "config.json", "policy.json"} <= names
    assert "optimiser.safetensors" not in names
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    needed = {line.partition("==")[0] for line in (folder / "requirements.txt").read_text().split()}
    assert {"torch", "transformers"} <= needed
    assert "onnxruntime" not in needed
