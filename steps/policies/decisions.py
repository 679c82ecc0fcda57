"""A policy's worst and best decisions on held-out boards, kept in a step's output for people to look at."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from grpo.base.files import write_json
from steps.step_io.names import DECISIONS

if TYPE_CHECKING:  # Torch comes with them, and who draws what was written needs none.
    from grpo.dataset.table import BoardArrays
    from grpo.policy.distribution import Policy

_NUM_OF_EACH_KIND: Final = 4


def write_decisions(folder: Path, policy: "Policy", heldout: "BoardArrays", *, before: "Policy | None" = None) -> None:
    """Write a policy's most telling decisions into a folder, beside those of the policy that it came from if there is one."""
    from grpo.evaluation.decisions import notable_decisions

    found = notable_decisions(policy, heldout, count=_NUM_OF_EACH_KIND, before=before)
    write_json(folder / DECISIONS, found.facts() | {"num_boards": len(heldout)})
