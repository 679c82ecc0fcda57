"""Did-you-mean suggestions for unknown words."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Name the nearest known word, if one is near, and all known words.

    >>> did_you_mean("smok", ["laptop", "smoke"])
    'did you mean smoke? known here: laptop, smoke'
    """
    names = list(known)
    return f"{nearest(word, names)}known here: {', '.join(names)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question and a blank, or "" if no known word is near. Numbers and the word are never suggested.

    >>> nearest("smok", ["laptop", "smoke"]), nearest("1795845951095307", ["1795845951095308"]), nearest("last", ["last"])
    ('did you mean smoke? ', '', '')
    """
    close = difflib.get_close_matches(word, [each for each in known if each != word and not each.isdigit()], n=1)
    return f"did you mean {close[0]}? " if close else ""
