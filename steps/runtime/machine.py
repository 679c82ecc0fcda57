"""Facts of the machine a step runs on: never settings, always from the environment."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from grpo.base.errors import PlainError
from steps.runtime.process_id import Writer

_DEBIAN_STOCKFISH: Final = "/usr/games/stockfish"  # Not on root's PATH.
SHARED: Final = "CHESS_GRPO_SHARED"
"""Variable: where several machines keep outputs of steps, `s3://BUCKET/PREFIX` or a folder that all reach."""
TASK: Final = "CHESS_GRPO_TASK"
ATTEMPT: Final = "CHESS_GRPO_ATTEMPT"
SECRETS: Final = "CHESS_GRPO_SECRETS"
"""Variable: names, with commas, of secrets in AWS Secrets Manager that hold variables of tasks elsewhere."""
MIRROR: Final = "CHESS_GRPO_WANDB"
"""Variable: a value of `Mirror`."""


class MachineError(PlainError, ValueError):
    """A variable of this machine cannot be read; the message says which, and what it may be."""


class Mirror(StrEnum):
    """Whether Weights & Biases is told what MLflow is told; see `steps.tracking.wandb_mirror`."""

    OFF = "off"
    OFFLINE = "offline"
    """Into a folder of the home, which `wandb sync` sends."""
    ONLINE = "online"
    """While the work goes on; offline where there is no key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where things are here."""

    stockfish: str
    """CHESS_GRPO_STOCKFISH, else `stockfish` on the PATH, else Debian's place."""
    home: Path
    """CHESS_GRPO_HOME, else `.chess_grpo` in the working directory: outputs of steps, and the embedded tracking store."""
    tracking_uri: str
    """MLFLOW_TRACKING_URI, else an sqlite file in `home`."""
    device: str
    """CHESS_GRPO_DEVICE, else `auto`: a GPU when torch finds one."""
    num_threads: int
    """Of torch; part of a trained step's version, since sums over threads round differently."""
    shared: str = ""
    """CHESS_GRPO_SHARED: where machines without a common disk keep outputs of steps; empty when this one works by itself."""
    is_container: bool = False
    """Whether this machine's disk vanishes with the task."""
    task: str = ""
    """CHESS_GRPO_TASK, which the flow sets: RUN/STEP/TASK; empty outside of one."""
    attempt: int = 0
    """CHESS_GRPO_ATTEMPT, which the flow sets: which try of that task this is."""
    mirror: Mirror = Mirror.OFF
    """CHESS_GRPO_WANDB: no setting, for what a step makes is the same with it and without."""

    @classmethod
    def here(cls) -> Self:
        """Return the facts of this machine; raises MachineError."""
        home = Path(os.environ.get("CHESS_GRPO_HOME") or ".chess_grpo").resolve()
        return cls(
            stockfish=os.environ.get("CHESS_GRPO_STOCKFISH") or shutil.which("stockfish") or _DEBIAN_STOCKFISH,
            home=home,
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}",
            device=os.environ.get("CHESS_GRPO_DEVICE") or "auto",
            num_threads=_num_threads(),
            shared=os.environ.get(SHARED) or "",
            is_container=is_container(os.environ),
            task=os.environ.get(TASK) or "",
            attempt=int(os.environ.get(ATTEMPT) or 0),
            mirror=_mirror(os.environ.get(MIRROR) or Mirror.OFF),
        )

    @property
    def writer(self) -> Writer:
        """This process, as leases name it."""
        return Writer.here(self.task, self.attempt)

    @property
    def leases(self) -> str | Path:
        """Where leases are that all have who write to the same tracked runs."""
        return self.shared or self.home

    @property
    def value_cache(self) -> Path:
        """Where engine answers are kept, for all runs of this home."""
        return self.home / "values"

    @property
    def artifact_root(self) -> Path | None:
        """Where an sqlite tracking store keeps files: beside itself, so that all who share the one find the other; None with a server."""
        file = sqlite_file(self.tracking_uri)
        return None if file is None else file.parent / "mlartifacts"


def _num_threads() -> int:
    given = os.environ.get("CHESS_GRPO_THREADS") or str(len(os.sched_getaffinity(0)))
    if not (given.isdecimal() and int(given)):
        raise MachineError(f"CHESS_GRPO_THREADS={given}: give a number of 1 or more; unset, it is the number of cores")
    return int(given)


def _mirror(value: str) -> Mirror:
    try:
        return Mirror(value)
    except ValueError:
        raise MachineError(f"{MIRROR}={value}: it may be {', '.join(Mirror)}; unset, it is {Mirror.OFF}") from None


def is_container(environment: Mapping[str, str]) -> bool:
    """Return whether these are the variables of a task that AWS Batch or Kubernetes runs."""
    return "AWS_BATCH_JOB_ID" in environment or "METAFLOW_KUBERNETES_WORKLOAD" in environment


def sqlite_file(tracking_uri: str) -> Path | None:
    """Return the file of an sqlite tracking store; None for another kind of store.

    >>> sqlite_file("sqlite:////shared/mlflow.db")
    PosixPath('/shared/mlflow.db')
    """
    prefix = "sqlite:///"
    return Path(tracking_uri.removeprefix(prefix)).resolve() if tracking_uri.startswith(prefix) else None
