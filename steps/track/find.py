"""Finds runs in the store's records, and policies in the store's outputs or in MLflow's registry.

A chess GUI waits for this code, so it never imports torch, and MLflow only to read the registry.
"""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.door import ForeignError
from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, CorruptError, read_json, sha256_file, verified_manifest
from grpo.base.suggestions import nearest
from grpo.metrics.shared import PRETRAINED_STEP
from grpo.policy.files import is_policy, missing_files, policy_file_names, weights_file
from steps.names import ALIASES, CHAMPION, CHECKPOINTS, REPORT
from steps.run.commands import pasteable, resume_command, shortened
from steps.run.machine import Machine
from steps.run.records import Run, Runs
from steps.run.step import StepOutput
from steps.run.store import Store

if TYPE_CHECKING:
    from steps.track.registry import Version

LAST: Final = "last"
RUN_NAMES: Final = "last, or a run's id"
INCLUDED: Final = "included"
INCLUDED_FOLDER: Final = Path(__file__).parents[2] / "policies" / INCLUDED
"""The policy that comes with the project, written by `infra/included.py`."""
POLICY_NAMES: Final = (
    "champion, peak or a version such as v7 (of another preset: smoke/champion); last or RUN (its champion); RUN/STEP (a checkpoint);"
    f" {INCLUDED} (comes with the project); a policy's folder"
)
_REGISTERED: Final = re.compile(rf"(?:(?P<preset>[\w-]+)/)?(?P<name>{'|'.join(ALIASES)}|v[0-9]+)")
_RUN: Final = re.compile(r"[\w-]+")


class NotFoundError(PlainError, LookupError):
    """No run, policy, checkpoint or history has this name."""


class EmptyRegistryError(NotFoundError):
    """No run has registered a policy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPolicy:
    """A policy on this machine. Files that a manifest lists were verified."""

    folder: Path
    run: str  # Metaflow's id, or the folder's name.
    policy_step: int | None  # GRPO step; 0 is the pretrained policy, None is unknown.
    record: Run | None = field(default=None, compare=False)  # None if unknown.
    strength: str = ""  # Text about strength, from an exported policy's folder.

    def __str__(self) -> str:
        return self.run if self.policy_step is None else f"step {self.policy_step:,} of run {self.run}"

    @property
    def weights_hash(self) -> str:
        return sha256_file(weights_file(self.folder))


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedPolicy:
    """A run's policy, whose files may still be in S3 or MLflow."""

    run_id: str
    run: Run | None  # None if the run is not in this store.
    policy_step: int
    output: StepOutput | None  # None if only MLflow has the files.
    part: str  # Policy's folder in the output (such as `champion`), or "".
    version: "Version | None" = None  # Set if the name was an alias or a version.

    def fetch(self, machine: Machine) -> FoundPolicy:
        """Download missing files. Raises CorruptError, ForeignError, TrackingAwayError."""
        return FoundPolicy(folder=self._folder(machine), run=self.run_id, policy_step=self.policy_step, record=self.run)

    def _folder(self, machine: Machine) -> Path:
        if self.output is not None:
            try:
                return Store.of(machine).open(self.output) / self.part
            except CorruptError:
                if self.version is None:
                    raise
        from steps.track import registry

        assert self.version is not None
        return registry.fetch(self.version, machine) / "policy"


def is_folder(name: str) -> bool:
    is_taken = name in ("", LAST, INCLUDED) or _REGISTERED.fullmatch(name)
    return name.startswith((".", "~", os.sep)) or (not is_taken and Path(name).is_dir())


def find_run(name: str, store: Store, *, has: Callable[[Run], bool] | None = None, names: str = RUN_NAMES) -> Run:
    """Return the run called `name`, a run's id or `last`. Raises NotFoundError; its message offers `names`.

    `last` is the newest run for which `has` is true, by default the newest that has ended.
    """
    runs = Runs(store)
    if name != LAST and _RUN.fullmatch(name) and (run := runs.get(name)) is not None:
        return run
    all_runs = runs.all()
    if name == LAST and (last := next(filter(has or (lambda run: run.status != "running"), all_runs), None)) is not None:
        if last is not all_runs[0]:
            print(f"last: run {last.name} (run {all_runs[0].name} is newer, but not far enough)", file=sys.stderr)
        return last
    ids = [run.name for run in all_runs]
    none_yet = "there is no run yet: `make run CONFIG=smoke` makes one in 3 to 7 minutes"
    newest = f"the newest runs are {', '.join(ids[:3])}" if ids else none_yet
    if name == LAST:
        fault = f"no run in {store} is far enough for this"
    else:
        fault = f"no run or policy in {store} is called {name!r}; {nearest(name, [LAST, *ALIASES, *ids])}give {names}"
    raise NotFoundError(
        f"{fault}; {newest} (`chess-grpo runs` lists this store's runs; set CHESS_GRPO_HOME or CHESS_GRPO_STORE for another store)"
    )


def find_policy(name: str, machine: Machine) -> FoundPolicy:
    """Return the policy called `name` (forms: `POLICY_NAMES`). Download missing files.

    A folder may be a checkpoint, a champion, or an output of `pretrain` or `select`. `champion` is the included policy until a run
    registers one. Raises NotFoundError, TrackingAwayError, CorruptError, and ForeignError (this code cannot read the registered version).
    """
    if is_folder(name):
        return _in_folder(Path(name))
    try:
        policy = _in_folder(INCLUDED_FOLDER) if name == INCLUDED else named_policy(name, machine, role=CHAMPION).fetch(machine)
    except EmptyRegistryError:
        if name != CHAMPION:
            raise
        print(f"{name}: no run has registered a policy yet, so this is the policy that comes with the project", file=sys.stderr)
        policy = _in_folder(INCLUDED_FOLDER)
    print(f"{name}: {policy}, in {shortened(policy.folder)}", file=sys.stderr)
    return policy


def named_policy(name: str, machine: Machine, *, role: str, preset: str = "") -> NamedPolicy:
    """Return the policy of an alias, a version, RUN or RUN/STEP.

    RUN alone means the run's `role`, `champion` or `peak`. An alias or version without a preset belongs to `preset`. If `preset` is empty,
    the only preset with this name counts, else the default preset. Raises NotFoundError, ForeignError, TrackingAwayError, CorruptError.
    """
    store = Store.of(machine)
    if match := _REGISTERED.fullmatch(name):
        return _registered(match["name"], match["preset"] or preset, machine)
    run_name, slash, step = name.partition("/")
    if slash and (run_name == INCLUDED or _REGISTERED.fullmatch(run_name)):
        raise NotFoundError(f"{run_name} is one checkpoint already; for another checkpoint give RUN/STEP")
    made_by = "finetune" if slash else "select"
    run = find_run(run_name, store, has=lambda run: run.output_of(made_by) is not None, names=POLICY_NAMES)
    if slash and step == str(PRETRAINED_STEP):
        made_by = "pretrain"
    output = run.output_of(made_by)
    if output is None:
        raise NotFoundError(
            f"run {run.name} has no {'checkpoints' if slash else role} yet: {made_by} has not ended. Finish the run by"
            f" `{pasteable(resume_command(run.name, run.places))}`" + ("" if slash else f", or take a checkpoint by {run.name}/STEP")
        )
    if made_by == "pretrain":
        number, part = PRETRAINED_STEP, ""
    elif made_by == "finetune":
        number, part = kept_checkpoint(store.manifest(output), step)
    else:
        number, part = read_json(store.file(output, REPORT))[f"{role}_step"], role
    return NamedPolicy(run_id=run.name, run=run, policy_step=number, output=output, part=part)


def kept_checkpoint(manifest: dict[str, Any], step: str) -> tuple[int, str]:
    """Return a checkpoint's GRPO step and folder from `finetune`'s manifest. Raises NotFoundError."""
    parts = {match[0] for name in manifest["files"] if (match := re.match(rf"{CHECKPOINTS}/step-\d{{8}}", name))}
    kept = {int(part[-8:]): part for part in sorted(parts)}
    if step.isascii() and step.isdigit() and int(step) in kept:
        return int(step), kept[int(step)]
    raise NotFoundError(
        f"there is no checkpoint of step {step}: grpo.steps_per_checkpoint sets the steps with a checkpoint."
        f" Available steps: {', '.join(map(str, kept)) or 'none'}"
    )


def _registered(name: str, preset: str, machine: Machine) -> NamedPolicy:
    from grpo.settings.tree import DEFAULT_PRESET
    from steps.track import registry

    versions = registry.named(name, machine)
    preset = preset or (next(iter(versions)) if len(versions) == 1 else DEFAULT_PRESET)
    if (version := versions.get(preset)) is None:
        existing = [f"{other}/{name}" for other in sorted(versions)] or registry.newest_versions(machine)
        advice = f"there is {', '.join(existing)}" if existing else "let a run finish first"
        error_type = NotFoundError if existing else EmptyRegistryError
        raise error_type(f"no policy of preset {preset} in {machine.shown_uri} is called {name!r}; {advice}; give {POLICY_NAMES}")
    if isinstance(version, ForeignError):
        raise ForeignError(f"{version}; give another policy: {POLICY_NAMES}")
    run = Runs(Store.of(machine)).get(version.run)
    output = None if run is None else run.output_of("select")
    # The hashes differ if the version is from another machine's run with the same id.
    if output is None or output["output_hash"] != version.output_hash:
        run = output = None
    return NamedPolicy(run_id=version.run, run=run, policy_step=version.policy_step, output=output, part=version.role, version=version)


def _in_folder(path: Path) -> FoundPolicy:
    path = path.expanduser().resolve()
    folder = path / CHAMPION if not is_policy(path) and is_policy(path / CHAMPION) else path
    if not is_policy(folder):
        fault = f"is not the folder of a policy: it has no {' and '.join(missing_files(path))}" if path.is_dir() else "is not a folder"
        raise NotFoundError(f"{path} {fault}; give {POLICY_NAMES}")
    facts = verified_manifest(folder, names=policy_file_names(folder)) if (folder / MANIFEST).is_file() else {}
    step = facts.get("step") if facts.get("kind") in ("checkpoint", "export") else None
    return FoundPolicy(folder=folder, run=facts.get("run", path.name), policy_step=step, strength=facts.get("strength", ""))
