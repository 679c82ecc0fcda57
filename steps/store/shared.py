"""The shared store: step outputs and the progress of interrupted steps, in object storage, for machines without a common disk.

An output's files are uploaded first and its manifest last; existing objects are never overwritten. A file of progress is stored under the
hash of its content. An index names the files of one consistent snapshot; it is written last, in one request.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.base.files import MANIFEST, CorruptError, remove_folder, sha256_file
from steps.store.objects import Objects

_OUTPUTS: Final = "outputs"
_LATEST: Final = "latest.json"
_PROGRESS: Final = "progress"
_INDEX: Final = "index.json"
_TAG: Final = "shared_tag"
"""File of a local progress folder: the ETag of the index that the folder was last equal to, or resumed from."""


class StepOutput(TypedDict):
    """Identifies a step's output: plain data, so that new code can read old runs."""

    step: str
    version: str
    output_hash: str
    reused: bool
    """Whether the store already had it."""


@dataclass(frozen=True, slots=True)
class OtherProgress:
    """Progress of a run under another version."""

    version: str
    facts: Mapping[str, Any]


class SharedStore:
    """Outputs and progress by step and version, in object storage."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def __str__(self) -> str:
        return str(self.objects)

    def publish(self, output: StepOutput, folder: Path) -> None:
        """Upload an output, unless it is there; from then on `find` returns it for its version."""
        if not self.has(output):
            place = _place(output)
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path != folder / MANIFEST:
                    self.objects.upload(path, f"{place}/{path.relative_to(folder).as_posix()}")
            self.objects.upload(folder / MANIFEST, f"{place}/{MANIFEST}")
        self.objects.put(_latest(output["step"], output["version"]), json.dumps({"output_hash": output["output_hash"]}).encode())

    def has(self, output: StepOutput) -> bool:
        """Return whether the store has this output."""
        return self.objects.get(f"{_place(output)}/{MANIFEST}") is not None

    def find(self, step: str, version: str) -> StepOutput | None:
        """Return the latest output that was published under a version; None when there is none."""
        found = self.objects.get(_latest(step, version))
        if found is None:
            return None
        return StepOutput(step=step, version=version, output_hash=json.loads(found.data)["output_hash"], reused=True)

    def unlist(self, step: str, version: str) -> None:
        """Make `find` return no output for a version; its files stay."""
        self.objects.delete(_latest(step, version))

    def fetch(self, output: StepOutput, folder: Path) -> None:
        """Download an output's files to a folder; the caller verifies them. Raises CorruptError when one is missing."""
        place = _place(output)
        found = self.objects.get(f"{place}/{MANIFEST}")
        if found is None:
            raise CorruptError(f"{self}/{place} is missing: this output of {output['step']} is neither here nor in the shared store")
        (folder / MANIFEST).write_bytes(found.data)
        manifest = json.loads(found.data)
        for name in (*manifest["files"], *manifest.get("aside", {})):
            self._download(f"{place}/{name}", folder / name, below=folder)

    def save_progress(self, step: str, version: str, folder: Path, facts: Mapping[str, Any]) -> None:
        """Upload a snapshot of the folder with `facts` about its owner. Only the holder of the version's lease may call this."""
        place = f"{_PROGRESS}/{step}/{version}"
        index = self._index(step, version)
        known = set() if index is None else set(index["files"].values())
        paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != _TAG}
        files = {name: sha256_file(path) for name, path in paths.items()}
        for name, digest in files.items():
            if digest not in known:
                self.objects.upload(paths[name], f"{place}/files/{digest}")
        tag = self.objects.put(f"{place}/{_INDEX}", json.dumps({"files": files, **facts}, sort_keys=True).encode())
        (folder / _TAG).write_text(tag, encoding="utf-8")
        for digest in sorted(known - set(files.values())):
            self.objects.delete(f"{place}/files/{digest}")

    def has_progress(self, step: str, version: str) -> bool:
        """Return whether any progress was saved."""
        return self._index(step, version) is not None

    def fetch_progress(self, step: str, version: str, folder: Path) -> bool:
        """Replace the local folder by the last saved snapshot, and return whether that changed it.

        A folder that equals the snapshot or has resumed from it stays as it is. Raises CorruptError when a saved file is damaged.
        """
        index = self._index(step, version)
        if index is None:
            return False
        tag = folder / _TAG
        if tag.exists() and tag.read_text(encoding="utf-8") == index["tag"]:
            return False
        if folder.exists():
            remove_folder(folder)
        folder.mkdir(parents=True)
        for name, digest in index["files"].items():
            self._download(f"{_PROGRESS}/{step}/{version}/files/{digest}", folder / name, below=folder)
            if sha256_file(folder / name) != digest:
                raise CorruptError(f"{self}/{_PROGRESS}/{step}/{version}: {name} has changed since it was saved; --fresh starts over")
        tag.write_text(index["tag"], encoding="utf-8")
        return True

    def delete_progress(self, step: str, version: str) -> None:
        """Delete the saved progress; the index first, so that nobody reads an incomplete snapshot."""
        place = f"{_PROGRESS}/{step}/{version}/"
        self.objects.delete(place + _INDEX)
        for key in self.objects.keys(place):
            self.objects.delete(key)

    def progress_of_other_versions(self, step: str, version: str, *, run: str) -> list[OtherProgress]:
        """Return the progress of a run under other versions: it comes from another kind of machine and cannot be resumed here."""
        found = []
        for key in self.objects.keys(f"{_PROGRESS}/{step}/"):
            other = key.split("/")[2]
            if key.endswith(f"/{_INDEX}") and other != version and (index := self._index(step, other)) and index.get("run") == run:
                found.append(OtherProgress(other, index))
        return found

    def _index(self, step: str, version: str) -> dict[str, Any] | None:
        found = self.objects.get(f"{_PROGRESS}/{step}/{version}/{_INDEX}")
        return None if found is None else {**json.loads(found.data), "tag": found.tag}

    def _download(self, key: str, path: Path, *, below: Path) -> None:
        if not path.resolve().is_relative_to(below.resolve()):
            raise CorruptError(f"{self}/{key} would be written outside of {below}")
        try:
            self.objects.download(key, path)
        except KeyError:
            raise CorruptError(f"{self}/{key} is missing") from None


def _place(output: StepOutput) -> str:
    return f"{_OUTPUTS}/{output['step']}/{output['version']}/{output['output_hash']}"


def _latest(step: str, version: str) -> str:
    return f"{_OUTPUTS}/{step}/{version}/{_LATEST}"
