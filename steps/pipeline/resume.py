"""Whether and from which checkpoint a run can resume; fetches what this machine does not have."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import read_json
from grpo.engine.identity import EngineIdentity
from grpo.policy.files import ACTION_TABLE_HASH, POLICY
from grpo.settings.tree import Settings
from steps.pipeline.job import BEFORE_FINETUNE, ResumeOrigin
from steps.pipeline.resume_changes import ALLOWABLE, Change, Now, changes_since
from steps.runs.files import checkpoint_files, fetch_checkpoint, fetch_output, output_manifest
from steps.runs.find_policy import named_policy
from steps.runs.names import NotFoundError, is_folder
from steps.runtime.machine import Machine
from steps.step_io.aliases import PEAK, PRETRAINED_STEP

_IF_THERE: Final = ("finetune", "select")
"""Further steps whose settings are compared, where the origin has them."""


class ResumeError(PlainError, RuntimeError):
    """The origin cannot be resumed with these settings or on this machine; the message lists each difference."""


def find_origin(name: str, machine: Machine) -> ResumeOrigin:
    """Return where a run can resume from: `peak`, `champion`, a registered version, RUN (its peak) or RUN/STEP.

    Raises NotFoundError when there is no such policy, run or checkpoint; ResumeError when the run ended before it had what is needed.
    """
    if is_folder(name):
        raise ResumeError(f"--resume-from {name}: a folder has no run, whose boards and settings a resumed run needs: give RUN/STEP")
    try:
        named = named_policy(name, machine, role=PEAK)
        run, step, outputs = named.run, named.policy_step, named.run.outputs
        missing = [each for each in (*BEFORE_FINETUNE, *(["finetune"] if step != PRETRAINED_STEP else [])) if each not in outputs]
        if missing:
            raise ResumeError(f"--resume-from {name}: run {run.metaflow_run} has no output of {', '.join(missing)}")
        if step != PRETRAINED_STEP:
            checkpoint_files(machine, outputs["finetune"], step)
    except NotFoundError as error:
        raise NotFoundError(f"--resume-from {name}: {error}") from None
    return ResumeOrigin(name=name, mlflow_run=run.mlflow_run, metaflow_run=run.metaflow_run, policy_step=step, outputs=outputs)


def take_over(
    origin: ResumeOrigin,
    settings: Settings,
    engine: EngineIdentity,
    *,
    allowed: Sequence[str],
    code: Mapping[str, Any],
    device: str,
    machine: Machine,
) -> list[Change]:
    """Bring what a run from this origin needs into the store, and return in what it will differ from the origin.

    Manifests and pretrained policy are fetched and compared first; the rest, which is large, only for a run that is not refused.

    Raises ResumeError with a line for each difference that is refused; what `fetch_output` raises when something cannot be had.
    """
    outputs = origin["outputs"]
    compared = [step for step in (*BEFORE_FINETUNE, *_IF_THERE) if step in outputs]
    manifests: dict[str, Mapping[str, Any]] = {step: output_manifest(machine, outputs[step]) for step in compared}
    pretrained = fetch_output(machine, outputs["pretrain"])
    now = Now(settings=settings, engine=engine, code=code, device=device, action_table=ACTION_TABLE_HASH)
    changes = changes_since(manifests, read_json(pretrained / POLICY)["action_table"], now)
    refuse_unlike(origin, changes, allowed)
    for step in BEFORE_FINETUNE:
        fetch_output(machine, outputs[step])
    origin_checkpoint(origin, machine)
    return changes


def refuse_unlike(origin: ResumeOrigin, changes: Sequence[Change], allowed: Sequence[str]) -> None:
    """Raise ResumeError when a change is refused and not allowed by name, or when a name that may be allowed is misspelt."""
    unknown = [name for name in allowed if name not in ALLOWABLE]
    if unknown:
        raise ResumeError(f"--allow {','.join(allowed)}: {unknown[0]!r} is nothing that can be allowed; known: {', '.join(ALLOWABLE)}")
    refused = [change for change in changes if change.is_refused and change.allowed_as not in allowed]
    if refused:
        text = "\n".join(f"  {change}{f' (--allow {name} would let it)' if (name := change.allowed_as) else ''}" for change in refused)
        raise ResumeError(
            f"--resume-from {origin['name']}: run {origin['metaflow_run']} was made otherwise, and this may not change (docs/howto.md"
            f" says what may):\n{text}\nGive the origin's settings (same preset and overrides), or start without --resume-from"
        )


def origin_checkpoint(origin: ResumeOrigin, machine: Machine) -> Path | None:
    """Return the verified checkpoint to resume from; None when that is the pretrained policy."""
    if origin["policy_step"] == PRETRAINED_STEP:
        return None
    return fetch_checkpoint(machine, origin["outputs"]["finetune"], origin["policy_step"])
