"""Copies in S3 of outputs (folders of finished steps) and progress (folders of unfinished steps).

- `outputs/STEP/VERSION/HASH/`: an output's files and the manifest (name -> hash); HASH is the hash of the manifest.
- `progress/STEP/VERSION/NUMBER-RANDOM/`: progress, files named by hash, and the index (name -> hash). The highest NUMBER is the latest,
  because clocks differ.

VERSION is a hash of all that the output depends on. The manifest or index is uploaded last; a copy without it is incomplete.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grpo.base.door import FILES, ForeignError, checked, inside
from grpo.base.files import (
    MANIFEST,
    CorruptError,
    atomic_folder,
    file_hashes,
    json_text,
    parse_json_object,
    parse_manifest,
    read_json,
    read_manifest,
    remove_folder,
    replace_file,
    sha256_file,
    write_json,
)
from steps.run.objects import S3Objects

_INDEX: Final = "index.json"
_NUMBER: Final = "copy.json"  # File with NUMBER.
_COPY: Final = re.compile(rf"/([0-9]{{8}})-[0-9a-f]{{8}}/{re.escape(_INDEX)}$")


class Copies:
    """All methods raise StoreError if S3 refuses or fails."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects

    def outputs(self, step: str, version: str) -> dict[str, dict[str, Any]]:
        """Return key prefix -> manifest of each copy."""
        manifests = {}
        for key in self._objects.keys(f"outputs/{step}/{version}/"):
            prefix = key.removesuffix(f"/{MANIFEST}")
            if prefix != key and prefix.count("/") == 3:  # Deeper files of this name belong to the output.
                address = f"{self._objects}/{key}"
                try:
                    manifests[prefix] = of_output(parse_manifest(self._objects.get(key) or b"", address), step, version, address)
                except CorruptError as error:
                    print(f"WARNING: {error}; this copy is passed over", flush=True)
        return manifests

    def publish(self, folder: Path) -> None:
        """Upload an output. An equal copy is overwritten, because it may be damaged."""
        manifest = read_manifest(folder)
        prefix = f"outputs/{manifest['step']}/{manifest['version']}/{manifest['manifest_hash']}"
        for name in (*manifest["files"], *manifest["aside"]):
            self._objects.upload(f"{prefix}/{name}", folder / name)
        self._objects.put(f"{prefix}/{MANIFEST}", (folder / MANIFEST).read_bytes())

    def fetch(self, prefix: str, manifest: Mapping[str, Any], folder: Path) -> None:
        """Download an output into an empty folder. Raises CorruptError if the copy is damaged."""
        files = manifest["files"] | manifest["aside"]
        self._download({name: f"{prefix}/{name}" for name in files}, files, folder)
        (folder / MANIFEST).write_text(json_text(manifest), encoding="utf-8")

    def begin_progress(self, step: str, version: str, folder: Path) -> tuple[str, int]:
        """Replace the folder by the latest undamaged copy with a higher number than the folder's.

        Return key prefix and number for a new copy.
        """
        keys = self._objects.keys(_progress_prefix(step, version))
        copies = sorted((int(match[1]), key) for key in keys if (match := _COPY.search(key)))
        number = 1 + max([self._fetch_progress(copies, step, folder), *(number for number, _ in copies)])
        return f"{_progress_prefix(step, version)}{number:08d}-{os.urandom(4).hex()}", number

    def _fetch_progress(self, copies: Sequence[tuple[int, str]], step: str, folder: Path) -> int:
        own_number = _number_of(folder)
        for number, index in reversed(copies):
            if number <= own_number:
                break
            try:
                address = f"{self._objects}/{index}"
                files = checked(FILES, parse_json_object(self._objects.get(index) or b"", address), address)
                with atomic_folder(folder) as new_folder:
                    self._download({name: f"{index.removesuffix(_INDEX)}{digest}" for name, digest in files.items()}, files, new_folder)
                    write_json(new_folder / _NUMBER, number)
                    if folder.exists():  # `atomic_folder` does not replace a folder.
                        remove_folder(folder)
            except (CorruptError, ForeignError) as error:
                print(f"{step}: WARNING: {error}; earlier progress is used instead", flush=True)
            else:
                print(f"{step}: progress of another process fetched from {self._objects}", flush=True)
                return number
        return own_number

    def save_progress(self, copy: str, number: int, folder: Path, known: set[str]) -> set[str]:
        """Make the copy equal to the folder. Return the hashes of the copy's files.

        `copy` (key prefix) and `number` are from `begin_progress`. `known`: hashes of the copy's files before the call.
        """
        if _number_of(folder) != number:
            replace_file(folder / _NUMBER, json_text(number).encode())
        files = {name: digest for name, digest in file_hashes(folder).items() if name != _NUMBER}
        for name, digest in files.items():
            if digest not in known:
                self._objects.upload(f"{copy}/{digest}", folder / name)
        self._objects.put(f"{copy}/{_INDEX}", json.dumps(files).encode())
        for digest in sorted(known - set(files.values())):  # Last, because the earlier index names these files.
            self._objects.delete(f"{copy}/{digest}")
        return set(files.values())

    def remove_progress(self, step: str, version: str) -> None:
        """Delete a version's copies, indexes first."""
        for key in sorted(self._objects.keys(_progress_prefix(step, version)), key=lambda key: not key.endswith(f"/{_INDEX}")):
            self._objects.delete(key)

    def _download(self, keys: Mapping[str, str], digests: Mapping[str, str], folder: Path) -> None:
        for name, key in keys.items():
            path = inside(folder, name)
            try:
                self._objects.download(key, path)
            except KeyError:
                raise CorruptError(f"{self._objects}/{key} is missing") from None
            if sha256_file(path) != digests[name]:
                raise CorruptError(f"{self._objects}/{key} is changed since it was written")


def of_output(manifest: dict[str, Any], step: str, version: str, source: object) -> dict[str, Any]:
    """Return the manifest. Raises CorruptError, which names `source`, if the manifest is of another step or version."""
    if (manifest.get("step"), manifest.get("version")) != (step, version):
        raise CorruptError(f"{source} holds another output than version {version} of {step}")
    return manifest


def _number_of(folder: Path) -> int:
    try:
        number = read_json(folder / _NUMBER)
    except (OSError, CorruptError):
        return 0
    return number if type(number) is int else 0


def _progress_prefix(step: str, version: str) -> str:
    return f"progress/{step}/{version}/"
