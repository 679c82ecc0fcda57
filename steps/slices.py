"""Which part of the settings each step reads: that part, and no other, is in the step's version."""

from collections.abc import Mapping
from typing import Any

from grpo.config import Settings
from grpo.engine import EngineIdentity
from grpo.openings import book_files
from grpo.streams import find_files, fingerprint, fingerprint_of_all

_NOT_IN_BOARDS = {"num_tasks", "files", "exclude"}  # Where files lie; their names and contents are inputs.
_NOT_IN_GAMES = {"evaluation": {"opening_book"}}  # Its content is an input.
_NOT_IN_SELECTION = {**_NOT_IN_GAMES, "selection": {"num_tasks"}}
_NOT_IN_LADDER: Mapping[str, Any] = {
    "evaluation": {
        "opening_book": True,
        "heldout_depth": True,
        "opponent_nodes": True,
        "num_baseline_pairs": True,
        "adjudication_depth": True,
        "adjudication_centipawns": True,
        "ladder": {"num_probe_pairs", "num_rung_pairs"},
    }
}


def dataset(settings: Settings) -> dict[str, Any]:
    """Return what makes the dataset: not over how many tasks it is spread, nor in which folder a file lies."""
    return {
        "seed": settings.seed,
        "boards": settings.boards.model_dump(mode="json", exclude=_NOT_IN_BOARDS),
        "values": settings.values.model_dump(mode="json"),
        "heldout_depth": settings.evaluation.heldout_depth,
    }


def checks(settings: Settings) -> dict[str, Any]:
    """Return what the dataset is checked against."""
    return {
        "boards": settings.boards.model_dump(mode="json", exclude=_NOT_IN_BOARDS),
        "values": settings.values.model_dump(mode="json"),
    }


def network(settings: Settings) -> dict[str, Any]:
    """Return what makes the pretrained policy of a dataset."""
    return settings.model_dump(mode="json", include={"seed", "policy", "pretrain"})


def ladder(settings: Settings) -> dict[str, Any]:
    """Return how the ladder's rungs are rated: not how anybody is placed on it."""
    return settings.model_dump(mode="json", include={"evaluation"}, exclude=dict(_NOT_IN_LADDER))


def baseline(settings: Settings) -> dict[str, Any]:
    """Return how the pretrained policy is measured."""
    return settings.model_dump(mode="json", include={"seed", "evaluation"}, exclude=_NOT_IN_GAMES)


def grpo(settings: Settings) -> dict[str, Any]:
    """Return how the pretrained policy is fine-tuned; values are those of states that no dataset has."""
    return settings.model_dump(mode="json", include={"seed", "values", "policy", "grpo"})


def selection(settings: Settings) -> dict[str, Any]:
    """Return how the champion is chosen."""
    return settings.model_dump(mode="json", include={"seed", "evaluation", "selection"}, exclude=_NOT_IN_SELECTION)


def source_inputs(settings: Settings, engine: EngineIdentity) -> dict[str, str]:
    """Return what the dataset is made from, by hash."""
    boards = settings.boards
    files = find_files(boards.files) if boards.files else []
    judged = {"judged positions": fingerprint_of_all(find_files(boards.exclude))} if boards.exclude else {}
    # Names of sources are in the rows, folders are not; of what judges only the content counts.
    named = {f"file {file.name}": fingerprint(file) for file in files}
    return {"engine": str(engine)} | named | judged


def opening_inputs(settings: Settings) -> dict[str, str]:
    """Return what matches begin from, by hash: of a book only the content counts; the generator is code."""
    book = settings.evaluation.opening_book
    return {"opening book": fingerprint_of_all(book_files(book))} if book else {}
