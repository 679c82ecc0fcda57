"""Whether a run can be gone on from, and from which checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.checkpoints import checkpoint_name
from grpo.config import Settings
from grpo.content import read_json
from grpo.engine import EngineIdentity
from grpo.errors import PlainError
from steps import slices
from steps.finetuning import CHECKPOINTS
from steps.running import BEFORE_FINETUNE
from steps.selecting import PEAK, PRETRAINED_STEP
from steps.selecting import REPORT as DECISION
from steps.store import Store
from steps.tracking import Origin


class ResumeError(PlainError, RuntimeError):
    """The origin cannot be gone on from with these settings or on this machine; the message lists each difference."""


def refuse_unlike(origin: Origin, settings: Settings, engine: EngineIdentity, store: Store) -> None:
    """Raise ResumeError unless the origin's dataset and network are what these settings ask for.

    What may differ: everything of `grpo`, `evaluation` and `selection`. What it was made from is compared, not what it is called.
    """
    missing = [step for step in (*BEFORE_FINETUNE, "finetune", "select") if step not in origin["outputs"]]
    if missing:
        raise ResumeError(f"--resume-from {origin['name']}: run {origin['metaflow_run']} has no output of {', '.join(missing)}")
    dataset, network = (store.manifest(origin["outputs"][step])["parts"] for step in ("join_boards", "pretrain"))
    compared = [(dataset["settings"], slices.dataset(settings)), (network["settings"], slices.network(settings))]
    differences = [
        f"  {name}: origin {before!r}, now {after!r}" for then, now in compared for name, before, after in _differences(then, now)
    ]
    inputs = slices.source_inputs(settings, engine)
    if dataset["inputs"]["engine"] != inputs["engine"]:
        differences.append(f"  engine: origin {dataset['inputs']['engine']}, now {inputs['engine']}")
    then = {name: digest for name, digest in dataset["inputs"].items() if name.startswith(("file ", "judged "))}
    now = {name: digest for name, digest in inputs.items() if name in then or name.startswith(("file ", "judged "))}
    differences += [f"  {name}: origin {before!r}, now {after!r}" for name, before, after in _differences(then, now)]
    if differences:
        text = "\n".join(sorted(set(differences)))
        raise ResumeError(
            f"--resume-from {origin['name']}: run {origin['metaflow_run']} was made otherwise, and only grpo.*, evaluation.* and"
            f" selection.* may change:\n{text}\nGive the origin's settings (same preset and overrides), or start without --resume-from"
        )


def origin_checkpoint(origin: Origin | None, store: Store) -> Path | None:
    """Return the verified checkpoint to go on from; None without an origin, or when that is the pretrained policy."""
    if origin is None or origin["policy_step"] == PRETRAINED_STEP:
        return None
    selected = store.open(origin["outputs"]["select"])
    if read_json(selected / DECISION)["peak_step"] == origin["policy_step"]:
        return selected / PEAK
    return store.open(origin["outputs"]["finetune"]) / CHECKPOINTS / checkpoint_name(origin["policy_step"])


def _differences(then: Any, now: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        names = sorted(then.keys() | now.keys())
        return [row for name in names for row in _differences(then.get(name), now.get(name), f"{prefix}.{name}" if prefix else name)]
    return [] if then == now else [(prefix, then, now)]
