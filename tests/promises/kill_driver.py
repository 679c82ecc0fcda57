"""Fine-tunes tiny policies in processes of its own, and kills them where a test says: a process of `forking.py`.

A job names the home, the kind of policy, changes of `[grpo]`, and perhaps a failpoint with the number of the call at which it strikes, or
the file of a spot interruption notice, to be watched.
"""

import contextlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "grpo"), str(TESTS / "steps")]

import small_language  # noqa: E402
import tiny_training  # noqa: E402
import torch  # noqa: E402
from doubles import CPU, MadeUpValues  # noqa: E402
from forking import at, serve  # noqa: E402

import grpo.policy.checkpoints  # noqa: E402
import grpo.train.self_play  # noqa: E402
import steps.common.training_loop  # noqa: E402
import steps.finetune  # noqa: E402
import steps.language.finetune  # noqa: E402
import steps.run.store  # noqa: E402
import steps.run.work  # noqa: E402
from grpo.language.model.policy import LanguagePolicy  # noqa: E402
from steps.batch.spot_notice import sigterm_on_spot_notice  # noqa: E402

Deed = Callable[[], None]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)


def pause() -> None:
    """Wait for a signal; one that is only noted lets the process go on."""
    told, teller = os.pipe()
    os.set_blocking(teller, False)
    signal.set_wakeup_fd(teller)  # It misses no signal, however early it comes.
    os.write(1, b"paused\n")  # In one piece: who reads it sends a signal, whose line must not come amid this one.
    os.read(told, 1)
    signal.set_wakeup_fd(-1)


def pause_twice() -> None:
    """Wait for one signal, and for another."""
    pause()
    pause()


DEEDS: dict[str, Deed] = {"kill": kill, "pause": pause, "pause twice": pause_twice}


def within_line(nth: int, deed: Deed) -> None:
    whole, calls = steps.run.work.append_line, 0

    def wrapped(path: Path, line: str) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            with path.open("a") as file:
                file.write(line[: len(line) // 2])
            deed()
        whole(path, line)

    steps.run.work.append_line = wrapped


def within_deletion(nth: int, deed: Deed) -> None:
    at(nth, steps.common.training_loop, "remove_folder", lambda: at(1, shutil, "rmtree", deed))


LOOP, CHECKPOINTS, STORE = steps.common.training_loop, grpo.policy.checkpoints, steps.run.store
FAILPOINTS: dict[str, Callable[[int, Deed], None]] = {
    "before the look at the first rollout": lambda nth, deed: at(nth, LOOP.LiveDiagnosis, "refuse", deed),
    "after the rollout": lambda nth, deed: at(nth, torch.nn.utils, "clip_grad_norm_", deed),
    "before a measurement": lambda nth, deed: at(nth, LOOP.TrainingLoop, "_with_measurements", deed),
    "before the journal's line": lambda nth, deed: at(nth, steps.run.work, "append_line", deed),
    "within the journal's line": within_line,
    "after the journal's line": lambda nth, deed: at(nth, steps.run.work, "append_line", deed, is_after=True),
    # The policy's are written, the training state's is not.
    "between two files of a checkpoint": lambda nth, deed: at(nth, CHECKPOINTS, "write_tensors", deed),
    "before the checkpoint": lambda nth, deed: at(nth, LOOP, "save_checkpoint", deed),
    "before the checkpoint gets its name": lambda nth, deed: at(nth, os, "rename", deed),
    "while a checkpoint is deleted": within_deletion,
    "before the report": lambda nth, deed: at(nth, LOOP, "weights_hash", deed),
    "when training is over": lambda nth, deed: at(nth, LOOP, "copy_folder", deed),
    "before the output's manifest": lambda nth, deed: at(nth, STORE, "write_manifest", deed),
    "when the output is in the store": lambda nth, deed: at(nth, STORE, "remove_folder", deed),
}


def finetune(job: dict[str, Any]) -> None:
    """Make the output of a tiny fine-tuning in the job's home, or go on with it."""
    torch.set_num_threads(1)
    LOOP.NUM_CHECKPOINTS_KEPT = 3
    grpo.train.self_play.MAX_PLIES = 16
    steps.finetune.value_tables = lambda boards, *_, **__: MadeUpValues()(boards)
    if "failpoint" in job:
        FAILPOINTS[job["failpoint"]](job["nth"], DEEDS[job.get("deed", "kill")])
    if "limit" in job:
        nth, size = job["limit"]
        at(nth, LOOP, "save_checkpoint", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    given = tiny_training.settings(job["kind"], **job.get("grpo", {}))
    with sigterm_on_spot_notice(Path(job["notice"])) if "notice" in job else contextlib.nullcontext():
        tiny_training.finetune(
            Path(job["home"]),
            Path(job["prepared"]),
            given,
            say=lambda text: print(text, flush=True),
        )


if __name__ == "__main__":
    # These import what torch and transformers import late.
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()
    LanguagePolicy.load(small_language.pretrained_folder(), CPU)
    serve(finetune)
