"""Did-you-mean suggestions for unknown words."""

import difflib
from collections.abc import Iterable
from typing import Final

_MAX_LISTED: Final = 20
"""A longer list is not shown beside a near word."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a message that suggests the nearest known word, if one is near, and lists the known words, if they are few or none is near.

    >>> did_you_mean("smok", ["laptop", "smoke"])
    'did you mean smoke? known here: laptop, smoke'
    """
    names = list(known)
    close = nearest(word, names)
    return close.strip() if close and len(names) > _MAX_LISTED else f"{close}known here: {', '.join(names)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the question "did you mean ...?" with a trailing blank, or "" if no known word is near.

    >>> nearest("smok", ["laptop", "smoke"])
    'did you mean smoke? '
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}? " if close else ""
