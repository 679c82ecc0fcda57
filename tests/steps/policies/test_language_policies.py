"""A real language model, tiny and untrained, wherever a policy is named: it plays, solves and is exported, and names no legal move."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import pytest
import torch
from doubles import CPU, TINY

from grpo.base.files import CorruptError, read_json, sha256_file, write_json
from grpo.language.model.loading import load_model, save_language_policy
from grpo.language.model.policy import LanguagePolicy
from grpo.learning.checkpoints import save_policy
from grpo.policy.distribution import new_policy
from grpo.policy.files import (
    LANGUAGE_WEIGHTS,
    POLICY,
    IncompatibleError,
    is_policy,
    policy_file_names,
    policy_kind,
    weights_file,
)
from grpo.settings.language import LanguageConfig
from grpo.settings.tree import PolicyConfig
from steps.policies.language import LanguageCompetitor
from steps.policies.network import NetworkCompetitor
from steps.policies.open import open_policy
from steps.runs.find_policy import find_policy
from steps.runs.names import NotFoundError
from steps.runtime.machine import Machine

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[3]
SMALL = LanguageConfig.model_validate(
    {"small": {"width": 16, "num_layers": 1, "num_heads": 1}, "max_answer_tokens": 16, "max_questions": 2, "num_heldout_boards": 4}
)
PUZZLES = (
    "PuzzleId,FEN,Moves,Rating,Themes\n"
    "x,6k1/5ppp/8/8/8/8/r4PPP/1R4K1 b - - 0 1,a2a3 b1b8,1000,mate\n"
    "y,6k1/5ppp/8/8/8/8/r4PPP/2R3K1 b - - 0 1,a2a3 c1c8,1200,mate\n"
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model() -> LanguagePolicy:
    return load_model(SMALL, seed=0, device=CPU)


@pytest.fixture(scope="module")
def folder(model: LanguagePolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny language model that nobody has taught."""
    folder = tmp_path_factory.mktemp("language") / "tiny"
    folder.mkdir()
    save_language_policy(folder, model, PolicyConfig(kind="language"))
    return folder


@pytest.fixture
def run(console: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    return console


# Files.


def test_the_files_of_either_kind_are_known_without_loading_them(folder: Path, tmp_path: Path) -> None:
    save_policy(tmp_path, new_policy(TINY, seed=0, device=CPU), TINY)
    (tmp_path / "optimiser.safetensors").write_bytes(b"")
    assert (policy_kind(tmp_path), weights_file(tmp_path).name) == ("network", "weights.safetensors")
    assert policy_file_names(tmp_path) == ["policy.json", "weights.safetensors"]
    assert is_policy(folder)
    assert (policy_kind(folder), weights_file(folder)) == ("language", folder / LANGUAGE_WEIGHTS)
    assert policy_file_names(folder) == sorted(path.name for path in folder.iterdir()), "all that was saved is the policy"


@pytest.mark.parametrize("missing", [POLICY, LANGUAGE_WEIGHTS, "config.json"])
def test_a_folder_that_lacks_a_file_is_no_policy_and_the_message_names_what_is_not_there(
    missing: str, folder: Path, tmp_path: Path
) -> None:
    partial = tmp_path / "partial"
    shutil.copytree(folder, partial)
    (partial / missing).unlink()
    assert not is_policy(partial)
    with pytest.raises(NotFoundError, match=f"is not the folder of a policy: it has no {missing};"):
        find_policy(str(partial), Machine.here())


def test_a_kind_that_nobody_knows_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "odd")
    write_json(tmp_path / "odd" / POLICY, {**read_json(folder / POLICY), "policy": {"kind": "oracle"}})
    with pytest.raises(IncompatibleError, match="a policy of kind 'oracle', which this code does not know"):
        open_policy(tmp_path / "odd", CPU)
    (tmp_path / "odd" / POLICY).write_text('{"policy": 3}')
    with pytest.raises(CorruptError):
        open_policy(tmp_path / "odd", CPU)


def test_a_language_model_is_found_by_its_folder_with_the_hash_of_its_weights_file(folder: Path) -> None:
    found = find_policy(str(folder), Machine.here())
    assert (found.kind, found.run, found.weights_hash) == ("language", "tiny", sha256_file(folder / LANGUAGE_WEIGHTS))


def test_a_network_is_opened_and_plays_without_the_packages_of_language_models(tmp_path: Path) -> None:
    save_policy(tmp_path, new_policy(TINY, seed=0, device=CPU), TINY)
    script = (
        "import chess, sys, torch\n"
        "sys.modules['transformers'] = None\n"
        "from pathlib import Path\n"
        "from steps.policies.open import open_policy\n"
        f"policy = open_policy(Path({str(tmp_path)!r}), torch.device('cpu'))\n"
        "print(policy.kind, policy.best_player('x', seed=0, stream=('y',)).choose([chess.Board()], [0])[0].uci())\n"
    )
    environment = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", script], check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    network = open_policy(tmp_path, CPU)
    assert isinstance(network, NetworkCompetitor)
    (move,) = network.best_player("x", seed=0, stream=("y",)).choose([chess.Board()], [0])
    assert (done.returncode, done.stdout) == (0, f"network {move}\n"), done.stderr


# Play.


def test_it_is_opened_with_its_own_rules_or_with_those_of_the_run(folder: Path) -> None:
    own = open_policy(folder, CPU)
    assert isinstance(own, LanguageCompetitor)
    assert own.facts == {"policy": "language", "max_questions": 2}
    assert open_policy(folder, CPU, rules=LanguageConfig(max_questions=5)).facts["max_questions"] == 5
    assert own.weights == open_policy(folder, CPU).weights


def test_a_match_tells_of_its_answers_on_screen_in_json_and_pgn(stockfish: str, folder: Path, run: Run, tmp_path: Path) -> None:
    facts, pgn = tmp_path / "match.json", tmp_path / "match.pgn"
    code, said, _ = run("match", folder, "random", "--pairs", "2", "--max-plies", "6", "--json", facts, "--pgn", pgn)
    assert code == 0
    told: dict[str, Any] = json.loads(facts.read_text())
    answers = told["answers"]["first"]
    assert told["answers"].keys() == {"first"}
    assert answers["forfeits"] == told["ends"]["no legal move named"] == 4, "it was taught nothing"
    assert answers["answers"] == answers["unreadable"] + answers["illegal"] == 8
    assert (told["wins"], told["losses"]) == (0, 4)
    assert not told["is_deterministic"]
    assert (told["players"][0]["policy"], told["players"][0]["max_questions"]) == ("language", 2)
    assert f"answers      {folder}: 8 answers for 4 moves: " in said
    assert "no legal move named 4" in said
    assert "pairs of games are the sample" in said
    assert pgn.read_text().count('Answers "2 answers for 1 moves: ') == 4


def test_puzzles_are_asked_once_each_and_a_temperature_is_refused(folder: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "puzzles.csv").write_text(PUZZLES)
    code, said, _ = run("solve", folder, tmp_path / "puzzles.csv", "--json")
    told: dict[str, Any] = json.loads(said)
    assert code == 0
    assert told["answers"]["answers"] == told["files"]["puzzles.csv"]["solved"]["num"] == 2
    assert told["files"]["puzzles.csv"]["solved"]["solved"] == 0
    _, said, _ = run("solve", folder, tmp_path / "puzzles.csv")
    assert "2 answers, one per position: " in said
    code, _, error = run("solve", folder, tmp_path / "puzzles.csv", "--temperature", "1")
    assert code == 1
    assert "a language model has none; leave --temperature out" in error


@pytest.mark.prove
def test_as_an_engine_it_gives_up_and_goes_on(folder: Path) -> None:
    commands = "uci\nisready\nposition startpos\ngo movetime 100\nquit\n"
    done = subprocess.run(
        [sys.executable, "-m", "steps.cli.uci", "--model", str(folder)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        input=commands,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, "bestmove 0000"), done.stderr
    assert not any("MultiPV" in line for line in lines)
    (remark,) = (line for line in lines if line.startswith("info string language model"))
    assert remark.startswith("info string language model: 2 answers, ")


# Export.


def test_an_export_is_the_policys_files_with_a_card_that_says_what_it_is(folder: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    code, _, error = run("export", folder, out)
    assert code == 0, error
    assert sorted(path.name for path in out.iterdir()) == sorted([*policy_file_names(folder), "manifest.json", "README.md"])
    assert open_policy(out, CPU).weights == open_policy(folder, CPU).weights
    assert "A causal language model that writes its moves as text" in (out / "README.md").read_text()
