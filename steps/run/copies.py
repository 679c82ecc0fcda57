"""Copies of outputs and of progress in S3: each writer has a name of its own below the version, and what makes a copy whole comes last.

`outputs/STEP/VERSION/HASH/` holds an output's files and then its manifest. `progress/STEP/VERSION/TIME-RANDOM/` holds the files of a
progress folder by hash, and then an index of them, which its writer replaces at each save; later names sort after earlier ones.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

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
from steps.run.objects import S3Objects

_INDEX: Final = "index.json"


class Copies:
    """What S3 has of outputs and of progress."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects

    def of(self, step: str, version: str) -> dict[str, dict[str, Any]]:
        """Return the copies of an output: place -> manifest."""
        found = {}
        for key in self._objects.keys(f"outputs/{step}/{version}/"):
            place = key.removesuffix(f"/{MANIFEST}")
            if place != key and place.count("/") == 3:  # An output may have deeper files of that name.
                try:
                    found[place] = parse_manifest(self._objects.get(key) or b"", f"{self._objects}/{key}")
                except CorruptError as error:
                    print(f"WARNING: {error}; this copy is passed over", flush=True)
        return found

    def publish(self, folder: Path) -> None:
        """Upload an output of this machine; over an equal copy, which may be damaged."""
        manifest = read_json(folder / MANIFEST)
        place = f"outputs/{manifest['step']}/{manifest['version']}/{manifest['manifest_hash']}"
        for name in (*manifest["files"], *manifest["aside"]):
            self._objects.upload(f"{place}/{name}", folder / name)
        self._objects.put(f"{place}/{MANIFEST}", (folder / MANIFEST).read_bytes())

    def fetch(self, place: str, manifest: Mapping[str, Any], folder: Path) -> None:
        """Download an output into an empty folder. Raises CorruptError when the copy is damaged."""
        files = manifest["files"] | manifest["aside"]
        self._download({name: f"{place}/{name}" for name in files}, files, folder)
        (folder / MANIFEST).write_text(json_text(manifest), encoding="utf-8")

    def fetch_progress(self, step: str, version: str, folder: Path) -> None:
        """Replace a progress folder by the newest whole copy that was begun since the folder was last written."""
        last = max((path.stat().st_mtime_ns for path in folder.rglob("*")), default=0)
        keys = self._objects.keys(_progress(step, version))
        for index in [key for key in reversed(keys) if key.endswith(f"/{_INDEX}") and int(key.split("/")[3].partition("-")[0]) > last]:
            try:
                files = parse_json_object(self._objects.get(index) or b"", f"{self._objects}/{index}")
                with atomic_folder(folder) as made:
                    self._download({name: index.replace(_INDEX, digest) for name, digest in files.items()}, files, made)
                    if folder.exists():
                        remove_folder(folder)
            except CorruptError as error:
                print(f"{step}: WARNING: {error}; earlier progress is used instead", flush=True)
            else:
                print(f"{step}: progress of another process fetched from {self._objects}", flush=True)
                return

    def save_progress(self, attempt: str, folder: Path, known: set[str]) -> set[str]:
        """Upload a progress folder under the attempt's own name; take the hashes that are there, and return those that are there now."""
        files = file_hashes(folder)
        for name, digest in files.items():
            if digest not in known:
                self._objects.upload(f"{attempt}/{digest}", folder / name)
        self._objects.put(f"{attempt}/{_INDEX}", json.dumps(files).encode())
        for digest in sorted(known - set(files.values())):
            self._objects.delete(f"{attempt}/{digest}")
        return set(files.values())

    def remove_progress(self, step: str, version: str) -> None:
        """Delete all progress of a version; the indexes first, so that nobody reads half of a copy."""
        for key in sorted(self._objects.keys(_progress(step, version)), key=lambda key: not key.endswith(f"/{_INDEX}")):
            self._objects.delete(key)

    def _download(self, keys: Mapping[str, str], digests: Mapping[str, str], folder: Path) -> None:
        for name, key in keys.items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise CorruptError(f"{self._objects}/{key}: {name} would be written outside of {folder}")
            try:
                self._objects.download(key, path)
            except KeyError:
                raise CorruptError(f"{self._objects}/{key} is missing") from None
            if sha256_file(path) != digests[name]:
                raise CorruptError(f"{self._objects}/{key} is changed since it was written")


def new_attempt(step: str, version: str, begun: int) -> str:
    """Return the place of a new copy of progress, which was begun at this time of the disk (ns), before anything was written."""
    return f"{_progress(step, version)}{begun:020d}-{os.urandom(4).hex()}"


def _progress(step: str, version: str) -> str:
    return f"progress/{step}/{version}/"
