"""What a fine-tuning that was killed has to end with."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLLBACK = {"critical_entropy": 3.4, "critical_window": 3, "recovery": {"kind": "rollback", "max_times": 2}}
"""All entropies are critical here, and all checkpoints healthy: there are two rollbacks, and then a stop."""

EVERYTHING: dict[str, Any] = {
    "self_play": {"fraction": 0.5, "states_per_round": 12, "steps_per_round": 5, "max_plies": 20},
    "depth": {"num_own_moves": 2},
    "num_inner_epochs": 2,
    "kl_coefficient": 0.01,
    "steps_per_reference_refresh": 3,
    "critical_window": 2,
}
"""Own games, trajectories, and a reference that changes: all of it must be in a checkpoint."""


@dataclass(frozen=True)
class Result:
    """What a fine-tuning left in its home."""

    output_hash: str
    history: bytes
    report: bytes
    checkpoints: dict[str, bytes]


def result_of(home: Path) -> Result:
    """Return what is in the store, after checking that it is alone there and that nothing is in progress any more."""
    assert list((home / "in_progress" / "finetune").iterdir()) == []
    [folder] = (home / "outputs" / "finetune").iterdir()
    checkpoints = folder / "checkpoints"
    return Result(
        output_hash=json.loads((folder / "manifest.json").read_text())["output_hash"],
        history=(folder / "history.jsonl").read_bytes(),
        report=(folder / "report.json").read_bytes(),
        checkpoints={str(path.relative_to(checkpoints)): path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()},
    )
