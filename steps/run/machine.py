"""Facts of this machine, mostly from environment variables; no settings, because several machines may work on a run."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, unquote

from grpo.base.errors import PlainError

_DEBIAN_STOCKFISH: Final = "/usr/games/stockfish"  # Not on root's PATH.
# Environment variables.
STORE: Final = "CHESS_GRPO_STORE"  # Store of outputs and records: a folder or `s3://BUCKET/PREFIX`.
TASK: Final = "CHESS_GRPO_TASK"  # RUN/STEP/TASK; the flow sets it.
BATCH_JOB: Final = "AWS_BATCH_JOB_ID"  # AWS Batch sets it.
POD: Final = "METAFLOW_KUBERNETES_WORKLOAD"  # Metaflow sets it in Kubernetes.
SECRETS: Final = "CHESS_GRPO_SECRETS"  # Names in AWS Secrets Manager, comma-separated; containers get the secrets as variables.
MIRROR: Final = "CHESS_GRPO_WANDB"  # Copy of the metrics in Weights & Biases: OFF, OFFLINE or ONLINE.
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
OFF: Final = "off"  # No copy; the default.
OFFLINE: Final = "offline"  # A folder in `Machine.home`, which `wandb sync` uploads.
ONLINE: Final = "online"  # Sent while the step runs; without an API key, the same as `offline`.
# AWS's rules for bucket names, without reserved prefixes and suffixes.
_BUCKET: Final = re.compile(r"(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]*://)(\S*)", re.IGNORECASE)


class MachineError(PlainError, ValueError):
    """The environment is invalid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    stockfish: str  # CHESS_GRPO_STOCKFISH, else `stockfish` on the PATH, else Debian's path.
    home: Path  # CHESS_GRPO_HOME, else `.chess_grpo` in the working directory: outputs and SQLite tracking store.
    tracking_uri: str  # MLFLOW_TRACKING_URI, else an SQLite file in `home`.
    device: str  # CHESS_GRPO_DEVICE: `cpu`, `cuda` or (default) `auto`, a GPU if torch finds one.
    num_threads: int  # Torch's threads, and processes: CHESS_GRPO_THREADS, else all usable cores. The number changes rounding.
    store: str = ""  # CHESS_GRPO_STORE; empty for `home`.
    is_container: bool = False
    task: str = ""  # CHESS_GRPO_TASK; empty outside of a flow.
    mirror: str = OFF  # CHESS_GRPO_WANDB.

    @classmethod
    def here(cls) -> Self:
        """Raises MachineError."""
        require_home()
        home = Path(os.environ.get("CHESS_GRPO_HOME") or ".chess_grpo").resolve()
        return cls(
            stockfish=os.environ.get("CHESS_GRPO_STOCKFISH") or shutil.which("stockfish") or _DEBIAN_STOCKFISH,
            home=home,
            tracking_uri=_absolute(os.environ.get("MLFLOW_TRACKING_URI") or sqlite_address(home / "mlflow.db")),
            device=_one_of("CHESS_GRPO_DEVICE", ("auto", "cpu", "cuda")),
            num_threads=_num_threads(),
            store=store_place(os.environ),
            is_container=is_container(os.environ),
            task=os.environ.get(TASK) or "",
            mirror=_one_of(MIRROR, (OFF, OFFLINE, ONLINE)),
        )

    @property
    def num_engines(self) -> int:
        """One more than cores, because an engine waits while Python reads its answer."""
        return self.num_threads + 1

    @property
    def shown_uri(self) -> str:
        return without_secrets(self.tracking_uri)


def require_home() -> None:
    """Raise MachineError if the user has no home folder, where several libraries read configuration."""
    try:
        Path.home()
    except RuntimeError:
        raise MachineError(f"user {os.getuid()} has no home folder, and HOME is not set: set HOME to a writable folder") from None


def _num_threads() -> int:
    text = os.environ.get("CHESS_GRPO_THREADS") or str(len(os.sched_getaffinity(0)))
    if not (text.isdecimal() and int(text)):
        raise MachineError(f"CHESS_GRPO_THREADS={text}: give a number of 1 or more; unset, it is the number of cores")
    return int(text)


def _absolute(address: str) -> str:
    """Complete a relative path, which would name another store in each directory."""
    for prefix, folder in (("sqlite:///", sqlite_address(Path.cwd())), ("file:", Path.cwd().as_uri())):
        path = address.removeprefix(prefix)
        if address.startswith(prefix) and not path.startswith("/"):
            return f"{folder}/{os.path.normpath(path)}"
    return address


def _one_of(name: str, allowed: Sequence[str]) -> str:
    value = os.environ.get(name) or allowed[0]
    if value not in allowed:
        raise MachineError(f"{name}={value}: it may be {', '.join(allowed)}; unset, it is {allowed[0]}")
    return value


def store_place(environment: Mapping[str, str]) -> str:
    """Return CHESS_GRPO_STORE: an S3 address, a folder's absolute path, or "".

    Raises MachineError for a scheme other than `s3`, an invalid bucket name, and an address with keys, user or query.
    """
    address = environment.get(STORE) or ""
    scheme, is_url, rest = address.partition("://")
    if is_url and (scheme != "s3" or not rest.partition("/")[0]):
        raise MachineError(
            f"{STORE}={without_secrets(address)}: only S3 and folders can refuse to overwrite an output: give s3://BUCKET/PREFIX"
            " or a folder; unset, it is CHESS_GRPO_HOME"
        )
    if is_url and without_secrets(address) != address:
        raise MachineError(
            f"{STORE}={without_secrets(address)}: give s3://BUCKET/PREFIX without keys, user or query (not shown here), because records and"
            " logs hold the address; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    if is_url and not _BUCKET.fullmatch(bucket := rest.partition("/")[0]):
        raise MachineError(
            f"{STORE}={address}: S3 has no bucket {bucket!r}; give s3://BUCKET/PREFIX, where BUCKET has 3 to 63 lowercase letters, digits,"
            " hyphens and dots, begins and ends with a letter or digit, and is no IP address"
        )
    return address if is_url or not address else str(Path(address).resolve())


def is_container(environment: Mapping[str, str]) -> bool:
    return not {BATCH_JOB, POD}.isdisjoint(environment)


def sqlite_address(file: Path) -> str:
    """Return a file's address for SQLAlchemy.

    >>> sqlite_address(Path("/what?/50%/mlflow.db"))
    'sqlite:////what%3F/50%25/mlflow.db'
    """
    return f"sqlite:///{quote(str(file), safe='/ @:+=,;~()')}"


def sqlite_file(tracking_uri: str) -> Path | None:
    """Return an SQLite store's file, or None.

    >>> sqlite_file("sqlite:////shared/50%25/mlflow.db")
    PosixPath('/shared/50%/mlflow.db')
    """
    prefix = "sqlite:///"
    path, _, _ = tracking_uri.removeprefix(prefix).partition("?")
    return Path(unquote(path)).resolve() if tracking_uri.startswith(prefix) else None


def without_secrets(text: str) -> str:
    """Keep only scheme, host, port and path of addresses in a text. An SQLite address stays.

    >>> without_secrets("postgresql://me:S3cret@host/db?password=S3cret refuses")
    'postgresql://host/db refuses'
    """
    return text if sqlite_file(text) else _ADDRESS.sub(_shown, text)


def _shown(address: re.Match[str]) -> str:
    scheme, rest = address.groups()
    location, _, query = rest.replace("#", "?").partition("?")
    if rest.startswith("/"):  # A local file or database: an @ belongs to the path.
        return f"{scheme}{location}"
    # If an @ follows, the question mark may belong to the password.
    return f"{scheme}..." if "@" in query else f"{scheme}{location.rpartition('@')[2]}"
