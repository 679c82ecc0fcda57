"""The step `finetune` within one process: what it leaves, what is told, how it ends. Kills are in tests/promises."""

import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles import CPU
from listeners import Listener
from tiny_training import KINDS, finetune, prepare, progress_of, settings

import steps.finetune
import steps.training_loop
from grpo.base.errors import NonFiniteError
from grpo.base.files import read_json, verified_manifest
from grpo.diagnosis.diagnose import NotLearnableError, diagnose
from grpo.diagnosis.history import History
from grpo.diagnosis.records import Record
from grpo.language.model.policy import LanguagePolicy
from grpo.policy.checkpoints import checkpoint_folders, checkpoint_step, load_checkpoint
from grpo.policy.files import LANGUAGE, NETWORK
from grpo.policy.policy import NetworkPolicy
from grpo.train.batch import States
from grpo.train.states import DatasetStates
from grpo.train.trainer import Trainer
from steps.names import ANSWERS, FINDINGS, REPORT
from steps.policies.open import open_policy
from steps.run.work import read_history, read_journal

FORMATS: dict[str, Any] = {NETWORK: NetworkPolicy, LANGUAGE: LanguagePolicy}
SHORT = {"num_steps": 6}
SICK = settings(num_steps=12, steps_per_checkpoint=4, critical_entropy=0.0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "inputs"
    prepare(folder)
    return folder


def hash_of(output: Path) -> str:
    return str(verified_manifest(output)["output_hash"])


@contextmanager
def failing_at(step: int, error: Exception) -> Iterator[None]:
    """Let the trainer fail at a step."""
    whole = Trainer.step

    def failing(self: Trainer[Any]) -> Record:
        if self.num_steps_done + 1 == step:
            raise error
        return whole(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", failing)
        yield


# What it leaves.


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_leaves_history_report_findings_and_the_checkpoints_that_are_kept(kind: str, prepared: Path, tmp_path: Path) -> None:
    given = settings(kind, num_steps=4)
    folder = finetune(tmp_path, prepared, given)
    history = read_history(folder)
    assert [record.step for record in history] == list(range(5))
    assert [record.step for record in history if "heldout/regret_best" in record.metrics] == [0, 2, 4]
    assert not any(name.startswith("time/") for record in history for name in record.metrics), "what differs between equal runs"
    saved = checkpoint_folders(folder / "checkpoints")
    assert [checkpoint_step(path) for path in saved] == [2, 4]
    report = read_json(folder / REPORT)
    assert (report["reason"], report["first_step"], report["last_step"]) == ("budget_spent", 0, 4)
    assert report["weights"] == open_policy(saved[-1], CPU).weights
    assert read_json(folder / FINDINGS)["tag"] == "not judged: 4 rows are too few"
    assert (folder / ANSWERS).exists() == (kind == LANGUAGE)
    assert load_checkpoint(saved[0], CPU, FORMATS[kind])[1].facts == {"settings": steps.finetune.STEP.settings(given)}


def test_of_many_checkpoints_the_best_and_the_newest_are_kept(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.training_loop, "NUM_CHECKPOINTS_KEPT", 3)
    folder = finetune(tmp_path, prepared, settings(num_steps=10, steps_per_checkpoint=1))
    regrets = {record.step: record.metrics["heldout/regret_best"] for record in read_history(folder) if record.step}
    kept = [checkpoint_step(path) for path in checkpoint_folders(folder / "checkpoints")]
    assert len(kept) == 3
    assert kept[-1] == 10
    assert min(regrets.values()) in {regrets[step] for step in kept}


# SIGTERM.


def test_in_the_block_the_first_is_noted_and_a_second_would_end_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with steps.training_loop.sigterm_noted() as is_told:
            assert not is_told()
        assert signal.getsignal(signal.SIGTERM) is before
        with steps.training_loop.sigterm_noted() as is_told:
            os.kill(os.getpid(), signal.SIGTERM)
            assert is_told()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


# Errors.


def test_an_error_leaves_the_progress_as_it_is_and_says_from_where_the_same_command_resumes(prepared: Path, tmp_path: Path) -> None:
    with failing_at(6, NonFiniteError("spoilt")), pytest.raises(NonFiniteError) as caught:
        finetune(tmp_path, prepared, settings(**SHORT))
    place = progress_of(tmp_path)
    assert str(caught.value) == f"spoilt\nThe same command again (after --fresh: `resume`) resumes from step 4, which is saved in {place}"
    assert not (tmp_path / "outputs" / "finetune" / "v1").exists()
    assert {row["record"]["step"] for row in read_journal(place)} == {0, 1, 2, 3, 4, 5}
    listener, said = Listener(), list[str]()
    folder = finetune(tmp_path, prepared, settings(**SHORT), listeners=(listener,), say=said.append)
    assert said[0] == f"resuming from step 4, which is saved in {place}"
    assert [record for record in listener.records if "time/rollout" not in record.metrics] == read_history(folder)
    assert hash_of(folder) == hash_of(finetune(tmp_path / "whole", prepared, settings(**SHORT)))


def test_where_nothing_can_be_learnt_it_is_refused_before_the_first_update(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(NotLearnableError, match=r"critical below grpo\.critical_entropy = 5") as caught:
        finetune(tmp_path, prepared, settings(critical_entropy=5.0))
    assert not caught.value.may_pass, "no retry can help"
    assert read_journal(progress_of(tmp_path)) == []


# The diagnosis, while it trains.


class SometimesNan(DatasetStates):
    """The dataset's states, with NaN for values at steps 6 and 9."""

    def states(self, step: int) -> States:
        states = super().states(step)
        return replace(states, values=states.values * math.nan) if step in (5, 8) else states


def found_in(records: list[Record]) -> list[tuple[int, str]]:
    """Return at which step what was found."""
    return [(record.step, event.message.split(": ")[1]) for record in records for event in record.events if event.name == "finding"]


def test_a_finding_is_told_once_and_the_output_says_what_the_whole_history_shows(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps.finetune, "DatasetStates", SometimesNan)
    listener, said = Listener(), list[str]()
    folder = finetune(tmp_path, prepared, SICK, listeners=(listener,), say=said.append)
    assert found_in(listener.records) == [(6, "nan_steps")]
    assert found_in(read_history(folder)) == [], "it is no part of the history"
    assert read_json(folder / FINDINGS) == diagnose(History.of_records(read_history(folder))).facts()
    assert said[-1] == "diagnosis: nan_steps"


def test_a_run_that_goes_on_after_a_failure_ends_with_the_same_findings_each_told_once(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps.finetune, "DatasetStates", SometimesNan)
    whole, again = finetune(tmp_path / "whole", prepared, SICK), Listener()
    with failing_at(7, ZeroDivisionError()), pytest.raises(ZeroDivisionError):
        finetune(tmp_path / "cut", prepared, SICK)
    cut = finetune(tmp_path / "cut", prepared, SICK, listeners=(again,))
    assert hash_of(cut) == hash_of(whole)
    assert (cut / FINDINGS).read_bytes() == (whole / FINDINGS).read_bytes()
    assert found_in(again.records) == [(6, "nan_steps")], "a card that began anew is told of it again"
