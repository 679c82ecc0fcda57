"""A registered policy is a model that MLflow loads where this checkout is not, and a peak has what a run needs to resume from it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chess
import pandas as pd
import pytest
import torch
from doubles import CPU, TINY, some_boards
from made_runs import machine_of
from speakers import naming
from tracked_runs import TrackedRun

from grpo.base.files import CorruptError
from grpo.board.actions import action_move
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import new_policy
from grpo.settings.language import LanguageConfig
from steps.run.machine import Machine, sqlite_address
from steps.track import registry
from steps.track.mlflow_model import _LIBRARY, LIBRARY, write_archive

URI = "models:/chess-policy-default@champion"
BOARDS = some_boards(20)
MATED = "7k/6Q1/6K1/8/8/8/8/8 b - - 0 1"
POLICY = new_policy(TINY, seed=0, device=CPU)
SMALL = LanguageConfig.model_validate(
    {"small_width": 16, "small_num_layers": 1, "max_answer_tokens": 16, "max_questions": 2, "num_heldout_boards": 4}
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> TrackedRun:
    home = give_tables(tmp_path_factory.mktemp("home"))
    run = TrackedRun(machine_of(home, sqlite_address(home / "mlflow.db")))
    run.select()
    assert run.publish() == ""
    return run


def ask_in_a_process(machine: Machine, code: str, cwd: Path) -> Any:
    """Return what Python code prints last, as JSON, in a process that does not see this checkout."""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": machine.tracking_uri}
    environment.pop("PYTHONPATH", None)
    # Without the site's packages of this checkout: an editable install would give `grpo` too.
    hidden = f"import sys; sys.meta_path = [each for each in sys.meta_path if 'editable' not in str(each)]\n{code}"
    done = subprocess.run([sys.executable, "-c", hidden], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_fresh_process_without_this_checkout_gets_the_policys_probabilities(run: TrackedRun, tmp_path: Path) -> None:
    fens = [MATED, *(board.fen() for board in BOARDS)]
    asked = (
        "import json, sys, mlflow\n"
        f"model = mlflow.pyfunc.load_model({URI!r})\n"
        f"found = model.predict({fens!r})\n"
        "try: model.predict(['e4'])\n"
        "except mlflow.exceptions.MlflowException as error: refused = str(error)\n"
        "try: model.predict({'fen': ['e4']})\n"
        "except mlflow.exceptions.MlflowException as error: refused += str(error)\n"
        "import grpo\n"
        "print(json.dumps([grpo.__file__, 'steps' in sys.modules, found['moves'].tolist(), found['probabilities'].tolist(), refused]))\n"
    )
    place, has_steps, (over, *moves), (_, *probabilities), refused = ask_in_a_process(run.machine, asked, tmp_path)
    assert _LIBRARY not in Path(place).parents, "the library is the model's own"
    assert not has_steps
    assert (over, "row 0: 'e4' is not a FEN" in refused) == ([], True)
    assert "row 0 is of type list and not a FEN" in refused
    for board, named, found in zip(BOARDS, moves, probabilities, strict=True):
        positions = PositionBatch.from_boards([board])
        with torch.no_grad():
            expected = POLICY.distribution(positions, temperature=1.0).probs[0].tolist()
        by_move = dict(zip([action_move(index, board.turn).uci() for index in positions.action_ids[0].tolist()], expected, strict=True))
        assert found == pytest.approx([by_move.pop(move) for move in named], abs=1e-6)
        assert found == sorted(found, reverse=True)
        assert not by_move, "every legal move is named"


def test_the_library_is_one_file_of_a_model_and_equal_code_gives_equal_bytes(run: TrackedRun, tmp_path: Path) -> None:
    """R5: a store takes each file in a call of its own, and a slow one took minutes for a model."""
    champion = registry.named("champion", run.machine)["default"]
    assert isinstance(champion, registry.Version)
    [archive] = (Path(champion.source.removeprefix("file://")) / "code").iterdir()
    write_archive(_LIBRARY, again := tmp_path / LIBRARY)
    assert (archive.name, archive.read_bytes()) == (LIBRARY, again.read_bytes())


def test_a_policy_is_fetched_whole_or_not_at_all(run: TrackedRun, tmp_path: Path) -> None:
    champion = registry.named("champion", run.machine)["default"]
    folder = registry.fetch(champion, machine_of(tmp_path / "first", run.machine.tracking_uri)) / "policy"
    assert sorted(path.name for path in folder.iterdir()) == ["facts.json", "policy.safetensors"]
    weights = Path(champion.source.removeprefix("file://")) / "artifacts" / "policy" / "policy.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"x")
    second = machine_of(tmp_path / "second", run.machine.tracking_uri)
    with pytest.raises(CorruptError, match="are damaged"):
        registry.fetch(champion, second)
    weights.unlink()
    weights.write_bytes(content)
    assert (registry.fetch(champion, second) / "policy" / weights.name).read_bytes() == content


def test_a_language_model_has_the_same_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo.language.generate.player import AnswerGenerator
    from grpo.language.model.policy import load_model
    from steps.track.mlflow_code import PolicyModel

    load_model(SMALL, seed=0, device=CPU).save(tmp_path)
    model, fens = PolicyModel(), pd.DataFrame([chess.STARTING_FEN, MATED])
    model.load_context(SimpleNamespace(artifacts={"policy": tmp_path}))
    assert list(model.predict(None, fens).columns) == ["moves", "probabilities"]
    monkeypatch.setattr(AnswerGenerator, "greedy", lambda self, prompts, choices: [naming("e2e4")] * len(prompts))
    assert model.predict(None, fens)["moves"].tolist() == [["e2e4"], []]
