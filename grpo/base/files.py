"""Content hashes (SHA-256), manifests, and atomic writes of files and folders."""

import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from grpo.base.door import MANIFEST_FORM, ForeignError, checked, without
from grpo.base.errors import PlainError

MANIFEST: Final = "manifest.json"
ASIDE: Final = "aside"
"""Name of a folder, at any depth of an output, for files that differ between equal runs (pages with times in them).

The manifest verifies these files too, but they are not part of the output's hash.
"""
_MANIFEST_HASH: Final = "manifest_hash"
_TEMPORARY: Final = "half-made-"  # In the names of folders being written: other hidden files there may belong to anybody.


class CorruptError(PlainError, RuntimeError):
    """Files differ from their manifest; the message names the first that differs."""


class StorageError(PlainError, OSError):
    """A file cannot be written; the message says which, why, how many bytes are free, and what to do."""


def sha256_text(text: str) -> str:
    """Return the SHA-256 of a text as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a JSON-serializable value; the order of keys does not matter."""
    return sha256_text(json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False))


def json_text(value: Any) -> str:
    """Return readable JSON with sorted keys."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON with sorted keys."""
    path.write_text(json_text(value), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises OSError when it cannot be read, CorruptError when it is not JSON."""
    return _parse_json(path.read_bytes(), path)


def _parse_json(data: bytes, place: object) -> Any:
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{place} is damaged ({error})") from None


def parse_json_object(data: bytes, place: object) -> dict[str, Any]:
    """Return a JSON object in UTF-8. Raises CorruptError, which names its place, when it is none or is nested too deeply."""
    value = _parse_json(data, place)
    if not isinstance(value, dict):
        raise CorruptError(f"{place} is damaged: it is not a JSON object")
    return value


def file_hashes(folder: Path) -> dict[str, str]:
    """Return relative path -> SHA-256 of all files below the folder, `ASIDE` included, the manifest excluded."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: sha256_file(path) for name, path in files.items() if name != MANIFEST}


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write and return `manifest.json`: these facts, the hash of each file, of all files outside `ASIDE`, and of the manifest itself."""
    found = file_hashes(folder)
    files = {name: digest for name, digest in found.items() if not _is_aside(name)}
    aside = {name: digest for name, digest in found.items() if _is_aside(name)}
    manifest = {**facts, "files": files, "aside": aside, "output_hash": sha256_json(files)}
    manifest[_MANIFEST_HASH] = sha256_json(manifest)
    write_json(folder / MANIFEST, manifest)
    return manifest


def verified_manifest(folder: Path) -> dict[str, Any]:
    """Verify every file of a folder against its manifest, and return the manifest.

    Raises CorruptError if a file is missing, added or changed, or if the manifest cannot be read.
    """
    manifest = read_manifest(folder)
    expected, found = manifest["files"] | manifest["aside"], file_hashes(folder)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            state = "missing" if name not in found else "not in the manifest" if name not in expected else "changed since it was written"
            raise CorruptError(f"{folder / name} is {state}")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder, verified by its own hash, whatever its files are. Raises CorruptError when it cannot be read."""
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise CorruptError(f"{folder / MANIFEST} is missing or unreadable ({error})") from None
    return parse_manifest(data, folder / MANIFEST)


def parse_manifest(data: bytes, place: object) -> dict[str, Any]:
    """Return a manifest, verified by its own hash and its form. Raises CorruptError, which names its place, when it is damaged or none."""
    manifest = parse_json_object(data, place)
    if not is_sealed(manifest, _MANIFEST_HASH):
        raise CorruptError(f"{place} is changed since it was written")
    try:
        checked(MANIFEST_FORM, manifest, place)
    except ForeignError as error:
        raise CorruptError(str(error)) from None
    return manifest


def is_sealed(facts: Mapping[str, Any], key: str, *, place: str = "") -> bool:
    """Return whether `facts[key]` is the hash that `seal` returns for the other facts at this place."""
    try:
        return key in facts and facts[key] == seal(without(facts, key), place=place)
    except (ValueError, RecursionError):  # NaN, or nested too deeply: no writer writes these.
        return False


def seal(facts: Mapping[str, Any], *, place: str = "") -> str:
    """Return the hash that protects facts from a change and, if a place is given, from a move to another place."""
    return sha256_json({**facts, "place": place} if place else facts)


def _is_aside(name: str) -> bool:
    return ASIDE in PurePosixPath(name).parts[:-1]


@contextmanager
def explain_write_errors(target: Path) -> Iterator[None]:
    """Turn a full disk, a quota or a missing permission while `target` is written into a StorageError, which says how to fix it."""
    try:
        yield
    except OSError as error:
        place = next(folder for folder in target.parents if folder.exists())
        is_barred = error.errno in (errno.EACCES, errno.EPERM) and Path(error.filename or "/").is_relative_to(target.parent)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "free disk space, or raise the file size limit or the quota"
        elif is_barred or error.errno == errno.EROFS:
            remedy = f"give this user write permission in {place}, or set CHESS_GRPO_HOME to another folder"
        else:
            raise
        free = shutil.disk_usage(place).free
        raise StorageError(
            f"{target} could not be written ({os.strerror(error.errno or 0)}): {free:,} bytes are free there; {remedy}"
        ) from error


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that is renamed to `target` if the block succeeds, and deleted if it raises.

    Readers never see a partial `target`, and its files are synced to disk. An existing `target` stays if another writer was first.

    Raises StorageError if the disk refuses.
    """
    with explain_write_errors(target), _held_folder(target) as made:
        yield made
        for path in [*made.rglob("*"), made]:
            _sync(path)
        made.chmod(0o755)
        try:
            os.rename(made, target)  # noqa: PTH104
        except OSError:
            if not target.exists():
                raise
        _sync(target.parent)


@contextmanager
def _held_folder(target: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `target`, locked while its writer lives; delete it at the end if it is still there.

    What killed writers of `target` left goes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target)
    while True:
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.{_TEMPORARY}", dir=target.parent))
        with suppress(FileNotFoundError):  # Another writer deleted it as abandoned before we locked it.
            handle = os.open(made, os.O_RDONLY)
            with suppress(OSError):  # Some network file systems cannot lock folders; there no writer deletes abandoned folders either.
                fcntl.flock(handle, fcntl.LOCK_EX)
            if made.exists():
                break
            os.close(handle)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(handle)


def remove_abandoned(target: Path) -> None:
    """Delete the unlocked temporary folders that killed writers of `target` left beside it."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.{_TEMPORARY}*"):
        with suppress(OSError):  # Locked by a live writer, or just deleted.
            handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


@contextmanager
def locked(path: Path, on_wait: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """Hold a lock file while the block lasts; wait for the process of this disk that has it. The lock ends with its process.

    The file stays: a lock on a file that another process deletes protects nothing.

    Args:
        path: the lock file.
        on_wait: is called with the name of the process that has the lock.

    Raises StorageError if the file cannot be written.
    """
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            on_wait(file.read(200).decode(errors="replace") or "another process")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        with suppress(OSError):  # On a full disk the next process waits for "another process".
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # A process that was forked meanwhile has the file open too.


def remove_folder(folder: Path) -> None:
    """Delete a folder atomically: even after a crash, no reader finds half of it under its name."""
    going = Path(tempfile.mkdtemp(prefix=f".{folder.name}.{_TEMPORARY}", dir=folder.parent))
    folder.rename(going)  # Onto an empty folder.
    shutil.rmtree(going, ignore_errors=True)  # Another process may take it for abandoned, and delete it too.


def remove_leftovers(folder: Path) -> None:
    """Delete hidden temporary files and folders of killed processes below a folder; no writer may be active."""
    for left in sorted(folder.glob("**/.*")):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)


def copy_folder(source: Path, target: Path, copy: Callable[[Path, Path], object] = shutil.copy2) -> None:
    """Copy a folder with all that it holds; an error of `copy` comes as it is (`shutil.copytree` hides a full disk in a list)."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_dir():
            copy_folder(path, target / path.name, copy)
        else:
            copy(path, target / path.name)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and sync it to disk: after a crash it holds all of the old content or all of the new.

    Raises StorageError if there is no space; the old file then remains unchanged.
    """
    with _written(path, content) as made:
        made.replace(path)


def create_file(path: Path, content: bytes) -> bool:
    """Write a file atomically, and sync it to disk, unless there is one; return whether it was written.

    Raises StorageError if there is no space.
    """
    with _written(path, content) as made:
        try:
            path.hardlink_to(made)
        except FileExistsError:
            return False
    return True


@contextmanager
def _written(path: Path, content: bytes) -> Iterator[Path]:
    """Yield a synced temporary file that the block gives its name."""
    with explain_write_errors(path), _held_folder(path) as folder:
        made = folder / path.name
        made.write_bytes(content)
        _sync(made)
        yield made
        _sync(path.parent)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and sync it to disk; after a crash only the last line can be incomplete. A missing folder is created.

    Raises StorageError when there is no space; the file is then as it was.
    """
    content = f"{line}\n".encode()
    with explain_write_errors(path):
        path.parent.mkdir(exist_ok=True)
        with path.open("ab", buffering=0) as file:
            end, left = file.seek(0, os.SEEK_END), memoryview(content)
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)  # The next line would make one damaged line with half of this one.
                raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
