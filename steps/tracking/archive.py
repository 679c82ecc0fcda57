"""Fetches step outputs and checkpoints of other machines from MLflow's artifacts, verified by hash.

An MLflow tag has the output's hash. The manifest is checked against it, and each file against the manifest, so the artifact store need not
be trusted.
"""

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, CorruptError, read_json, sha256_file, sha256_json, verified_manifest
from grpo.learning.checkpoints import checkpoint_name
from steps.step_io.names import CHECKPOINTS
from steps.store.outputs import StepOutput, Store
from steps.tracking.tracker import Tracker

CHECKPOINT: Final = "checkpoint"
"""The step name under which a fetched checkpoint is in the store; it has a manifest of its own."""


class NotArchivedError(PlainError, RuntimeError):
    """An output is neither on this machine nor in the tracking store."""


class NoCheckpointError(PlainError, ValueError):
    """A run has no such checkpoint; the message lists those that it has."""


def fetch_output(tracker: Tracker, store: Store, output: StepOutput) -> Path:
    """Return the folder of an output, which is downloaded when it is missing or damaged on this machine.

    Raises NotArchivedError, ArtifactError when an artifact is missing, or CorruptError, which names the first damaged file.
    """
    try:
        return store.open(output)
    except CorruptError as error:
        holder = _holder(tracker, output, f": here {error}")
    with store.receiving(output) as folder:
        manifest = _manifest(tracker, holder, output, folder)
        for name, digest in {**manifest["files"], **manifest.get("aside", {})}.items():
            _fetch_file(tracker, holder, name, digest, folder)
        _say(output, holder, folder)
    return store.folder(output["step"], output["version"])


def output_manifest(tracker: Tracker, store: Store, output: StepOutput) -> dict[str, Any]:
    """Return the verified manifest of an output, from this machine or the artifacts, without the files. Raises as `fetch_output`."""
    here = store.folder(output["step"], output["version"]) / MANIFEST
    try:
        return _checked(here, output, str(here))
    except CorruptError as error:
        holder = _holder(tracker, output, f": here {error}")
    with tempfile.TemporaryDirectory() as folder:
        return _manifest(tracker, holder, output, Path(folder))


def kept_steps(manifest: Mapping[str, Any]) -> list[int]:
    """Return the steps of the checkpoints in an output of finetune, from its manifest."""
    found = (re.fullmatch(rf"{CHECKPOINTS}/step-(\d{{8}})/{re.escape(MANIFEST)}", name) for name in manifest["files"])
    return sorted(int(match[1]) for match in found if match)


def checkpoint_output(manifest: Mapping[str, Any], step: int) -> StepOutput:
    """Return a checkpoint in an output of finetune as an output of its own; the manifest gives its hash.

    Raises NoCheckpointError when retention deleted it or it was never written.
    """
    digest = sha256_json({name: each for name, each in _files_of(manifest, step).items() if name != MANIFEST})
    return StepOutput(step=CHECKPOINT, version=digest[:24], output_hash=digest, reused=True)


def fetch_checkpoint(tracker: Tracker, store: Store, finetuned: StepOutput, step: int) -> Path:
    """Copy or download one checkpoint of an output of finetune into the store, and return its folder; raises as `fetch_output` does."""
    manifest = output_manifest(tracker, store, finetuned)
    output = checkpoint_output(manifest, step)
    if store.has(output):
        return store.open(output)
    prefix = f"{CHECKPOINTS}/{checkpoint_name(step)}"
    with store.receiving(output) as folder:
        if _is(here := store.folder(finetuned["step"], finetuned["version"]) / prefix, output):
            shutil.copytree(here, folder, dirs_exist_ok=True)
        else:
            holder = _holder(tracker, finetuned)
            for name, digest in _files_of(manifest, step).items():
                _fetch_file(tracker, holder, f"{prefix}/{name}", digest, folder)
                (folder / prefix / name).rename(folder / name)
            shutil.rmtree(folder / CHECKPOINTS)
            _say(output, holder, folder)
    return store.folder(output["step"], output["version"])


def _is(folder: Path, output: StepOutput) -> bool:
    try:
        return bool(verified_manifest(folder)["output_hash"] == output["output_hash"])
    except CorruptError:
        return False


def _files_of(manifest: Mapping[str, Any], step: int) -> dict[str, str]:
    prefix = f"{CHECKPOINTS}/{checkpoint_name(step)}/"
    files = {name.removeprefix(prefix): digest for name, digest in manifest["files"].items() if name.startswith(prefix)}
    if not files:
        there = ", ".join(f"{each:,}" for each in kept_steps(manifest)) or "none"
        raise NoCheckpointError(
            f"there is no checkpoint of step {step:,}: one is written every grpo.steps_per_checkpoint steps, and the best"
            f" grpo.num_checkpoints_kept of them are kept. Available steps: {there}"
        )
    return files


def _holder(tracker: Tracker, output: StepOutput, here: str = "") -> str:
    holder = tracker.holder(output)
    if holder is None:
        raise NotArchivedError(
            f"output {output['output_hash'][:12]} of {output['step']}, version {output['version']}, is not available{here}, and no run in"
            f" {tracker.uri} has it (it was deleted, or is older than the logging of outputs). Resume from another run, or on the"
            " machine that made it"
        ) from None
    return holder


def _manifest(tracker: Tracker, holder: str, output: StepOutput, folder: Path) -> dict[str, Any]:
    """Download an output's manifest to the folder, verify and return it."""
    return _checked(tracker.download(holder, MANIFEST, folder), output, _where(MANIFEST, holder, tracker))


def _checked(path: Path, output: StepOutput, where: str) -> dict[str, Any]:
    try:
        found = dict(read_json(path))
        files, aside, parts = dict(found["files"]), dict(found.get("aside", {})), found["parts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{where} is missing or unreadable ({error})") from None
    # The version is the hash of the parts, so this verifies the settings in the manifest too.
    if sha256_json(files) != output["output_hash"] or sha256_json(parts)[:24] != output["version"]:
        raise CorruptError(
            f"{where} is not that of output {output['output_hash'][:12]}, version {output['version']}: changed since written"
        )
    for name in (*files, *aside):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CorruptError(f"{where} names a file outside of the output: {name}")
    return found


def _fetch_file(tracker: Tracker, holder: str, name: str, digest: str, folder: Path) -> None:
    found = sha256_file(tracker.download(holder, name, folder))
    if found != digest:
        raise CorruptError(
            f"{_where(name, holder, tracker)} has sha256 {found[:12]}, its manifest says {digest[:12]}: damaged in the store or during the"
            " download. Nothing was saved; retry, or resume from another run"
        )


def _where(name: str, holder: str, tracker: Tracker) -> str:
    return f"artifact {name} of MLflow run {holder} in {tracker.uri}"


def _say(output: StepOutput, holder: str, folder: Path) -> None:
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{output['step']}: output {output['output_hash'][:12]} fetched from MLflow run {holder}, {num_bytes:,} bytes", flush=True)
