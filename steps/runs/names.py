"""The names by which people call runs and policies; every command and `--resume-from` take the same."""

import os
import re
from pathlib import Path
from typing import Final

from grpo.base.errors import PlainError
from steps.step_io.aliases import ALIASES

LAST: Final = "last"
SHORTEST_BEGINNING: Final = 7
"""Characters of MLflow's id that name a run: fewer, such as 17, may be another store's Metaflow run id, and would name a run by chance."""
RUN_NAMES: Final = (
    "last (the latest finished), champion, peak, v7 (a version: its run), Metaflow's run id,"
    f" or {SHORTEST_BEGINNING} or more characters of MLflow's"
)
POLICY_NAMES: Final = "champion, peak, v7 (a version), last or RUN (its champion), RUN/STEP (a checkpoint), or a policy's folder"


class NotFoundError(PlainError, LookupError):
    """No run, policy, checkpoint or history has this name; the message says where it was searched, and what there is."""


def is_folder(name: str) -> bool:
    """Return whether a name is a folder: a path, or a folder that is there and not called like a run or registered policy."""
    is_taken = re.fullmatch("|".join((LAST, *ALIASES, "v[0-9]+", "")), name)
    return name.startswith((".", "~", os.sep)) or (not is_taken and Path(name).is_dir())
