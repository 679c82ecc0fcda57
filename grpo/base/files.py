"""Content hashes and folders that appear whole or not at all."""

import errno
import fcntl
import glob
import hashlib
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from grpo.base.errors import PlainError

MANIFEST: Final = "manifest.json"
ASIDE: Final = "aside"
"""A folder of an output, at whatever depth, for what differs between equal runs (pages with times in them): kept whole like all the rest,
but no part of the output's hash."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HALF_MADE: Final = "half-made-"  # In the names of folders being written: what else lies there under a dot may be anybody's.


class CorruptError(PlainError, RuntimeError):
    """Files are not the ones that were written; the message names the first that differs."""


class StorageError(PlainError, OSError):
    """A file cannot be written; the message says which and why, how many bytes it needs, and how many are free."""


def sha256_text(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a JSON-able value, whatever the order of its keys."""
    return sha256_text(json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False))


def json_text(value: Any) -> str:
    """Return readable JSON with sorted keys."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON with sorted keys."""
    path.write_text(json_text(value), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def file_hashes(folder: Path) -> dict[str, str]:
    """Return relative path -> SHA-256 of all files below the folder, but for its manifest; what is `ASIDE` is among them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in files}
    return {name: sha256_file(path) for name, path in named.items() if name != MANIFEST}


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write `manifest.json` with the hash of each file, the hash of them all but for those aside, and these facts; return it."""
    found = file_hashes(folder)
    files = {name: digest for name, digest in found.items() if not _is_aside(name)}
    aside = {name: digest for name, digest in found.items() if _is_aside(name)}
    manifest = {**facts, "files": files, "aside": aside, "output_hash": sha256_json(files)}
    write_json(folder / MANIFEST, manifest)
    return manifest


def verified_manifest(folder: Path) -> dict[str, Any]:
    """Return the folder's manifest after checking every file against it.

    Raises CorruptError when a file is missing, added or changed, or when the manifest cannot be read.
    """
    try:
        manifest = read_json(folder / MANIFEST)
        files: dict[str, str] = dict(manifest["files"])
        aside: dict[str, str] = dict(manifest.get("aside", {}))  # Manifests from before there was any have none.
        output_hash = manifest["output_hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{folder / MANIFEST} is missing or unreadable ({error})") from None
    expected, found = files | aside, file_hashes(folder)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            state = "missing" if name not in found else "not in the manifest" if name not in expected else "changed since it was written"
            raise CorruptError(f"{folder / name} is {state}")
    if output_hash != sha256_json(files) or any(map(_is_aside, files)) or not all(map(_is_aside, aside)):
        raise CorruptError(f"{folder / MANIFEST} is changed since it was written")
    return dict(manifest)


def _is_aside(name: str) -> bool:
    return ASIDE in PurePosixPath(name).parts[:-1]


@contextmanager
def in_need_of(num_bytes: int, target: Path) -> Iterator[None]:
    """Turn the error of a full disk, a reached limit or a closed folder, while `target` is being written, into one that says what mends it.

    Raises StorageError with the bytes that `target` needs and those that are free.
    """
    try:
        yield
    except OSError as error:
        if not _is_refusal_to_write(error, target):
            raise
        raise _storage_error(error, target, num_bytes) from error


@contextmanager
def atomic_folder(target: Path, *, num_bytes: int | None = None) -> Iterator[Path]:
    """Give an empty folder that becomes `target` when the block ends well, and vanishes when it does not.

    Whoever finds `target` finds all of it, on the disk and not only in memory. An existing `target` stays if another writer was first.

    Raises StorageError when the disk does not take it; it says how many bytes it needs (`num_bytes`, if that is known) and how many are
    free without it.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        with _held_folder(target) as made:
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
    except OSError as error:  # What was made is gone by now, and counted as free.
        if not _is_refusal_to_write(error, target):
            raise
        raise _storage_error(error, target, num_bytes) from error


@contextmanager
def _held_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder beside `target`, locked as long as its writer lives; what is still there at the end is deleted."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.{_HALF_MADE}", dir=target.parent))
        try:
            handle = os.open(made, os.O_RDONLY)
        except FileNotFoundError:
            continue  # Another writer took it for abandoned before it was ours.
        with suppress(OSError):  # Some network file systems lock no folders: nobody will take ours for abandoned there either.
            fcntl.flock(handle, fcntl.LOCK_EX)
        if made.exists():
            break
        os.close(handle)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(handle)


def _remove_abandoned(target: Path) -> None:
    """Delete what killed writers of `target` left beside it: folders that nobody has locked."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.{_HALF_MADE}*"):
        with suppress(OSError):  # Its writer lives, or has just ended.
            handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that nobody, not even after a crash, finds half of it under its name."""
    going = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    folder.rename(going)  # Onto an empty folder.
    shutil.rmtree(going)


def remove_leftovers(folder: Path, pattern: str = "**/.*") -> None:
    """Delete below a folder what killed writers and deleters left there, under names with a dot; nobody may be writing now."""
    for left in sorted(folder.glob(pattern)):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that holds, whatever happens, either all of its old content or all of the new, on the disk.

    Raises StorageError when there is no room for it; nothing else is left then but the old file.
    """
    with in_need_of(len(content), path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        made = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            made.chmod(0o644)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    _sync(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file that exists; it is on the disk when this returns, and only the last line can ever be torn."""
    content = f"{line}\n".encode()
    with in_need_of(len(content), path), path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _is_refusal_to_write(error: OSError, target: Path) -> bool:
    """Tell a disk that takes no more, and a folder of `target` that nobody or not this user may write, from all other errors."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return isinstance(error.filename, str) and Path(error.filename).is_relative_to(target.parent)
    return error.errno in _NO_ROOM or error.errno == errno.EROFS


def _storage_error(error: OSError, target: Path, num_bytes: int | None) -> StorageError:
    place = next(folder for folder in target.parents if folder.exists())
    free, reason = shutil.disk_usage(place).free, os.strerror(error.errno or 0)
    needed = "" if num_bytes is None else f"it needs {num_bytes:,} bytes, and "
    remedy = f"open {place} for this user, or work elsewhere (CHESS_GRPO_HOME)"
    if error.errno in _NO_ROOM:
        if num_bytes is None:
            # What did not fit is larger than what it did not fit into.
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0] if error.errno == errno.EFBIG else free
            needed = f"it needs more than {limit:,} bytes, and "
        remedy = "make room, or raise the limit on a file's size or the quota"
    return StorageError(f"{target} could not be written ({reason}): {needed}{free:,} bytes are free there; {remedy}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
