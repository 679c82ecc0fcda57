"""The Python in pages of the documentation: blocks of Markdown, cells of a notebook."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    """Return the Python of a page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def names_left_by(page: str, folder: Path, stockfish: str) -> dict[str, Any]:
    """Run a page as it stands, in a folder with a policy (`champion`) and a dataset (`boards`), and return the names that it leaves."""
    import torch
    from doubles import some_boards
    from made_boards import write_boards

    from grpo.policy.policy import new_policy
    from grpo.settings.tree import PolicyConfig

    config = PolicyConfig(width=16, hidden_width=16)
    (folder / "champion").mkdir()
    new_policy(config, seed=1, device=torch.device("cpu")).save(folder / "champion")
    (folder / "boards").mkdir()
    write_boards(folder / "boards", some_boards(40), num_train=30)
    left: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CHESS_GRPO_STOCKFISH", stockfish)
        for block in blocks(page):
            exec(compile(block, page, "exec"), left)
    return left
