"""A real language model, tiny and untrained, wherever a policy is named: it plays, solves and is exported, and names no legal move."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import chess
import pytest
from doubles import CPU, TINY

from grpo.language.model.policy import LanguagePolicy, load_model
from grpo.policy.files import is_policy, policy_file_names, policy_kind, weights_file
from grpo.policy.policy import new_policy
from grpo.settings.language import LanguageConfig
from steps.policies.network import NetworkCompetitor
from steps.policies.open import open_policy

ROOT = Path(__file__).resolve().parents[3]
SMALL = LanguageConfig.model_validate(
    {"small_width": 16, "small_num_layers": 1, "max_answer_tokens": 16, "max_questions": 2, "num_heldout_boards": 4}
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
    model.save(folder)
    return folder


@pytest.fixture
def run(console: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    return console


def test_the_files_of_either_kind_are_known_without_loading_them(folder: Path, tmp_path: Path) -> None:
    new_policy(TINY, seed=0, device=CPU).save(tmp_path)
    (tmp_path / "state.safetensors").write_bytes(b"")
    assert (policy_kind(tmp_path), weights_file(tmp_path).name) == ("network", "policy.safetensors")
    assert policy_file_names(tmp_path) == ["facts.json", "policy.safetensors"]
    assert is_policy(folder)
    assert (policy_kind(folder), weights_file(folder)) == ("language", folder / "model.safetensors")
    assert sorted(policy_file_names(folder)) == sorted(path.name for path in folder.iterdir()), "all that was saved is the policy"


def test_a_network_is_opened_and_plays_without_the_packages_of_language_models(tmp_path: Path) -> None:
    new_policy(TINY, seed=0, device=CPU).save(tmp_path)
    script = (
        "import chess, sys, torch\n"
        "sys.modules['transformers'] = None\n"
        "from pathlib import Path\n"
        "from steps.policies.open import open_policy\n"
        f"policy = open_policy(Path({str(tmp_path)!r}), torch.device('cpu'))\n"
        "print(policy.player('x', temperature=None, seed=0, stream=('y',)).choose([chess.Board()], [0])[0].uci())\n"
    )
    environment = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", script], check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    network = open_policy(tmp_path, CPU)
    assert isinstance(network, NetworkCompetitor)
    (move,) = network.player("x", temperature=None, seed=0, stream=("y",)).choose([chess.Board()], [0])
    assert (done.returncode, done.stdout) == (0, f"{move}\n"), done.stderr


def test_a_match_and_exercises_tell_what_its_answers_were_like(stockfish: str, folder: Path, run: Run, tmp_path: Path) -> None:
    code, said, _ = run("match", folder, "random", "--pairs", "2")
    assert code == 0
    assert "8 answers for 4 moves: " in said, "it was taught nothing, and two answers a move are allowed"
    assert "no legal move named 4" in said
    (tmp_path / "puzzles.csv").write_text(PUZZLES)
    code, said, _ = run("solve", folder, tmp_path / "puzzles.csv")
    assert code == 0
    assert "answers: 4 answers for 2 moves: " in said
