"""What was meant by a word that nobody knows."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return which of the known words was meant, if one is near, and what is known.

    >>> did_you_mean("smok", ["laptop", "smoke"])
    'did you mean smoke? known here: laptop, smoke'
    """
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return (f"did you mean {close[0]}? " if close else "") + f"known here: {', '.join(names)}"
