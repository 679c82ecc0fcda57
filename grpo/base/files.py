"""Hashes (SHA-256), manifests, lock files, and atomic writes of files and folders.

A manifest is a file in a pipeline step's output folder, with facts about the output and the hash of each file. An atomic write builds in a
locked hidden folder beside the target and renames the result, so readers see all or nothing.
"""

import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from grpo.base.door import MANIFEST_FORM, ForeignError, checked, without
from grpo.base.errors import PlainError

MANIFEST: Final = "manifest.json"
ASIDE: Final = "aside"
"""Folder in an output for files that differ between equal runs, such as pages with times. The output's hash leaves them out."""
_MANIFEST_HASH: Final = "manifest_hash"
_TEMPORARY: Final = "half-made-"


class CorruptError(PlainError, RuntimeError):
    """A file is not the expected JSON, a manifest is missing, or a folder's files differ from its manifest."""


class StorageError(PlainError, OSError):
    """A file cannot be written."""


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """The order of keys does not matter."""
    return sha256_text(json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False))


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Not atomic, unlike `replace_file`."""
    path.write_text(json_text(value), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Raises OSError if the file is unreadable, CorruptError if it is not JSON."""
    return _parse_json(path.read_bytes(), path)


def _parse_json(data: bytes, source: object) -> Any:
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{source} is damaged ({error})") from None


def parse_json_object(data: bytes, source: object) -> dict[str, Any]:
    """Raises CorruptError, which names `source`, if `data` is not a JSON object."""
    value = _parse_json(data, source)
    if not isinstance(value, dict):
        raise CorruptError(f"{source} is damaged: it is not a JSON object")
    return value


def file_hashes(folder: Path) -> dict[str, str]:
    """Return relative path -> SHA-256 of all files below a folder, except the manifest."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: sha256_file(path) for name, path in files.items() if name != MANIFEST}


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write and return the manifest: `facts`, hashes of the files, and a hash of these entries."""
    hashes = file_hashes(folder)
    files = {name: digest for name, digest in hashes.items() if not _is_aside(name)}
    aside = {name: digest for name, digest in hashes.items() if _is_aside(name)}
    manifest = {**facts, "files": files, "aside": aside, "output_hash": sha256_json(files)}
    manifest[_MANIFEST_HASH] = sha256_json(manifest)
    write_json(folder / MANIFEST, manifest)
    return manifest


def verified_manifest(folder: Path, *, names: Collection[str] = ()) -> dict[str, Any]:
    """Return a folder's manifest. Raises CorruptError if it is damaged, or a file (of `names`) is missing, added or changed."""
    manifest = read_manifest(folder)
    expected = manifest["files"] | manifest["aside"]
    actual = {name: sha256_file(folder / name) for name in names if (folder / name).is_file()} if names else file_hashes(folder)
    for name in sorted(names or expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            state = "missing" if name not in actual else "not in the manifest" if name not in expected else "changed since it was written"
            raise CorruptError(f"{folder / name} is {state}")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Other files are not checked. Raises CorruptError."""
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise CorruptError(f"{folder / MANIFEST} is missing or unreadable ({error})") from None
    return parse_manifest(data, folder / MANIFEST)


def parse_manifest(data: bytes, source: object) -> dict[str, Any]:
    """Raises CorruptError, which names `source`."""
    manifest = parse_json_object(data, source)
    if not is_sealed(manifest, _MANIFEST_HASH):
        raise CorruptError(f"{source} is changed since it was written")
    try:
        checked(MANIFEST_FORM, manifest, source)
    except ForeignError as error:
        raise CorruptError(str(error)) from None
    return manifest


def is_sealed(facts: Mapping[str, Any], key: str, *, place: str = "") -> bool:
    """Return whether `facts[key]` is the `seal` of the other facts and `place`."""
    try:
        return key in facts and facts[key] == seal(without(facts, key), place=place)
    except (ValueError, RecursionError):  # JSON with NaN or too deep nesting is not from this code.
        return False


def seal(facts: Mapping[str, Any], *, place: str = "") -> str:
    """Return a hash of the facts and of `place`, their key in a bucket. With `place`, a copy under another key is detected."""
    return sha256_json({**facts, "place": place} if place else facts)


def _is_aside(name: str) -> bool:
    return ASIDE in PurePosixPath(name).parts[:-1]


@contextmanager
def explain_write_errors(target: Path) -> Iterator[None]:
    """Turn the block's OSError into a StorageError if a full disk, a size limit or a missing permission is the cause."""
    try:
        yield
    except OSError as error:
        parent = next(folder for folder in target.parents if folder.exists())
        # For a file elsewhere, the remedy would name the wrong folder.
        place = Path(error.filename or "/")
        is_near = place.is_relative_to(target.parent) or place in target.parents[:-1]
        is_barred = is_near and error.errno in (errno.EACCES, errno.EPERM)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "free disk space, or raise the file size limit or the quota"
        elif is_barred or error.errno == errno.EROFS:
            remedy = f"give this user write permission in {parent}, or set CHESS_GRPO_HOME to another folder"
        else:
            raise
        free = shutil.disk_usage(parent).free
        raise StorageError(
            f"{target} could not be written ({os.strerror(error.errno or 0)}): {free:,} bytes are free there; {remedy}"
        ) from error


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder. If the block succeeds, the folder is synced and renamed to `target`; otherwise it is deleted.

    A `target` that exists and is not empty stays. Raises StorageError.
    """
    with explain_write_errors(target), _held_folder(target) as folder:
        yield folder
        for path in [*folder.rglob("*"), folder]:
            _sync(path)
        folder.chmod(0o755)
        try:
            os.rename(folder, target)  # noqa: PTH104
        except OSError:
            if not target.exists():
                raise
        _sync(target.parent)


@contextmanager
def _held_folder(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.{_TEMPORARY}", dir=target.parent))
        with suppress(FileNotFoundError):  # Another writer may delete it as abandoned before it is locked.
            handle = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # Some network file systems cannot lock.
                fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():
                break
            os.close(handle)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_abandoned(target: Path) -> None:
    """Delete the temporary folders of `target` that killed writers left."""
    for abandoned in target.parent.glob(f".{glob.escape(target.name)}.{_TEMPORARY}*"):
        with suppress(OSError):  # Locked by a live writer, or just deleted.
            handle = os.open(abandoned, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(abandoned, ignore_errors=True)
            finally:
                os.close(handle)


@contextmanager
def locked(path: Path, on_wait: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """Hold a lock file while the block lasts. If another process holds the lock, call `on_wait` with that process's name, and wait.

    The file is never deleted, because a lock on a deleted file protects nothing. Raises StorageError.
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
        with suppress(OSError):  # On a full disk the name stays empty.
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # A forked process has the file open too, so closing does not unlock.


def remove_folder(folder: Path) -> None:
    """Delete a folder atomically."""
    deleted = Path(tempfile.mkdtemp(prefix=f".{folder.name}.{_TEMPORARY}", dir=folder.parent))
    folder.rename(deleted)  # Renaming onto an empty folder is allowed.
    shutil.rmtree(deleted, ignore_errors=True)  # Another process may delete it too, as abandoned.


def remove_leftovers(folder: Path) -> None:
    """Delete all hidden files and folders, which killed processes left. No writer may be active."""
    for path in sorted(folder.glob("**/.*")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def copy_folder(source: Path, target: Path, copy: Callable[[Path, Path], object] = shutil.copy2) -> None:
    """Unlike `shutil.copytree`, raise the first error of `copy` at once."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_dir():
            copy_folder(path, target / path.name, copy)
        else:
            copy(path, target / path.name)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and sync it. Raises StorageError; the old file then stays."""
    with _written(path, content) as temporary:
        temporary.replace(path)


def create_file(path: Path, content: bytes) -> bool:
    """Create a file atomically and sync it. Return False if it exists. Raises StorageError."""
    with _written(path, content) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
    return True


@contextmanager
def _written(path: Path, content: bytes) -> Iterator[Path]:
    """Yield a synced temporary file. The block renames or links it to `path`."""
    with explain_write_errors(path), _held_folder(path) as folder:
        temporary = folder / path.name
        temporary.write_bytes(content)
        _sync(temporary)
        yield temporary
        _sync(path.parent)


def append_line(path: Path, line: str) -> None:
    """Append a line and sync it. Raises StorageError; the file then is unchanged.

    A crash can leave the last line incomplete. The caller must cut it before the next append.
    """
    content = f"{line}\n".encode()
    with explain_write_errors(path):
        path.parent.mkdir(exist_ok=True)
        with path.open("ab", buffering=0) as file:
            end, rest = file.seek(0, os.SEEK_END), memoryview(content)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
