"""The diagnosis while the loop trains: told once in log, history and to sinks; a kill changes nothing of it, and it changes no training."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import CPU, TINY, fake_arrays, some_boards
from listeners import Listener

from grpo.base.files import read_json
from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.findings import FINDING_MEANINGS as TABLE
from grpo.diagnosis.history import History
from grpo.evaluation.regret import heldout_metrics
from grpo.learning.checkpoints import NETWORK_FORMAT
from grpo.learning.states import DatasetStates, States
from grpo.learning.trainer import GrpoTrainer
from grpo.metrics.table import Record
from grpo.policy.distribution import Policy, new_policy
from grpo.settings.grpo import GrpoConfig
from steps.bodies.live_diagnosis import LiveDiagnosis
from steps.bodies.training_loop import TrainingLoop
from steps.pipeline.make_output import make_output
from steps.step_io.names import FINDINGS, REPORT
from steps.step_io.work import TerminalSink, read_history
from steps.store.outputs import Store

torch.set_num_threads(1)

BOARDS = some_boards(24)
TRAIN, HELDOUT = fake_arrays(BOARDS[:16]), fake_arrays(BOARDS[16:])
SETTINGS: Mapping[str, Any] = {
    "num_steps": 12,
    "states_per_step": 8,
    "group_size": 4,
    "steps_per_checkpoint": 4,
    "self_play": {"fraction": 0.0},
    "critical_entropy": 0.0,
}


class SometimesNan(DatasetStates):
    """The dataset's states, with NaN for values at steps 6 and 9."""

    def states(self, step: int, policy: Policy) -> States:
        states = super().states(step, policy)
        return replace(states, values=states.values * math.nan) if step in (5, 8) else states


def finetuned(
    home: Path, said: list[str], listener: Listener | None = None, *, fails_at: int | None = None, is_sound: bool = False
) -> Path:
    """Return the output of a tiny fine-tuning, whose rewards are no numbers now and then unless it is sound."""
    config = GrpoConfig(**SETTINGS)
    policy, reference = (new_policy(TINY, seed=0, device=CPU) for _ in range(2))
    source = (DatasetStates if is_sound else SometimesNan)(TRAIN, states_per_step=8, seed=0, mirrors_boards=False)
    trainer = GrpoTrainer(policy, reference, source, config, seed=0)
    whole = trainer.step

    def step() -> Record:
        if trainer.num_steps_done + 1 == fails_at:
            raise ZeroDivisionError
        return whole()

    trainer.step = step  # type: ignore[method-assign]
    store = Store(home)
    make_output(
        store,
        "finetune",
        "v1",
        facts={},
        body=lambda work: TrainingLoop(
            trainer,
            TINY,
            NETWORK_FORMAT,
            config,
            first=0,
            heldout=lambda: heldout_metrics(trainer.evaluation_policy, HELDOUT),
            facts={},
            work=work,
        ).run(),
        resumes=True,
        is_fresh=False,
        sinks=() if listener is None else (listener,),
        terminal=TerminalSink("finetune", (), said.append),
        watcher=LiveDiagnosis({"grpo": config.model_dump(mode="json")}),
    )
    return store.folder("finetune", "v1")


def found_in(records: list[Record]) -> list[tuple[int, str]]:
    """Return at which step what was found."""
    return [
        (record.step, event.message.split(": ")[1]) for record in records for event in record.events if event.name == "finding"
    ]  # fmt: skip


def test_a_finding_is_logged_once_at_the_step_at_which_it_begins_and_is_no_part_of_the_history(tmp_path: Path) -> None:
    said: list[str] = []
    listener = Listener()
    folder = finetuned(tmp_path, said, listener)
    assert found_in(listener.records) == [(6, "nan_steps")]
    assert found_in(read_history(folder)) == []
    [line] = [line for line in said if "finding: " in line]
    assert line.startswith("finetune: step 6: finding: critical: nan_steps: ")
    assert "is not finite at step 6" in line
    assert "grpo.learning_rate" in line, "the remedy names the setting"
    assert "\n" not in line


def test_the_output_says_what_the_whole_history_shows_and_the_log_ends_with_it(tmp_path: Path) -> None:
    said: list[str] = []
    folder = finetuned(tmp_path, said)
    found = read_json(folder / FINDINGS)
    assert (found["verdict"], found["tag"]) == ("findings", "nan_steps")
    [finding] = found["findings"]
    assert (finding["name"], finding["severity"], finding["first_step"], finding["last_step"]) == ("nan_steps", "critical", 6, 9)
    assert finding["name"] in TABLE
    assert finding["page"] == "docs/diagnosis.md#nan_steps"
    diagnosis = diagnose(History.of_records(read_history(folder)), {"grpo": GrpoConfig(**SETTINGS).model_dump(mode="json")})
    assert found == {**diagnosis.facts(), "tag": diagnosis.tag}
    assert said[-1] == "finetune: diagnosis: nan_steps"


@pytest.mark.parametrize("fails_at", [4, 6, 7, 10])
def test_a_run_that_goes_on_after_a_failure_ends_with_the_same_findings_each_told_once(fails_at: int, tmp_path: Path) -> None:
    said: list[str] = []
    whole = finetuned(tmp_path / "whole", [])
    with pytest.raises(ZeroDivisionError):
        finetuned(tmp_path / "cut", said, fails_at=fails_at)
    listener = Listener()
    cut = finetuned(tmp_path / "cut", said, listener)
    for name in (FINDINGS, REPORT, "history.jsonl"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    assert sum("finding: " in line for line in said) == 1
    assert found_in(listener.records) == [(6, "nan_steps")], "a sink that began anew is told of it again"
