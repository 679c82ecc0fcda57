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
from steps.step_io.aliases import ALIASES, PRETRAINED_STEP
from steps.store.outputs import Store
from steps.tracking.archive import NoCheckpointError, checkpoint_output, fetch_checkpoint, fetch_output, kept_steps, output_manifest
from steps.tracking.client import FlowRun
from steps.tracking.registry import Registry
from steps.tracking.tracker import Tracker

_IF_THERE: Final = ("finetune", "select")
"""Further steps whose settings are compared, where the origin has them."""


class OriginError(PlainError, ValueError):
    """The run or policy to resume from cannot be found."""


class ResumeError(PlainError, RuntimeError):
    """The origin cannot be resumed with these settings or on this machine; the message lists each difference."""


def find_origin(name: str, tracker: Tracker, store: Store) -> ResumeOrigin:
    """Return where `peak`, `champion`, RUN or RUN/STEP can be resumed from; RUN is Metaflow's or MLflow's id, and alone means its peak.

    Raises OriginError when there is no such policy, run or checkpoint; ResumeError when the run ended before it had what is needed.
    """
    wanted, slash, text = name.partition("/")
    if wanted in ALIASES:
        if slash:
            raise OriginError(
                f"--resume-from {name}: {wanted} is one checkpoint already; for another give RUN/STEP, with the id of its run"
            )
        version = Registry(tracker).named(wanted)
        if version is None:
            raise OriginError(f"--resume-from {name}: no policy has the alias {wanted!r} in {tracker.uri}; let a run finish first")
        run, step = tracker.flow_run(version.flow_run), version.policy_step
        if run is None:
            raise OriginError(f"--resume-from {name}: {wanted} is of MLflow run {version.flow_run}, which was deleted; give a run's id")
    else:
        run = tracker.flow_run(wanted)
        if run is None:
            raise OriginError(
                f"--resume-from {name}: no such run in {tracker.uri}; give peak, champion, or a run id as `python flows/chess_grpo.py"
                " run` printed it, with /STEP behind it for another checkpoint than its peak"
            )
        step = _step(name, text, run, tracker, store) if slash else _peak_step(name, run, tracker, store)
    missing = [each for each in (*BEFORE_FINETUNE, *(["finetune"] if step != PRETRAINED_STEP else [])) if each not in run.outputs]
    if missing:
        raise ResumeError(f"--resume-from {name}: run {run.metaflow_run} has no output of {', '.join(missing)}")
    if step != PRETRAINED_STEP:
        _refuse_missing(name, step, run, tracker, store)
    return ResumeOrigin(name=name, mlflow_run=run.mlflow_run, metaflow_run=run.metaflow_run, policy_step=step, outputs=run.outputs)


def take_over(
    origin: ResumeOrigin,
    settings: Settings,
    engine: EngineIdentity,
    *,
    allowed: Sequence[str],
    code: Mapping[str, Any],
    device: str,
    tracker: Tracker,
    store: Store,
) -> list[Change]:
    """Bring what a run from this origin needs into the store, and return in what it will differ from the origin.

    Manifests and pretrained policy are fetched and compared first; the rest, which is large, only for a run that is not refused.

    Raises ResumeError with a line for each difference that is refused; what `fetch_output` raises when something cannot be had.
    """
    outputs = origin["outputs"]
    compared = [step for step in (*BEFORE_FINETUNE, *_IF_THERE) if step in outputs]
    manifests: dict[str, Mapping[str, Any]] = {step: output_manifest(tracker, store, outputs[step]) for step in compared}
    pretrained = fetch_output(tracker, store, outputs["pretrain"])
    now = Now(settings=settings, engine=engine, code=code, device=device, action_table=ACTION_TABLE_HASH)
    changes = changes_since(manifests, read_json(pretrained / POLICY)["action_table"], now)
    refuse_unlike(origin, changes, allowed)
    for step in BEFORE_FINETUNE:
        fetch_output(tracker, store, outputs[step])
    origin_checkpoint(origin, tracker, store)
    return changes


def refuse_unlike(origin: ResumeOrigin, changes: Sequence[Change], allowed: Sequence[str]) -> None:
    """Raise ResumeError when a change is refused and not allowed by name, or when a name that may be allowed is misspelt."""
    unknown = [name for name in allowed if name not in ALLOWABLE]
    if unknown:
        raise ResumeError(f"--allow {','.join(allowed)}: {unknown[0]!r} is nothing that can be allowed; known: {', '.join(ALLOWABLE)}")
    refused = [change for change in changes if change.is_refused and change.allowed_as not in allowed]
    if refused:
        text = "\n".join(f"  {change}{_remedy(change)}" for change in refused)
        raise ResumeError(
            f"--resume-from {origin['name']}: run {origin['metaflow_run']} was made otherwise, and this may not change (docs/resuming.md"
            f" says what may):\n{text}\nGive the origin's settings (same preset and overrides), or start without --resume-from"
        )


def origin_checkpoint(origin: ResumeOrigin, tracker: Tracker, store: Store) -> Path | None:
    """Return the verified checkpoint to resume from; None when that is the pretrained policy."""
    if origin["policy_step"] == PRETRAINED_STEP:
        return None
    return fetch_checkpoint(tracker, store, origin["outputs"]["finetune"], origin["policy_step"])


def _remedy(change: Change) -> str:
    return f" (--allow {change.allowed_as} would let it)" if change.allowed_as else ""


def _step(name: str, text: str, run: FlowRun, tracker: Tracker, store: Store) -> int:
    if not (text.isascii() and text.isdigit()):
        there = _there(run, tracker, store)
        raise OriginError(f"--resume-from {name}: {text!r} is no step; give RUN/STEP with the GRPO step of a checkpoint: {there}")
    return int(text)


def _peak_step(name: str, run: FlowRun, tracker: Tracker, store: Store) -> int:
    if run.peak_step is None:
        raise OriginError(
            f"--resume-from {name}: this run ended before `select`, so it has no peak; finish it by `python flows/chess_grpo.py resume"
            f" --origin-run-id {run.metaflow_run}`, or resume from a checkpoint by {run.metaflow_run}/STEP: {_there(run, tracker, store)}"
        )
    return run.peak_step


def _refuse_missing(name: str, step: int, run: FlowRun, tracker: Tracker, store: Store) -> None:
    try:
        checkpoint_output(output_manifest(tracker, store, run.outputs["finetune"]), step)
    except NoCheckpointError as error:
        raise OriginError(f"--resume-from {name}: run {run.metaflow_run}: {error}") from None


def _there(run: FlowRun, tracker: Tracker, store: Store) -> str:
    if "finetune" not in run.outputs:
        return "it has none, for it ended before `finetune` was done"
    return ", ".join(map(str, kept_steps(output_manifest(tracker, store, run.outputs["finetune"])))) or "it has none"
