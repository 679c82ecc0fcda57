"""The shared store: step outputs and the progress of interrupted steps, in object storage, for machines without a common disk.

Both are snapshots of a folder. A file is stored under the hash of its content, and an index names the files; it is written after them, in
one request. So a reader finds a snapshot complete or not at all, writers of the same output at the same time do not disturb each other,
and who has the files of a damaged snapshot mends it by writing it again.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.base.files import MANIFEST, CorruptError, atomic_folder, file_hashes, parse_json_object, remove_folder, sha256_file
from steps.store.objects import Objects

_OUTPUTS: Final = "outputs"
_LATEST: Final = "latest.json"
_PROGRESS: Final = "progress"
_INDEX: Final = "index.json"
_BEGAN_FROM: Final = "began_from"
"""File of a local progress folder: the attempt whose snapshot the folder was last equal to, or resumed from."""


class StepOutput(TypedDict):
    """Identifies a step's output: plain data, so that new code can read old runs."""

    step: str
    version: str
    output_hash: str
    reused: bool
    """Whether the store already had it."""


class SharedStore:
    """Outputs and progress by step and version, in object storage."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def __str__(self) -> str:
        return str(self.objects)

    def publish(self, output: StepOutput, folder: Path) -> None:
        """Upload an output, unless it is there; `find` returns the first that was published under a version."""
        if not self.has(output):
            place = _place(output)
            files = {**file_hashes(folder), MANIFEST: sha256_file(folder / MANIFEST)}
            for name, digest in files.items():  # All of them: what an earlier index named may be damaged.
                self.objects.upload(folder / name, f"{place}/files/{digest}")
            self.objects.put(f"{place}/{_INDEX}", _index_data(files))
        # Equal versions have equal outputs, so the first stands.
        self.objects.create(_latest(output["step"], output["version"]), json.dumps({"output_hash": output["output_hash"]}).encode())

    def has(self, output: StepOutput) -> bool:
        """Return whether the store has this output."""
        try:
            return self._index(_place(output)) is not None
        except CorruptError:
            return False

    def find(self, step: str, version: str) -> StepOutput | None:
        """Return the output that was published under a version, None when there is none. Raises CorruptError."""
        found = self._read(_latest(step, version))
        if found is None:
            return None
        output_hash = found.get("output_hash")
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
            files = self._index(place)
            if files is None:
                raise CorruptError(f"{self}/{place} is missing: this output of {output['step']} is neither here nor in the shared store")
            self._download(place, files, folder, only)
        except CorruptError:
            self.objects.delete(f"{place}/{_INDEX}")
            raise

    def save_progress(self, step: str, version: str, attempt: str, folder: Path) -> None:
        """Upload a snapshot of the folder under the attempt's own name, which no other process writes."""
        place = f"{_PROGRESS}/{step}/{version}/{attempt}"
        try:
            known = set((self._index(place) or {}).values())
        except CorruptError:
            known = set()
        files = {name: digest for name, digest in file_hashes(folder).items() if name != _BEGAN_FROM}
        for name, digest in files.items():
            if digest not in known:
                self.objects.upload(folder / name, f"{place}/files/{digest}")
        self.objects.put(f"{place}/{_INDEX}", _index_data(files))
        (folder / _BEGAN_FROM).write_text(attempt, encoding="utf-8")
        for digest in sorted(known - set(files.values())):
            self.objects.delete(f"{place}/files/{digest}")

    def has_progress(self, step: str, version: str) -> bool:
        """Return whether any progress was saved, damaged or not."""
        return bool(self._attempts(step, version))

    def fetch_progress(self, step: str, version: str, folder: Path) -> bool:
        """Replace the local folder by the newest attempt's snapshot that is whole, and return whether that changed it.

        A folder that is a copy of that attempt's, or has gone on from it, stays as it is. A damaged snapshot is passed over with a warning.
        """
        for attempt in reversed(self._attempts(step, version)):
            began_from = folder / _BEGAN_FROM
            if began_from.exists() and began_from.read_text(encoding="utf-8") == attempt:
                return False
            place = f"{_PROGRESS}/{step}/{version}/{attempt}"
            try:
                if (files := self._index(place)) is None:
                    continue
                with atomic_folder(folder) as made:
                    self._download(place, files, made)
                    (made / _BEGAN_FROM).write_text(attempt, encoding="utf-8")
                    if folder.exists():
                        remove_folder(folder)
            except CorruptError as error:
                print(f"{step}: WARNING: {error}; earlier progress is used instead", flush=True)
            else:
                return True
        return False

    def delete_progress(self, step: str, version: str) -> None:
        """Delete the saved progress; the indexes first, so that nobody reads an incomplete snapshot."""
        keys = self.objects.keys(f"{_PROGRESS}/{step}/{version}/")
        for key in sorted(keys, key=lambda key: not key.endswith(f"/{_INDEX}")):
            self.objects.delete(key)

    def _attempts(self, step: str, version: str) -> list[str]:
        """Return the names of the attempts that saved progress, the oldest first."""
        return sorted(key.split("/")[3] for key in self.objects.keys(f"{_PROGRESS}/{step}/{version}/") if key.endswith(f"/{_INDEX}"))

    def _index(self, place: str) -> dict[str, str] | None:
        """Return the files of the snapshot at a place (relative path -> SHA-256), None when there is none. Raises CorruptError."""
        key = f"{place}/{_INDEX}"
        found = self._read(key)
        if found is None:
            return None
        files = found.get("files")
        if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
            raise CorruptError(f"{self}/{key} is damaged: it is not an index of files")
        return files

    def _read(self, key: str) -> dict[str, Any] | None:
        """Return a small JSON object, None when there is none. Raises CorruptError when it is not a JSON object."""
        stored = self.objects.get(key)
        return None if stored is None else parse_json_object(stored, f"{self}/{key}")

    def _download(self, place: str, files: Mapping[str, str], folder: Path, only: Collection[str] | None = None) -> None:
        for name, digest in files.items():
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


def _index_data(files: Mapping[str, str]) -> bytes:
    return json.dumps({"files": files}, sort_keys=True).encode()


def _place(output: StepOutput) -> str:
    return f"{_OUTPUTS}/{output['step']}/{output['version']}/{output['output_hash']}"


def _latest(step: str, version: str) -> str:
    return f"{_OUTPUTS}/{step}/{version}/{_LATEST}"
