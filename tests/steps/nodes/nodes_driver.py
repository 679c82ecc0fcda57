"""Fine-tunes a tiny policy on several machines, which are processes with a home of their own each, and does there what a test says.

Imports everything, and then runs for each line of JSON it reads, a list of jobs, one forked process a job; answers with their process ids,
and when they have ended with how.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from doubles import CPU, TINY, MadeUpValues
from kill_driver import BOARDS, CONFIG, HELDOUT, TRAIN, at

import grpo.learning.distributed
import steps.bodies.finetune
import steps.bodies.training_loop
import steps.kinds.network
from grpo.base.errors import NonFiniteError, PlainError
from grpo.evaluation.regret import heldout_metrics
from grpo.learning.checkpoints import NETWORK_FORMAT
from grpo.learning.distributed import Processes
from grpo.learning.self_play import MixedStates, SelfPlay, state_counts
from grpo.learning.states import DatasetStates, StateSource
from grpo.learning.trainer import GrpoTrainer
from grpo.metrics.table import Record
from grpo.policy.distribution import new_policy
from grpo.settings.grpo import GrpoConfig
from steps.bodies.training_loop import TrainingLoop
from steps.nodes.sockets import Node
from steps.nodes.team import joined_nodes
from steps.nodes.worker import FINAL_EXIT, WorkerTask
from steps.pipeline.make_output import make_output
from steps.runtime.exit_codes import RESUMABLE
from steps.runtime.machine import Machine
from steps.step_io.work import TerminalSink, Work
from steps.store.outputs import Store

assert BOARDS
NO_TASK = WorkerTask(settings={}, boards="", pretrained="", checkpoint="", facts={}, rungs=[])


def fail() -> None:
    raise NonFiniteError("the weights are spoilt")


def stumble() -> None:
    raise ZeroDivisionError("a fault of the code")


DEEDS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
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
    if "deed" in job and job["place"] == "step":
        whole = trainer.step

        def step() -> Record:
            if trainer.num_steps_done + 1 == job["step"]:
                DEEDS[job["deed"]]()
            return whole()

        trainer.step = step  # type: ignore[method-assign]

    def play() -> dict[str, float]:
        with (Path(job["home"]) / "played.txt").open("a") as file:
            file.write(f"{trainer.num_steps_done}\n")
        return {}

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
        strength=play if job.get("plays") else None,
    ).run()


def finetune(job: dict[str, Any]) -> None:
    """Do a node's part, as the pipeline does."""
    home = Path(job["home"])
    node = Node(index=job["index"], count=job["count"], main_address="127.0.0.1", attempt=job["attempt"], num_processes=1)
    machine = Machine(stockfish="", home=home, tracking_uri="", device="cpu", num_threads=1)
    steps.bodies.finetune.finetune_policy = lambda settings, *, processes, work, **rest: trained(job, processes, work)  # type: ignore[assignment]
    steps.kinds.network.identify = lambda path: None  # type: ignore[assignment]
    grpo.learning.distributed.PATIENCE = timedelta(seconds=job.get("patience", 60))  # type: ignore[misc]
    if "deed" in job and job["place"] == "checkpoint":
        at(job["step"], steps.bodies.training_loop, "save_checkpoint", DEEDS[job["deed"]], is_after=True)
    with joined_nodes(node, machine, seconds_to_connect=20) as team:
        if job.get("place") == "beginning":
            DEEDS[job["deed"]]()
        team.met({"engine": job.get("engine", "Stockfish")})
        if team.leads:
            output = make_output(
                Store(home),
                "finetune",
                "v1",
                facts={},
                body=lambda work: team.finetune(NO_TASK, work, lambda found: None),
                resumes=True,
                is_fresh=False,
                sinks=(),
                terminal=TerminalSink("finetune", (), lambda text: print(text, flush=True)),
            )
            team.finished(output)
        else:
            output = team.help(lambda: NO_TASK)
    print(json.dumps(output), flush=True)


def run(job: dict[str, Any]) -> int:
    """Do a node's part and return how a step of the flow would end."""
    try:
        finetune(job)
    except SystemExit as end:
        return int(end.code or 0)
    except PlainError as error:
        print(f"finetune: {error}")
        return RESUMABLE if error.may_pass else FINAL_EXIT
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def serve() -> None:
    """Run forked processes for each list of jobs that comes in."""
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()  # Imports what torch imports late.
    for line in sys.stdin:
        children = []
        for job in json.loads(line):
            if not (child := os.fork()):
                Path(job["home"]).mkdir(parents=True, exist_ok=True)
                log = os.open(f"{job['home']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.chdir(job["home"])
                status = run(job)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
            children.append(child)
        print(json.dumps(children), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


if __name__ == "__main__":
    serve()
