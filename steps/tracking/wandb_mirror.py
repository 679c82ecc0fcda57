"""Mirrors what a step logs to MLflow to Weights & Biases (W&B); off by default, and never blocks the step.

W&B is a second reader of the step's journal (`steps.tracking.journal`). A separate process (`steps.tracking.wandb_process`) follows the
journal, so W&B's library is never imported in the step's process. When the step ends, that process gets some seconds to finish and is
then killed. A later step or `chess-grpo track` sends an unfinished journal again from the beginning, into the same W&B run.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from steps.runtime.machine import Machine, Mirror
from steps.store.versions import ROOT
from steps.tracking.journal import Journal, Reader

KEY: Final = "WANDB_API_KEY"
MIRROR_FOLDER: Final = "wandb"
"""Folder below the home; W&B always uses this name."""
SAVED_OFFLINE: Final = "saved offline for W&B"
"""How the process begins a line of its output that people should see."""
_PROJECT: Final = "chess-grpo"
_PASSED_ON: Final = (KEY, "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_PROJECT")
"""Variables that the process inherits; W&B's others would change a run's name or location."""
_SECONDS_AT_END: Final = 20.0
"""Time-out at the end of a step that succeeded; the process takes some seconds to start, and a step may be short."""
_SECONDS_AT_FAILURE: Final = 5.0


class MirrorProcess:
    """The process that sends journals to W&B."""

    def __init__(self, machine: Machine, journal: Journal | None = None) -> None:
        """Start it: it follows this journal until `finish`, and then sends pending journals; raises OSError when that is impossible."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") or name in _PASSED_ON}
        environment |= {"WANDB_MODE": _mode(machine), "PYTHONPATH": str(ROOT), "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        environment.setdefault("WANDB_PROJECT", _PROJECT)
        for name in ("CACHE", "CONFIG", "DATA"):
            environment[f"WANDB_{name}_DIR"] = str(machine.home / MIRROR_FOLDER / "own")
        command = [sys.executable, "-m", "steps.tracking.wandb_process", str(machine.home), machine.shared]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - `finish` reads it.
        try:
            self._process = subprocess.Popen(
                command if journal is None else [*command, str(journal.path)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                env=environment,
                start_new_session=True,  # Ctrl-C must not reach it.
            )
        except OSError:
            self._output.close()
            raise

    def finish(self, whose: str, seconds: float | None = None) -> str:
        """Wait for it, print for `whose` what it saved offline, and return why it failed, or an empty string; after the time, kill it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._output:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                return f"it did not finish within {seconds:.0f} s"
            self._output.seek(0)
            lines = [line.strip() for line in self._output.read().decode(errors="replace").split("\n") if line.strip()]
        for line in lines:
            if line.startswith(SAVED_OFFLINE):
                print(f"{whose}: {line}", flush=True)
        return "" if not self._process.returncode else (lines or ["no output"])[-1]


@contextmanager
def mirrored(machine: Machine, step: str, journal: Journal) -> Iterator[None]:
    """Send a journal to W&B, if that is one of its readers, while the block lasts, and then wait, but not for long.

    Its failures do not affect the step: one line of the log says what was not sent, and why.
    """
    process, why, seconds = None, "", _SECONDS_AT_FAILURE
    try:
        if journal.state(Reader.WANDB) is not None:
            process = MirrorProcess(machine, journal)
    except OSError as error:
        why = str(error)
    try:
        yield
        seconds = _SECONDS_AT_END
    finally:
        if process is not None:
            why = process.finish(step, seconds)
        if journal.state(Reader.WANDB) is not None:
            print(
                f"{step}: WARNING: this step is not completely logged to W&B ({why}): the run continues, MLflow is not affected, and a"
                " later step or `chess-grpo track` logs it again",
                flush=True,
            )


def readers_of(machine: Machine, step: str) -> list[Reader]:
    """Return who reads the journal of a step on this machine; warn when W&B should and cannot."""
    mode = _mode(machine)
    if mode == Mirror.OFFLINE and machine.is_container:
        print(
            f"{step}: WARNING: this step is not logged to W&B: there is no {KEY}, and offline files would be lost with this disk",
            flush=True,
        )
        mode = Mirror.OFF
    return [Reader.MLFLOW] if mode == Mirror.OFF else [Reader.MLFLOW, Reader.WANDB]


def _mode(machine: Machine) -> Mirror:
    return Mirror.OFFLINE if machine.mirror == Mirror.ONLINE and not os.environ.get(KEY) else machine.mirror
