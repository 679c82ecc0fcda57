"""Resuming from another run's checkpoint: which run, with what settings, and what of it may change.

A resumed run takes its origin's settings, and of the command only what that changes. Boards, moves and network stay as they are: their
outputs are the origin's. A checkpoint holds weights and the state of Adam. Adam's moments are averages of past gradients: they outlive
another number of states, another pace or another weight of a regulariser within some hundred steps, for gradients stay of one size. They
do not outlive another objective unharmed: there `finetune` begins the optimizer anew.
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
"""Settings that make neither boards nor network, although the steps read them that make these."""


class ResumeError(PlainError, RuntimeError):
    """The run cannot resume from there, or not with these settings; the message has the command that works."""


class Origin(OriginFacts):
    """The run that a resumed run comes from."""

    settings: dict[str, Any]
    outputs: dict[str, StepOutput]
    """By step; the parts of the dataset are the dataset."""
    known: dict[str, str]
    """A line each for `data`, `verdict` and `findings` of the run, as far as it had come."""


class Job(TypedDict):
    """A run, as `start` describes it to all steps: plain data that the flow passes on."""

    run: str
    """Metaflow's run id, by which its records are found."""
    settings: dict[str, Any]
    code: dict[str, Any]
    """Commit, dirty flag and locks of the launching checkout, and the run whose outputs nobody else has, if it has such (`--fresh`)."""
    origin: Origin | None
    """What the run resumes from."""
    usual: dict[str, float]
    """Step -> seconds that it took in earlier runs of the preset; empty if there is none."""


def find_origin(name: str, preset: str, machine: Machine) -> Origin:
    """Return where a run can resume from.

    Args:
        name: `peak` or `champion` of the preset, a version, RUN (its peak) or RUN/STEP.
        preset: whose registered model an alias is of.
        machine: its store is searched, and else the registry, which has the peak's checkpoint.

    Raises NotFoundError when there is no such policy, run or checkpoint; ResumeError when the run ended before it had what is needed.
    """
    store, found = Store.of(machine), named_policy(name, machine, role=PEAK, preset=preset)
    if found.run is None:
        assert found.version is not None
        if found.part != PEAK:
            raise ResumeError(
                f"--resume-from {name} is a {found.part}, which has no checkpoint in MLflow: resume from {found.version.preset}/{PEAK}, or"
                f" where CHESS_GRPO_STORE has run {found.run_id}"
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
    outputs["build_boards"] = outputs["join_boards"]  # The parts of the dataset are the dataset.
    if found.version is not None and "/" not in name:
        name = f"{found.version.preset}/{name}"  # The command that starts an equal run need not name the preset otherwise.
    origin = Origin(name=name, run=found.run_id, step=found.policy_step, settings=dict(settings), outputs=outputs, known=known)
    policy_facts(store.open(outputs["pretrain"]))  # It raises where this code numbers moves otherwise.
    origin_checkpoint(origin, store)
    return origin


def resumed_settings(origin: Origin, given: Mapping[str, Any]) -> Settings:
    """Return the origin's settings, changed by the keys that the command gives (nested, from `split_settings`).

    Raises ResumeError, with the command that works, when boards, moves or network would be others.
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
            + f"\nWithout these it works: {_command(origin['name'], rest)}"
        )
    return settings


def resumed_command(origin: Origin, settings: Settings) -> str:
    """Return the command that resumes from this origin with these settings."""
    return _command(origin["name"], {name: now for name, (_, now) in _changed(origin, settings).items()})


def changes(origin: Origin, settings: Settings) -> dict[str, str]:
    """Return dotted name -> "before -> after" of the settings that differ from the origin's."""
    return {name: f"{_shown(then)} -> {_shown(now)}" for name, (then, now) in _changed(origin, settings).items()}


def origin_checkpoint(origin: Origin, store: Store) -> tuple[Path | None, str]:
    """Return the verified checkpoint to resume from, and what a version says of it; none for the pretrained policy.

    Raises NotFoundError, with the steps that there are, for a step whose checkpoint was never written or was deleted by retention.
    """
    if origin["step"] == PRETRAINED_STEP:
        return None, ""
    output = origin["outputs"]["finetune"]
    _, part = kept_checkpoint(store.manifest(output), str(origin["step"]))
    folder = store.file(output, part)
    return folder, str(verified_manifest(folder)["output_hash"])


def taken_over(origin: Origin | None, step: str) -> StepOutput | None:
    """Return the origin's output of a step, not verified; None for a step that the run does by itself."""
    if origin is None or not step_of(step).is_inherited:
        return None
    return StepOutput(**{**origin["outputs"][step], "reused": True})


def _changed(origin: Origin, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return dotted name -> the origin's value, None where it has none, and that of these settings, where they differ."""
    before, after = flattened(origin["settings"]), flattened(settings.model_dump(mode="json"))
    return {name: (before.get(name), now) for name, now in after.items() if before.get(name) != now}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _command(name: str, keys: Mapping[str, Any]) -> str:
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    settings = f" --config-value settings {shlex.quote(text)}" if keys else ""
    return f"python {FLOW_FILE}{settings} run --resume-from {name}"
