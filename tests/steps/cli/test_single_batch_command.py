"""`chess-grpo single-batch`: what it shows of each answer, when it says that a batch can be learnt from, and how it refuses."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from doubles import CPU, TINY

pytest.importorskip("transformers", reason="the extra for language models is not installed: pip install '.[language]'")

from made_language import language_table
from written_language import settings, writer

from grpo.language.model.loading import save_language_policy
from grpo.learning.checkpoints import save_policy
from grpo.policy.distribution import new_policy
from steps.step_io.names import BOARDS

FEN = "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3"
SMALL = ("--set", "language.max_answer_tokens=16", "--set", "grpo.states_per_step=2", "--set", "grpo.group_size=3")
LARGER = (*SMALL[:2], "--set", "grpo.states_per_step=4", "--set", "grpo.group_size=8")
"""Enough answers for some to be better than others."""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(console: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what types the command in a folder with a policy and a dataset, and returns exit code, output and error output."""
    for name, value in (("HOME", str(tmp_path / "home")), ("DEVICE", "cpu"), ("THREADS", "1")):
        monkeypatch.setenv(f"CHESS_GRPO_{name}", value)
    monkeypatch.chdir(tmp_path)
    for name in ("model", "network", "boards"):
        (tmp_path / name).mkdir()
    config = settings()
    save_language_policy(tmp_path / "model", writer(config), config.policy)
    save_policy(tmp_path / "network", new_policy(TINY, seed=0, device=CPU), TINY)
    pq.write_table(language_table(12), tmp_path / "boards" / BOARDS)
    return partial(console, "single-batch")


def test_every_answer_is_shown_with_all_that_is_known_of_it(run: Run) -> None:
    code, said, complaints = run("model", "--boards", "boards", *SMALL)
    assert (code, complaints) == (0, "")
    lines = said.splitlines()
    assert [line.rpartition(",")[0] for line in lines if line.startswith("Prompt")] == ["Prompt 1 of 2", "Prompt 2 of 2"]
    assert sum("log-probability" in line and "sampled," in line and "scored," in line for line in lines) == 6
    assert sum(line.strip().startswith("parsed: ") for line in lines) == 6
    assert sum("structure " in line or line.strip() == "malformed" for line in lines) == 6
    assert "2 prompts, 3 answers each: mean reward " in said
    gap = float(said.rpartition("differ by at most ")[2].split()[0])
    assert gap < 1e-4
    assert "optimiser steps" not in said


def test_training_on_the_batch_tells_of_each_step_and_succeeds_where_the_loss_falls(run: Run) -> None:
    code, said, complaints = run("model", "--boards", "boards", *LARGER, "--update", "3", "--set", "grpo.learning_rate=1e-3")
    assert (code, complaints) == (0, "")
    table = said.partition("3 optimiser steps on this batch, learning rate 0.001\n")[2].splitlines()
    assert [line.split()[0] for line in table[1:5]] == ["0", "1", "2", "3"]
    losses = [float(line.split()[1]) for line in table[1:5]]
    assert losses[-1] < losses[0]
    assert table[5].startswith("New answers to the same prompts: mean reward ")
    assert table[6].startswith("The loss of the batch fell by ")


@pytest.mark.prove
def test_a_batch_that_training_does_not_move_is_a_failure(run: Run) -> None:
    code, said, _ = run("model", "--boards", "boards", *LARGER, "--update", "2", "--set", "grpo.learning_rate=1e-30")
    assert code == 1
    assert "The loss of the batch did not fall" in said
    assert "the fault is in the rewards, masks or gradients" in said


def test_answers_that_are_all_alike_are_said_to_teach_nothing(run: Run) -> None:
    # So cold that every answer of a group is the likeliest.
    code, said, _ = run("model", "--boards", "boards", *SMALL, "--update", "2", "--set", "grpo.temperature=0.01")
    assert code == 1
    assert "Nothing can be learned from this batch: " in said
    assert "Raise grpo.group_size or grpo.temperature" in said or "Raise language.max_answer_tokens" in said


def test_positions_are_valued_by_the_engine_and_asked_of_both_tasks_or_of_one(run: Run) -> None:
    code, said, complaints = run("model", "--fen", FEN, *SMALL)
    assert (code, complaints) == (0, "")
    assert f"P: {FEN}    M:" in said
    assert "Prompt 2 of 2, environment task" in said
    only = run("model", "--fen", FEN, *SMALL, "--set", "language.environment_share=0.0")[1]
    assert [line for line in only.splitlines() if line.startswith("Prompt")] == ["Prompt 1 of 1, policy task"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("network", "--boards", "boards"), "network is a chess network; single-batch is only"),
        (("model", "--boards", "boards", "--set", 'policy.kind = "network"'), 'give policy.kind = "language"'),
        (("model", "--boards", "model"), "is not a dataset"),
        (("nowhere", "--boards", "boards"), "nowhere"),
        (("model", "--fen", "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"), "not a legal position with a move to play"),
        (("model", "--fen", "8/8/8/8/8/8/8/8 w - - 0 1"), "not a legal position with a move to play"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_with_the_reason(words: tuple[str, ...], reason: str, run: Run) -> None:
    code, said, complaints = run(*words)
    assert (code, said) == (1, "")
    assert reason in complaints
