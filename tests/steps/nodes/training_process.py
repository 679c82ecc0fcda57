"""A process of a node that fine-tunes a tiny policy with those of the other nodes, and does there what a test says."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from doubles import CPU, TINY, MadeUpValues
from kill_driver import BOARDS, CONFIG, HELDOUT, TRAIN, at

import grpo.learning.distributed
import steps.bodies.training_loop
from grpo.base.errors import NonFiniteError
from grpo.evaluation.regret import heldout_metrics
from grpo.learning.checkpoints import NETWORK_FORMAT
from grpo.learning.distributed import Processes, joined_processes
from grpo.learning.self_play import MixedStates, SelfPlay, state_counts
from grpo.learning.states import DatasetStates, StateSource
from grpo.learning.trainer import GrpoTrainer
from grpo.metrics.table import Record
from grpo.policy.distribution import new_policy
from grpo.settings.grpo import GrpoConfig
from steps.bodies.training_loop import TrainingLoop
from steps.nodes.worker import leave, reason_told
from steps.pipeline.make_output import make_output
from steps.runtime.parent_death import end_with_parent
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Work
from steps.store.outputs import Store

assert BOARDS


def fail() -> None:
    raise NonFiniteError("the weights are spoilt")


def stumble() -> None:
    raise ZeroDivisionError("a fault of the code")


def terminate_the_step() -> None:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)  # Else this process may train on, to the end, before the notice comes back to it.


DEEDS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill the step": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "terminate the step": terminate_the_step,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "fail": fail,
    "stumble": stumble,
}


def trained(job: dict[str, Any], processes: Processes, work: Work) -> None:
    """Train a tiny policy as one of several processes."""
    config = GrpoConfig(**{**CONFIG, "num_steps": 6, **job.get("config", {})})
    policy, reference = (new_policy(TINY, seed=0, device=CPU) for _ in range(2))
    num_dataset, num_own = state_counts(config.states_per_step, config.self_play.fraction)
    states: StateSource = DatasetStates(TRAIN, states_per_step=num_dataset, seed=0, mirrors_boards=True)
    if num_own:
        own = SelfPlay(MadeUpValues(), config.self_play, states_per_step=num_own, first_step=0, seed=0, mirrors_boards=True)
        states = MixedStates(states, own)
    trainer = GrpoTrainer(policy, reference, states, config, seed=0, values=MadeUpValues(), processes=processes)
    if job.get("place") == "step":
        whole = trainer.step

        def step() -> Record:
            if trainer.num_steps_done + 1 == job["step"]:
                DEEDS[job["deed"]]()
            return whole()

        trainer.step = step  # type: ignore[method-assign]

    TrainingLoop(
        trainer,
        TINY,
        NETWORK_FORMAT,
        config,
        first=0,
        heldout=lambda: heldout_metrics(trainer.evaluation_policy, HELDOUT),
        facts={},
        work=work,
        processes=processes,
    ).run()


def finetune(job: dict[str, Any]) -> None:
    """Do a process's part, as `steps.nodes.worker` does with the pipeline's steps."""
    grpo.learning.distributed.PATIENCE = timedelta(seconds=job.get("patience", 600))  # type: ignore[misc]
    if job.get("place") == "checkpoint":
        at(job["step"], steps.bodies.training_loop, "save_checkpoint", DEEDS[job["deed"]], is_after=True)
    with joined_processes(CPU) as processes, reason_told():
        processes.refuse_unlike({"engine": job.get("engine", "Stockfish")}, CPU)
        if not processes.is_first:
            trained(job, processes, Work(Path(job["home"]), ()))
            return
        make_output(
            Store(Path(job["home"])),
            "finetune",
            "v1",
            facts={},
            body=lambda work: trained(job, processes, work),
            resumes=True,
            is_fresh=False,
            sinks=(),
            terminal=TerminalSink("finetune", (), lambda text: print(text, flush=True)),
        )


if __name__ == "__main__":
    end_with_parent(grace_seconds=30)
    leave(lambda: finetune(json.loads(sys.argv[1])))
