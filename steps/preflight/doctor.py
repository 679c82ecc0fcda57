"""The checks of `chess-grpo doctor` besides the preflight: Python, packages, unsent tracking records, AWS Batch, Weights & Biases."""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from grpo.base.files import CorruptError, parse_json_object
from grpo.settings.tree import ConfigError, Settings
from steps.batch.destination import DestinationError, prepare
from steps.kinds.lookup import kind_of
from steps.preflight.checks import PreflightCheck, preflight
from steps.preflight.moved_home import homes_elsewhere
from steps.runtime.machine import MIRROR, Machine, Mirror
from steps.store.versions import LOCKS, describe_code, installed_lock

PYTHON: Final = (3, 11)
"""The version that pyproject.toml requires."""
_PIN: Final = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
_SHOWN: Final = 5
_KEY: Final = "WANDB_API_KEY"
_FOR_BATCH: Final[Mapping[str, str]] = {
    "METAFLOW_BATCH_JOB_QUEUE": "the queue that tasks are sent to",
    "METAFLOW_DATASTORE_SYSROOT_S3": "where artifacts and the code package go",
    "METAFLOW_ECS_S3_ACCESS_IAM_ROLE": "the role by which a task reaches them",
}
"""Metaflow settings that `run --with batch` requires; infra/stack.yaml outputs their values."""


def examine(settings: Settings | ConfigError, machine: Machine) -> list[PreflightCheck]:
    """Return all checks for a run with these settings, without changing anything; for invalid settings, those that do not need them."""
    usable = Settings() if isinstance(settings, ConfigError) else settings
    findings = [_python(), _packages(kind_of(usable).lock)]
    if isinstance(settings, ConfigError):
        findings.append(PreflightCheck(what="settings", is_fine=False, detail=str(settings)))
    else:
        findings.append(PreflightCheck(what="settings", is_fine=True, detail="every key is known, and no two contradict each other"))
    findings += preflight(usable, machine, read_only=True)[0]
    findings += [*_journals(machine), *_moved(machine), *_batch(os.environ), _wandb(machine, os.environ)]
    return findings


def _python() -> PreflightCheck:
    here = sys.version_info[:2]
    detail = f"{platform.python_version()} at {sys.executable}"
    if here == PYTHON:
        return PreflightCheck(what="python", is_fine=True, detail=detail)
    wanted = ".".join(map(str, PYTHON))
    return PreflightCheck(
        what="python", is_fine=False, detail=f"{detail}, but Python {wanted} is needed: `make setup PYTHON=python{wanted}`"
    )


def _packages(name: str) -> PreflightCheck:
    """Compare the installed packages with the pins of the lock file, and the lock file with the one that the installer recorded."""
    what, lock = "packages", LOCKS[name]
    pins = dict(_PIN.findall(lock.read_text(encoding="utf-8")))
    others = [f"{each} {here}, not {pin}" for each, pin in pins.items() if (here := _installed(each)) not in (None, pin)]
    if others:
        shown = "; ".join(others[:_SHOWN]) + (f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
        return PreflightCheck(what=what, is_fine=False, detail=f"not as in {lock.name}: {shown}: `make setup` installs those of the lock")
    if installed_lock(lock) not in ("", describe_code()[name]):
        detail = f"installed from another {lock.name} than this checkout's: `make setup` installs the current one"
        return PreflightCheck(what=what, is_fine=False, detail=detail)
    return PreflightCheck(what=what, is_fine=True, detail=f"{sum(_installed(each) is not None for each in pins)} as in {lock.name}")


def _installed(name: str) -> str | None:
    """Return the installed version of a package without its local label (such as +cpu); None where it is missing."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def _journals(machine: Machine) -> Iterator[PreflightCheck]:
    from steps.tracking.journal import JournalFolder, Reader

    if num_left := len(JournalFolder.of(machine).left(Reader.MLFLOW)):
        yield PreflightCheck(
            what="journals",
            is_fine=True,
            detail=f"{num_left:,} steps are not logged to MLflow yet: the next run logs them, or `chess-grpo track`",
        )


def _moved(machine: Machine) -> Iterator[PreflightCheck]:
    """Say where the tracking store looks for artifacts that are in this home, which was copied or moved."""
    for folder, num_runs in homes_elsewhere(machine).items():
        detail = (
            f"artifacts of {num_runs:,} runs lie in {folder}, which is not this home: `chess-grpo doctor --repair` corrects their places"
        )
        yield PreflightCheck(what="artifacts", is_fine=False, detail=detail)


def _batch(environment: Mapping[str, str]) -> Iterator[PreflightCheck]:
    """Check what `run --with batch` needs, if Metaflow is configured for AWS Batch."""
    try:
        configured = {**_metaflow_profile(environment), **environment}
    except (OSError, CorruptError) as error:
        yield PreflightCheck(
            what="batch",
            is_fine=False,
            detail=f"Metaflow's configuration cannot be read ({error}); fix it or run `metaflow configure aws`",
        )
        return
    given = [name for name in _FOR_BATCH if configured.get(name)]
    if not given:
        return
    missing = [f"{name} ({meaning})" for name, meaning in _FOR_BATCH.items() if not configured.get(name)]
    if missing:
        detail = f"not set: {', '.join(missing)}; infra/stack.yaml prints them (docs/aws.md)"
        yield PreflightCheck(what="batch", is_fine=False, detail=detail)
        return
    try:
        notes = prepare(["run", "--with", "batch"], dict(environment))
    except DestinationError as error:
        yield PreflightCheck(what="batch", is_fine=False, detail=f"`run --with batch` would be refused: {error}")
        return
    yield PreflightCheck(what="batch", is_fine=True, detail="; ".join([f"queue {configured['METAFLOW_BATCH_JOB_QUEUE']}", *notes]))


def _metaflow_profile(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of Metaflow's configuration file; empty when there is none."""
    home = Path(environment.get("METAFLOW_HOME") or "~/.metaflowconfig").expanduser()
    profile = environment.get("METAFLOW_PROFILE")
    path = home / (f"config_{profile}.json" if profile else "config.json")
    return parse_json_object(path.read_bytes(), path) if path.is_file() else {}


def _wandb(machine: Machine, environment: Mapping[str, str]) -> PreflightCheck:
    """Say whether runs are mirrored to Weights & Biases and whether an API key is set, never which."""
    key = f"a key is in {_KEY}" if environment.get(_KEY) else f"there is no {_KEY}"
    local = f"saved below {machine.home}, for `wandb sync`"
    detail = {
        Mirror.OFF: f"off ({MIRROR}={Mirror.ONLINE} turns it on)",
        Mirror.OFFLINE: f"offline: {local}",
        Mirror.ONLINE: f"online; {key}" + ("" if environment.get(_KEY) else f", so it is {local}"),
    }
    return PreflightCheck(what="W&B", is_fine=True, detail=detail[machine.mirror])
