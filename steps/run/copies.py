"""Copies of outputs and of progress in S3: each writer has a name of its own below the version, and what makes a copy whole comes last.

`outputs/STEP/VERSION/ATTEMPT/` holds an output's files and then its manifest, only if there is none. `progress/STEP/VERSION/ATTEMPT/` holds
the files of a progress folder by hash, and then an index of them, which its writer replaces at each save.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from grpo.base.files import (
    MANIFEST,
    CorruptError,
    atomic_folder,
    file_hashes,
    json_text,
    parse_json_object,
    parse_manifest,
    read_json,
    remove_folder,
    sha256_file,
)
from steps.run.objects import S3Objects, StoreError

_DAMAGED: Final = ".damaged"
_FRESH: Final = ".fresh"
"""Suffixes of objects beside an attempt: why it is found by its version no more."""
_INDEX: Final = "index.json"
_BEGAN_FROM: Final = "began_from"
"""File of a local progress folder: the attempt that the folder was last equal to, or went on from."""


class Copy(NamedTuple):
    """An output in S3."""

    place: str
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """What its writer is called: when the output was made, and which it is."""
        return self.place.rpartition("/")[2]


class Copies:
    """What S3 has of outputs and of progress."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects

    # Outputs.

    def of(self, step: str, version: str) -> tuple[list[Copy], list[Copy]]:
        """Return the copies of this version, oldest first: those to be found, and those that --fresh has set aside."""
        keys = set(self._objects.keys(f"outputs/{step}/{version}/"))
        valid: list[Copy] = []
        fresh: list[Copy] = []
        for key in sorted(keys):
            place = key.removesuffix(f"/{MANIFEST}")
            if key.count("/") != 4 or place == key or f"{place}{_DAMAGED}" in keys:  # An output may have deeper files of that name.
                continue
            try:
                copy = Copy(place, parse_manifest(self._objects.get(key) or b"", f"{self._objects}/{key}"))
            except CorruptError as error:
                self._spoilt(place, error)
            else:
                (fresh if f"{place}{_FRESH}" in keys else valid).append(copy)
        return valid, fresh

    def set_aside(self, step: str, version: str) -> None:
        """Let nobody find this version any more."""
        for copy in self.of(step, version)[0]:
            self._objects.create(f"{copy.place}{_FRESH}", b"")

    def publish(self, folder: Path) -> None:
        """Upload an output of this machine; who is killed on the way goes on with the same copy."""
        manifest = read_json(folder / MANIFEST)
        root = f"outputs/{manifest['step']}/{manifest['version']}"
        if self._objects.get(f"{root}/{name_of(folder)}/{MANIFEST}") is not None:  # That copy is not found any more: make another.
            os.utime(folder / MANIFEST)
        place = f"{root}/{name_of(folder)}"
        self._objects.upload({f"{place}/{name}": folder / name for name in (*manifest["files"], *manifest["aside"])})
        self._objects.create(f"{place}/{MANIFEST}", (folder / MANIFEST).read_bytes())

    def fetch(self, copy: Copy, folder: Path) -> None:
        """Download an output into an empty folder. Raises CorruptError when the copy is damaged; it is told of, and not found any more."""
        files = copy.manifest["files"] | copy.manifest["aside"]
        try:
            self._download({name: f"{copy.place}/{name}" for name in files}, files, folder)
        except CorruptError as error:
            self._spoilt(copy.place, error)
            raise
        (folder / MANIFEST).write_text(json_text(copy.manifest), encoding="utf-8")
        made = int(copy.name.partition("-")[0])
        os.utime(folder / MANIFEST, ns=(made, made))  # So that it has the same name here.

    def _spoilt(self, place: str, error: CorruptError) -> None:
        print(f"WARNING: {error}; this copy is not used any more", flush=True)
        with suppress(StoreError):  # Who may only read passes it over each time.
            self._objects.create(f"{place}{_DAMAGED}", b"")

    # Progress.

    def fetch_progress(self, step: str, version: str, folder: Path) -> None:
        """Replace a progress folder by the newest whole copy, unless it is equal to that or has gone on from it."""
        for attempt in reversed(self._attempts(step, version)):
            if (folder / _BEGAN_FROM).exists() and (folder / _BEGAN_FROM).read_text(encoding="utf-8") == attempt:
                return
            index = f"{attempt}/{_INDEX}"
            try:
                files = parse_json_object(self._objects.get(index) or b"", f"{self._objects}/{index}")
                with atomic_folder(folder) as made:
                    self._download({name: f"{attempt}/{digest}" for name, digest in files.items()}, files, made)
                    (made / _BEGAN_FROM).write_text(attempt, encoding="utf-8")
                    if folder.exists():
                        remove_folder(folder)
            except CorruptError as error:
                print(f"{step}: WARNING: {error}; earlier progress is used instead", flush=True)
            else:
                print(f"{step}: progress of another process fetched from {self._objects}", flush=True)
                return

    def save_progress(self, attempt: str, folder: Path, known: set[str]) -> set[str]:
        """Upload a progress folder under the attempt's own name; take the hashes that are there, and return those that are there now."""
        files = {name: digest for name, digest in file_hashes(folder).items() if name != _BEGAN_FROM}
        self._objects.upload({f"{attempt}/{digest}": folder / name for name, digest in files.items() if digest not in known})
        self._objects.put(f"{attempt}/{_INDEX}", json.dumps(files).encode())
        (folder / _BEGAN_FROM).write_text(attempt, encoding="utf-8")
        for digest in sorted(known - set(files.values())):
            self._objects.delete(f"{attempt}/{digest}")
        return set(files.values())

    def remove_progress(self, step: str, version: str) -> None:
        """Delete all progress of a version; the indexes first, so that nobody reads half of a copy."""
        for key in sorted(self._objects.keys(_progress(step, version)), key=lambda key: not key.endswith(f"/{_INDEX}")):
            self._objects.delete(key)

    def has_progress(self, step: str, version: str) -> bool:
        """Return whether there is any progress of a version, whole or not."""
        return bool(self._objects.keys(_progress(step, version)))

    def _attempts(self, step: str, version: str) -> list[str]:
        """Return the places of the copies of progress, oldest first."""
        keys = self._objects.keys(_progress(step, version))
        return [key.removesuffix(f"/{_INDEX}") for key in keys if key.endswith(f"/{_INDEX}")]

    def _download(self, keys: Mapping[str, str], digests: Mapping[str, str], folder: Path) -> None:
        for name in keys:
            if not (folder / name).resolve().is_relative_to(folder.resolve()):
                raise CorruptError(f"{self._objects}/{keys[name]}: {name} would be written outside of {folder}")
        try:
            self._objects.download({folder / name: key for name, key in keys.items()})
        except KeyError as error:
            raise CorruptError(f"{self._objects}/{error.args[0]} is missing") from None
        for name in keys:
            if sha256_file(folder / name) != digests[name]:
                raise CorruptError(f"{self._objects}/{keys[name]} is changed since it was written")


def name_of(folder: Path) -> str:
    """Return how the copy of an output of this machine is called: when its manifest was written, and which it is."""
    path = folder / MANIFEST
    return f"{path.stat().st_mtime_ns:020d}-{read_json(path)['manifest_hash'][:8]}"


def new_attempt(step: str, version: str) -> str:
    """Return the place of a new copy of progress; later ones sort after it."""
    return f"{_progress(step, version)}{time.time_ns():020d}-{os.urandom(4).hex()}"


def _progress(step: str, version: str) -> str:
    return f"progress/{step}/{version}/"
