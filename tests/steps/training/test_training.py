"""The step `finetune` within one process: what it leaves, what is told, how it ends. Kills are in tests/promises."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles import CPU
from made_work import Listener
from tiny_training import KINDS, finetune, prepare, progress_of, settings

import steps.finetune
import steps.training_loop
from grpo.base.errors import NonFiniteError
from grpo.base.files import read_json
from grpo.diagnosis.diagnose import diagnose
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


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "inputs"
    prepare(folder)
    return folder


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


# A training that fails, and a diagnosis while it trains.


class SometimesNan(DatasetStates):
    """The dataset's states, with NaN for values at steps 6 and 9."""

    def states(self, step: int) -> States:
        states = super().states(step)
        return replace(states, values=states.values * math.nan) if step in (5, 8) else states


def test_an_error_says_from_where_the_same_command_resumes_and_that_tells_its_findings_once(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Trainer.step

    def failing(trainer: Trainer[Any]) -> Record:
        if trainer.num_steps_done == 6:
            raise NonFiniteError("spoilt")
        return whole(trainer)

    monkeypatch.setattr(steps.finetune, "DatasetStates", SometimesNan)
    monkeypatch.setattr(Trainer, "step", failing)
    sick = settings(num_steps=12, steps_per_checkpoint=4, critical_entropy=0.0)
    with pytest.raises(NonFiniteError) as caught:
        finetune(tmp_path, prepared, sick)
    monkeypatch.setattr(Trainer, "step", whole)
    place = progress_of(tmp_path)
    assert str(caught.value) == f"spoilt\nThe same command again (after --fresh: `resume`) resumes from step 4, which is saved in {place}"
    assert {row["record"]["step"] for row in read_journal(place)} == set(range(7))
    listener, said = Listener(), list[str]()
    folder = finetune(tmp_path, prepared, sick, listeners=(listener,), say=said.append)
    assert (said[0], said[-1]) == (f"resuming from step 4, which is saved in {place}", "diagnosis: nan_steps")
    found = [(record.step, event) for record in listener.records for event in record.events if event.name == "finding"]
    assert [(step, event.message.split(": ")[1]) for step, event in found] == [(6, "nan_steps")], (
        "a card that began anew is told of it again"
    )
    assert read_json(folder / FINDINGS) == diagnose(History.of_records(read_history(folder)), sick).facts()
