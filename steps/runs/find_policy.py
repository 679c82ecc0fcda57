"""Finds a policy by name: `champion` or `peak` of the MLflow model registry, or a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, CorruptError, atomic_folder, read_json, remove_folder, sha256_file, sha256_json, verified_manifest
from grpo.policy.files import is_policy, missing_files, policy_facts, policy_kind, weights_file
from steps.runtime.machine import Machine
from steps.step_io.aliases import ALIASES, CHAMPION
from steps.store.outputs import Store

DOWNLOADS: Final = "models"
"""Folder of a home for policies from the tracking store."""
_REPORT: Final = "report.json"


class PolicyNotFoundError(PlainError, ValueError):
    """There is no such policy; the message says where it was searched."""


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


def find_policy(name: str, machine: Machine) -> FoundPolicy:
    """Return the policy of this name without loading it; torch is not imported, and the tracking store is only read.

    A registered policy comes from this machine's outputs if it is there and undamaged. Otherwise its artifacts are downloaded from the
    tracking store to a cache below the machine's home.

    Args:
        name: `champion`, `peak`, or the path of a folder: a checkpoint, a champion, an output of `pretrain` or `select`.
        machine: this machine.

    Raises:
        PolicyNotFoundError: no folder, or no policy in it.
        RegistryError: no policy has the alias, or the tracking store does not answer.
        CorruptError: a file is damaged.
        IncompatibleError: it was made with another action table.
    """
    return _registered(name, machine) if name in ALIASES else _in_folder(name)


def _registered(alias: str, machine: Machine) -> FoundPolicy:
    from steps.tracking.registry_reader import registered_policy

    found = registered_policy(machine, alias)
    try:
        folder = Store.of(machine).open(found.output) / found.folder
    except CorruptError:  # The output is not on this machine, or is damaged here.
        folder = _downloaded(machine, found.mlflow_run, found.output["output_hash"], found.folder)
    return _model(folder, run=found.metaflow_run, policy_step=found.policy_step)


def _downloaded(machine: Machine, mlflow_run: str, output_hash: str, name: str) -> Path:
    """Return the cached folder with part of an output, downloaded if needed and checked against the output's manifest."""
    from steps.tracking.registry_reader import download

    target = machine.home / DOWNLOADS / f"{output_hash}-{name}"
    if target.exists():
        try:
            _check_part(target, name, output_hash)
            return target / name
        except CorruptError:
            remove_folder(target)
    with atomic_folder(target) as folder:
        download(machine, mlflow_run, (MANIFEST, _REPORT, name), folder)
        _check_part(folder, name, output_hash)
    return target / name


def _check_part(folder: Path, name: str, output_hash: str) -> None:
    """Raise CorruptError unless the manifest has this output hash and the files below `name` match it."""
    try:
        files: dict[str, str] = dict(read_json(folder / MANIFEST)["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{folder / MANIFEST} is missing or unreadable ({error})") from None
    if sha256_json(files) != output_hash:
        raise CorruptError(f"{folder / MANIFEST} is not of the output {output_hash[:12]} that the registry names")
    for path, digest in files.items():
        if path.startswith(f"{name}/") and not ((folder / path).is_file() and sha256_file(folder / path) == digest):
            raise CorruptError(f"{folder / path} is missing or has changed since the run wrote it")


def _in_folder(name: str) -> FoundPolicy:
    given = Path(name).expanduser().resolve()
    folder = given / CHAMPION if not is_policy(given) and is_policy(given / CHAMPION) else given
    if not is_policy(folder):
        state = f"is not the folder of a policy: it has no {' and '.join(missing_files(given))}"
        raise PolicyNotFoundError(
            f"{given} {state if given.is_dir() else 'is not a folder'}; give {', '.join(ALIASES)}, or the folder of a checkpoint"
            " or champion (a run's last lines name it)"
        )
    if (folder / MANIFEST).is_file():
        verified_manifest(folder)
    exported = policy_facts(folder)
    if "run" in exported:  # Written by `chess-grpo export`.
        return _model(folder, run=str(exported["run"]), policy_step=exported.get("policy_step"))
    # A champion's folder has the same name in every run, so the output's name is added.
    run = f"{folder.parent.name}-{folder.name}" if folder.name in ALIASES else given.name
    return _model(folder, run=run, policy_step=_written_step(folder))


def _model(folder: Path, *, run: str, policy_step: int | None) -> FoundPolicy:
    return FoundPolicy(
        folder=folder, kind=policy_kind(folder), run=run, policy_step=policy_step, weights_hash=sha256_file(weights_file(folder))
    )


def _written_step(folder: Path) -> int | None:
    """Return the training step from a checkpoint's manifest, or from the report beside a champion."""
    facts: dict[str, Any] = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    if "step" in facts and facts.get("kind") == "checkpoint":
        return int(facts["step"])
    if folder.name == CHAMPION and (folder.parent / _REPORT).is_file():
        step = read_json(folder.parent / _REPORT).get("champion_step")
        return None if step is None else int(step)
    return None
