"""The step `finetune` within one process: its output, its log lines, its end. Kills are in tests/promises."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from doubles import CPU, lively_policy
from made_work import Listener, work_in
from tiny_training import KINDS, finetune, prepare, progress_of, settings

import steps.common.training_loop
import steps.finetune
from grpo.base import seeding
from grpo.base.documents import read_document
from grpo.base.errors import NonFiniteError
from grpo.base.files import read_json
from grpo.base.seeding import named_seed
from grpo.dataset.table import Split, board_arrays, board_table
from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.findings import Diagnosis
from grpo.diagnosis.history import History
from grpo.language.model.policy import LanguagePolicy
from grpo.match.regret import heldout_metrics
from grpo.metrics.records import Record
from grpo.policy.checkpoints import checkpoint_folders, checkpoint_step, load_checkpoint
from grpo.policy.policy import NetworkPolicy
from grpo.settings.kinds import LANGUAGE, NETWORK
from grpo.train.states import DatasetStates, States
from grpo.train.trainer import AnyTrainer, Trainer
from steps.common.dataset import read_boards
from steps.common.policies.open import open_policy
from steps.names import ANSWERS, BOARDS, FINDINGS, REPORT
from steps.run.work import read_history, read_journal

FORMATS: dict[str, Any] = {NETWORK: NetworkPolicy, LANGUAGE: LanguagePolicy}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "inputs"
    prepare(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_leaves_history_report_findings_and_the_checkpoints_that_are_kept(kind: str, prepared: Path, tmp_path: Path) -> None:
    given = settings(kind, num_steps=3)
    folder = finetune(tmp_path, prepared, given)
    history = read_history(folder)
    assert [record.step for record in history] == list(range(4))
    assert [record.step for record in history if "heldout/regret_best" in record.metrics] == [0, 2, 3]
    assert not any(name.startswith("time/") for record in history for name in record.metrics), "what differs between equal runs"
    saved = checkpoint_folders(folder / "checkpoints")
    assert [checkpoint_step(path) for path in saved] == [2, 3]
    report = read_json(folder / REPORT)
    assert (report["reason"], report["first_step"], report["last_step"]) == ("budget_spent", 0, 3)
    assert report["weights"] == open_policy(saved[-1], CPU).weights
    assert read_document(folder / FINDINGS, Diagnosis).tag == "not judged: 3 rows are too few"
    assert (folder / ANSWERS).exists() == (kind == LANGUAGE)
    assert load_checkpoint(saved[0], CPU, FORMATS[kind])[1].facts == {"settings": steps.finetune.STEP.settings(given)}


def test_what_is_saved_is_judged_on_heldout_boards_by_the_judge_and_all_chance_comes_from_the_seed(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots: list[int] = []
    monkeypatch.setattr(seeding, "named_seed", lambda root, *names: roots.append(root) or named_seed(root, *names))
    shutil.copytree(prepared, inputs := tmp_path / "inputs", symlinks=True)
    rows = read_boards(inputs / "boards").to_pylist()
    judged_otherwise = [row | {"strong_values": row["strong_values"] and [1 - value for value in row["values"]]} for row in rows]
    pq.write_table(board_table(judged_otherwise), inputs / "boards" / BOARDS)
    folder = finetune(tmp_path / "home", inputs, settings(num_steps=2).model_copy(update={"seed": 5}))
    assert set(roots) == {5}
    metrics = read_history(folder)[-1].metrics
    policy, _ = load_checkpoint(checkpoint_folders(folder / "checkpoints")[-1], CPU, NetworkPolicy)
    judged = board_arrays(read_boards(inputs / "boards"), split=Split.HELDOUT, strong=True)
    assert metrics == pytest.approx({**metrics, **heldout_metrics(policy, judged)}, rel=1e-6)
    assert metrics["grpo/kl_reference"] > 0, "the reference stays as it was"


def test_own_games_leave_out_all_heldout_boards_and_give_their_share_from_the_runs_first_step(prepared: Path, tmp_path: Path) -> None:
    table = read_boards(prepared / "boards")
    train, heldout = (board_arrays(table, split=split) for split in (Split.TRAIN, Split.HELDOUT))
    given = settings(states_per_step=10, self_play_fraction=0.3).model_copy(update={"seed": 5})
    dataset, own = steps.finetune._states(work_in(tmp_path / "output", given), train, heldout, lambda _: [], lively_policy(), first=7)
    assert own is not None
    assert own.exclude == {row["key"] for row in table.to_pylist() if row["split"] == Split.HELDOUT}
    assert (own.size, own.first_step, own.seed) == (3, 7, 5)
    expected = DatasetStates(train, states_per_step=7, seed=5)
    found = dataset.states(0).positions
    assert torch.equal(found.encodings, expected.states(0).positions.encodings)
    assert found.cached_replies is not None, "the reference's likeliest moves have their replies at hand"


def test_of_many_checkpoints_the_best_and_the_newest_are_kept(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.common.training_loop, "NUM_CHECKPOINTS_KEPT", 3)
    folder = finetune(tmp_path, prepared, settings(num_steps=10, steps_per_checkpoint=1))
    regrets = {record.step: record.metrics["heldout/regret_best"] for record in read_history(folder) if record.step}
    kept = [checkpoint_step(path) for path in checkpoint_folders(folder / "checkpoints")]
    assert len(kept) == 3
    assert kept[-1] == 10
    assert min(regrets.values()) in {regrets[step] for step in kept}


# A training that fails, and a diagnosis while it trains.


class SometimesNan(DatasetStates):
    def states(self, step: int) -> States:
        states = super().states(step)
        return replace(states, values=states.values * math.nan) if step in (5, 8) else states


def test_an_error_says_from_where_the_same_command_resumes_and_that_tells_its_findings_once(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Trainer.step

    def failing(trainer: AnyTrainer) -> Record:
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
    assert str(caught.value) == f"spoilt\nTo resume from step 4, saved in {place}, run the same command again; after --fresh run `resume`"
    assert {row["record"]["step"] for row in read_journal(place)} == set(range(7))
    listener, said = Listener(), list[str]()
    folder = finetune(tmp_path, prepared, sick, listeners=(listener,), say=said.append)
    assert (said[0], said[-1]) == (f"resuming from step 4, saved in {place}", "diagnosis: nan_steps")
    assert listener.progresses[0] == (4, 12, "steps")
    found = [(record.step, event) for record in listener.records for event in record.events if event.name == "finding"]
    assert [(step, event.message.split(": ")[1]) for step, event in found] == [(6, "nan_steps")], (
        "a card that began anew is told of it again"
    )
    assert read_document(folder / FINDINGS, Diagnosis).findings == diagnose(History.of_records(read_history(folder)), sick).findings
