"""A policy's worst and best decisions on held-out boards, kept in a step's output for people to look at."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from grpo.content import write_json

if TYPE_CHECKING:  # Torch comes with them, and who draws what was written needs none.
    from grpo.boards import BoardArrays
    from grpo.policy import Policy

DECISIONS: Final = "decisions.json"
_NUM_OF_EACH_KIND: Final = 4


def write_decisions(folder: Path, policy: "Policy", heldout: "BoardArrays", *, before: "Policy | None" = None) -> None:
    """Write a policy's most telling decisions into a folder, beside those of the policy that it came from if there is one."""
    from grpo.decisions import telling_decisions

    found = telling_decisions(policy, heldout, count=_NUM_OF_EACH_KIND, before=before)
    write_json(folder / DECISIONS, found.facts() | {"num_boards": len(heldout)})
