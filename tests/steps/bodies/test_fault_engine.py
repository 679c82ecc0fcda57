"""An engine that begins to die in the midst of training stops it with the checkpoints that there are; mended, the end is the same."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from made_training import TRAIN, tiny_trainer, trained
from scripted_engine import ScriptedEngine

from grpo.engine.answers import EngineError
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.learning.checkpoints import checkpoint_folders, checkpoint_step, verified_manifest
from grpo.learning.self_play import MixedStates, SelfPlay, state_counts
from grpo.learning.states import DatasetStates, LiveValues
from grpo.metrics.table import Record
from grpo.settings.grpo import GrpoConfig
from grpo.settings.tree import ValuesConfig

VALUES = ValuesConfig(depth=1)
CONFIG = GrpoConfig.model_validate(
    {
        "num_steps": 4,
        "states_per_step": 8,
        "group_size": 4,
        "steps_per_checkpoint": 2,
        "self_play": {"fraction": 0.5, "states_per_round": 8, "steps_per_round": 2, "max_plies": 20},
    }
)


class Breaker:
    """Lets an engine die on every search from the record of a step on: those processes that run, and all that come after them."""

    def __init__(self, engine: ScriptedEngine, *, step: int) -> None:
        self._engine, self._step = engine, step
        self._plan = Path(engine.path).with_name("plan.json")
        self._healthy = self._plan.read_text()

    def log(self, record: Record) -> None:
        """Break it when the step has come."""
        if record.step == self._step:
            self._plan.write_text(json.dumps(json.loads(self._healthy) | {"faults": [{"kind": "crash", "times": 10_000}]}))
            for pid in {search["pid"] for search in self._engine.searches()}:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Take no note."""

    def mend(self) -> None:
        """Let it live."""
        self._plan.write_text(self._healthy)


def finetuned(home: Path, engine: ScriptedEngine, *sinks: Breaker) -> Path:
    """Return the output of a tiny fine-tuning on dataset boards and own games."""
    num_dataset, num_own = state_counts(CONFIG.states_per_step, CONFIG.self_play.fraction)
    with EnginePool(engine.path, num_processes=1, options=engine_options(VALUES)) as pool:
        values = LiveValues(pool, VALUES)
        states = MixedStates(
            DatasetStates(TRAIN, states_per_step=num_dataset, seed=0, mirrors_boards=False),
            SelfPlay(values, CONFIG.self_play, states_per_step=num_own, first_step=0, seed=0, mirrors_boards=False),
        )
        return trained(home, tiny_trainer(CONFIG, states, values=values), CONFIG, sinks=sinks)


def test_an_engine_that_dies_again_and_again_ends_training_with_a_checkpoint_to_go_on_from(
    scripted: Callable[..., ScriptedEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo.engine.pool._MAX_FAILURES_IN_A_ROW", 2)  # A Python engine takes long to start.
    engine = scripted()
    breaker = Breaker(engine, step=2)
    with pytest.raises(EngineError, match="in a row") as caught:
        finetuned(tmp_path / "home", engine, breaker)
    progress = tmp_path / "home" / "in_progress" / "finetune" / "v1"
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert told.endswith(f"The same command again, without --fresh, resumes from step 2, which is saved in {progress}")
    assert [checkpoint_step(folder) for folder in checkpoint_folders(progress / "checkpoints")] == [2]
    breaker.mend()
    ended = verified_manifest(finetuned(tmp_path / "home", engine))["output_hash"]
    assert ended == verified_manifest(finetuned(tmp_path / "without", engine))["output_hash"]
