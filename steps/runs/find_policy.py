"""Policies by name: `champion` and `peak` as the registry knows them, or any folder that has one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, CorruptError, atomic_folder, read_json, remove_folder, sha256_file, sha256_json, verified_manifest
from grpo.policy.files import is_policy, missing_files, policy_facts, policy_kind, weights_file
from steps.runtime.machine import Machine
from steps.step_io.aliases import ALIASES, CHAMPION
from steps.store.outputs import Store

_CACHE: Final = "models"
_REPORT: Final = "report.json"


class PolicyNotFoundError(PlainError, ValueError):
    """There is no such policy; the message says what was looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPolicy:
    """A policy that was found, with every file as it was written where that is known."""

    folder: Path
    """With its weights and what is needed to use them, for `steps.policies.open.open_policy`."""
    kind: str
    """`network` or `language`."""
    run: str
    """Metaflow's run that made it; of a folder, which may be of many runs, its name, with its output's for `champion` and `peak`."""
    policy_step: int | None
    """0 is the pretrained policy; None when nothing beside the files says so."""
    weights_hash: str
    """SHA-256 of the weights' file, as `sha256sum` prints it: of `weights.safetensors`, or a language model's `model.safetensors`."""


def find_policy(name: str, machine: Machine) -> FoundPolicy:
    """Return the policy that a user means, without loading it; torch is not imported, and nothing is written to the tracking store.

    A policy of the registry is taken from this machine's outputs where it is there and whole, else from the tracking store's files,
    which are kept in a cache below the machine's home.

    Args:
        name: `champion`, `peak`, or the path of a folder: a checkpoint, a champion, an output of `pretrain` or `select`.
        machine: this machine.

    Raises:
        ModelError: no folder, or no policy in it.
        RegistryError: no policy has the alias, or the tracking store does not answer.
        CorruptError: files are not as they were written.
        IncompatibleError: it was made with another action table.
    """
    return _registered(name, machine) if name in ALIASES else _in_folder(name)


def _registered(alias: str, machine: Machine) -> FoundPolicy:
    from steps.tracking.registry_reader import registered_policy

    found = registered_policy(machine, alias)
    try:
        folder = Store.of(machine).open(found.output) / found.folder
    except CorruptError:  # It was made elsewhere, or is spoilt here.
        folder = _downloaded(machine, found.mlflow_run, found.output["output_hash"], found.folder)
    return _model(folder, run=found.metaflow_run, policy_step=found.policy_step)


def _downloaded(machine: Machine, mlflow_run: str, output_hash: str, name: str) -> Path:
    """Return the cached folder with an output's part, fetched first if need be, after checking it against the output's manifest."""
    from steps.tracking.registry_reader import download

    target = machine.home / _CACHE / f"{output_hash}-{name}"
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
    """Raise CorruptError unless the files below `name` are those of an output's manifest, which is the one with this hash."""
    try:
        files: dict[str, str] = dict(read_json(folder / MANIFEST)["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{folder / MANIFEST} is missing or unreadable ({error})") from None
    if sha256_json(files) != output_hash:
        raise CorruptError(f"{folder / MANIFEST} is not of the output {output_hash[:12]} that the registry names")
    for path, digest in files.items():
        if path.startswith(f"{name}/") and not ((folder / path).is_file() and sha256_file(folder / path) == digest):
            raise CorruptError(f"{folder / path} is missing or changed since the run wrote it")


def _in_folder(name: str) -> FoundPolicy:
    given = Path(name).expanduser().resolve()
    folder = given / CHAMPION if not is_policy(given) and is_policy(given / CHAMPION) else given
    if not is_policy(folder):
        state = f"is no policy's folder: it has no {' and '.join(missing_files(given))}"
        raise PolicyNotFoundError(
            f"{given} {state if given.is_dir() else 'is no folder'}; give {', '.join(ALIASES)}, or the folder of a checkpoint"
            " or champion (a run's last lines name it)"
        )
    if (folder / MANIFEST).is_file():
        verified_manifest(folder)
    exported = policy_facts(folder)
    if "run" in exported:  # By the command `export`, which knew it.
        return _model(folder, run=str(exported["run"]), policy_step=exported.get("policy_step"))
    # A champion's folder has the same name in every run: the output that it is in tells them apart.
    run = f"{folder.parent.name}-{folder.name}" if folder.name in ALIASES else given.name
    return _model(folder, run=run, policy_step=_written_step(folder))


def _model(folder: Path, *, run: str, policy_step: int | None) -> FoundPolicy:
    return FoundPolicy(
        folder=folder, kind=policy_kind(folder), run=run, policy_step=policy_step, weights_hash=sha256_file(weights_file(folder))
    )


def _written_step(folder: Path) -> int | None:
    """Return the step that a checkpoint's manifest, or the decision beside a champion, gives a policy."""
    facts: dict[str, Any] = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    if "step" in facts and facts.get("kind") == "checkpoint":
        return int(facts["step"])
    if folder.name == CHAMPION and (folder.parent / _REPORT).is_file():
        step = read_json(folder.parent / _REPORT).get("champion_step")
        return None if step is None else int(step)
    return None
