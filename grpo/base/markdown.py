"""Markdown of generated pages: paragraphs and list items filled to a width that a terminal and a diff show whole."""

import re
import textwrap
from typing import Final

WIDTH: Final = 100
_FENCE: Final = "```"
_AS_IS: Final = ("|", "#", "<", ">", _FENCE)
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) ")


def filled(markdown: str, width: int = WIDTH) -> str:
    r"""Return Markdown with its paragraphs and list items refilled; tables, code, headings, quotes and HTML stay.

    >>> filled("one two three\nfour\n\n- five six seven", 9)
    'one two\nthree\nfour\n\n- five\n  six\n  seven'
    """
    blocks: list[list[str]] = []
    is_code = False
    for line in markdown.split("\n"):
        text = line.strip()
        is_fence = text.startswith(_FENCE)
        if is_code or not text or text.startswith(_AS_IS):
            blocks.append([line])
        elif _ITEM.match(text) or not blocks or not _may_go_on(blocks[-1][-1]):
            blocks.append([text])
        else:
            blocks[-1].append(text)
        is_code ^= is_fence
    is_code = False
    lines = []
    for block in blocks:
        is_code ^= block[0].strip().startswith(_FENCE)
        lines += block if is_code or not _may_go_on(block[0]) else _fill(" ".join(block), width)
    return "\n".join(lines)


def _may_go_on(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith(_AS_IS)


def _fill(text: str, width: int) -> list[str]:
    item = _ITEM.match(text)
    indent = " " * (item.end() if item else 0)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
