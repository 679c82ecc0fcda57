"""Which part of the settings each step reads: that part, and no other, is in the step's version."""

from typing import Any

from grpo.config import Settings


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
