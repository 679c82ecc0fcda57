"""Resuming from another run's checkpoint (the origin): finds the origin, and applies the settings that a resumed run may change.

A resumed run keeps its origin's settings except for those that the command names. It reuses the origin's boards and pretrained policy, so
their settings are fixed. A checkpoint holds weights and Adam's moments, which are averages of past gradients. If the number of states, the
learning rate or a coefficient changes, the moments adapt within some hundred steps, because the gradients' size stays similar. If the
objective changes, `finetune` begins the optimizer anew.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.base.errors import PlainError
from grpo.base.files import verified_manifest
from grpo.metrics.shared import PRETRAINED_STEP
from grpo.policy.files import policy_facts
from grpo.settings.names import flattened, is_within
from grpo.settings.tree import Settings, settings_over
from steps.names import PEAK
from steps.pages.known import summary_of
from steps.run.commands import FLOW_FILE, resume_command
from steps.run.machine import Machine
from steps.run.records import OriginFacts
from steps.run.step import StepOutput, registered_steps, step_of
from steps.run.store import Store
from steps.track.find import kept_checkpoint, named_policy

_MAX_SHOWN: Final = 200
_FREE: Final = ("grpo.states_per_step", "language.answers_per_forward", "language.min_parse_rate")
"""Settings that a resumed run may change although `join_boards` or `pretrain` reads them: they change neither boards nor network."""


class ResumeError(PlainError, RuntimeError):
    """The run cannot resume from this origin, or not with these settings; the message has the remedy."""


class Origin(OriginFacts):
    """The run from which a resumed run continues."""

    settings: dict[str, Any]
    outputs: dict[str, StepOutput]  # By step.
    known: dict[str, str]  # One line each for `data`, `verdict` and `findings`, as far as the origin has them.


class Job(TypedDict):
    """A run's facts, which `start` passes on to all steps: plain data."""

    run: str  # Metaflow's run id, also the key of the run's records.
    settings: dict[str, Any]
    code: dict[str, Any]  # Commit, dirty flag and locks of the launching checkout; `fresh` is the run id with `--fresh`, else "".
    origin: Origin | None  # None for a new training.
    usual: dict[str, float]  # Step -> usual seconds in earlier runs of the preset; empty without such runs.


def find_origin(name: str, preset: str, machine: Machine) -> Origin:
    """Return the origin of a resumed run, from the machine's store or else from the registry, which has the checkpoints of peaks.

    Args:
        name: `peak` or `champion` of the preset, a version, RUN (its peak) or RUN/STEP.
        preset: Preset whose registered model has the aliases.
        machine: Machine with the store and the registry's address.

    Raises NotFoundError without such a policy, run or checkpoint; ResumeError if the origin lacks an output that a resumed run needs.
    """
    store, found = Store.of(machine), named_policy(name, machine, role=PEAK, preset=preset)
    if found.run is None:
        assert found.version is not None
        if found.part != PEAK:
            raise ResumeError(
                f"--resume-from {name} is a {found.part}, which has no checkpoint in MLflow: resume from {found.version.preset}/{PEAK}, or"
                f" set CHESS_GRPO_STORE to the store that has run {found.run_id}"
            )
        from steps.track.registry import fetch_origin  # MLflow takes seconds to import.

        settings, outputs, known = fetch_origin(found.version, machine)
    else:
        settings, outputs, known = found.run.facts["settings"], {}, summary_of(found.run, store)
        for step in (*registered_steps(), *(["finetune"] if found.policy_step != PRETRAINED_STEP else [])):
            output = found.run.output_of(step)
            if output is None:
                finish = resume_command(found.run_id, found.run.places)
                raise ResumeError(f"--resume-from {name}: run {found.run_id} has no output of {step}; finish it first by `{finish}`")
            outputs[step] = output
    outputs["build_boards"] = outputs["join_boards"]  # The joined dataset stands for its parts.
    if found.version is not None and "/" not in name:
        name = f"{found.version.preset}/{name}"  # The printed command works without the preset, too.
    origin = Origin(name=name, run=found.run_id, step=found.policy_step, settings=dict(settings), outputs=outputs, known=known)
    policy_facts(store.open(outputs["pretrain"]))  # Raises IncompatibleError if this code numbers moves differently.
    origin_checkpoint(origin, store)
    return origin


def resumed_settings(origin: Origin, given: Mapping[str, Any]) -> Settings:
    """Return the origin's settings, changed by the command's keys (nested, from `split_settings`).

    Raises ResumeError, with the command that works, if the keys change boards, moves or network.
    """
    settings = settings_over(origin["settings"], given)
    changed = _changed(origin, settings)
    fixed = [name for step in ("join_boards", "pretrain") for name in step_of(step).reads_for(settings.policy.kind)]
    refused = [name for name in changed if is_within(name, fixed) and not is_within(name, _FREE)]
    if refused:
        lines = [f"  {name}: origin {_shown(changed[name][0])}, now {_shown(changed[name][1])}" for name in refused]
        rest = {name: changed[name][1] for name in changed if name not in refused}
        raise ResumeError(
            f"--resume-from {origin['name']}: a resumed run has the boards, the moves and the network of run {origin['run']}:\n"
            + "\n".join(lines)
            + f"\nWithout these changes it works: {_command(origin['name'], rest)}"
        )
    return settings


def resumed_command(origin: Origin, settings: Settings) -> str:
    """Return the command that resumes from this origin with these settings."""
    return _command(origin["name"], {name: now for name, (_, now) in _changed(origin, settings).items()})


def changes(origin: Origin, settings: Settings) -> dict[str, str]:
    """Return the settings that differ from the origin's: dotted name -> "before -> after"."""
    return {name: f"{_shown(then)} -> {_shown(now)}" for name, (then, now) in _changed(origin, settings).items()}


def origin_checkpoint(origin: Origin, store: Store) -> tuple[Path | None, str]:
    """Return the folder and the hash of the verified checkpoint to resume from; (None, "") for the pretrained policy.

    Raises NotFoundError, with the existing checkpoints, if the step's checkpoint was never written or was deleted later.
    """
    if origin["step"] == PRETRAINED_STEP:
        return None, ""
    output = origin["outputs"]["finetune"]
    _, part = kept_checkpoint(store.manifest(output), str(origin["step"]))
    folder = store.file(output, part)
    return folder, str(verified_manifest(folder)["output_hash"])


def taken_over(origin: Origin | None, step: str) -> StepOutput | None:
    """Return the origin's output of an inherited step, not verified; None for a step that the run computes."""
    if origin is None or not step_of(step).is_inherited:
        return None
    return StepOutput(**{**origin["outputs"][step], "reused": True})


def _changed(origin: Origin, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ: dotted name -> (origin's value or None, new value)."""
    before, after = flattened(origin["settings"]), flattened(settings.model_dump(mode="json"))
    return {name: (before.get(name), now) for name, now in after.items() if before.get(name) != now}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _command(name: str, keys: Mapping[str, Any]) -> str:
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    settings = f" --config-value settings {shlex.quote(text)}" if keys else ""
    return f"python {FLOW_FILE}{settings} run --resume-from {name}"
