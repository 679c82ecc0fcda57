"""What was meant by a word that nobody knows."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return which of the known words was meant, if one is near, and what is known.

    >>> did_you_mean("smok", ["laptop", "smoke"])
    'did you mean smoke? known here: laptop, smoke'
    """
    names = list(known)
    return f"{nearest(word, names)}known here: {', '.join(names)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the question whether a known word was meant, with a blank behind it; nothing where none is near.

    >>> nearest("smok", ["laptop", "smoke"])
    'did you mean smoke? '
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}? " if close else ""
