"""Mirrors a step's journal to Weights & Biases (W&B), in a thread of the step's process; off by default (CHESS_GRPO_WANDB).

One W&B run for each step and part, one row for each line of the journal, numbered as the lines are: W&B ignores a number that it has, so a
retry sends everything again and nothing is there twice. Without key or network W&B writes to its own folder, which `wandb sync` uploads.
"""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from grpo.settings.names import flattened
from steps.run.machine import Machine
from steps.run.machine import Mirror as Mode
from steps.run.records import Attempt, Run, Runs
from steps.run.store import Store

KEY: Final = "WANDB_API_KEY"
_FOLDER: Final = "wandb"
"""Folder below the home; W&B always uses this name."""
_PROJECT: Final = "chess-grpo"
_STEP: Final = "step"
"""The x axis of all charts: the training step. W&B's own step must increase with every row, the training step need not."""
_SECONDS_BETWEEN: Final = 5.0
_SECONDS_TO_BEGIN: Final = 30.0
_SECONDS_AT_END: Final = 20.0

Rows = Callable[[Attempt, Store], list[dict[str, Any]]]


def mirror_of(machine: Machine, attempt: Attempt, store: Store, rows: Rows) -> "Mirror | None":
    """Return what mirrors an attempt; None where that is off or its offline files would go with the disk."""
    if machine.mirror == Mode.OFF:
        return None
    if _mode(machine) == "offline" and machine.is_container:
        print(f"{attempt.step}: WARNING: not logged to W&B: there is no {KEY}, and offline files would be lost with this disk", flush=True)
        return None
    return Mirror(machine, attempt, store, rows)


class Mirror(threading.Thread):
    """Sends an attempt's journal while it grows. Its failures and its slowness do not affect the step."""

    def __init__(self, machine: Machine, attempt: Attempt, store: Store, rows: Rows) -> None:
        """Prepare; `start` begins, and setting `over` lets it send the rest and end."""
        super().__init__(name="wandb", daemon=True)
        self._machine, self._attempt, self._store, self._rows = machine, attempt, store, rows
        self.over = threading.Event()
        self._problem = ""
        self._offline = ""
        """The folder that `wandb sync` uploads."""

    def finish(self, seconds: float = _SECONDS_AT_END) -> None:
        """Wait, but not for long, and say in a line what is not in W&B yet."""
        self.over.set()
        self.join(seconds)
        problem = f"it did not finish within {seconds:.0f} s" if self.is_alive() else self._problem
        if problem:
            print(f"{self._attempt.step}: WARNING: not logged to W&B completely ({problem}): the run goes on", flush=True)
        elif self._offline:
            print(f"{self._attempt.step}: saved offline for W&B; upload it by: wandb sync {self._offline}", flush=True)

    def run(self) -> None:
        """Send lines until the attempt is over."""
        try:
            self._send()
        except Exception as error:  # noqa: BLE001 - W&B raises what it likes, and no tracker may end a step.
            self._problem = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"

    def _send(self) -> None:
        sent, logged = 0, self._begun()
        while True:
            is_last = self.over.wait(_SECONDS_BETWEEN)
            attempt = self._flow_run().latest()[self._attempt.step, self._attempt.part]
            rows = self._rows(attempt, self._store)
            for number, row in enumerate(rows[sent:], sent):
                metrics = {name: value for name, value in row["record"].items() if isinstance(value, int | float)}
                # When a run is resumed, W&B ignores rows with numbers that it already has.
                logged.log({**metrics, "_timestamp": row["time"] / 1_000}, step=number)
            sent = len(rows)
            if is_last:
                break
        logged.finish(exit_code=0 if attempt.status == "finished" else 1)
        if logged.offline:
            self._offline = logged.sync_dir
            # It holds the rows of earlier attempts too, whose folders `wandb sync` would upload again.
            for folder in (self._machine.home / _FOLDER).glob(f"offline-run-*-{logged.id}*"):
                if folder.name != Path(self._offline).name:
                    shutil.rmtree(folder)

    def _begun(self) -> Any:
        """Return W&B's run; offline where the network is away."""
        import wandb

        (self._machine.home / _FOLDER).mkdir(parents=True, exist_ok=True)
        for name in ("CACHE", "CONFIG", "DATA"):
            os.environ.setdefault(f"WANDB_{name}_DIR", str(self._machine.home / _FOLDER / "own"))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            logged = wandb.init(**self._arguments(), mode=_mode(self._machine))
        except (wandb.errors.CommError, wandb.errors.UsageError):
            wandb.teardown()  # Its service holds the run that failed to begin.
            logged = wandb.init(**self._arguments(), mode="offline")
        logged.define_metric(_STEP, hidden=True)
        logged.define_metric("*", step_metric=_STEP)
        return logged

    def _arguments(self) -> dict[str, Any]:
        import wandb

        run, attempt = self._flow_run(), self._attempt
        facts = run.facts
        which = f"{run.name}@{round(1_000 * run.started)}/{attempt.step}/{attempt.part}"
        commit = str(facts["code"].get("commit", ""))[:12]
        return {
            "id": hashlib.sha256(which.encode()).hexdigest()[:16],
            "name": f"{run.name}/{attempt.step} {attempt.part}".rstrip(),
            "project": os.environ.get("WANDB_PROJECT") or _PROJECT,
            "group": run.name,
            "job_type": attempt.step,
            "config": flattened(facts["settings"]) | facts["tags"],
            "tags": [attempt.step, *([f"commit {commit}"] if commit else [])],
            "dir": str(self._machine.home),
            "resume": "allow",
            "reinit": "create_new",
            "settings": wandb.Settings(
                console="off",
                silent=True,
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                save_code=False,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
                init_timeout=_SECONDS_TO_BEGIN,
                finish_timeout=_SECONDS_AT_END,
            ),
        }

    def _flow_run(self) -> Run:
        found = Runs(self._store).get(self._attempt.run)
        assert found is not None
        return found


def _mode(machine: Machine) -> Literal["online", "offline"]:
    return "online" if machine.mirror == Mode.ONLINE and os.environ.get(KEY) else "offline"
