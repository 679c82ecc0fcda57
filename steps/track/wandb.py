"""Mirrors a step's journal to Weights & Biases (W&B), in a thread of the step's process; off by default (CHESS_GRPO_WANDB).

One W&B run for each step and part, one row for each line of the journal, numbered as the lines are: W&B ignores a number that it has, so a
retry sends everything again and nothing is there twice. Without key or network W&B writes to its own folder, which `wandb sync` uploads.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, Final

from grpo.settings.names import flattened
from steps.run.machine import Machine
from steps.run.machine import Mirror as Mode
from steps.run.records import Attempt
from steps.run.store import Store
from steps.track.sender import Sender, journal_of

KEY: Final = "WANDB_API_KEY"
_FOLDER: Final = "wandb"
"""Folder below the home; W&B always uses this name."""
_SECONDS_TO_BEGIN: Final = 30.0
_SECONDS_AT_END: Final = 20.0
"""How long W&B may send what it has not sent yet; the step waits as long and a little longer."""


def mirror_of(machine: Machine, attempt: Attempt) -> "Mirror | None":
    """Return what mirrors an attempt; None where that is off or its offline files would go with the disk."""
    is_online = machine.mirror == Mode.ONLINE and bool(os.environ.get(KEY))
    if machine.mirror == Mode.OFF:
        return None
    if machine.is_container and not is_online:
        print(f"{attempt.step}: WARNING: not logged to W&B: there is no {KEY}, and offline files would be lost with this disk", flush=True)
        return None
    return Mirror(machine, attempt, is_online=is_online)


class Mirror(Sender):
    """Sends an attempt's journal to W&B."""

    tracker = "W&B"
    later = "what is not there is in its folder"

    def __init__(self, machine: Machine, attempt: Attempt, *, is_online: bool) -> None:
        """Prepare; `start` begins."""
        super().__init__(attempt, Store.of(machine), seconds_at_end=_SECONDS_AT_END + 10)
        self._home, self._is_online = machine.home, is_online
        self._logged: Any = None
        self._num_sent = 0

    def finish(self) -> None:
        """Wait, but not for long, and say what `wandb sync` takes to upload what is not in W&B yet."""
        super().finish()
        if self._logged is not None:
            own = self._logged.settings.sync_dir
            self.say(f"saved offline for W&B; upload it by: wandb sync {own if self._logged.offline else f'--no-skip-online {own}'}")

    def send(self, *, is_last: bool) -> str:
        """Send the lines that W&B does not have, and the last time how the attempt ended."""
        logged = self._logged = self._logged or self._begun()
        attempt = self.flow_run().latest()[self.attempt.step, self.attempt.part]
        rows = journal_of(attempt, self.store)
        for number, row in enumerate(rows[self._num_sent :], self._num_sent):
            metrics = {name: value for name, value in row["record"].items() if name != "events"}
            # When a run is resumed, W&B ignores rows with numbers that it already has.
            logged.log({**metrics, "_timestamp": row["time"] / 1_000}, step=number)
        self._num_sent = len(rows)
        if is_last:
            logged.finish(exit_code=0 if attempt.status == "finished" else 1)
            if logged.offline:
                # It holds the rows of earlier attempts too, whose folders `wandb sync` would upload again.
                for folder in (self._home / _FOLDER).glob(f"offline-run-*-{logged.id}*"):
                    if folder.name != Path(logged.settings.sync_dir).name:
                        shutil.rmtree(folder)
            else:
                self._logged = None
        return ""

    def _begun(self) -> Any:
        """Return W&B's run; offline where the network is away."""
        import wandb

        (self._home / _FOLDER).mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        run, attempt = self.flow_run(), self.attempt
        which = f"{run.name}@{round(1_000 * run.started)}/{attempt.step}/{attempt.part}"
        arguments: dict[str, Any] = {
            "id": hashlib.sha256(which.encode()).hexdigest()[:16],
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
            wandb.teardown()  # Its service holds the run that failed to begin.
            logged = wandb.init(**arguments, mode="offline")
        # The x axis of all charts: W&B's own step must increase with every row, the training step need not.
        logged.define_metric("*", step_metric="step")
        return logged
