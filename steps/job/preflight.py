"""Checks at a run's start and in the command `doctor`, with a remedy for each fault."""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import numpy as np

from grpo.base.errors import PlainError
from grpo.dataset.exclusions import excluded_positions
from grpo.dataset.quotas import Quota, QuotaCell, SourceReport, boards_per_cell, cut_to_quota, refusal, shortage_text
from grpo.dataset.streams import SourceFile, find_files, opened
from grpo.dataset.table import Position
from grpo.dataset.units import unit_boards_per_cell, unit_positions
from grpo.engine.identity import identify
from grpo.engine.move_values import try_engine
from grpo.engine.pool import EnginePool
from grpo.match.openings import drawn_openings
from grpo.settings.kinds import KINDS
from grpo.settings.tree import ConfigError, Settings, preset_names, read_settings
from grpo.statistics.halving import halving_rounds
from steps.run.machine import Machine, sqlite_file
from steps.run.orchestrator import configuration, service
from steps.run.store import Store
from steps.run.versions import LOCK, describe_code

_FREE_BYTES: Final = 2 * 1024**3  # Least free disk space.
_PIN: Final = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)  # `NAME==VERSION`.
_SHOWN: Final = 5  # Files or packages in a message.


class PreflightError(PlainError, RuntimeError):
    """Something that a run needs is missing or wrong."""


class PassingError(PlainError, RuntimeError):
    """A fault that does not stop the run."""


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    what: str  # Name of the check.
    is_fine: bool  # True for a warning, too.
    detail: str  # Result, or fault and remedy.
    is_warning: bool = False


def preflight(settings: Settings, machine: Machine, *, read_only: bool = False) -> list[PreflightCheck]:
    """Run the checks of a run's start. `read_only`: write nothing into the store."""
    checks: dict[str, Callable[[], str]] = {
        "stockfish": lambda: _engine(settings, machine),
        "disk": lambda: _disk(machine),
        "tracking": lambda: _tracking(machine),
        "device": lambda: _device(machine),
    }
    if machine.store:
        checks["store"] = lambda: _store(machine, read_only=read_only)
    checks[settings.policy.kind] = lambda: import_module(KINDS[settings.policy.kind].module).check(settings)
    if settings.evaluation.opening_book:
        checks["evaluation.opening_book"] = lambda: _book(settings)
    if settings.boards.files:
        checks["boards.files"] = lambda: _files(settings.boards.files)
    if settings.boards.exclude:
        checks["boards.exclude"] = lambda: _files(settings.boards.exclude)
    return [tried(what, check) for what, check in checks.items()]


def examine(settings: Settings | ConfigError, machine: Machine) -> list[PreflightCheck]:
    """Run the checks of `doctor`, which change nothing. Defaults replace invalid settings."""
    usable, fault = (Settings(), str(settings)) if isinstance(settings, ConfigError) else (settings, "")
    checks = [
        tried("python", lambda: f"{platform.python_version()} at {sys.executable}"),
        tried("packages", _packages),
        tried("metaflow", lambda: f"{configuration(os.environ)}; {service()}"),
        PreflightCheck("settings", is_fine=not fault, detail=fault or "every key is known, and no two contradict each other"),
        *preflight(usable, machine, read_only=True),
    ]
    if usable.boards.files and all(check.is_fine for check in checks if check.what.startswith(("boards.", "stockfish"))):
        checks.append(tried("boards", lambda: _boards(usable, machine)))
    return checks


def tried(what: str, check: Callable[[], str]) -> PreflightCheck:
    """Run a check. A PassingError is a warning, any other PlainError a fault."""
    try:
        return PreflightCheck(what, is_fine=True, detail=check())
    except PassingError as warning:
        return PreflightCheck(what, is_fine=True, detail=str(warning), is_warning=True)
    except PlainError as error:
        return PreflightCheck(what, is_fine=False, detail=str(error))


def table(checks: Sequence[PreflightCheck]) -> str:
    width = max(len(check.what) for check in checks)
    states = {check: "warn" if check.is_warning else "ok  " if check.is_fine else "FAIL" for check in checks}
    return "\n".join(f"  {state}  {check.what:<{width}}  {check.detail}" for check, state in states.items())


def _engine(settings: Settings, machine: Machine) -> str:
    identity = identify(machine.stockfish)
    try_engine(machine.stockfish, depth=settings.boards.depth)
    return f"{identity} at {machine.stockfish}"


def _disk(machine: Machine) -> str:
    try:
        existing = next(path for path in (machine.home, *machine.home.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"probe")
    except OSError as error:
        raise PreflightError(f"{machine.home} is not writable ({error.strerror}); set CHESS_GRPO_HOME to a writable folder") from error
    free = shutil.disk_usage(existing).free
    detail = f"{free / 1024**3:.1f} GiB free at {machine.home}"
    if free < _FREE_BYTES:
        needed = f"{_FREE_BYTES / 1024**3:.0f} GiB"
        raise PreflightError(f"{detail}, {needed} needed; free some space, or set CHESS_GRPO_HOME to another disk")
    return detail


def _tracking(machine: Machine) -> str:
    """A wrong address or account is a fault. A store without an answer is a warning, because the run can be logged later."""
    if machine.is_container and sqlite_file(machine.tracking_uri) is not None:
        raise PreflightError(
            f"{machine.shown_uri} is a file in this container, and is lost with the container. Where you launch the run, set"
            " MLFLOW_TRACKING_URI to the address of an MLflow server (docs/aws.md)"
        )
    from steps.track.outages import TrackingAwayError, TrackingRefusedError, WrongAddressError, address_fault, failures_of

    if fault := address_fault(machine.tracking_uri):
        raise PreflightError(f"MLFLOW_TRACKING_URI: {fault}")
    if machine.shown_uri != machine.tracking_uri:
        raise PreflightError(
            "MLFLOW_TRACKING_URI holds a name, password or query, which would appear in logs. Set MLFLOW_TRACKING_USERNAME and"
            " MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, instead; for a database, its driver's variables, such as PGUSER and"
            " PGPASSWORD"
        )
    from steps.track.client import TrackingStore

    try:
        with failures_of(machine.shown_uri, "its experiments"):
            if (store := TrackingStore(machine.tracking_uri)).exists:
                store.client.search_experiments(max_results=1)
    except (TrackingRefusedError, WrongAddressError) as error:
        raise PreflightError(str(error)) from None
    except TrackingAwayError as error:
        raise PassingError(f"{error}: the run continues, and is logged later") from None
    return machine.shown_uri


def _store(machine: Machine, *, read_only: bool) -> str:
    if read_only:
        return f"{machine.store}: it is written to when a run starts"
    Store.of(machine).probe()
    return machine.store


def _device(machine: Machine) -> str:
    from steps.run.device import torch_device

    return f"{torch_device(machine)}, {machine.num_threads} threads"


def _book(settings: Settings) -> str:
    from grpo.match.ladder import ladder_pairings, make_rungs, num_openings_to_place

    evaluation, selection = settings.evaluation, settings.selection
    # `calibrate`, `baseline` and `screen` each draw from the complete book.
    needed = max(
        evaluation.num_calibration_pairs * len(ladder_pairings(len(make_rungs(evaluation)))),
        evaluation.num_baseline_pairs + num_openings_to_place(1, evaluation),
        len(halving_rounds(selection.num_candidates)) * selection.num_screening_pairs
        + 2 * selection.num_confirmation_pairs
        + selection.num_sampled_pairs
        + num_openings_to_place(2, evaluation),
    )
    drawn_openings(evaluation.opening_book, count=needed, rng=np.random.default_rng(0), exclude=set())
    return f"{evaluation.opening_book}: has the {needed:,} openings that are needed"


def _files(names: Sequence[str]) -> str:
    files = find_files(names)
    if empty := [file.name for file in files if _is_empty(file)]:
        raise PreflightError(f"{', '.join(empty)}: empty; give files with games or positions")
    return ", ".join(file.name for file in files[:_SHOWN]) + (f" and {len(files) - _SHOWN} more" * (len(files) > _SHOWN))


def _boards(settings: Settings, machine: Machine) -> str:
    wanted, missing, report = _counted(settings, machine)
    if not any(missing.values()):
        return f"all {sum(wanted.values()):,} wanted are in the first {report.games:,} games that are read"
    shortage = shortage_text(wanted, missing, report, settings.boards)
    if not (reason := refusal(wanted, missing, states_per_step=settings.grpo.states_per_step)):
        return f"{shortage} Enough for a run, with less to learn from"
    presets = {name: read_settings(f'preset = "{name}"') for name in preset_names()}
    of_kind = [name for name, preset in presets.items() if preset.policy.kind == settings.policy.kind]
    largest_first = sorted(of_kind, key=lambda name: -presets[name].boards.num_train)
    fits = next((name for name in largest_first if _is_enough(settings, presets[name], machine)), None)
    enough = "There are too few for any preset" if fits is None else f"Enough for preset = {fits!r}"
    raise PreflightError(f"{shortage}\n{reason}. {enough}")


def _is_enough(settings: Settings, preset: Settings, machine: Machine) -> bool:
    sizes = {name: getattr(preset.boards, name) for name in ("num_train", "num_validation", "num_heldout", "num_units")}
    wanted, missing, _ = _counted(settings.model_copy(update={"boards": settings.boards.model_copy(update=sizes)}), machine)
    return not refusal(wanted, missing, states_per_step=preset.grpo.states_per_step)


def _counted(settings: Settings, machine: Machine) -> tuple[dict[QuotaCell, int], dict[QuotaCell, int], SourceReport]:
    config, kept, reports = settings.boards, list[Position](), list[SourceReport]()
    excluded = excluded_positions(config.exclude)
    with EnginePool(machine.stockfish, num_processes=1, options={}) as players:  # Files give the games; no engine starts.
        for unit in range(config.num_units):
            quota = Quota(unit_boards_per_cell(config), config, seed=settings.seed, excluded=excluded)
            for positions in unit_positions(quota, config, unit=unit, seed=settings.seed, players=players):
                kept += positions
            reports.append(quota.report)
    wanted = boards_per_cell(config)
    missing = cut_to_quota(kept, wanted, max_per_game_and_phase=config.max_per_game_and_phase)[2]
    return wanted, missing, SourceReport.joined(reports)


def _is_empty(file: SourceFile) -> bool:
    with opened(file) as stream:
        return not stream.read(1)


def _packages() -> str:
    pins = dict(_PIN.findall(LOCK.read_text(encoding="utf-8")))
    if wrong := [f"{name} {installed}, not {pin}" for name, pin in pins.items() if (installed := _installed(name)) not in (None, pin)]:
        shown = "; ".join(wrong[:_SHOWN]) + (f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
        raise PreflightError(f"not as in {LOCK.name}: {shown}: `make setup` installs the locked versions")
    recorded = Path(sys.prefix) / "run-lock"  # Hash of the lock file that infra/install.sh installed.
    if recorded.is_file() and recorded.read_text(encoding="utf-8").strip() not in ("", describe_code()["lock"]):
        raise PreflightError(f"installed from another {LOCK.name} than this checkout's: `make setup` installs the current one")
    return f"{sum(_installed(name) is not None for name in pins)} as in {LOCK.name}"


def _installed(name: str) -> str | None:
    try:
        return version(name).partition("+")[0]  # Without `+cpu`.
    except PackageNotFoundError:
        return None
