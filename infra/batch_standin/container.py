"""Containers without Docker: a process in Linux namespaces of its own, with only the image and the system's folders on its disk.

As in Docker, the job's command is PID 1: a shell as PID 1 ignores SIGTERM and does not forward it. When PID 1 ends, all processes of the
container end.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from grpo.base.errors import PlainError

_SETUP: Final = Path(__file__).with_name("container.sh")
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/dev", "/proc", "/sys")
_IMAGE: Final = "/opt/image"
_PACKAGES: Final = "/opt/packages"
_ENGINE: Final = "/opt/engine/stockfish"
OWN_PROCESSES: Final = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
"""Before a command: whatever it starts ends with it, and it ends with us, should we be killed."""
_SETUP_LOG: Final = "setup.log"
_PROBE: Final = (
    'hostname probe && mount -t tmpfs probe "$1" && mkdir "$1/etc" && mount --rbind /etc "$1/etc"'
    " && PATH=$PATH:/usr/sbin:/sbin chroot / true"
)
_NAMESPACES: Final = ("--user", "--map-root-user", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")


class ContainerError(PlainError, RuntimeError):
    """Containers cannot be made on this machine; the message says what was tried and what it takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """What is on the disk of every container, and the variables that it brings."""

    mounts: tuple[tuple[str, str], ...]
    """Pairs of a path here and where it is in the container; `-` for an empty folder."""
    variables: Mapping[str, str]


def make_image(folder: Path, *, hidden: Iterable[Path], variables: Mapping[str, str], engine: Path | None = None) -> Image:
    """Return an image with this interpreter and the packages installed beside it, but not the launcher's checkout.

    Args:
        folder: where its virtual environment is made.
        hidden: folders that are not to be seen, should they lie in one that is.
        variables: what the image sets, beside its PATH.
        engine: a Stockfish outside the system's folders.
    """
    environment = folder / "image"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
    # The packages' folder comes in by one .pth file. Python does not read those that lie in it: an editable install stays unseen.
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "packages.pth").write_text(f"{_PACKAGES}\n", encoding="utf-8")
    system = [path for path in _SYSTEM if Path(path).is_dir() and not Path(path).is_symlink()]
    mounts = [(path, path) for path in system]
    # An interpreter of the user's own stays where it is: it would not find its library elsewhere.
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        mounts.append((sys.base_prefix, sys.base_prefix))
    mounts += [(str(environment), _IMAGE), (sysconfig.get_path("purelib"), _PACKAGES)]
    if engine is not None:
        mounts.append((str(engine.resolve()), _ENGINE))
    mounts += [("-", str(path)) for path in hidden if any(path.is_relative_to(place) for place in system) and path.is_dir()]
    path = f"{_IMAGE}/bin:{Path(_ENGINE).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games"
    return Image(mounts=tuple(mounts), variables={"PATH": path, "HOME": "/home/job", "LANG": "C.UTF-8", **variables})


class Container:
    """One container, from its start."""

    def __init__(self, image: Image, folder: Path, *, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        """Start it, and return when it cannot outlive us.

        Args:
            image: its disk and its own variables.
            folder: not there yet; its name is the container's host name.
            command: the first process.
            variables: over the image's; nothing of our own environment is in them.
            log: takes what it prints.
        """
        (folder / "root").mkdir(parents=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost {folder.name}\n", encoding="utf-8")
        self._folder = folder
        self._is_killed = False
        setup = ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "sh", str(_SETUP), str(folder), folder.name, str(log)]
        with (folder / _SETUP_LOG).open("wb") as said:
            self._process = subprocess.Popen(
                [*setup, *command],
                env={**image.variables, **variables},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError), self._process.stdin as mounts, self._process.stdout as up:
            # Its first process is killed with `unshare`, and that with us, but not before each of them has asked the kernel for it.
            # Should we be killed before, it finds nobody to tell that it is up, and no mounts.
            if up.readline():
                mounts.write("".join(f"{source}\t{target}\n" for source, target in image.mounts).encode())

    def exit_code(self) -> int | None:
        """Return None while it runs, then its exit code, as docker tells it: 128 and the signal's number when it was killed."""
        return None if self._process.poll() is None else self.wait()

    def wait(self) -> int:
        """Return its exit code when it has ended, and all its processes with it."""
        code = self._process.wait()
        # In Debian's util-linux unshare ends with 1 when its child was killed.
        return 128 + signal.SIGKILL if self._is_killed else code

    def terminate(self) -> None:
        """Send SIGTERM to its first process, which a shell in that place does not heed."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, with every process in it."""
        self._is_killed = self._is_killed or self._process.poll() is None
        self._send(signal.SIGKILL)
        self.wait()

    def write(self, path: str, text: str) -> bool:
        """Write a file on its disk; False when it is not there to be written on."""
        first = self._first()
        if first is None or not (self._folder / "ready").exists():
            return False
        try:
            Path(f"/proc/{first}/root{path}").write_text(text, encoding="utf-8")
        except OSError:
            return False
        return True

    def _first(self) -> int | None:
        """Return the number of its first process outside of it."""
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def _send(self, number: signal.Signals) -> None:
        first = self._first()
        if first is not None:
            with suppress(ProcessLookupError):
                os.kill(first, number)


@cache
def refusal() -> str:
    """Return why containers cannot be made here, or nothing."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "sh", "-c", _PROBE]
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([*command, "probe", folder], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return f"containers cannot be made here: {error}; it takes setpriv and unshare (Debian's util-linux)"
    if done.returncode == 0:
        return ""
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    tried = " ".join(command[3:-3])
    return f"containers cannot be made here: {said}; it takes a kernel that lets us `{tried}`, and mount and chroot in there"


def require_containers() -> None:
    """Raise ContainerError when containers cannot be made here; without them jobs would see the launcher's disk."""
    if reason := refusal():
        raise ContainerError(reason)
