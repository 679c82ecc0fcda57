"""Store of step outputs, progress of unfinished steps, and records of runs; in a folder or in S3.

- Version: hash of all that a step's output depends on. Equal versions have equal outputs.
- Output: folder `outputs/STEP/VERSION/` with a manifest (hash of each file). Outputs never change, so machines need no lock.
- Progress: folder `progress/STEP/VERSION/`. Processes with the same disk share the folder, so a process locks the version while it works.
- Record: a small JSON object about a run.

With S3, outputs and progress are in `Machine.home` and are copied to S3.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from pydantic import TypeAdapter

from grpo.base.door import ForeignError, checked, without
from grpo.base.files import (
    CorruptError,
    atomic_folder,
    explain_write_errors,
    is_sealed,
    json_text,
    locked,
    parse_json_object,
    read_manifest,
    remove_abandoned,
    remove_folder,
    remove_leftovers,
    seal,
    verified_manifest,
    write_manifest,
)
from grpo.settings.types import S3_SCHEME
from steps.run.copies import Copies, of_output
from steps.run.machine import Machine
from steps.run.objects import FolderObjects, S3Objects, StoreError
from steps.run.step import StepOutput

T = TypeVar("T")
_RECORD_HASH: Final = "record_hash"
_NUM_AT_ONCE: Final = 16  # Concurrent reads of records.


class MissingFileError(CorruptError, FileNotFoundError):
    """A complete output has no such file, because other code made the output."""


class Store:
    def __init__(self, place: str | Path, home: Path) -> None:
        """`place`: a folder or `s3://BUCKET/PREFIX`."""
        self._place = str(place)
        self._objects: FolderObjects | S3Objects
        if self._place.startswith(S3_SCHEME):
            self._folder, self._objects = home, S3Objects(self._place)
            self._copies: Copies | None = Copies(self._objects)
        else:
            self._folder, self._objects, self._copies = Path(place), FolderObjects(Path(place)), None

    @classmethod
    def of(cls, machine: Machine) -> Self:
        return cls(machine.store or machine.home, machine.home)

    def __str__(self) -> str:
        return self._place

    def folder(self, step: str, version: str) -> Path:
        """Return an output's path on this disk, which may not exist."""
        return self._folder / "outputs" / step / version

    def progress(self, step: str, version: str) -> Path:
        return self._folder / "progress" / step / version

    def place(self, output: StepOutput) -> str:
        """Return an output's address for messages."""
        root = self._folder if self._copies is None else self
        return f"{root}/outputs/{output['step']}/{output['version']}"

    def open(self, output: StepOutput) -> Path:
        """Verify an output and return its folder; fetch it from S3 if needed. Raises CorruptError if no copy is complete."""
        if self._verified(output["step"], output["version"], output["output_hash"]) is None:
            raise CorruptError(f"{self} has no complete copy of the output {output['output_hash'][:12]} of {output['step']}")
        return self.folder(output["step"], output["version"])

    def manifest(self, output: StepOutput) -> dict[str, Any]:
        return read_manifest(self.open(output))

    def file(self, output: StepOutput, name: str) -> Path:
        """Return a file or folder of a verified output. Raises CorruptError, or MissingFileError."""
        if not (path := self.open(output) / name).exists():
            raise MissingFileError(f"the output of {output['step']} in {self.place(output)} has no {name}: other code made it")
        return path

    @contextmanager
    def making(self, step: str, version: str) -> Iterator["Making"]:
        """Yield a `Making`. If its `output` is None, the block makes the output with `filling`.

        Other processes of the disk wait. With S3, newer progress is fetched first. Progress is deleted when the output is stored.
        """
        progress, lock = self.progress(step, version), self._folder / "locks" / f"{step}-{version}"
        with locked(lock, lambda holder: print(f"{step}: {holder} makes this output now (it holds {lock}): waiting for it", flush=True)):
            # Killed processes leave folders, whose hard links would keep deleted outputs on the disk.
            for folder in (progress, self.folder(step, version)):
                remove_abandoned(folder)
            making = Making(self, step, version)
            yield making
            if making.output is not None:
                with suppress(StoreError):  # The next process with this version deletes the copies.
                    if self._copies is not None:
                        self._copies.remove_progress(step, version)
                if progress.exists():
                    remove_folder(progress)

    def _verified(self, step: str, version: str, wanted: str = "") -> dict[str, Any] | None:
        """Return a complete output's manifest, or None. `wanted`: output hash, "" for any."""
        folder = self.folder(step, version)
        if folder.exists():
            try:
                manifest = of_output(verified_manifest(folder), step, version, folder)
                if wanted in ("", manifest["output_hash"]):
                    return manifest
            except CorruptError as error:
                print(f"{step}: WARNING: {error}; set aside as {_set_aside(folder)}", flush=True)
        copies = {} if self._copies is None else self._copies.outputs(step, version)
        matching = ((prefix, manifest) for prefix, manifest in copies.items() if wanted in ("", manifest["output_hash"]))
        return next((manifest for prefix, manifest in matching if self._fetch(prefix, manifest, folder)), None)

    def _fetch(self, prefix: str, manifest: Mapping[str, Any], folder: Path) -> bool:
        assert self._copies is not None
        try:
            with atomic_folder(folder) as new_folder:
                self._copies.fetch(prefix, manifest, new_folder)
                _set_aside(folder)  # `atomic_folder` does not replace a folder.
        except CorruptError as error:
            print(f"{manifest['step']}: WARNING: {error}; this copy is passed over", flush=True)
            return False
        print(f"{manifest['step']}: output {manifest['output_hash'][:12]} fetched from {self}", flush=True)
        return True

    def create(self, key: str, facts: Mapping[str, Any]) -> bool:
        """Write a record unless the key, such as `runs/17/start.json`, exists. Return whether it was written.

        The record's hash covers the key, so `read_all` detects a moved record.
        """
        return self._objects.create(key, json_text({**facts, _RECORD_HASH: seal(facts, place=key)}).encode())

    def read_all(self, keys: Iterable[str], form: TypeAdapter[T]) -> dict[str, T]:
        """Return key -> record, without missing records. Damaged, moved or malformed records are left out with a warning."""
        wanted, records = list(keys), dict[str, T]()
        with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
            for key, data in zip(wanted, pool.map(self._objects.get, wanted), strict=True):
                try:
                    if data is not None:
                        facts = parse_json_object(data, address := f"{self}/{key}")
                        if not is_sealed(facts, _RECORD_HASH, place=key):
                            raise CorruptError(f"{address} is damaged: it is changed since it was written, or was moved there")
                        records[key] = checked(form, without(facts, _RECORD_HASH), address)
                except (CorruptError, ForeignError) as error:
                    print(f"WARNING: {error}; this record is passed over", flush=True)
        return records

    def keys(self, prefix: str) -> list[str]:
        return self._objects.keys(prefix)

    def probe(self) -> None:
        """Write, list and read a record. Raises StoreError if S3 fails or loses the record, StorageError if a folder is not writable."""
        self.create(key := "probe/record.json", {})  # Fails without permission to write, even if the record exists.
        if key not in self.read_all(self.keys("probe/"), TypeAdapter(dict[str, Any])):
            raise StoreError(f"{self} loses what is written: delete {key} there if it is damaged, or choose another CHESS_GRPO_STORE")


class Making:
    def __init__(self, store: Store, step: str, version: str) -> None:
        self._store, self._step, self._version = store, step, version
        self._copy, self._number, self._saved_hashes = "", 0, set[str]()
        self.progress = store.progress(step, version)
        was_local = store.folder(step, version).exists()  # Before `_verified`, which may download the output.
        manifest = store._verified(step, version)
        self.output = None if manifest is None else _output(manifest)  # None until the output is stored.
        if manifest is not None:
            # An earlier upload may have failed.
            if was_local and store._copies is not None and manifest not in store._copies.outputs(step, version).values():
                store._copies.publish(store.folder(step, version))
        else:
            if store._copies is not None:
                self._copy, self._number = store._copies.begin_progress(step, version, self.progress)
            with explain_write_errors(self.progress):
                self.progress.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.progress)

    def save(self) -> None:
        """Copy `progress` to S3, if used."""
        if self._store._copies is not None:
            try:
                self._saved_hashes = self._store._copies.save_progress(self._copy, self._number, self.progress, self._saved_hashes)
            except StoreError as error:
                print(f"{self._step}: WARNING: if this machine is lost now, the work since the last copy is lost: {error}", flush=True)

    @contextmanager
    def filling(self, facts: Mapping[str, Any]) -> Iterator[Path]:
        """Yield an empty folder. If the block succeeds, the folder becomes the output, with `facts` in its manifest."""
        target = self._store.folder(self._step, self._version)
        with atomic_folder(target) as folder:
            yield folder
            manifest = write_manifest(folder, {"step": self._step, "version": self._version, **facts})
        if self._store._copies is not None:
            self._store._copies.publish(target)
        self.output = StepOutput(**{**_output(manifest), "reused": False})


def _output(manifest: Mapping[str, Any]) -> StepOutput:
    return StepOutput(step=manifest["step"], version=manifest["version"], output_hash=manifest["output_hash"], reused=True)


def _set_aside(folder: Path) -> Path:
    aside = folder.with_name(f"{folder.name}.set-aside-{os.urandom(4).hex()}")
    with suppress(FileNotFoundError):
        folder.rename(aside)
    return aside
