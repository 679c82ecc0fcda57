"""What a fine-tuning that was killed has to end with."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVERYTHING: dict[str, Any] = {
    "self_play": {"fraction": 0.5, "states_per_round": 12, "steps_per_round": 5, "max_plies": 20},
    "num_own_moves": 2,
    "num_inner_epochs": 2,
    "kl_coefficient": 0.01,
}
"""Own games and trajectories: all of it must be in a checkpoint."""


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
