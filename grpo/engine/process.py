"""One UCI engine process over pipes, with timeouts."""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grpo.engine.answers import EngineError

START_SECONDS: Final = 10.0  # Timeout for a new program that neither writes nor uses CPU.
SILENT_SECONDS: Final = 30.0  # The same for a searching engine.
BUSY_SECONDS: Final = 900.0  # Timeout for a search that uses CPU.
MAX_ANSWER_BYTES: Final = 1 << 26  # Ten times the longest answer.
_MIN_CPU_FRACTION: Final = 0.05  # Fraction of a core; an engine that uses less hangs.
_READ_BYTES: Final = 1 << 18
_MAX_QUOTE: Final = (6, 200)  # Lines of an engine's last output in a message, and characters per line.
_MAX_ERROR_BYTES: Final = 1 << 20
_PROTOCOL: Final = re.compile(r"info (?!string)|bestmove|option name|id |uciok|readyok")  # Not quoted in messages.
_SECONDS_TO_EXIT: Final = 0.5
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


class EngineProcess(contextlib.AbstractContextManager["EngineProcess"]):
    def __init__(self, path: str, options: Mapping[str, str | int], *, start_seconds: float) -> None:
        """Start the engine and set the `options` that it declares. Raises EngineError."""
        self.name = ""
        self.declared: dict[str, str] = {}  # Option -> declaration, such as `check default false`.
        self._silent_seconds = start_seconds
        self._buffer = bytearray(b"\n")  # `take_until` needs a line break before every line.
        self._scanned = 0
        self._poll = select.poll()
        self._ticks_when_silent: int | None = None
        # setpriv (util-linux) kills even a hung engine when this process ends.
        guard = [setpriv, "--pdeathsig", "KILL", "--"] if (setpriv := shutil.which("setpriv")) else []
        try:
            # A temporary file, because a full pipe would block the engine.
            self._stderr = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115  # `kill` closes it.
            self._popen = subprocess.Popen(
                [*guard, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True, bufsize=0
            )
        except OSError as error:
            raise EngineError(f"{path} cannot be started: {error.strerror}") from None
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self.stdout = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        self._poll.register(self.stdout, select.POLLIN)
        try:
            self.send("uci")
            for line in self.wait_for(b"uciok").decode("utf-8", "replace").splitlines():
                if line.startswith("id name "):
                    self.name = line.removeprefix("id name ").strip()
                elif line.startswith("option name "):
                    name, _, declaration = line.removeprefix("option name ").partition(" type ")
                    self.declared[name.strip()] = declaration
            settings = [f"setoption name {name} value {value}\n" for name, value in options.items() if name in self.declared]
            self.send("".join(settings) + "isready")
            self.wait_for(b"readyok")
        except BaseException:
            self.kill()
            raise
        self._silent_seconds = SILENT_SECONDS

    def send(self, commands: str) -> None:
        """Also restart the timeouts. Raises EngineError if the engine died."""
        self._silent_since = self._sent_at = time.monotonic()
        self._ticks_when_silent = None
        try:
            if os.fstat(self._stderr.fileno()).st_size > _MAX_ERROR_BYTES:
                self._stderr.truncate(0)
            os.write(self._stdin, commands.encode() + b"\n")
        except BrokenPipeError:
            raise self._death_error() from None

    def read(self) -> None:
        """Blocks while the engine is silent, so poll `stdout` first.

        Raises EngineError if the engine died, wrote too much, or has searched for longer than `BUSY_SECONDS`.
        """
        chunk = os.read(self.stdout, _READ_BYTES)
        if not chunk:
            raise self._death_error()
        self._buffer += chunk
        self._silent_since, self._ticks_when_silent = time.monotonic(), None
        if len(self._buffer) > MAX_ANSWER_BYTES:
            raise EngineError(f"the engine wrote more than {MAX_ANSWER_BYTES:,} bytes without the expected answer")
        self.raise_if_hung()

    def take_until(self, word: bytes) -> bytes | None:
        """Remove and return output through the first complete line that begins with `word`, or None."""
        start = self._buffer.find(b"\n" + word, self._scanned)
        end = self._buffer.find(b"\n", start + 1) if start >= 0 else -1
        if end < 0:
            self._scanned = start if start >= 0 else max(0, len(self._buffer) - len(word))
            return None
        taken = bytes(self._buffer[1 : end + 1])
        del self._buffer[:end]
        self._scanned = 0
        return taken

    def wait_for(self, word: bytes) -> bytes:
        """Read until `take_until` returns output. Raises the errors of `read` and `raise_if_hung`."""
        while (taken := self.take_until(word)) is None:
            if self._poll.poll(self.seconds_left() * 1000):
                self.read()
            else:
                self.raise_if_hung()
        return taken

    def seconds_left(self) -> float:
        """Return the seconds of further silence after which the caller must call `raise_if_hung`."""
        # CPU time is read at half of the timeout and at its end.
        timeout = self._silent_seconds if self._ticks_when_silent is not None else self._silent_seconds / 2
        return max(0.0, self._silent_since + timeout - time.monotonic())

    def raise_if_hung(self) -> None:
        """Raise EngineError if the engine hangs, or if the search exceeds `BUSY_SECONDS`.

        A hung engine is silent for the timeout, and uses hardly any CPU in the timeout's second half.
        """
        now = time.monotonic()
        if now - self._sent_at > BUSY_SECONDS:
            raise EngineError(f"no answer in {BUSY_SECONDS:g} s; lower the depth (boards.depth, evaluation.heldout_depth)")
        if self.seconds_left():
            return
        used = self._used_ticks()
        if self._ticks_when_silent is None:
            self._ticks_when_silent = used
        elif used - self._ticks_when_silent < self._silent_seconds / 2 * _MIN_CPU_FRACTION * _CLOCK_TICKS:
            raise EngineError(f"silent for {self._silent_seconds:g} s{self._quoted_output()}")
        else:
            self._silent_since, self._ticks_when_silent = now, None  # The engine uses CPU: restart the timeout.

    def _death_error(self) -> EngineError:
        until = time.monotonic() + _SECONDS_TO_EXIT
        while self.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        by_signal = ended is not None and ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        how = f" ({signal.strsignal(ended.si_status)})" if ended is not None and by_signal else ""
        return EngineError(f"the engine has died{how}{self._quoted_output()}")

    def _quoted_output(self) -> str:
        while self._poll.poll(0) and len(self._buffer) < MAX_ANSWER_BYTES and (chunk := os.read(self.stdout, _READ_BYTES)):
            self._buffer += chunk
        self._stderr.seek(0)
        num_lines, width = _MAX_QUOTE
        output = bytes(self._buffer[-_READ_BYTES:]).rpartition(b"\n")[0]  # An incomplete line may belong to the protocol.
        written = (output + b"\n" + self._stderr.read()).decode("utf-8", "replace").splitlines()
        lines = [line.removeprefix("info string ").strip()[:width] for line in written if not _PROTOCOL.match(line)]
        quoted = " / ".join([line for line in lines if line][-num_lines:])
        return f"; it wrote: {quoted}" if quoted else ""

    def is_alive(self) -> bool:
        # WNOWAIT keeps the id of an ended process for `kill`; `Popen.poll` would free it.
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._popen.returncode is None and os.waitid(os.P_PID, self._popen.pid, ended) is None

    def kill(self) -> None:
        """Kill the process and its children; safe to call twice."""
        if self._popen.returncode is not None:
            return  # Another process may have this id by now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        # `communicate` would wait forever if an engine's helper in another process group held the pipes open.
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()
        self._stderr.close()
        self._popen.wait()

    def _used_ticks(self) -> int:
        try:
            stat = Path(f"/proc/{self._popen.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 0
        fields = stat.rpartition(")")[2].split()  # The process name, in parentheses, may contain anything.
        return int(fields[11]) + int(fields[12])  # utime and stime

    def __exit__(self, *_: object) -> None:
        self.kill()
