"""The files of step outputs: from this machine, else the shared store, else MLflow's artifacts; verified by hash, wherever they come from.

An output is named with its hash. The manifest is checked against it, and each file against the manifest, so no place need be trusted.
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final

from grpo.base.files import MANIFEST, CorruptError, read_json, sha256_file, sha256_json, verified_manifest
from steps.runs.names import NotFoundError
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say
from steps.step_io.names import CHECKPOINTS
from steps.store.objects import SharedStoreError, objects_at
from steps.store.outputs import StepOutput, Store
from steps.store.shared import SharedStore
from steps.tracking.outages import ArtifactError

CHECKPOINT: Final = "checkpoint"
"""The step name under which a fetched checkpoint is in the store; it has a manifest of its own."""


def fetch_output(machine: Machine, output: StepOutput) -> Path:
    """Return the folder of an output, which is downloaded when it is missing or damaged on this machine.

    Raises ArtifactError when it is in none of the three places, or CorruptError, which names the first damaged file.
    """
    store = Store.of(machine)
    try:
        return store.open(output)  # It looks into the shared store, too.
    except (CorruptError, SharedStoreError) as error:
        why = str(error)
    manifest = output_manifest(machine, output)
    with store.receiving(output) as folder:
        _bring(machine, output, {**manifest["files"], **manifest.get("aside", {})}, folder, why)
    return store.folder(output["step"], output["version"])


def output_manifest(machine: Machine, output: StepOutput) -> dict[str, Any]:
    """Return the verified manifest of an output without its files. Raises as `fetch_output`."""
    here = Store.of(machine).folder(output["step"], output["version"]) / MANIFEST
    try:
        return _checked(here, output, str(here))
    except CorruptError as error:
        with tempfile.TemporaryDirectory() as folder:
            where = _download(machine, output, [MANIFEST], Path(folder), str(error))
            return _checked(Path(folder) / MANIFEST, output, f"{MANIFEST} of {where}")


@contextmanager
def output_file(machine: Machine, output: StepOutput, name: str) -> Iterator[Path]:
    """Yield one verified file of an output, under its own name; raises as `fetch_output`."""
    digest = output_manifest(machine, output)["files"][name]
    here = Store.of(machine).folder(output["step"], output["version"]) / name
    if here.is_file() and sha256_file(here) == digest:
        yield here
        return
    with tempfile.TemporaryDirectory() as folder:
        _bring(machine, output, {name: digest}, Path(folder), f"{here} is missing or changed")
        yield Path(folder) / name


def fetch_checkpoint(machine: Machine, finetuned: StepOutput, step: int) -> Path:
    """Return the folder of one checkpoint of an output of finetune, which alone is downloaded.

    Raises what `checkpoint_files` and `fetch_output` raise.
    """
    files, part = checkpoint_files(machine, finetuned, step), _folder_of(step)
    digest = sha256_json({name: each for name, each in files.items() if name != MANIFEST})
    output = StepOutput(step=CHECKPOINT, version=digest[:24], output_hash=digest, reused=True)
    store = Store.of(machine)
    here = store.folder(finetuned["step"], finetuned["version"]) / part
    try:
        if verified_manifest(here)["output_hash"] == digest:
            return here
        why = f"{here} is changed"
    except CorruptError as error:
        why = str(error)
    if store.has(output):
        return store.open(output)
    with store.receiving(output) as folder:
        _bring(machine, finetuned, {f"{part}/{name}": each for name, each in files.items()}, folder, why)
        for path in (folder / part).iterdir():
            path.replace(folder / path.name)  # The checkpoint's manifest takes the place of the output's.
        shutil.rmtree(folder / CHECKPOINTS)
    return store.folder(output["step"], output["version"])


def checkpoint_files(machine: Machine, finetuned: StepOutput, step: int | str) -> dict[str, str]:
    """Return the files of a checkpoint (name -> SHA-256) from the manifest of an output of finetune.

    Raises NotFoundError, with the steps that there are, when `step` is no number, it was never written or retention deleted it.
    """
    files = output_manifest(machine, finetuned)["files"]
    prefix = f"{_folder_of(step)}/" if isinstance(step, int) else "/"
    if found := {name.removeprefix(prefix): digest for name, digest in files.items() if name.startswith(prefix)}:
        return found
    kept = sorted({int(match[1]) for name in files if (match := re.match(rf"{CHECKPOINTS}/step-(\d{{8}})/", name))})
    raise NotFoundError(
        f"there is no checkpoint of step {step}: one is written every grpo.steps_per_checkpoint steps, and the best"
        f" grpo.num_checkpoints_kept of them are kept. Available steps: {', '.join(map(str, kept)) or 'none'}"
    )


def _folder_of(step: int) -> str:
    from grpo.learning.checkpoints import checkpoint_name  # It imports torch.

    return f"{CHECKPOINTS}/{checkpoint_name(step)}"


def _bring(machine: Machine, output: StepOutput, files: Mapping[str, str], folder: Path, why: str) -> None:
    """Download an output's manifest and these of its files (name -> SHA-256) to a folder, check the files, and say where they are from."""
    where = _download(machine, output, [MANIFEST, *files], folder, why)
    for name, digest in files.items():
        found = sha256_file(folder / name) if (folder / name).is_file() else "of nothing"
        if found != digest:
            raise CorruptError(
                f"{name} of {where} has sha256 {found[:12]}, its manifest says {digest[:12]}: damaged there or during the download. Nothing"
                " was saved; retry, or take another run"
            )
    num_bytes = sum((folder / name).stat().st_size for name in files)
    what = f"{output['step']}: output {output['output_hash'][:12]}"
    say(f"{what}: {len(files)} files, {num_bytes:,} bytes, fetched from {where}", sys.stderr)


def _download(machine: Machine, output: StepOutput, names: Collection[str], folder: Path, why: str) -> str:
    """Download files of an output to a folder, and return where they are from; `why` says why this machine's do not do."""
    try:
        if machine.shared and (shared := SharedStore(objects_at(machine.shared))).has(output):
            shared.fetch(output, folder, names)
            return f"the shared store {shared}"
    except (CorruptError, SharedStoreError) as error:
        why = f"{why}; {error}"
    from steps.tracking.client import TrackingStore  # MLflow takes seconds to import.

    tracking = TrackingStore.of(machine)
    holder = tracking.holder(output)
    if holder is None:
        raise ArtifactError(
            f"output {output['output_hash'][:12]} of {output['step']}, version {output['version']}, is nowhere to be had: {why}; no run in"
            f" {tracking.uri} has it (it was deleted, or is older than the logging of outputs). Take another run, or the machine that"
            " made it"
        )
    for name in names:
        tracking.download(holder, name, folder)
    return f"MLflow run {holder} in {tracking.uri}"


def _checked(path: Path, output: StepOutput, where: str) -> dict[str, Any]:
    try:
        found = dict(read_json(path))
        files, aside, parts = dict(found["files"]), dict(found.get("aside", {})), found["parts"]
    except (CorruptError, OSError, ValueError, KeyError, TypeError) as error:
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
