"""Outputs of steps by version: an output whose version is already here need not be made again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.content import MANIFEST, CorruptError, atomic_folder, read_json, verified_manifest, write_manifest

_FOLDER: Final = "outputs"


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
            raise CorruptError(
                f"{folder} is missing: the output of {output['step']} is not on this machine; run on the machine and in the"
                " CHESS_GRPO_HOME that made it, or start without --resume-from"
            )
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

    def discard(self, step: str, version: str) -> Path:
        """Move a spoilt or unwanted output out of the way and return where it went; nothing is ever deleted."""
        folder = self.folder(step, version)
        number = 1
        while (aside := folder.with_name(f"{version}.set-aside-{number}")).exists():
            number += 1
        return folder.rename(aside)
