"""Outputs of steps by version: an output whose version is already here need not be made again, and one half made can be gone on with."""

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO, TypedDict

from grpo.content import (
    MANIFEST,
    CorruptError,
    atomic_folder,
    read_json,
    remove_folder,
    remove_leftovers,
    verified_manifest,
    write_manifest,
)
from grpo.errors import PlainError

_FOLDER: Final = "outputs"
_IN_PROGRESS: Final = "in_progress"


class BusyError(PlainError, RuntimeError):
    """Another process is making this output; the message says which."""


class StepOutput(TypedDict):
    """Where a step's output is, and what it is: plain data, so that old runs can be read by new code."""

    step: str
    version: str
    output_hash: str
    reused: bool
    """Whether it was in the store already."""


class Store:
    """A folder of outputs, `outputs/STEP/VERSION/`, each with a manifest of hashes."""

    def __init__(self, home: Path) -> None:
        self._root = home / _FOLDER
        self._in_progress = home / _IN_PROGRESS

    def folder(self, step: str, version: str) -> Path:
        """Return where an output is, or would be."""
        return self._root / step / version

    def find(self, step: str, version: str) -> StepOutput | None:
        """Return the output of this version after checking all its hashes, or None when there is none.

        Raises CorruptError when it is there but not as it was written.
        """
        folder = self.folder(step, version)
        if not folder.exists():
            return None
        manifest = verified_manifest(folder)
        return StepOutput(step=step, version=version, output_hash=manifest["output_hash"], reused=True)

    def open(self, output: StepOutput) -> Path:
        """Return the folder of an output after checking all its hashes.

        Raises CorruptError when it is missing, or is not the output that was meant.
        """
        folder = self.folder(output["step"], output["version"])
        if not folder.exists():
            raise CorruptError(f"{folder} is missing: this output of {output['step']} is not in this machine's CHESS_GRPO_HOME")
        found = verified_manifest(folder)["output_hash"]
        if found != output["output_hash"]:
            raise CorruptError(
                f"{folder} has hash {found[:12]}, but {output['output_hash'][:12]} was meant: it was made anew by other code"
            )
        return folder

    def manifest(self, output: StepOutput) -> dict[str, Any]:
        """Return the manifest of an output, checked as `open` checks it."""
        return dict(read_json(self.open(output) / MANIFEST))

    @contextmanager
    def writing(self, step: str, version: str, facts: Mapping[str, Any]) -> Iterator[Path]:
        """Give an empty folder that becomes the output of this version when the block ends well."""
        target = self.folder(step, version)
        with atomic_folder(target) as folder:
            yield folder
            write_manifest(folder, {"step": step, "version": version, **facts})

    @contextmanager
    def receiving(self, output: StepOutput) -> Iterator[Path]:
        """Give an empty folder, to be filled with a copy of this output; it comes into the store when the block ends well and it is one.

        What was under its version, spoilt or with other content, is set aside. Raises CorruptError when it is not this output.
        """
        target = self.folder(output["step"], output["version"])
        with atomic_folder(target) as folder:
            yield folder
            found = verified_manifest(folder)["output_hash"]
            if found != output["output_hash"]:
                raise CorruptError(f"{folder} has hash {found[:12]}, but {output['output_hash'][:12]} was meant")
            if target.exists() and not self.has(output):
                self.discard(output["step"], output["version"])

    def has(self, output: StepOutput) -> bool:
        """Return whether this very output is here, every file as it was written."""
        try:
            self.open(output)
        except CorruptError:
            return False
        return True

    @contextmanager
    def progressing(self, step: str, version: str, *, is_fresh: bool) -> Iterator[Path]:
        """Give the folder in which this version's making is kept over kills; it is this process's alone while the block lasts.

        It vanishes when the block ends with the output in the store, and stays in all other cases, for the next who makes this version.

        Args:
            step: name of the step.
            version: of its output.
            is_fresh: begin with an empty folder, whatever was there.

        Raises BusyError when another process has it.
        """
        folder = self._in_progress / step / version
        folder.parent.mkdir(parents=True, exist_ok=True)
        with held(folder.with_name(f"{version}.lock"), what=f"the output of {step}, version {version},"):
            # What killed processes left. Files of an output are shared with the folder's: they would stay on the disk.
            for place in (folder.parent, self._root / step):
                remove_leftovers(place, f".{version}.*")
            if is_fresh and folder.exists():
                remove_folder(folder)
            folder.mkdir(exist_ok=True)
            remove_leftovers(folder)
            yield folder
            if self.folder(step, version).exists():
                remove_folder(folder)

    def forget_progress(self, step: str, version: str) -> None:
        """Delete what a process left that was killed after its output had come into the store."""
        if (self._in_progress / step / version).exists():
            with suppress(BusyError), self.progressing(step, version, is_fresh=False):
                pass  # It vanishes, for the output is there.

    def discard(self, step: str, version: str) -> Path:
        """Move a spoilt or unwanted output out of the way and return where it went; nothing is ever deleted."""
        folder = self.folder(step, version)
        number = 1
        while (aside := folder.with_name(f"{version}.set-aside-{number}")).exists():
            number += 1
        return folder.rename(aside)


@contextmanager
def held(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock of this file, which goes with the process however it ends, and then its file too.

    Raises BusyError, which says who holds it and makes `what`, when another process does.
    """
    with _locked(path, what) as file:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}")
        file.flush()
        yield
        path.unlink()


def _locked(path: Path, what: str) -> TextIO:
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise BusyError(f"{what} is being made by {holder} (it holds {path}): wait for it, or end it, and run the same again") from None
        if _is_at(path, file):
            return file
        file.close()  # The holder before us has deleted it: it locks nothing any more.


def _is_at(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
