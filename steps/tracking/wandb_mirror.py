"""Weights & Biases as a mirror of what MLflow is told of a step: off by default, and never in the way.

The journal that the tracking store is told from (`steps.tracking.journal`) gets a second name, in an outbox of the mirror's own, which
stays until the mirror has all of it. A process beside the work (`steps.tracking.wandb_process`) follows it, so that nothing of W&B's
library is ever in the step's own: no thread, no hook, no wait. When the step ends it has some seconds to come to the end, and is killed
after them; what it left is told again from the beginning, into the same W&B run, by a later step's or by `chess-grpo track`.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.base.files import write_json
from steps.runtime.machine import Machine, Mirror
from steps.store.versions import ROOT
from steps.tracking.journal import Outbox

KEY: Final = "WANDB_API_KEY"
MIRROR_FOLDER: Final = "wandb"
"""Below the home; W&B gives its folder that name, whatever it is asked for."""
HEAD: Final = ".head"
"""Suffix of the file beside a journal that holds its `Head`."""
LOG: Final = ".log"
"""Suffix of the file beside a journal with what the process has said."""
_PROJECT: Final = "chess-grpo"
_PASSED_ON: Final = (KEY, "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_PROJECT")
"""Of W&B's variables; the others would change what a run is called, or where it is kept."""
_SECONDS_AT_END: Final = 20.0
"""For what is still to be told when a step has ended well: its process takes some to begin, and a step may be short."""
_SECONDS_AT_FAILURE: Final = 5.0


class Head(TypedDict):
    """What W&B must know when a run begins."""

    id: str
    """The same for all tries of a task."""
    name: str
    group: str
    """The flow run."""
    job_type: str
    """The step."""
    config: dict[str, Any]
    """The settings, flat, and the step's first tags."""
    tags: list[str]


@contextmanager
def mirrored(
    machine: Machine, *, flow_run: str, step: str, settings: Mapping[str, Any], tags: Mapping[str, Any]
) -> Iterator[Callable[[Path], None]]:
    """Give a function that takes the path of the step's journal: from then on, while the block lasts, W&B is told what stands in it.

    Whatever becomes of that, the step knows nothing of it: a line of its log says what was not told, and why.
    """
    if _mode(machine, step) == Mirror.OFF:
        yield lambda _: None
        return
    followers: list[_Follower] = []

    def follow(journal: Path) -> None:
        head = Head(
            # By the task where there is one: its next try goes on in the same run.
            id=hashlib.sha256((f"{flow_run}/{machine.task}" if machine.task else str(journal)).encode()).hexdigest()[:16],
            name=f"{flow_run}/{step}",
            group=flow_run,
            job_type=step,
            config=_flat(settings) | dict(tags),
            tags=_labels(step, tags),
        )
        try:
            followers.append(_Follower(machine, journal, head))
        except OSError as error:
            print(f"{step}: WARNING: W&B is not told of this step: {error}", flush=True)

    seconds = _SECONDS_AT_FAILURE
    try:
        yield follow
        seconds = _SECONDS_AT_END
    finally:
        for follower in followers:
            follower.finish(seconds)


def mirror_outbox(home: Path) -> Outbox:
    """Return the journals that W&B was not told whole."""
    return Outbox(home / MIRROR_FOLDER)


def mirror_process(machine: Machine, *journal: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start a process that tells W&B this journal, until its standard input ends, and what is left of earlier ones."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") or name in _PASSED_ON}
    environment |= {"WANDB_MODE": _reachable(machine), "PYTHONPATH": str(ROOT), "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    environment.setdefault("WANDB_PROJECT", _PROJECT)
    for name in ("CACHE", "CONFIG", "DATA"):
        environment[f"WANDB_{name}_DIR"] = str(machine.home / MIRROR_FOLDER / "own")
    with log.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "steps.tracking.wandb_process", str(machine.home), *map(str, journal)],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            env=environment,
            start_new_session=True,  # A key that ends the work is not meant for it.
        )


class _Follower:
    """The process that follows a journal, as the step sees it."""

    def __init__(self, machine: Machine, journal: Path, head: Head) -> None:
        """Start to follow; raises OSError where a file has one name only, or no process can be started."""
        self._head = head
        self._folder = machine.home / MIRROR_FOLDER
        self._journal = mirror_outbox(machine.home).folder / journal.parent.name / journal.name
        self._journal.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._journal.with_suffix(HEAD), head)
        # The same file: who has told all of it takes away no more than his own name.
        self._journal.hardlink_to(journal)
        self._process = mirror_process(machine, self._journal, log=self._journal.with_suffix(LOG))

    def finish(self, seconds: float) -> None:
        """Let it come to the end, for some seconds, and say what became of it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        step, why = self._head["job_type"], ""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            why = f"it was not done within {seconds:.0f} s"
        if self._journal.exists():
            print(
                f"{step}: WARNING: W&B was not told all of this step ({why or last_line(self._journal.with_suffix(LOG))}): the run goes on,"
                " MLflow has it all, and a later step or `chess-grpo track` tells it again",
                flush=True,
            )
        for folder in sorted(self._folder.glob(f"offline-run-*-{self._head['id']}"))[-1:]:
            print(f"{step}: kept for W&B, which was not asked: wandb sync {folder}", flush=True)


def last_line(log: Path) -> str:
    """Return the last line that a process has said."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _mode(machine: Machine, step: str) -> Mirror:
    mode = _reachable(machine)
    if mode == Mirror.OFFLINE and machine.is_container:
        print(
            f"{step}: WARNING: W&B is not told of this step: there is no {KEY}, and what is kept offline would go with this disk",
            flush=True,
        )
        return Mirror.OFF
    return mode


def _reachable(machine: Machine) -> Mirror:
    return Mirror.OFFLINE if machine.mirror == Mirror.ONLINE and not os.environ.get(KEY) else machine.mirror


def _labels(step: str, tags: Mapping[str, Any]) -> list[str]:
    labels = [step, *([f"commit {str(tags['git.commit'])[:12]}"] if tags.get("git.commit") else [])]
    return [*labels, "uncommitted changes"] if tags.get("git.dirty") else labels


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
