"""The diagnosis while the loop trains: told once in log, history and to sinks; a kill changes nothing of it, and it changes no training."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_training
import pytest
from listeners import Listener
from made_training import TRAIN, tiny_trainer, trained

from grpo.base.files import read_json
from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.findings import ENTRIES
from grpo.diagnosis.history import History
from grpo.learning.states import DatasetStates, States
from grpo.metrics.table import Record
from grpo.policy.distribution import Policy
from grpo.settings.grpo import GrpoConfig
from steps.bodies.live_diagnosis import LiveDiagnosis
from steps.step_io.names import FINDINGS, REPORT
from steps.step_io.work import read_history

SETTINGS: Mapping[str, Any] = {**made_training.SETTINGS, "num_steps": 12, "steps_per_checkpoint": 4, "critical_entropy": 0.0}


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
    source = (DatasetStates if is_sound else SometimesNan)(TRAIN, states_per_step=8, seed=0, mirrors_boards=False)
    trainer = tiny_trainer(config, source)
    whole = trainer.step

    def step() -> Record:
        if trainer.num_steps_done + 1 == fails_at:
            raise ZeroDivisionError
        return whole()

    trainer.step = step  # type: ignore[method-assign]
    watcher = LiveDiagnosis({"grpo": config.model_dump(mode="json")})
    return trained(home, trainer, config, said=said, sinks=() if listener is None else (listener,), watcher=watcher)


def found_in(records: list[Record]) -> list[tuple[int, str]]:
    """Return at which step what was found."""
    return [
        (record.step, event.message.split(": ")[1]) for record in records for event in record.events if event.name == "finding"
    ]  # fmt: skip


Whole = tuple[Path, list[str], Listener]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return an undisturbed output, what was said of it, and what its sinks heard."""
    said, listener = list[str](), Listener()
    return finetuned(tmp_path_factory.mktemp("whole"), said, listener), said, listener


def test_a_finding_is_logged_once_at_the_step_at_which_it_begins_and_is_no_part_of_the_history(whole: Whole) -> None:
    folder, said, listener = whole
    assert found_in(listener.records) == [(6, "nan_steps")]
    assert found_in(read_history(folder)) == []
    [line] = [line for line in said if "finding: " in line]
    assert line.startswith("finetune: step 6: finding: critical: nan_steps: ")
    assert "is not finite at step 6" in line
    assert "grpo.learning_rate" in line, "the remedy names the setting"
    assert "\n" not in line


def test_the_output_says_what_the_whole_history_shows_and_the_log_ends_with_it(whole: Whole) -> None:
    folder, said, _ = whole
    found = read_json(folder / FINDINGS)
    assert (found["verdict"], found["tag"]) == ("findings", "nan_steps")
    [finding] = found["findings"]
    assert (finding["name"], finding["severity"], finding["first_step"], finding["last_step"]) == ("nan_steps", "critical", 6, 9)
    assert finding["name"] in ENTRIES
    assert finding["page"] == "docs/diagnosis.md#nan_steps"
    diagnosis = diagnose(History.of_records(read_history(folder)), {"grpo": GrpoConfig(**SETTINGS).model_dump(mode="json")})
    assert found == {**diagnosis.facts(), "tag": diagnosis.tag}
    assert said[-1] == "finetune: diagnosis: nan_steps"


@pytest.mark.parametrize("fails_at", [6, 7, 10])
def test_a_run_that_goes_on_after_a_failure_ends_with_the_same_findings_each_told_once(fails_at: int, whole: Whole, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ZeroDivisionError):
        finetuned(tmp_path / "cut", said, fails_at=fails_at)
    listener = Listener()
    cut = finetuned(tmp_path / "cut", said, listener)
    for name in (FINDINGS, REPORT, "history.jsonl"):
        assert (cut / name).read_bytes() == (whole[0] / name).read_bytes(), name
    assert sum("finding: " in line for line in said) == 1
    assert found_in(listener.records) == [(6, "nan_steps")], "a sink that began anew is told of it again"
