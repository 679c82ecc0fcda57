"""The Python in pages of the documentation."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    """Return the blocks of Python of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
