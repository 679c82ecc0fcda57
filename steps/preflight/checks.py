"""Preflight checks of engine, disk, tracking store, device, models and files, as one table with a remedy for each failure."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import numpy as np

from grpo.base.errors import PlainError
from grpo.engine.identity import EngineIdentity, EngineMissingError, identify
from grpo.evaluation.halving import halving_rounds
from grpo.play.openings import OpeningsError, drawn_openings
from grpo.reading.games import SourceError
from grpo.reading.streams import find_files, read_chunks
from grpo.settings.tree import Settings
from steps.kinds.lookup import kind_of
from steps.runtime.machine import Machine, holds_secret, sqlite_file
from steps.store.objects import SharedStoreError, objects_at

_FREE_BYTES: Final = 2 * 1024**3
_PROBE: Final = "probe"


class PreflightError(PlainError, RuntimeError):
    """Something that the run needs is missing; the message is the table with remedies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreflightCheck:
    """One line of the table."""

    what: str
    is_fine: bool
    detail: str
    """What was found, or what is wrong and how to fix it."""


def preflight(settings: Settings, machine: Machine, *, read_only: bool = False) -> tuple[list[PreflightCheck], EngineIdentity | None]:
    """Return the checks, and the engine's identity if there is an engine.

    Args:
        settings: settings of the run.
        machine: this machine.
        read_only: create neither home nor tracking store, and do not write to the shared store.
    """
    engine: EngineIdentity | None = None
    try:
        engine = identify(machine.stockfish)
        findings = [PreflightCheck(what="stockfish", is_fine=True, detail=f"{engine} at {machine.stockfish}")]
    except EngineMissingError as error:
        findings = [PreflightCheck(what="stockfish", is_fine=False, detail=str(error))]
    findings += [_disk(machine, read_only=read_only), _tracking(machine, read_only=read_only), _device(machine)]
    if machine.shared:
        findings.append(_shared(machine, read_only=read_only))
    kind = kind_of(settings)
    if found := kind.preflight(settings, machine):
        findings.append(PreflightCheck(what=kind.name, is_fine=found[0], detail=found[1]))
    if settings.evaluation.opening_book:
        findings.append(_book(settings))
    findings += [_files(f"boards.{name}", names) for name in ("files", "exclude") if (names := getattr(settings.boards, name))]
    return findings, engine


def preflight_table(findings: list[PreflightCheck]) -> str:
    """Return the checks as aligned text."""
    width = max(len(finding.what) for finding in findings)
    return "\n".join(f"  {'ok  ' if f.is_fine else 'FAIL'}  {f.what:<{width}}  {f.detail}" for f in findings)


def _disk(machine: Machine, *, read_only: bool) -> PreflightCheck:
    try:
        if not read_only:
            machine.home.mkdir(parents=True, exist_ok=True)
        existing = next(path for path in (machine.home, *machine.home.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing) as probe:  # An anonymous file.
            probe.write(b"probe")
    except OSError as error:
        return PreflightCheck(
            what="disk",
            is_fine=False,
            detail=f"{machine.home} is not writable ({error.strerror}); set CHESS_GRPO_HOME to a writable folder",
        )
    free = shutil.disk_usage(existing).free
    detail = f"{free / 1024**3:.1f} GiB free at {machine.home}"
    if free < _FREE_BYTES:
        needed = f"{_FREE_BYTES / 1024**3:.0f} GiB"
        return PreflightCheck(
            what="disk", is_fine=False, detail=f"{detail}, {needed} needed; free some space, or set CHESS_GRPO_HOME to another disk"
        )
    return PreflightCheck(what="disk", is_fine=True, detail=detail)


def _tracking(machine: Machine, *, read_only: bool) -> PreflightCheck:
    from steps.tracking.client import TrackingStore
    from steps.tracking.outages import RetryPolicy, failures, first_line

    detail, is_fine, store = machine.shown_uri, False, TrackingStore(machine, ())
    if machine.is_container and sqlite_file(machine.tracking_uri) is not None:
        detail += (
            " is a file of this container, which is not persistent; set MLFLOW_TRACKING_URI, where the run is launched, to the address of"
            " an MLflow server (docs/aws.md)"
        )
    elif holds_secret(machine.tracking_uri):
        detail = (
            "MLFLOW_TRACKING_URI holds a name or password, which would appear in logs: leave name and password out of it, and set"
            " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (for a database, what its driver reads, such as PGUSER and PGPASSWORD)"
        )
    elif read_only and not store.exists:
        detail, is_fine = f"{detail} (does not exist yet; the first run creates it)", True
    else:
        try:
            if read_only:
                store.client.search_experiments(max_results=1)
            else:
                patient = TrackingStore(machine, RetryPolicy().between_tries)
                patient.asked(lambda: patient.experiment)
            is_fine = True
        except failures() as error:
            why = first_line(error.__cause__ or error)
            detail += f" does not open ({why}); unset MLFLOW_TRACKING_URI for the local SQLite store, or start that server"
    return PreflightCheck(what="tracking", is_fine=is_fine, detail=detail)


def _shared(machine: Machine, *, read_only: bool) -> PreflightCheck:
    """Write, read and delete a small object; or only ask for it."""
    detail, is_fine = machine.shared, True
    try:
        objects = objects_at(machine.shared)
        if read_only:
            objects.get(_PROBE)
            detail += " answers; write access is tested when a run starts"
        else:
            probe = f"{_PROBE}-{uuid4().hex}"  # Another run that starts now deletes its own.
            objects.put(probe, b"")
            is_fine = objects.get(probe) is not None and probe in objects.keys(probe)
            objects.delete(probe)
            detail += "" if is_fine else " loses what is written"
    except (SharedStoreError, OSError) as error:
        detail, is_fine = str(error), False
    return PreflightCheck(what="shared store", is_fine=is_fine, detail=detail)


def _device(machine: Machine) -> PreflightCheck:
    from steps.runtime.device import DeviceError, torch_device

    try:
        return PreflightCheck(what="device", is_fine=True, detail=f"{torch_device(machine)}, {machine.num_threads} threads")
    except DeviceError as error:
        return PreflightCheck(what="device", is_fine=False, detail=str(error))


def _book(settings: Settings) -> PreflightCheck:
    """Check that the opening book has enough distinct openings for the step that needs most of them."""
    from grpo.play.ladder import ladder_pairings, make_rungs, num_openings_to_place

    evaluation, selection = settings.evaluation, settings.selection
    ladder, num_rungs = evaluation.ladder, len(make_rungs(evaluation.ladder))
    placement = num_openings_to_place(num_rungs, num_probe_pairs=ladder.num_probe_pairs, num_rung_pairs=ladder.num_rung_pairs)
    needed = max(
        ladder.num_calibration_pairs * len(ladder_pairings(num_rungs)),
        evaluation.num_baseline_pairs + placement,
        len(halving_rounds(selection.num_candidates)) * selection.num_screening_pairs
        + 2 * selection.num_confirmation_pairs
        + selection.num_sampled_pairs
        + placement,
    )
    try:
        drawn_openings(evaluation.opening_book, count=needed, rng=np.random.default_rng(0), exclude=set())
    except (SourceError, OpeningsError) as error:
        return PreflightCheck(what="evaluation.opening_book", is_fine=False, detail=str(error))
    return PreflightCheck(
        what="evaluation.opening_book",
        is_fine=True,
        detail=f"{evaluation.opening_book}: has the {needed:,} openings that are needed",
    )


def _files(what: str, names: Sequence[str]) -> PreflightCheck:
    """Read only the beginning of each file: large files are read once, by the step that needs them."""
    try:
        files = find_files(names)
        empty = [file.name for file in files if not next(read_chunks(file), b"")]
    except SourceError as error:
        return PreflightCheck(what=what, is_fine=False, detail=str(error))
    if empty:
        return PreflightCheck(what=what, is_fine=False, detail=f"{', '.join(empty)}: empty; give files with games or positions")
    return PreflightCheck(
        what=what, is_fine=True, detail=", ".join(file.name for file in files[:5]) + (f" and {len(files) - 5} more" * (len(files) > 5))
    )
