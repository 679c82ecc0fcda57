"""A disk that takes no more, for a forked process: full, limited or read-only; the errors are the system's own."""

import ctypes
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

KINDS: Final = ("full", "limited", "read-only")
NUM_BYTES: Final = 1 << 20
"""Size of the whole disk."""
NUM_BYTES_LEFT: Final = 8 << 10
"""Most bytes that a spoilt disk, or file, still takes, unless a test gives more."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT = 1, 32
_libc = ctypes.CDLL(None, use_errno=True)


class BadDisk:
    """A small disk mounted at `place`, for this process alone."""

    def __init__(self, kind: str, place: Path) -> None:
        self._kind, self.place = kind, place
        if kind != "limited":
            self._mount(0)
        self._filling = place / "filling"
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def spoil(self, num_bytes_left: int = NUM_BYTES_LEFT) -> None:
        """Let it take no more than so many bytes."""
        if self._kind == "full":
            free = os.statvfs(self.place).f_bavail * os.statvfs(self.place).f_bsize
            self._filling.write_bytes(bytes(free - num_bytes_left))
        elif self._kind == "limited":
            resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes_left, self._limits[1]))
        else:
            self._mount(_MS_REMOUNT | _MS_RDONLY)

    def mend(self) -> None:
        """Let it take more again."""
        if self._kind == "full":
            self._filling.unlink()
        elif self._kind == "limited":
            resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        else:
            self._mount(_MS_REMOUNT)

    def free(self) -> int:
        """Return how many bytes are free for this user."""
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize

    def _mount(self, flags: int) -> None:
        _checked(_libc.mount(b"tmpfs", str(self.place).encode(), b"tmpfs", flags, f"size={NUM_BYTES}".encode()), "mount")


def on_bad_disk(kind: str, place: Path, body: Callable[[BadDisk], None]) -> None:
    """Run `body` in a forked process that sees a small disk at `place`; fail with its traceback when it fails."""
    place.mkdir()
    if kind != "limited" and _in_fork(_enter_namespace):
        pytest.skip("no user namespaces here: a small disk cannot be mounted")

    def run() -> None:
        if kind != "limited":
            _enter_namespace()
        body(BadDisk(kind, place))

    if said := _in_fork(run):
        pytest.fail(said, pytrace=False)


def _in_fork(body: Callable[[], None]) -> str:
    """Run in a forked process, and return the traceback of what went wrong there, or nothing."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        said = ""
        try:
            body()
        except BaseException:  # noqa: BLE001  A child must not go on with the tests.
            said = traceback.format_exc()
        finally:
            sys.stdout.flush()
            os.write(writer, said.encode()[-60_000:])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return said


def _enter_namespace() -> None:
    user, group = os.getuid(), os.getgid()
    _checked(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _checked(status: int, what: str) -> None:
    if status:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
