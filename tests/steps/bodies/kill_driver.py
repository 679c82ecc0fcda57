"""Fine-tunes a tiny policy on made-up boards in a process of its own, and kills it where a test says.

Alone, `python kill_driver.py '{"home": ...}'` runs once; with `serve` it is a process of `forking.py`. A job may name the file of a spot
interruption notice, to be watched.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "grpo"), str(TESTS / "steps")]

import torch  # noqa: E402
from doubles import CPU, TINY, MadeUpValues, fake_arrays, some_boards  # noqa: E402
from forking import serve  # noqa: E402

import grpo.learning.checkpoints  # noqa: E402
import steps.bodies.training_loop  # noqa: E402
import steps.step_io.work  # noqa: E402
import steps.store.outputs  # noqa: E402
from grpo.base.errors import NonFiniteError  # noqa: E402
from grpo.evaluation.regret import heldout_metrics  # noqa: E402
from grpo.learning.checkpoints import NETWORK_FORMAT  # noqa: E402
from grpo.learning.self_play import MixedStates, SelfPlay, state_counts  # noqa: E402
from grpo.learning.states import DatasetStates, StateSource  # noqa: E402
from grpo.learning.trainer import GrpoTrainer  # noqa: E402
from grpo.policy.distribution import new_policy  # noqa: E402
from grpo.settings.grpo import GrpoConfig  # noqa: E402
from steps.bodies.training_loop import TrainingLoop  # noqa: E402
from steps.pipeline.make_output import make_output  # noqa: E402
from steps.step_io.terminal import TerminalSink  # noqa: E402
from steps.step_io.work import Work  # noqa: E402
from steps.store.outputs import Store  # noqa: E402

NUM_STEPS = 12
CONFIG: dict[str, Any] = {
    "num_steps": NUM_STEPS,
    "states_per_step": 8,
    "num_minibatches": 2,
    "group_size": 4,
    "learning_rate": 5e-3,
    "steps_per_checkpoint": 2,
    "num_checkpoints_kept": 3,
    "self_play": {"fraction": 0.0},
}


BOARDS = some_boards(48)
TRAIN, HELDOUT = fake_arrays(BOARDS[:32]), fake_arrays(BOARDS[32:])

Deed = Callable[[], None]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)


def pause() -> None:
    os.write(1, b"paused\n")  # In one piece: who reads it sends a signal, whose line must not come amid this one.
    time.sleep(300)


def fail() -> None:
    raise NonFiniteError("the weights are spoilt")


DEEDS: dict[str, Deed] = {"kill": kill, "pause": pause, "fail": fail}


def at(nth: int, place: Any, name: str, deed: Deed, *, is_after: bool = False) -> None:
    """Do the deed before, or after, the nth call of a function."""
    whole, calls = getattr(place, name), 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not is_after:
            deed()
        found = whole(*arguments, **named)
        if calls == nth and is_after:
            deed()
        return found

    setattr(place, name, wrapped)


def within_line(nth: int, deed: Deed) -> None:
    whole, calls = steps.step_io.work.append_line, 0

    def wrapped(path: Path, line: str) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            with path.open("a") as file:
                file.write(line[: len(line) // 2])
            deed()
        whole(path, line)

    steps.step_io.work.append_line = wrapped


def within_deletion(nth: int, deed: Deed) -> None:
    at(nth, steps.bodies.training_loop, "remove_folder", lambda: at(1, shutil, "rmtree", deed))


FAILPOINTS: dict[str, Callable[[int, Deed], None]] = {
    "after the rollout": lambda nth, deed: at(nth, torch.nn.utils, "clip_grad_norm_", deed),
    "between two optimiser steps": lambda nth, deed: at(nth, torch.optim.Adam, "step", deed, is_after=True),
    "before the journal's line": lambda nth, deed: at(nth, steps.step_io.work, "append_line", deed),
    "within the journal's line": within_line,
    "after the journal's line": lambda nth, deed: at(nth, steps.step_io.work, "append_line", deed, is_after=True),
    "before the checkpoint": lambda nth, deed: at(nth, steps.bodies.training_loop, "save_checkpoint", deed),
    # Three files of tensors each; the first has the weights.
    "between two files of a checkpoint": lambda nth, deed: at(
        3 * nth - 2, grpo.learning.checkpoints, "_write_tensors", deed, is_after=True
    ),
    "before the checkpoint's manifest": lambda nth, deed: at(nth, grpo.learning.checkpoints, "write_manifest", deed),
    "before the checkpoint gets its name": lambda nth, deed: at(nth, os, "rename", deed),
    "after the checkpoint": lambda nth, deed: at(nth, steps.bodies.training_loop, "save_checkpoint", deed, is_after=True),
    "while a checkpoint is deleted": within_deletion,
    "before the report": lambda nth, deed: at(nth, steps.bodies.training_loop, "weights_hash", deed),
    "when training is over": lambda nth, deed: at(nth, steps.bodies.training_loop, "copy_folder", deed),
    "before the output's manifest": lambda nth, deed: at(nth, steps.store.outputs, "write_manifest", deed),
    "when the output is in the store": lambda nth, deed: at(nth, steps.store.outputs, "remove_folder", deed),
}


def finetune(job: dict[str, Any]) -> None:
    """Make the output of a tiny fine-tuning in the job's home, as the real step does."""
    config = GrpoConfig(**{**CONFIG, **job.get("config", {})})
    torch.set_num_threads(1)
    policy, reference = (new_policy(TINY, seed=0, device=CPU) for _ in range(2))
    num_dataset, num_own = state_counts(config.states_per_step, config.self_play.fraction)
    states: StateSource = DatasetStates(TRAIN, states_per_step=num_dataset, seed=0, mirrors_boards=True)
    if num_own:
        states = MixedStates(
            states, SelfPlay(MadeUpValues(), config.self_play, states_per_step=num_own, first_step=0, seed=0, mirrors_boards=True)
        )
    trainer = GrpoTrainer(policy, reference, states, config, seed=0, values=MadeUpValues())
    if "failpoint" in job:
        FAILPOINTS[job["failpoint"]](job["nth"], DEEDS[job.get("deed", "kill")])
    if "pause_save" in job:
        at(job["pause_save"], steps.bodies.training_loop, "save_checkpoint", pause)
    if "limit" in job:
        nth, size = job["limit"]
        at(nth, steps.bodies.training_loop, "save_checkpoint", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))

    def body(work: Work) -> None:
        TrainingLoop(
            trainer,
            TINY,
            NETWORK_FORMAT,
            config,
            first=0,
            heldout=lambda: heldout_metrics(trainer.evaluation_policy, HELDOUT),
            facts={"settings": config.model_dump(mode="json")},
            work=work,
        ).run()

    output = make_output(
        Store(Path(job["home"])),
        "finetune",
        "v1",
        facts={},
        body=body,
        resumes=True,
        is_fresh=job.get("is_fresh", False),
        sinks=(),
        terminal=TerminalSink("finetune", (), lambda text: print(text, flush=True)),
    )
    print(json.dumps(output), flush=True)


def watched(job: dict[str, Any]) -> None:
    """Fine-tune as the job says."""
    from steps.batch.spot_notice import sigterm_on_spot_notice

    with sigterm_on_spot_notice(Path(job["notice"])) if "notice" in job else contextlib.nullcontext():
        finetune(job)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()  # Imports what torch imports late.
        serve(watched)
    else:
        watched(json.loads(sys.argv[1]))
