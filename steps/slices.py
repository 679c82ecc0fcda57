"""Which part of the settings each step reads: that part, and no other, is in the step's version."""

from pathlib import Path
from typing import Any

from grpo.config import Settings
from grpo.content import sha256_file
from grpo.engine import EngineIdentity


def dataset(settings: Settings) -> dict[str, Any]:
    """Return what makes the dataset: not over how many tasks it is spread, nor in which folder a file lies."""
    return {
        "seed": settings.seed,
        "boards": settings.boards.model_dump(mode="json", exclude={"num_tasks", "path"}),
        "values": settings.values.model_dump(mode="json"),
        "heldout_depth": settings.evaluation.heldout_depth,
    }


def checks(settings: Settings) -> dict[str, Any]:
    """Return what the dataset is checked against."""
    return {"boards": settings.boards.model_dump(mode="json", exclude={"num_tasks", "path"})}


def network(settings: Settings) -> dict[str, Any]:
    """Return what makes the pretrained policy of a dataset."""
    return settings.model_dump(mode="json", include={"seed", "policy", "pretrain"})


def baseline(settings: Settings) -> dict[str, Any]:
    """Return how the pretrained policy is measured."""
    return settings.model_dump(mode="json", include={"seed", "evaluation"})


def grpo(settings: Settings) -> dict[str, Any]:
    """Return how the pretrained policy is fine-tuned."""
    return settings.model_dump(mode="json", include={"seed", "policy", "grpo"})


def selection(settings: Settings) -> dict[str, Any]:
    """Return how the champion is chosen."""
    return settings.model_dump(mode="json", include={"seed", "evaluation", "selection"})


def source_inputs(settings: Settings, engine: EngineIdentity) -> dict[str, str]:
    """Return what the dataset is made from, by hash."""
    if settings.boards.source != "pgn":
        return {"engine": str(engine)}
    path = Path(settings.boards.path)
    return {"engine": str(engine), "pgn": sha256_file(path), "pgn_name": path.name}  # The name is in each row; its folder is not.
