"""Mirrors a step's journal (one line per record of metrics) to Weights & Biases (W&B); off by default (CHESS_GRPO_WANDB).

Each version of a step's task has one W&B run. Line N becomes row N. A restarted step sends all lines again; W&B ignores known rows.
Without key or network, W&B writes to a folder that `wandb sync` uploads.
"""

import hashlib
import os
import shlex
from typing import Any, Final

from grpo.settings.names import flattened
from steps import STEPS
from steps.run.machine import OFF, ONLINE, Machine
from steps.run.records import Attempt, Run
from steps.run.store import Store
from steps.track.sender import Sender, journal_of

KEY: Final = "WANDB_API_KEY"
_FOLDER: Final = "wandb"  # Below `Machine.home`; W&B's name.
_SECONDS_TO_BEGIN: Final = 30.0
_SECONDS_AT_END: Final = 20.0  # W&B's limit for the last rows; the step waits 10 s longer.


def mirror_of(machine: Machine, attempt: Attempt) -> Sender | None:
    is_online = machine.mirror == ONLINE and bool(os.environ.get(KEY))
    if machine.mirror == OFF:
        return None
    if machine.is_container and not is_online:
        print(f"{attempt.step}: WARNING: not logged to W&B: there is no {KEY}, and offline files would be lost with this disk", flush=True)
        return None
    store = Store.of(machine)
    sender = Sender("W&B", "`wandb sync` uploads the missing rows", attempt, store, _Mirror(machine, store, is_online=is_online).send)
    sender.seconds_at_end = _SECONDS_AT_END + 10
    return sender


class _Mirror:
    def __init__(self, machine: Machine, store: Store, *, is_online: bool) -> None:
        self._home, self._store, self._is_online = machine.home, store, is_online
        self._logged: Any = None
        self._num_sent = 0
        self._is_complete = False

    def send(self, run: Run, attempt: Attempt) -> str:
        if self._is_complete:
            return ""
        logged = self._logged = self._logged or self._init(run, attempt)
        rows = journal_of(attempt, self._store)
        for number, row in enumerate(rows[self._num_sent :], self._num_sent):
            metrics = {name: value for name, value in row["record"].items() if name != "events"}
            logged.log({**metrics, "_timestamp": row["time"] / 1_000}, step=number)
        self._num_sent = max(len(rows), self._num_sent)
        if attempt.ended is not None:
            self._is_complete = True
            is_closed = False
            try:
                logged.finish(exit_code=0 if attempt.status == "finished" else 1)
                is_closed = True
            finally:
                if not (is_closed or logged.offline):  # `finish` failed.
                    command = f"wandb sync --no-skip-online {shlex.quote(logged.settings.sync_dir)}"
                else:
                    command = self._upload_command() if attempt.status != "finished" or attempt.step == STEPS[-2] else ""
                if command:
                    print(f"{attempt.step}: saved offline for W&B; upload it by: {command}", flush=True)
        return ""

    def _upload_command(self) -> str:
        folder = self._home / _FOLDER
        is_open = any(not list(run.glob("*.synced")) for run in folder.glob("offline-run-*"))
        return f"wandb sync {shlex.quote(str(folder))}/offline-run-*" if is_open else ""

    def _init(self, run: Run, attempt: Attempt) -> Any:
        import wandb

        (self._home / _FOLDER).mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        key = f"{run.name}@{round(1_000 * run.started)}/{attempt.step}/{attempt.part}/{attempt.version}"
        arguments: dict[str, Any] = {
            "id": hashlib.sha256(key.encode()).hexdigest()[:16],
            "name": f"{run.name}/{attempt.step} {attempt.part}".rstrip(),
            "project": os.environ.get("WANDB_PROJECT") or "chess-grpo",
            "group": run.name,
            "job_type": attempt.step,
            "config": flattened(run.facts["settings"]) | run.facts["tags"],
            "dir": str(self._home),
            "resume": "allow",
            "reinit": "create_new",
            "settings": wandb.Settings(
                console="off",
                silent=True,
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
                init_timeout=_SECONDS_TO_BEGIN,
                finish_timeout=_SECONDS_AT_END,
                finish_timeout_raises=True,
            ),
        }
        try:
            logged = wandb.init(**arguments, mode="online" if self._is_online else "offline")
        except (wandb.errors.CommError, wandb.errors.UsageError):
            wandb.teardown()  # W&B's service still holds the run that failed to begin.
            logged = wandb.init(**arguments, mode="offline")
        # Charts show the record's step. W&B's own step must rise with every row, so it is the line's number.
        logged.define_metric("*", step_metric="step")
        return logged
