"""What machines without a common disk hand each other: outputs of steps, and the progress of a step that was cut off.

Of an output every file, and after the last one its manifest; nothing that is there is ever overwritten. Of progress every file under the
hash of its content, and an index that names them: written last, in one piece, so that whoever reads it finds all of one moment.
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
"""File of a progress folder on this machine: the index that it was last equal to, or went on from."""


class StepOutput(TypedDict):
    """Where a step's output is, and what it is: plain data, so that old runs can be read by new code."""

    step: str
    version: str
    output_hash: str
    reused: bool
    """Whether it was in the store already."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Progress under another version, that a run has left."""

    version: str
    facts: Mapping[str, Any]


class SharedStore:
    """Outputs and progress by step and version, as objects."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def __str__(self) -> str:
        return str(self.objects)

    def publish(self, output: StepOutput, folder: Path) -> None:
        """Write an output, unless it is there; from then on its version is found."""
        if not self.has(output):
            place = _place(output)
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path != folder / MANIFEST:
                    self.objects.upload(path, f"{place}/{path.relative_to(folder).as_posix()}")
            self.objects.upload(folder / MANIFEST, f"{place}/{MANIFEST}")
        self.objects.put(_latest(output["step"], output["version"]), json.dumps({"output_hash": output["output_hash"]}).encode())

    def has(self, output: StepOutput) -> bool:
        """Return whether this very output is there."""
        return self.objects.get(f"{_place(output)}/{MANIFEST}") is not None

    def find(self, step: str, version: str) -> StepOutput | None:
        """Return the output that was last published under a version; None when there is none."""
        found = self.objects.get(_latest(step, version))
        if found is None:
            return None
        return StepOutput(step=step, version=version, output_hash=json.loads(found.data)["output_hash"], reused=True)

    def disown(self, step: str, version: str) -> None:
        """Let a version be found no more; its files stay."""
        self.objects.delete(_latest(step, version))

    def fetch(self, output: StepOutput, folder: Path) -> None:
        """Fill a folder with an output's files; whoever asks verifies them. Raises CorruptError when one is missing."""
        place = _place(output)
        found = self.objects.get(f"{place}/{MANIFEST}")
        if found is None:
            raise CorruptError(f"{self}/{place} is missing: this output of {output['step']} is neither here nor in the shared store")
        (folder / MANIFEST).write_bytes(found.data)
        manifest = json.loads(found.data)
        for name in (*manifest["files"], *manifest.get("aside", {})):
            self._download(f"{place}/{name}", folder / name, below=folder)

    def keep_progress(self, step: str, version: str, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write what the folder holds now; `facts` says whose it is. Only one may do so at a time: whoever holds the version's lease."""
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
        """Return whether anything was kept."""
        return self._index(step, version) is not None

    def take_progress(self, step: str, version: str, folder: Path) -> bool:
        """Bring a machine's folder to what was last kept, and return whether that changed it.

        The folder stays as it is when it is that, or has gone on from there. Raises CorruptError when a file is not as it was kept.
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
                raise CorruptError(f"{self}/{_PROGRESS}/{step}/{version}: {name} is changed since it was kept; --fresh begins anew")
        tag.write_text(index["tag"], encoding="utf-8")
        return True

    def forget_progress(self, step: str, version: str) -> None:
        """Delete what was kept; the index first, so that nobody finds half of it."""
        place = f"{_PROGRESS}/{step}/{version}/"
        self.objects.delete(place + _INDEX)
        for key in self.objects.keys(place):
            self.objects.delete(key)

    def begun_otherwise(self, step: str, version: str, *, run: str) -> list[Begun]:
        """Return the progress that a run has left under other versions: another machine's, whose numbers would not go on here."""
        found = []
        for key in self.objects.keys(f"{_PROGRESS}/{step}/"):
            other = key.split("/")[2]
            if key.endswith(f"/{_INDEX}") and other != version and (index := self._index(step, other)) and index.get("run") == run:
                found.append(Begun(other, index))
        return found

    def _index(self, step: str, version: str) -> dict[str, Any] | None:
        found = self.objects.get(f"{_PROGRESS}/{step}/{version}/{_INDEX}")
        return None if found is None else {**json.loads(found.data), "tag": found.tag}

    def _download(self, key: str, path: Path, *, below: Path) -> None:
        if not path.resolve().is_relative_to(below.resolve()):
            raise CorruptError(f"{self}/{key} would lie outside of {below}")
        try:
            self.objects.download(key, path)
        except KeyError:
            raise CorruptError(f"{self}/{key} is missing") from None


def _place(output: StepOutput) -> str:
    return f"{_OUTPUTS}/{output['step']}/{output['version']}/{output['output_hash']}"


def _latest(step: str, version: str) -> str:
    return f"{_OUTPUTS}/{step}/{version}/{_LATEST}"
