"""Finds a policy by name: an alias or version of the registry, a run or a checkpoint of it, or a folder."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.base.files import MANIFEST, read_json, sha256_file, verified_manifest
from grpo.policy.files import is_policy, missing_files, policy_kind, weights_file
from steps.runs.names import POLICY_NAMES, NotFoundError, is_folder
from steps.runtime.commands import pasteable, resume_command, shortened
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say
from steps.step_io.aliases import ALIASES, CHAMPION, PRETRAINED_STEP
from steps.step_io.names import REPORT

if TYPE_CHECKING:
    from steps.runs.index import TrackedRun
    from steps.store.outputs import StepOutput

# The tracking store's modules are imported when they are needed: MLflow takes seconds, and a chess GUI waits.


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPolicy:
    """A policy on this machine; its hashes were checked where they are recorded."""

    folder: Path
    """Folder of weights and configuration, for `steps.policies.open.open_policy`."""
    kind: str
    """`network` or `language`."""
    run: str
    """Id of the Metaflow run; for a folder its name, which is prefixed by its output's version for `champion` and `peak`."""
    policy_step: int | None
    """Training step; 0 is the pretrained policy, None when unknown."""
    weights_hash: str
    """SHA-256 of `weights.safetensors`, or of a language model's `model.safetensors`, as `sha256sum` prints it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedPolicy:
    """A policy of a run, whose files may be anywhere."""

    run: "TrackedRun"
    policy_step: int
    role: str = ""
    """`champion` or `peak`: its folder in the output of `select`; empty for a checkpoint of `finetune`, or the pretrained policy."""
    version: int | None = None
    """Its number in the registry, for a champion or peak."""

    @property
    def output(self) -> "StepOutput":
        """The output of the step that has its files; raises NotFoundError when the run has none."""
        step = "select" if self.role else "pretrain" if self.policy_step == PRETRAINED_STEP else "finetune"
        if (made := self.run.output_of(step)) is None:
            raise NotFoundError(f"run {self.run.metaflow_run} has no output of {step} to verify its files by; take another run")
        return made.output

    def fetch(self, machine: Machine) -> FoundPolicy:
        """Bring its files to this machine's outputs, unless they are there. Raises as `find_policy`."""
        from steps.runs.files import fetch_checkpoint, fetch_output

        if self.role or self.policy_step == PRETRAINED_STEP:
            folder = fetch_output(machine, self.output) / self.role
        else:
            folder = fetch_checkpoint(machine, self.output, self.policy_step)
        return _model(folder, run=self.run.metaflow_run, policy_step=self.policy_step)


def find_policy(name: str, machine: Machine, *, tells: bool = True) -> FoundPolicy:
    """Return the policy of this name without loading it; torch is not imported, and the tracking store is only read.

    Args:
        name: one of `POLICY_NAMES`; a folder may be a checkpoint, a champion, an output of `pretrain` or `select`.
        machine: its outputs are used; what it lacks is fetched into them from the shared store or the tracking store.
        tells: whether to say on stderr which policy it is.

    Raises:
        NotFoundError: there is no such policy.
        TrackingAwayError: the tracking store does not answer.
        ArtifactError: its files are nowhere to be had.
        CorruptError: a file is damaged.
        IncompatibleError: it was made with another action table.
    """
    if is_folder(name):
        return _in_folder(Path(name))
    found = named_policy(name, machine, role=CHAMPION).fetch(machine)
    if tells:
        say(f"{name}: step {found.policy_step:,} of run {found.run}, in {shortened(found.folder)}", sys.stderr)
    return found


def named_policy(name: str, machine: Machine, *, role: str) -> NamedPolicy:
    """Return the policy that an alias, a version, RUN or RUN/STEP names; its files are not looked for.

    Args:
        name: one of `POLICY_NAMES`, no folder.
        machine: says where the tracking store is.
        role: which policy a run alone stands for, `champion` or `peak`.

    Raises NotFoundError, TrackingAwayError.
    """
    from steps.runs.files import checkpoint_files
    from steps.runs.index import find_run

    of, slash, step = name.partition("/")
    run = find_run(of, machine, names=POLICY_NAMES)
    policy = run.registered(of)
    if slash and policy is not None:
        raise NotFoundError(f"{of} is one checkpoint already; for another give RUN/STEP, with the id of its run")
    if slash and step.isascii() and step.isdigit():
        return NamedPolicy(run=run, policy_step=int(step))
    if slash and (finetuned := run.output_of("finetune")) is not None:
        checkpoint_files(machine, finetuned.output, step)  # It raises, for this is no step.
    policy = run.policy(role) if policy is None and not slash else policy
    if policy is None:
        raise NotFoundError(
            f"run {run.metaflow_run} has no {step or role}: it ended too early, or its version was deleted. Finish it by"
            f" `{pasteable(resume_command(run.metaflow_run))}`, or take a checkpoint by {run.metaflow_run}/STEP"
        )
    return NamedPolicy(run=run, policy_step=policy.version.policy_step, role=policy.role, version=policy.version.number)


def _in_folder(given: Path) -> FoundPolicy:
    given = given.expanduser().resolve()
    folder = given / CHAMPION if not is_policy(given) and is_policy(given / CHAMPION) else given
    if not is_policy(folder):
        state = f"is not the folder of a policy: it has no {' and '.join(missing_files(given))}" if given.is_dir() else "is not a folder"
        raise NotFoundError(f"{given} {state}; give {POLICY_NAMES}; a run's last lines name its champion's")
    facts = verified_manifest(folder) if (folder / MANIFEST).is_file() else {}
    if facts.get("kind") == "export":
        return _model(folder, run=facts["run"], policy_step=facts["policy_step"])
    # A champion's folder has the same name in every run, so the output's name is added.
    run = f"{folder.parent.name}-{folder.name}" if folder.name in ALIASES else given.name
    return _model(folder, run=run, policy_step=_written_step(folder, facts))


def _model(folder: Path, *, run: str, policy_step: int | None) -> FoundPolicy:
    return FoundPolicy(
        folder=folder, kind=policy_kind(folder), run=run, policy_step=policy_step, weights_hash=sha256_file(weights_file(folder))
    )


def _written_step(folder: Path, facts: dict[str, Any]) -> int | None:
    """Return the training step from a checkpoint's manifest, or from the report beside a champion."""
    if "step" in facts and facts.get("kind") == "checkpoint":
        return int(facts["step"])
    if folder.name == CHAMPION and (folder.parent / REPORT).is_file():
        step = read_json(folder.parent / REPORT).get("champion_step")
        return None if step is None else int(step)
    return None
