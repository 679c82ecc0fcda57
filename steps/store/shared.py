"""The shared store: step outputs and the progress of interrupted steps, in object storage, for machines without a common disk.

Both are snapshots of a folder. A file is stored under the hash of its content, and an index names the files; it is written after them, in
one request. So a reader finds a snapshot complete or not at all, writers of the same output at the same time do not disturb each other,
and who has the files of a damaged snapshot mends it by writing it again.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.base.files import MANIFEST, CorruptError, atomic_folder, file_hashes, parse_json_object, remove_folder, sha256_file
from steps.store.object_lease import LeaseLostError
from steps.store.objects import Objects

_OUTPUTS: Final = "outputs"
_LATEST: Final = "latest.json"
_PROGRESS: Final = "progress"
_INDEX: Final = "index.json"
_TAG: Final = "shared_tag"
"""File of a local progress folder: the ETag of the index that the folder was last equal to, or resumed from."""
_TRIES: Final = 3
"""Of a write or read that another writer disturbs."""


class StepOutput(TypedDict):
    """Identifies a step's output: plain data, so that new code can read old runs."""

    step: str
    version: str
    output_hash: str
    reused: bool
    """Whether the store already had it."""


@dataclass(frozen=True, slots=True)
class _Index:
    """The index of a snapshot, as it was read."""

    files: dict[str, str]
    """Relative path -> SHA-256."""
    facts: Mapping[str, Any]
    token: int
    """The fencing token of the lease that it was written under; 0 without a lease."""
    tag: str


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
            files = {**file_hashes(folder), MANIFEST: sha256_file(folder / MANIFEST)}
            for name, digest in files.items():  # All of them: what an earlier index named may be damaged.
                self.objects.upload(folder / name, f"{place}/files/{digest}")
            self.objects.put(f"{place}/{_INDEX}", _index_data(files, {}))
        self.objects.put(_latest(output["step"], output["version"]), json.dumps({"output_hash": output["output_hash"]}).encode())

    def has(self, output: StepOutput) -> bool:
        """Return whether the store has this output."""
        try:
            return self._index(_place(output)) is not None
        except CorruptError:
            return False

    def find(self, step: str, version: str) -> StepOutput | None:
        """Return the latest output that was published under a version, None when there is none. Raises CorruptError."""
        found = self._read(_latest(step, version))
        if found is None:
            return None
        output_hash = found[0].get("output_hash")
        if not isinstance(output_hash, str):
            raise CorruptError(f"{self}/{_latest(step, version)} is damaged: it names no output")
        return StepOutput(step=step, version=version, output_hash=output_hash, reused=True)

    def unlist(self, step: str, version: str) -> None:
        """Make `find` return no output for a version; its files stay."""
        self.objects.delete(_latest(step, version))

    def fetch(self, output: StepOutput, folder: Path, only: Collection[str] | None = None) -> None:
        """Download an output's files, or only those of these names, to an empty folder.

        Raises CorruptError when the store has not got all of them as they were. Then it has this output no more, until a machine that has
        it publishes it again.
        """
        place = _place(output)
        try:
            index = self._index(place)
            if index is None:
                raise CorruptError(f"{self}/{place} is missing: this output of {output['step']} is neither here nor in the shared store")
            self._download(place, index, folder, only)
        except CorruptError:
            self.objects.delete(f"{place}/{_INDEX}")
            raise

    def save_progress(self, step: str, version: str, folder: Path, facts: Mapping[str, Any], *, token: int) -> None:
        """Upload a snapshot of the folder with `facts` about its owner, under the lease with this fencing token.

        Raises LeaseLostError when a later holder of the version's lease has written already; its snapshot stays.
        """
        place = f"{_PROGRESS}/{step}/{version}"
        files = {name: digest for name, digest in file_hashes(folder).items() if name != _TAG}
        data = _index_data(files, {**facts, "token": token})
        for _ in range(_TRIES):
            try:
                index = self._index(place)
            except CorruptError:  # We hold the lease, and write it anew.
                self.objects.delete(f"{place}/{_INDEX}")
                index = None
            if index is not None and index.token > token:
                raise LeaseLostError(
                    f"the progress of {step}, version {version}, is no longer this process's to write: another one has saved later progress"
                    f" to {self} (fencing token {index.token}, ours is {token}); the same command resumes from it"
                )
            known = set() if index is None else set(index.files.values())
            for name, digest in files.items():
                if digest not in known:
                    self.objects.upload(folder / name, f"{place}/files/{digest}")
            key = f"{place}/{_INDEX}"
            tag = self.objects.create(key, data) if index is None else self.objects.replace(key, data, tag=index.tag)
            if tag is not None:
                (folder / _TAG).write_text(tag, encoding="utf-8")
                for digest in sorted(known - set(files.values())):
                    self.objects.delete(f"{place}/files/{digest}")
                return
        raise LeaseLostError(f"the progress of {step}, version {version}, is being written to {self} by another process, too")

    def has_progress(self, step: str, version: str) -> bool:
        """Return whether any progress was saved, damaged or not."""
        return self.objects.get(f"{_PROGRESS}/{step}/{version}/{_INDEX}") is not None

    def fetch_progress(self, step: str, version: str, folder: Path) -> bool:
        """Replace the local folder by the last saved snapshot once that is here and verified, and return whether that changed it.

        A folder that equals the snapshot or has resumed from it stays as it is. Raises CorruptError when the snapshot is damaged; the
        local folder stays.
        """
        place = f"{_PROGRESS}/{step}/{version}"
        for attempt in range(_TRIES):
            index = self._index(place)
            if index is None:
                return False
            tag = folder / _TAG
            if tag.exists() and tag.read_text(encoding="utf-8") == index.tag:
                return False
            try:
                with atomic_folder(folder) as made:
                    self._download(place, index, made)
                    (made / _TAG).write_text(index.tag, encoding="utf-8")
                    if folder.exists():
                        remove_folder(folder)
            except CorruptError:  # Perhaps the previous holder has just replaced the snapshot.
                if attempt == _TRIES - 1:
                    raise
            else:
                return True
        raise AssertionError("the last attempt returns or raises")

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
            if key.endswith(f"/{_INDEX}") and other != version:
                with suppress(CorruptError):  # Nobody can resume from it.
                    index = self._index(key.removesuffix(f"/{_INDEX}"))
                    if index is not None and index.facts.get("run") == run:
                        found.append(OtherProgress(other, index.facts))
        return found

    def _index(self, place: str) -> _Index | None:
        """Return the index of the snapshot at a place, None when there is none. Raises CorruptError when it is not an index."""
        key = f"{place}/{_INDEX}"
        found = self._read(key)
        if found is None:
            return None
        facts, tag = found
        files, token = facts.pop("files", None), facts.pop("token", 0)
        if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()) or not isinstance(token, int):
            raise CorruptError(f"{self}/{key} is damaged: it is not an index of files")
        return _Index(files, facts, token, tag)

    def _read(self, key: str) -> tuple[dict[str, Any], str] | None:
        """Return a small JSON object and its tag, None when there is none. Raises CorruptError when it is not a JSON object."""
        stored = self.objects.get(key)
        return None if stored is None else (parse_json_object(stored.data, f"{self}/{key}"), stored.tag)

    def _download(self, place: str, index: _Index, folder: Path, only: Collection[str] | None = None) -> None:
        for name, digest in index.files.items():
            if only is not None and name not in only:
                continue
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise CorruptError(f"{self}/{place}: {name} would be written outside of {folder}")
            try:
                self.objects.download(f"{place}/files/{digest}", path)
            except KeyError:
                raise CorruptError(f"{self}/{place}: {name} is missing") from None
            if sha256_file(path) != digest:
                raise CorruptError(f"{self}/{place}: {name} is changed since it was saved")


def _index_data(files: Mapping[str, str], facts: Mapping[str, Any]) -> bytes:
    return json.dumps({"files": files, **facts}, sort_keys=True).encode()


def _place(output: StepOutput) -> str:
    return f"{_OUTPUTS}/{output['step']}/{output['version']}/{output['output_hash']}"


def _latest(step: str, version: str) -> str:
    return f"{_OUTPUTS}/{step}/{version}/{_LATEST}"
