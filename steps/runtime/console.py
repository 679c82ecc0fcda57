"""Prints what Metaflow's tasks say in lines that fit a terminal: the time and the text, without run and task ids."""

import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from datetime import datetime
from typing import Final

_TASK: Final = re.compile(r"\[[^/\]]+/(\w+)[/ \]]")
_SILENT: Final = re.compile(
    r"Task is starting\.|Task finished successfully\.|Done!|No tasks are waiting"
    r"|\d+ tasks? (is|are) (running|waiting)|(\d+ steps|\w+ step) (have|has) not started"
)
"""What Metaflow says of itself, once a task or every few minutes, and the lines of the steps say better."""
_LAST_STEP: Final = "end"
"""Its lines are the result of the run: they stand without the time, to be read and pasted."""


class Console:
    """A logger for Metaflow's command line. It has the signature of `metaflow.cli.logger`, in whose place it stands."""

    def __init__(self, write: Callable[[str], None] | None = None, *, width: int | None = None) -> None:
        """Print to the standard output.

        Args:
            write: prints a line instead.
            width: of the lines, in characters; by default that of the terminal, and no limit where there is none.
        """
        self._write = write or (lambda line: print(line, flush=True))
        self._width = width or (shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
        self._latest: dict[str, str] = {}

    def __call__(
        self, body: str = "", system_msg: bool = False, head: str = "", *, timestamp: bool | datetime = True, **_style: bool
    ) -> None:
        """Print a line of a task, named in `head`, or of Metaflow itself."""
        found = _TASK.match(head)
        step = found[1] if found else ""
        if system_msg and _SILENT.match(body):
            return
        if step and self._latest.get(step) == body:
            return  # Tasks of one step say some things alike.
        self._latest[step] = body
        if step == _LAST_STEP and not system_msg:
            self._write(body)
            return
        when = timestamp if isinstance(timestamp, datetime) else datetime.now()
        text = f"{step}: {body}" if step and not body.startswith((f"{step}:", " ")) else body
        self._print(f"{when:%H:%M} ", text)

    def _print(self, prefix: str, text: str) -> None:
        if self._width is None:
            self._write(prefix + text)
            return
        wrapper = textwrap.TextWrapper(
            self._width, subsequent_indent=" " * (len(prefix) + 2), break_long_words=False, break_on_hyphens=False
        )
        for line in wrapper.wrap(prefix + text) or [prefix]:  # Commands and paths stay whole.
            self._write(line)
