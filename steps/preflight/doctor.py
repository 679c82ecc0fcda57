"""The checks of `chess-grpo doctor` besides the preflight: Python, packages, unsent tracking records, Weights & Biases."""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from grpo.settings.tree import ConfigError, Settings
from steps.kinds.lookup import kind_of
from steps.preflight.checks import PreflightCheck, preflight
from steps.runtime.machine import MIRROR, Machine, Mirror
from steps.store.versions import LOCKS, describe_code, installed_lock

PYTHON: Final = (3, 11)
"""The version that pyproject.toml requires."""
_PIN: Final = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
_SHOWN: Final = 5
_KEY: Final = "WANDB_API_KEY"


def examine(settings: Settings | ConfigError, machine: Machine) -> list[PreflightCheck]:
    """Return all checks for a run with these settings, without changing anything; for invalid settings, those that do not need them."""
    usable = Settings() if isinstance(settings, ConfigError) else settings
    findings = [_python(), _packages(kind_of(usable).lock)]
    if isinstance(settings, ConfigError):
        findings.append(PreflightCheck(what="settings", is_fine=False, detail=str(settings)))
    else:
        findings.append(PreflightCheck(what="settings", is_fine=True, detail="every key is known, and no two contradict each other"))
    findings += preflight(usable, machine, read_only=True)[0]
    findings += [*_journals(machine), _wandb(machine, os.environ)]
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
