"""Mirrors what a step logs to MLflow to Weights & Biases (W&B); off by default, and never blocks the step.

The journal from which MLflow is fed (`steps.tracking.journal`) gets a hard link in a folder of the mirror, which stays until W&B has all
of it. A separate process (`steps.tracking.wandb_process`) follows the journal, so W&B's library is never imported in the step's process.
When the step ends, that process gets some seconds to finish and is then killed. A later step or `chess-grpo track` sends an unfinished
journal again from the beginning, into the same W&B run.
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
from steps.tracking.journal import JournalFolder

KEY: Final = "WANDB_API_KEY"
MIRROR_FOLDER: Final = "wandb"
"""Folder below the home; W&B always uses this name."""
RUN_SUFFIX: Final = ".wandb_run"
"""Suffix of the file beside a journal with its `WandbRun`."""
LOG_SUFFIX: Final = ".log"
"""Suffix of the file beside a journal with the process's output."""
_PROJECT: Final = "chess-grpo"
_PASSED_ON: Final = (KEY, "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_PROJECT")
"""Variables that the process inherits; W&B's others would change a run's name or location."""
_SECONDS_AT_END: Final = 20.0
"""Time-out at the end of a step that succeeded; the process takes some seconds to start, and a step may be short."""
_SECONDS_AT_FAILURE: Final = 5.0


class WandbRun(TypedDict):
    """The arguments of `wandb.init` for a step."""

    id: str
    """The same for all attempts of a task."""
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
    """Yield a function that starts to mirror a journal, given its path; the mirror runs while the block lasts.

    Its failures do not affect the step: one line of the log says what was not sent, and why.
    """
    if _mode(machine, step) == Mirror.OFF:
        yield lambda _: None
        return
    followers: list[_MirrorProcess] = []

    def follow(journal: Path) -> None:
        wandb_run = WandbRun(
            # From the task, if there is one: a retry resumes the same W&B run.
            id=hashlib.sha256((f"{flow_run}/{machine.task}" if machine.task else str(journal)).encode()).hexdigest()[:16],
            name=f"{flow_run}/{step}",
            group=flow_run,
            job_type=step,
            config=_flat(settings) | dict(tags),
            tags=_labels(step, tags),
        )
        try:
            followers.append(_MirrorProcess(machine, journal, wandb_run))
        except OSError as error:
            print(f"{step}: WARNING: this step is not logged to W&B: {error}", flush=True)

    seconds = _SECONDS_AT_FAILURE
    try:
        yield follow
        seconds = _SECONDS_AT_END
    finally:
        for follower in followers:
            follower.finish(seconds)


def mirror_journals(home: Path) -> JournalFolder:
    """Return the journals that W&B does not have completely."""
    return JournalFolder(home / MIRROR_FOLDER)


def mirror_process(machine: Machine, *journal: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start a process that sends this journal to W&B until its standard input closes, and then pending journals of earlier steps."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") or name in _PASSED_ON}
    environment |= {"WANDB_MODE": _reachable(machine), "PYTHONPATH": str(ROOT), "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    environment.setdefault("WANDB_PROJECT", _PROJECT)
    for name in ("CACHE", "CONFIG", "DATA"):
        environment[f"WANDB_{name}_DIR"] = str(machine.home / MIRROR_FOLDER / "own")
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "steps.tracking.wandb_process", str(machine.home), *map(str, journal)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C must not reach it.
        )


class _MirrorProcess:
    """Handle of the process that follows a journal."""

    def __init__(self, machine: Machine, journal: Path, wandb_run: WandbRun) -> None:
        """Start the process; raises OSError when hard links are not supported or no process can be started."""
        self._wandb_run = wandb_run
        self._folder = machine.home / MIRROR_FOLDER
        self._journal = mirror_journals(machine.home).folder / journal.parent.name / journal.name
        self._journal.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._journal.with_suffix(RUN_SUFFIX), wandb_run)
        # A hard link: MLflow's delivery and the mirror delete only their own link.
        self._journal.hardlink_to(journal)
        self._process = mirror_process(machine, self._journal, log=self._journal.with_suffix(LOG_SUFFIX))

    def finish(self, seconds: float) -> None:
        """Wait for the process to finish, kill it after the time-out, and print what was not sent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        step, why = self._wandb_run["job_type"], ""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            why = f"it did not finish within {seconds:.0f} s"
        if self._journal.exists():
            print(
                f"{step}: WARNING: this step is not completely logged to W&B"
                f" ({why or last_line(self._journal.with_suffix(LOG_SUFFIX))}): the run continues, MLflow is not affected, and a later step"
                " or `chess-grpo track` logs it again",
                flush=True,
            )
        for folder in sorted(self._folder.glob(f"offline-run-*-{self._wandb_run['id']}"))[-1:]:
            print(f"{step}: saved offline for W&B; upload it by: wandb sync {folder}", flush=True)


def last_line(log: Path) -> str:
    """Return the last line of a process's output."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _mode(machine: Machine, step: str) -> Mirror:
    mode = _reachable(machine)
    if mode == Mirror.OFFLINE and machine.is_container:
        print(
            f"{step}: WARNING: this step is not logged to W&B: there is no {KEY}, and offline files would be lost with this disk",
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
