"""Prints sentences in lines that a terminal shows whole; commands and paths stay in one piece."""

import re
import shutil
import sys
import textwrap
from typing import Final, TextIO

_WIDEST: Final = 110
_COMMAND: Final = re.compile(r"`[^`\n]*`")
_KEPT_SPACE: Final = "\x00"
"""Stands for a space inside a command while lines are broken, so that no line ends there."""
_HEAD: Final = re.compile(r" *(?:\S+ {2,}|[-*] )?")
"""Indentation and label of a line such as `  seen    ...`: its text hangs below the text, not below the label."""


def width() -> int:
    """Return the maximum line width."""
    return min(shutil.get_terminal_size().columns, _WIDEST)


def wrapped(text: str, head: str = "") -> str:
    """Return a head followed by a text, which is wrapped with a hanging indent; the text gets at least 30 columns.

    Words, which paths are, and commands between backticks are never broken: such a line may be wider.
    """
    room = max(width(), len(head) + 30)
    filled = textwrap.fill(
        _COMMAND.sub(lambda command: command[0].replace(" ", _KEPT_SPACE), text),
        room,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )
    return filled.replace(_KEPT_SPACE, " ").rstrip() or head.rstrip()


def say(text: str, to: TextIO | None = None) -> None:
    """Print text for people, on the standard output if nothing else is given.

    In a terminal, lines that are too wide are wrapped. In a file or a pipe each line stays as it is: scripts and tests search there for
    whole messages.
    """
    out = to or sys.stdout
    print("\n".join(map(_fitted, text.split("\n"))) if out.isatty() else text, file=out, flush=True)


def _fitted(line: str) -> str:
    if len(line) <= width():
        return line
    head = _HEAD.match(line)
    start = head.end() if head else 0
    return wrapped(line[start:], line[:start])
