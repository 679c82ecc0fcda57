"""Prints what Metaflow's scheduler says in lines that fit a terminal, and at Ctrl-C or SIGTERM where the run stopped."""

import io
import os
import re
import shutil
import signal
import textwrap
from types import FrameType
from typing import Final, TextIO

from steps.runtime.commands import pasteable, resume_command

_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d (?P<time>\d\d:\d\d):\d\d\.\d{3} (\[[^/\]]+/(?P<step>\w+)[^\]]*\] )?(?P<text>.*)")
"""A line of Metaflow's: the time, the task's path and process, and what it says. Other lines are printed as they are."""
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_SILENT: Final = re.compile(
    r"Task is starting\.|Task finished successfully\.|Foreach yields|Done!|No tasks are waiting"
    r"|\d+ tasks? (is|are) (running|waiting)|(\d+ steps|\w+ step) (have|has) not started"
)
"""What Metaflow says of itself once a task or every few minutes, and the lines of the steps say better."""
_STARTS: Final = re.compile(r"Workflow starting \(run-id (?P<run>[^)]+)\)")
_COUNT: Final = re.compile(r"\w+: (?P<count>step \d+ of \d+)")
_LAST_STEP: Final = "end"
"""Its lines are the result of the run: they stand without the time, to be read and pasted."""


class Console(io.TextIOBase):
    """A standard output for the scheduler of a run, which prints the lines of its tasks."""

    def __init__(self, out: TextIO) -> None:
        """Print to `out`, in lines of the terminal's width if it is one."""
        self._out = out
        self._width = shutil.get_terminal_size().columns if out.isatty() else None
        self._begun = ""
        self._latest: dict[str, str] = {}
        self._run = self._step = self._count = ""

    def stop_at_signals(self) -> None:
        """At SIGINT and SIGTERM print where the run stops and how to resume it, and end at once; the kernel ends the tasks.

        Metaflow's own messages at an interrupt read like damage. The tasks save what they have (`steps.runtime.parent_death`).
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        # The signal may have come in the middle of a write, which a buffered file cannot take twice.
        os.write(self._out.fileno(), f"\n{self.stopped()}\n".encode())
        os.kill(os.getpid(), number)

    def stopped(self) -> str:
        """Return where the run stands, and the command that resumes it."""
        if not self._run:
            return "Stopped before the run began."
        at = f" in {self._step}" + (f" ({self._count})" if self._count else "") if self._step else ""
        return f"Stopped{at}. Nothing is lost; go on: {pasteable(resume_command(self._run))}"

    def write(self, text: str) -> int:
        """Take text; print the lines that it ends."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            for shown in self._shown(_STYLE.sub("", line)):
                self._out.write(f"{shown}\n")
        return len(text)

    def flush(self) -> None:
        """Flush what is printed; a line that has not ended waits."""
        self._out.flush()

    def isatty(self) -> bool:
        """Return whether people are watching."""
        return self._out.isatty()

    def fileno(self) -> int:
        """Return the output's file descriptor."""
        return self._out.fileno()

    def _shown(self, line: str) -> list[str]:
        if (found := _LINE.fullmatch(line)) is None:
            return [line]
        step, text = found["step"] or "", found["text"]
        if _SILENT.match(text) or (step and self._latest.get(step) == text):  # Tasks of one step say some things alike.
            return []
        self._latest[step] = text
        self._follow(step, text)
        if step == _LAST_STEP:
            return [text]
        prefix = f"{found['time']} "
        text = prefix + (f"{step}: {text}" if step and not text.startswith((f"{step}:", " ")) else text)
        if self._width is None:
            return [text]
        # Commands and paths stay whole.
        return textwrap.wrap(text, self._width, subsequent_indent=" " * (len(prefix) + 2), break_long_words=False, break_on_hyphens=False)

    def _follow(self, step: str, text: str) -> None:
        if found := _STARTS.match(text):
            self._run = found["run"]
        if step and step != self._step:
            self._step, self._count = step, ""
        if found := _COUNT.match(text):
            self._count = found["count"]
