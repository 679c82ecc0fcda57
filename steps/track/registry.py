"""MLflow's registry: one model per preset, `chess-policy-PRESET`, with the aliases `champion` and `peak`.

A finished run registers its champion (the policy to play) and its peak (the checkpoint to resume from). A champion becomes `champion` if
there is none, or if it beat the current one in games. A peak's score, in points per game, is against the run's initial (pretrained) policy;
the lower bound is of the score's 95 % interval. A peak becomes `peak` if
- the interval is not entirely below 0.5, the score of equal policies,
- its lower bound is the highest of all peaks with the same initial policy (the older wins a tie; a peak without games has the lowest),
- it has played games, or there is no current peak with the same initial policy, and
- the current peak has the same initial policy or is older: scores against different policies cannot be compared, so the newer wins.

Every account of the server can write tags, sources and files, so `grpo.base.door` checks them before use.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, TypeAdapter
from typing_extensions import TypedDict

from grpo.base.door import STRICT, FileName, ForeignError, Hash, Id, VersionHash, checked, inside
from grpo.base.files import (
    MANIFEST,
    CorruptError,
    file_hashes,
    locked,
    read_json,
    read_manifest,
    sha256_json,
    verified_manifest,
    write_json,
)
from grpo.match.selection import Selection
from grpo.metrics.shared import PRETRAINED_STEP
from grpo.policy.files import checkpoint_name, copy_policy
from steps.names import ALIASES, CHAMPION, CHECKPOINTS, PEAK
from steps.pages.known import summary_of
from steps.pages.results import Results
from steps.pages.templates import page
from steps.run.copies import of_output
from steps.run.machine import Machine
from steps.run.records import Run
from steps.run.step import StepName, StepOutput, registered_steps
from steps.run.store import Store
from steps.track.client import CHILD, RUN, TrackingStore, ignore_existing, long_timeout
from steps.track.outages import failures_of

# isort: split
# After `steps.track.client`, which sets variables for MLflow's import.
from mlflow.entities import Run as Logged
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

MODEL: Final = "chess-policy-"
ORIGIN: Final = "origin.json"
_POLICY: Final = "chess_grpo.policy"  # Version's tag: `_Facts` as JSON.
_DATASET: Final = "chess_grpo.dataset"  # Version's tag: hash of the run's dataset.
_EVEN: Final = 0.5
_MAX_FILES: Final = 1_000  # Per version; a peak has about 40.
_WeightsHash = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{0,64}$")]


@STRICT
class _Facts(TypedDict):
    run: Id
    role: Literal["champion", "peak"]
    output_hash: Hash
    policy_step: Annotated[int, Field(ge=0, lt=10**8)]
    weights: _WeightsHash
    initial_weights: _WeightsHash
    low: float | None
    high: float | None
    files: Hash


@STRICT
class _Origin(TypedDict):
    """`origin.json`: facts for resuming from a peak on another machine."""

    settings: dict[str, Any]
    code: dict[str, Any]
    versions: dict[StepName, VersionHash]
    known: dict[Literal["data", "verdict", "findings"], Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]{0,2000}$")]]


_FACTS_FORM: Final = TypeAdapter(_Facts)
_ORIGIN_FORM: Final = TypeAdapter(_Origin)
_PRESET_FORM: Final = TypeAdapter(Id)
_FILE_NAME_FORM: Final = TypeAdapter(FileName)


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    preset: str
    number: int
    run: str  # Metaflow's id.
    role: str  # `champion` or `peak`.
    output_hash: str  # Hash of the output of `select`.
    policy_step: int  # GRPO step; 0 is the pretrained policy.
    source: str = ""  # Address in MLflow.
    weights: str = ""  # Hash; empty for a peak that is neither the initial policy nor the run's candidate.
    initial_weights: str = ""  # Hash.
    # Interval of the score against the initial policy, in [0, 1]; None for a champion, or a peak without games.
    low: float | None = None
    high: float | None = None
    files: str = ""  # Hash of the files' hashes.


def named(name: str, machine: Machine) -> dict[str, Version | ForeignError]:
    """Return preset -> version called `name` (an alias, or such as `v7`). An unreadable version is returned as a ForeignError.

    Raises TrackingAwayError.
    """
    tracking, versions = TrackingStore(machine.tracking_uri), dict[str, Version | ForeignError]()
    if tracking.exists:
        with failures_of(machine.shown_uri, name):
            for model in tracking.client.search_registered_models(f"name LIKE '{MODEL}%'"):
                try:
                    preset = checked(_PRESET_FORM, model.name.removeprefix(MODEL), f"the registered model {model.name!r}")
                except ForeignError as error:
                    print(f"WARNING: {error}; the model is skipped", file=sys.stderr)
                    continue
                if version := _find_version(name, preset, tracking.client):
                    versions[preset] = version
    return versions


def newest_versions(machine: Machine) -> list[str]:
    """Return up to 5 names such as smoke/v7, newest first. Raises TrackingAwayError."""
    tracking = TrackingStore(machine.tracking_uri)
    if not tracking.exists:
        return []
    with failures_of(machine.shown_uri, "its versions"):
        entries = tracking.client.search_model_versions(f"name LIKE '{MODEL}%'", 5, ["creation_timestamp DESC"])
        return [f"{entry.name.removeprefix(MODEL)}/v{entry.version}" for entry in entries]


def fetch(version: Version, machine: Machine) -> Path:
    """Download a version's files if missing or damaged. Return the folder. Raises CorruptError, ForeignError, TrackingAwayError."""
    target = inside(machine.home / "registered", f"{version.preset}-v{version.number}-{version.files[:12]}")
    with locked(target.with_suffix(".lock")):
        if target.is_dir() and sha256_json(file_hashes(target)) == version.files:
            return target
        shutil.rmtree(target, ignore_errors=True)
        what = f"the files of version {version.number} of {MODEL}{version.preset}"
        with tempfile.TemporaryDirectory(dir=target.parent) as folder, long_timeout(), failures_of(machine.shown_uri, what):
            files = Path(folder) / "files"
            _download(version, machine, files)
            if sha256_json(file_hashes(files)) != version.files:
                raise CorruptError(f"{what} in MLflow are damaged")
            files.rename(target)
    return target


def _download(version: Version, machine: Machine, folder: Path) -> None:
    TrackingStore(machine.tracking_uri).refuse_foreign_place(version.source)
    files = get_artifact_repository(f"{version.source}/artifacts", tracking_uri=machine.tracking_uri)
    folder.mkdir()
    for number, name in enumerate(_file_names(files, "")):
        if number == _MAX_FILES:
            raise ForeignError(f"{version.source} has more than {_MAX_FILES:,} files: this code did not write it")
        path = inside(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        files._download_file(remote_file_path=name, local_path=str(path))


def _file_names(files: ArtifactRepository, folder: str) -> Iterator[str]:
    for entry in files.list_artifacts(folder or None):
        name = checked(_FILE_NAME_FORM, entry.path, f"the list of files in {folder or 'a registered version'}")
        if not name.startswith(f"{folder}/" if folder else ""):
            raise ForeignError(f"MLflow's list of {folder} names {name}, which is outside of that folder")
        if entry.is_dir:
            yield from _file_names(files, name)
        else:
            yield name


def fetch_origin(version: Version, machine: Machine) -> tuple[dict[str, Any], dict[str, StepOutput], dict[str, str]]:
    """Copy the outputs behind a registered peak from MLflow into the store. Raises as `fetch`.

    Returns the settings, step -> output, and `summary_of` (lines about dataset, verdict and diagnosis) of the run that made the peak.
    """
    folder, store, outputs = fetch(version, machine), Store.of(machine), dict[str, StepOutput]()
    path = folder / "origin" / ORIGIN
    origin = checked(_ORIGIN_FORM, read_json(path), path)
    if origin["versions"].keys() != set(steps := registered_steps()):
        raise ForeignError(f"{path} has outputs of {', '.join(origin['versions'])}, not of {', '.join(steps)}")
    for step, step_version in origin["versions"].items():
        source = folder / "origin" / step
        facts = of_output(verified_manifest(source), step, step_version, source)
        outputs[step] = _store_output(store, step, step_version, facts, {".": source})
    if version.policy_step != PRETRAINED_STEP:
        # This output has only one of `finetune`'s checkpoints, so its version differs: the beginning of the checkpoint's hash.
        output_hash = read_manifest(folder / "policy")["output_hash"]  # `fetch` has checked the files.
        facts = {"parts": {"step": "finetune", "checkpoint": output_hash}, "code": origin["code"]}
        checkpoint = f"{CHECKPOINTS}/{checkpoint_name(version.policy_step)}"
        outputs["finetune"] = _store_output(store, "finetune", output_hash[:24], facts, {checkpoint: folder / "policy"})
    return origin["settings"], outputs, {str(name): text for name, text in origin["known"].items()}


def _store_output(store: Store, step: str, version: str, facts: Mapping[str, Any], folders: Mapping[str, Path]) -> StepOutput:
    """Create a missing output. `folders`: path in the output -> folder to copy."""
    with store.making(step, version) as making:
        if making.output is None:
            with making.filling({name: facts.get(name, {}) for name in ("parts", "code")}) as folder:
                for path, source in folders.items():
                    shutil.copytree(source, folder / path, dirs_exist_ok=True)
                (folder / MANIFEST).unlink(missing_ok=True)  # `filling` writes a new manifest.
        assert making.output is not None
        return making.output


def register(run: Run, results: Results, store: Store, tracking: TrackingStore, parent: Logged) -> str:
    """Register a run's peak and champion, set the aliases that they win, and return a line about each. Idempotent."""
    preset, decision, client, versions = run.facts["preset"], results.decision, tracking.client, dict[str, Version]()
    model = f"{MODEL}{preset}"
    tracking.refuse_foreign_place(str(parent.info.artifact_uri))
    with ignore_existing():
        client.create_registered_model(model, description=page("model", model=model))
    for role in (PEAK, CHAMPION):
        key = f"{parent.data.tags[RUN]}/{role}"
        condition = f"name = '{model}' and tags.`{CHILD}` = '{key}'"
        if not (entries := client.search_model_versions(condition)):
            source, files = _log_model(run, store, role, client, parent)
            facts = _facts(role, run, decision) | {"files": files}
            client.create_model_version(
                model,
                source=source,
                run_id=parent.info.run_id,
                tags={CHILD: key, _POLICY: json.dumps(facts), _DATASET: results.dataset.output_hash},
                description=page("version", results=results, role=role),
                await_creation_for=0,  # Nothing is copied, so creation is immediate.
            )
            entries = client.search_model_versions(condition)
        # Two machines at once, or a late request, make two versions: the first stays.
        first, *doubles = sorted(entries, key=lambda entry: int(entry.version))
        for double in doubles:
            client.delete_model_version(model, double.version)
        versions[role] = _version(first, preset)
    return "\n".join(f"registry: {preset}/{role} {_offer(versions[role], role, decision, client)}" for role in (PEAK, CHAMPION))


def _offer(offered: Version, role: str, decision: Selection, client: MlflowClient) -> str:
    preset, current = offered.preset, _find_version(role, offered.preset, client)
    if isinstance(current, ForeignError):
        return f"stays: {current}"
    if role == PEAK:
        reason = why_peak_stays(offered, current, _peaks_of(offered.initial_weights, preset, client))
    else:
        # A champion that is newer than this run's games stays, because the run has not beaten it.
        beaten = [decision.initial_weights] * decision.promoted + [decision.previous_weights] * decision.replaces_previous
        has_won = current is None or current.weights in beaten
        reason = "" if has_won else f"version {offered.number} has not beaten it"
    if not reason:
        client.set_registered_model_alias(f"{MODEL}{preset}", role, str(offered.number))
        return f"is version {offered.number}"
    if current is None:
        return f"is not set: {reason}"
    return f"is version {current.number}" if current.number == offered.number else f"stays version {current.number}: {reason}"


def _log_model(run: Run, store: Store, role: str, client: MlflowClient, parent: Logged) -> tuple[str, str]:
    """Log a model; a peak's model has the outputs that a resumed run needs. Return address, and hash of the files' hashes."""
    from steps.track.mlflow_model import POLICY, write_model

    selected, path = run.output_of("select"), f"policies/{role}"
    assert selected is not None
    with tempfile.TemporaryDirectory() as temporary:
        files, folder = Path(temporary) / "files", Path(temporary) / "model"
        files.mkdir()
        if role == PEAK:
            shutil.copytree(store.file(selected, role), files / POLICY)
            outputs = {step: output for step in registered_steps() if (output := run.output_of(step)) is not None}
            for step, output in outputs.items():
                shutil.copytree(store.open(output), files / "origin" / step)
            versions = {step: output["version"] for step, output in outputs.items()}
            facts = {"settings": run.facts["settings"], "code": run.facts["code"], "versions": versions, "known": summary_of(run, store)}
            write_json(files / "origin" / ORIGIN, facts)
        else:
            copy_policy(store.file(selected, role), files / POLICY)
        write_model(files, folder)
        with long_timeout():
            client.log_artifacts(parent.info.run_id, str(folder), path)
        return f"{parent.info.artifact_uri}/{path}", sha256_json(file_hashes(files))


def _facts(role: str, run: Run, decision: Selection) -> dict[str, Any]:
    selected = run.output_of("select")
    assert selected is not None
    step = decision.peak_step if role == PEAK else decision.champion_step
    peak = decision.peak if role == PEAK else None
    weights = {PRETRAINED_STEP: decision.initial_weights, decision.candidate_step: decision.candidate_weights}.get(step)
    return {
        "run": run.name,
        "role": role,
        "output_hash": selected["output_hash"],
        "policy_step": step,
        "weights": weights or "",
        "initial_weights": decision.initial_weights,
        "low": None if peak is None else peak.low,
        "high": None if peak is None else peak.high,
    }


def _find_version(name: str, preset: str, client: MlflowClient) -> Version | ForeignError | None:
    get = client.get_model_version_by_alias if name in ALIASES else client.get_model_version
    try:
        return _version(get(f"{MODEL}{preset}", name.removeprefix("v")), preset)
    except ForeignError as error:
        return error
    except MlflowException as error:
        if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
            return None
        raise


def _version(entry: Any, preset: str) -> Version:
    try:
        tag = json.loads(entry.tags.get(_POLICY, "null"))
    except (ValueError, RecursionError):
        tag = None
    facts = checked(_FACTS_FORM, tag, f"version {entry.version} of {MODEL}{preset} in the registry")
    return Version(preset=preset, number=int(entry.version), source=str(entry.source), **facts)


def _peaks_of(initial_weights: str, preset: str, client: MlflowClient) -> list[Version]:
    peaks = []
    for entry in client.search_model_versions(f"name = '{MODEL}{preset}'"):
        with suppress(ForeignError):
            version = _version(entry, preset)
            if version.role == PEAK and version.initial_weights == initial_weights:
                peaks.append(version)
    return peaks


def why_peak_stays(offered: Version, current: Version | None, same_start: Sequence[Version]) -> str:
    """Return why `offered` does not replace `current` as `peak`, or "". `same_start`: all peaks with `offered`'s initial policy."""
    if offered.high is not None and offered.high < _EVEN:
        return f"version {offered.number} plays worse than its initial policy"
    best = max((peak for peak in same_start if peak.low is not None), key=lambda peak: (peak.low or 0.0, -peak.number), default=offered)
    if best.number != offered.number and (offered.low is None or (best.low or 0.0) >= offered.low):
        return f"version {best.number}, with the same initial policy, has an equal or better lower bound"
    if current is not None and current.initial_weights != offered.initial_weights and current.number > offered.number:
        return f"version {current.number} is newer, and has another initial policy"
    if current is not None and current.initial_weights == offered.initial_weights and offered.low is None:
        return f"version {offered.number} has played no games"
    return ""
