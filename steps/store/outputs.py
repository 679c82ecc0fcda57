"""Step outputs by version: an existing output of the same version is reused, and an interrupted step resumes from its progress."""

import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from grpo.base.files import (
    MANIFEST,
    CorruptError,
    atomic_folder,
    read_json,
    remove_abandoned,
    remove_folder,
    remove_leftovers,
    verified_manifest,
    write_manifest,
)
from steps.runtime.machine import Machine
from steps.store.file_lock import BusyError, file_lock
from steps.store.objects import SharedStoreError, objects_at
from steps.store.shared import SharedStore, StepOutput

__all__ = ["BusyError", "StepOutput", "StepProgress", "Store"]

OUTPUTS: Final = "outputs"
IN_PROGRESS: Final = "in_progress"
SET_ASIDE: Final = ".set-aside-"
"""Between an output's version and a number, in the name of a folder that is no output any more."""


class Store:
    """A folder of outputs, `outputs/STEP/VERSION/`, each with a manifest of hashes; missing outputs are fetched from a shared store."""

    def __init__(self, home: Path, shared: SharedStore | None = None) -> None:
        self._root = home / OUTPUTS
        self._in_progress = home / IN_PROGRESS
        self._shared = shared

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Return the store of a machine, with its shared store if it has one."""
        return cls(machine.home, SharedStore(objects_at(machine.shared)) if machine.shared else None)

    def folder(self, step: str, version: str) -> Path:
        """Return the path of an output, whether or not it exists."""
        return self._root / step / version

    def find(self, step: str, version: str) -> StepOutput | None:
        """Return the output of this version after checking all its hashes, or None when there is none.

        An output that only this machine has is published; one that only the shared store has is fetched. Raises CorruptError when the
        local output is damaged. A damaged copy in the shared store causes a warning, and is not found any more.
        """
        folder = self.folder(step, version)
        if not folder.exists():
            return self._fetched(step, version)
        manifest = verified_manifest(folder)
        found = StepOutput(step=step, version=version, output_hash=manifest["output_hash"], reused=True)
        if self._shared is not None:
            self._shared.publish(found, folder)
        return found

    def open(self, output: StepOutput) -> Path:
        """Return the folder of an output after checking all its hashes; fetch it if only the shared store has it.

        Raises CorruptError when it is missing or has another hash.
        """
        try:
            return self._here(output)
        except CorruptError:
            if self._shared is None or not self._shared.has(output):
                raise
        self._fetch(self._shared, output)
        return self._here(output)

    def _here(self, output: StepOutput) -> Path:
        folder = self.folder(output["step"], output["version"])
        if not folder.exists():
            raise CorruptError(f"{folder} is missing: this output of {output['step']} is not in this machine's CHESS_GRPO_HOME")
        found = verified_manifest(folder)["output_hash"]
        if found != output["output_hash"]:
            raise CorruptError(
                f"{folder} has hash {found[:12]}, but {output['output_hash'][:12]} was expected: other code has recomputed it"
            )
        return folder

    def manifest(self, output: StepOutput) -> dict[str, Any]:
        """Return the manifest of an output, checked as `open` checks it."""
        return dict(read_json(self.open(output) / MANIFEST))

    @contextmanager
    def writing(self, step: str, version: str, facts: Mapping[str, Any]) -> Iterator[Path]:
        """Yield an empty folder that becomes the output of this version when the block succeeds."""
        target = self.folder(step, version)
        with atomic_folder(target) as folder:
            yield folder
            write_manifest(folder, {"step": step, "version": version, **facts})
        if self._shared is not None:
            self._shared.publish(
                StepOutput(step=step, version=version, output_hash=verified_manifest(target)["output_hash"], reused=False), target
            )

    @contextmanager
    def receiving(self, output: StepOutput) -> Iterator[Path]:
        """Yield an empty folder for a copy of this output; the copy enters the store when the block succeeds and its hash is right.

        An existing output of the version with damaged or other content is set aside. Raises CorruptError when the hash is wrong.
        """
        target = self.folder(output["step"], output["version"])
        with atomic_folder(target) as folder:
            yield folder
            found = verified_manifest(folder)["output_hash"]
            if found != output["output_hash"]:
                raise CorruptError(f"{folder} has hash {found[:12]}, but {output['output_hash'][:12]} was expected")
            if target.exists() and not self._is_here(output):
                self.discard(output["step"], output["version"])

    def has(self, output: StepOutput) -> bool:
        """Return whether this output is here and undamaged, or can be fetched from the shared store."""
        return self._is_here(output) or (self._shared is not None and self._shared.has(output))

    def _is_here(self, output: StepOutput) -> bool:
        try:
            self._here(output)
        except CorruptError:
            return False
        return True

    def _fetched(self, step: str, version: str) -> StepOutput | None:
        if self._shared is None:
            return None
        try:
            found = self._shared.find(step, version)
            if found is not None:
                self._fetch(self._shared, found)
        except CorruptError as error:
            print(f"{step}: WARNING: {error}; this copy is not used any more", flush=True)
            self._shared.unlist(step, version)
            return None
        return found

    def _fetch(self, shared: SharedStore, output: StepOutput) -> None:
        with self.receiving(output) as folder:
            shared.fetch(output, folder)
        print(f"{output['step']}: output {output['output_hash'][:12]} fetched from {shared}", file=sys.stderr, flush=True)

    @contextmanager
    def progressing(self, step: str, version: str, *, is_fresh: bool) -> Iterator["StepProgress"]:
        """Yield the progress folder of this version, locked for this process while the block lasts; it survives kills.

        It is deleted when the block ends with the output in the store. Otherwise it stays, so that the next process that computes this
        version resumes: on this machine or, from the newest whole copy in a shared store, on another. Between machines there is no lock:
        equal versions have equal outputs.

        Args:
            step: name of the step.
            version: version of its output.
            is_fresh: begin with an empty folder; existing progress is deleted.

        Raises BusyError when another process has the lock.
        """
        folder = self._in_progress / step / version
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.with_name(f"{version}.lock"), what=f"the output of {step}, version {version},"):
            # Temporary files of killed processes hold hard links to files of outputs, which would keep them on the disk.
            for place in (folder, self.folder(step, version)):
                remove_abandoned(place)
            if is_fresh:
                if folder.exists():
                    remove_folder(folder)
                if self._shared is not None:
                    self._shared.delete_progress(step, version)
            progress = StepProgress(folder, step, version, self._shared)
            progress.fetch()
            folder.mkdir(exist_ok=True)
            remove_leftovers(folder)
            yield progress
            if self.folder(step, version).exists():
                if self._shared is not None:
                    self._shared.delete_progress(step, version)
                remove_folder(folder)

    def forget_progress(self, step: str, version: str) -> None:
        """Delete the progress of a process that was killed after its output had entered the store."""
        folder = self._in_progress / step / version
        is_shared = self._shared is not None and self._shared.has_progress(step, version)
        if is_shared or folder.exists() or folder.with_name(f"{version}.lock").exists():
            with suppress(BusyError), self.progressing(step, version, is_fresh=False):
                pass  # The output exists, so `progressing` deletes the folder.

    def discard(self, step: str, version: str, *, everywhere: bool = False) -> Path:
        """Move a damaged or unwanted output aside and return its new path.

        The shared copy is still found by its version, unless `everywhere` is set.
        """
        if everywhere and self._shared is not None:
            self._shared.unlist(step, version)
        folder = self.folder(step, version)
        number = 1
        while (aside := folder.with_name(f"{version}{SET_ASIDE}{number}")).exists():
            number += 1
        return folder.rename(aside)


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The progress of an unfinished step: a local folder, and its copy in the shared store if there is one."""

    folder: Path
    _step: str
    _version: str
    _shared: SharedStore | None
    _attempt: str = field(default_factory=lambda: f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}")
    """The name of its copies; a later attempt's name is greater."""

    def fetch(self) -> None:
        """Replace the folder by the newest whole copy of another attempt, if there is one that the folder has not begun from."""
        if self._shared is not None and self._shared.fetch_progress(self._step, self._version, self.folder):
            print(f"{self._step}: progress of another machine fetched from {self._shared}", flush=True)

    def save(self) -> None:
        """Copy the folder to the shared store; a failure does not stop training, and the next call copies everything."""
        if self._shared is None:
            return
        try:
            self._shared.save_progress(self._step, self._version, self._attempt, self.folder)
        except SharedStoreError as error:
            print(f"{self._step}: WARNING: if this machine is lost now, the steps since the last copy are lost: {error}", flush=True)
