"""Resuming from another run (the origin): finds the origin's checkpoint, and checks the settings that the command changes.

A resumed run reuses the origin's boards and pretrained policy, so their settings are fixed. The registry (MLflow) names policies:
`champion` (the best, to play) and `peak` (a checkpoint, to resume from).
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
from steps.run.commands import FLOW_FILE, pasteable, resume_command
from steps.run.machine import Machine
from steps.run.records import OriginFacts
from steps.run.step import StepOutput, registered_steps, step_of
from steps.run.store import Store
from steps.track.find import kept_checkpoint, named_policy

_MAX_SHOWN: Final = 200  # Characters.
_FREE: Final = ("grpo.states_per_step", "language.answers_per_forward", "language.min_parse_rate")
"""Settings of `join_boards` and `pretrain` that change neither boards nor network."""


class ResumeError(PlainError, RuntimeError):
    """A run cannot resume."""


class Origin(OriginFacts):
    """`OriginFacts` has `name`, `run` and `step` (GRPO step)."""

    settings: dict[str, Any]
    outputs: dict[str, StepOutput]  # By step.
    known: dict[str, str]  # Known lines about the run: `data` (dataset), `verdict`, `findings` (diagnosis).


class Job(TypedDict):
    """A run's facts, which all steps get."""

    run: str  # Metaflow's run id.
    settings: dict[str, Any]
    code: dict[str, Any]  # `CodeFacts`, and `fresh`: the run's id if `--fresh` forbids reuse of outputs, else empty.
    origin: Origin | None  # None for a new training.
    usual: dict[str, float]  # Step -> seconds in earlier runs of the preset.


def find_origin(name: str, preset: str, machine: Machine) -> Origin:
    """Return the origin from the store, or else from the registry, which has checkpoints only of peaks.

    `name` is `peak` or `champion` of the preset, a version in the registry, RUN (the run's peak) or RUN/STEP.

    Raises:
    - NotFoundError: no such policy, run or checkpoint exists.
    - ResumeError: the origin has no output of a needed step, or a champion's run is not in the store.
    - IncompatibleError: this code cannot use the policy.
    - ForeignError: this code cannot read the registered version.
    - TrackingAwayError: MLflow does not answer.
    - CorruptError: a file is damaged.
    """
    store, named = Store.of(machine), named_policy(name, machine, role=PEAK, preset=preset)
    if named.run is None:
        assert named.version is not None
        if named.part != PEAK:
            raise ResumeError(
                f"--resume-from {name} is a {named.part}, which has no checkpoint in MLflow: resume from {named.version.preset}/{PEAK}, or"
                f" set CHESS_GRPO_STORE to the store that has run {named.run_id}"
            )
        from steps.track.registry import fetch_origin

        settings, outputs, known = fetch_origin(named.version, machine)
    else:
        from steps.pages.known import summary_of

        settings, outputs, known = named.run.facts["settings"], {}, summary_of(named.run, store)
        for step in (*registered_steps(), *(["finetune"] if named.policy_step != PRETRAINED_STEP else [])):
            output = named.run.output_of(step)
            if output is None:
                finish = pasteable(resume_command(named.run_id, named.run.places))
                raise ResumeError(f"--resume-from {name}: run {named.run_id} has no output of {step}; finish it first by `{finish}`")
            outputs[step] = output
    outputs["build_boards"] = outputs["join_boards"]  # The joined output stands for the parallel tasks' outputs.
    if named.version is not None and "/" not in name:
        name = f"{named.version.preset}/{name}"  # The printed command has no preset, so the name needs one.
    origin = Origin(name=name, run=named.run_id, step=named.policy_step, settings=dict(settings), outputs=outputs, known=known)
    policy_facts(store.open(outputs["pretrain"]))  # Raises IncompatibleError.
    origin_checkpoint(origin, store)  # Raises NotFoundError or CorruptError.
    return origin


def resumed_settings(origin: Origin, keys: Mapping[str, Any]) -> Settings:
    """Return the origin's settings, changed by the command's keys (nested).

    Raises ConfigError, or ResumeError if boards or network would change.
    """
    settings = settings_over(origin["settings"], keys)
    changed = _changed(origin, settings)
    fixed = [name for step in ("join_boards", "pretrain") for name in step_of(step).reads_for(settings.policy.kind)]
    refused = [name for name in changed if is_within(name, fixed) and not is_within(name, _FREE)]
    if refused:
        lines = [f"  {name}: origin {_shown(changed[name][0])}, now {_shown(changed[name][1])}" for name in refused]
        allowed = {name: changed[name][1] for name in changed if name not in refused}
        raise ResumeError(
            f"--resume-from {origin['name']}: a resumed run must keep the boards, moves and network of run {origin['run']}. Refused:\n"
            + "\n".join(lines)
            + f"\nWithout these changes it works: {pasteable(_command(origin['name'], allowed))}"
        )
    return settings


def resumed_command(origin: Origin, settings: Settings) -> str:
    return _command(origin["name"], {name: after for name, (_, after) in _changed(origin, settings).items()})


def changes(origin: Origin, settings: Settings) -> dict[str, str]:
    return {name: f"{_shown(before)} -> {_shown(after)}" for name, (before, after) in _changed(origin, settings).items()}


def origin_checkpoint(origin: Origin, store: Store) -> tuple[Path | None, str]:
    """Return folder and hash of the verified checkpoint; (None, "") for the pretrained policy. Raises NotFoundError, CorruptError."""
    if origin["step"] == PRETRAINED_STEP:
        return None, ""
    output = origin["outputs"]["finetune"]
    _, part = kept_checkpoint(store.manifest(output), str(origin["step"]))
    folder = store.file(output, part)
    return folder, str(verified_manifest(folder)["output_hash"])


def inherited_output(origin: Origin | None, step: str) -> StepOutput | None:
    """Return the origin's output, not verified; None if the run computes the step."""
    if origin is None or not step_of(step).is_inherited:
        return None
    return StepOutput(**{**origin["outputs"][step], "reused": True})


def _changed(origin: Origin, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return dotted name -> (origin's value or None, new value) of changed settings."""
    before, after = flattened(origin["settings"]), flattened(settings.model_dump(mode="json"))
    return {name: (before.get(name), value) for name, value in after.items() if before.get(name) != value}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _command(name: str, keys: Mapping[str, Any]) -> str:
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    settings = f" --config-value settings {shlex.quote(text)}" if keys else ""
    return f"python {FLOW_FILE}{settings} run --resume-from {name}"
