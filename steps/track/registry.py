"""MLflow's registry: a registered model for each preset, `chess-policy-PRESET`, with the aliases `champion` and `peak`.

`peak` is the policy with the best lower confidence bound against its initial policy. Bounds against different initial policies cannot be
compared. The alias moves when no version has it, when the initial policy is another (the newest then gets it), or when the lower bound is
higher. So a later, worse run does not take it from a better one. `champion` is replaced only by a policy that has beaten it in games.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.files import MANIFEST, CorruptError, file_hashes, read_json, sha256_json, write_json
from grpo.policy.files import copy_policy
from steps.names import ALIASES, CHAMPION, CHECKPOINTS, PEAK, PRETRAINED_STEP, RESUMED_WITH
from steps.pages.results import Decision, Results
from steps.pages.templates import page
from steps.run.machine import Machine
from steps.run.records import Run
from steps.run.step import StepOutput
from steps.run.store import Store
from steps.track.client import CHILD, RUN, TrackingStore, locked, unless_there, waiting
from steps.track.outages import failures_of

# isort: split
# After `steps.track.client`, which sets what MLflow reads once.
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

if TYPE_CHECKING:
    from mlflow.entities import Run as Logged

MODEL: Final = "chess-policy-"
ORIGIN: Final = "origin.json"
_POLICY: Final = "chess_grpo.policy"
"""Tag of a version: what is known of its policy, as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A version of a registered model."""

    preset: str
    number: int
    run: str
    """Metaflow's id of the run that registered it."""
    role: str
    """`champion` or `peak`: its folder in the output."""
    output_hash: str
    """Of the output of `select` that has its files."""
    policy_step: int
    """Training step; 0 is the pretrained policy."""
    source: str = ""
    """Where MLflow has its model."""
    weights: str = ""
    """Hash of the weights as numbers."""
    initial_weights: str = ""
    """That of the policy which its run began with."""
    low: float | None = None
    """Lower bound of its score against the initial policy; None if it is not a peak or was not screened."""
    files: str = ""
    """Hash of the hashes of its files in MLflow."""


def named(name: str, machine: Machine) -> dict[str, Version]:
    """Return preset -> its version with this alias, or this number as `v7`; none when there is no store yet. Raises TrackingAwayError."""
    tracking, found = TrackingStore(machine.tracking_uri), dict[str, Version]()
    if tracking.exists:
        with failures_of(machine.shown_uri, name):
            for model in tracking.client.search_registered_models(f"name LIKE '{MODEL}%'"):
                preset = model.name.removeprefix(MODEL)
                if version := _named(name, preset, tracking.client):
                    found[preset] = version
    return found


def fetch(version: Version, machine: Machine) -> Path:
    """Return the folder of a version's files below the home, downloaded from MLflow and verified by its hashes; `policy` is in it.

    Raises CorruptError, TrackingAwayError.
    """
    target = machine.home / "registered" / f"{version.preset}-v{version.number}-{version.files[:12]}"
    with locked(target.with_suffix(".lock")):
        if target.is_dir() and sha256_json(file_hashes(target)) == version.files:
            return target
        shutil.rmtree(target, ignore_errors=True)
        what = f"the files of version {version.number} of {MODEL}{version.preset}"
        with tempfile.TemporaryDirectory(dir=target.parent) as folder, waiting(), failures_of(machine.shown_uri, what):
            found = Path(download_artifacts(f"{version.source}/artifacts", dst_path=folder, tracking_uri=machine.tracking_uri))
            if sha256_json(file_hashes(found)) != version.files:
                raise CorruptError(f"{what} in MLflow are damaged")
            found.rename(target)
    return target


def fetch_origin(version: Version, machine: Machine) -> tuple[dict[str, Any], dict[str, StepOutput]]:
    """Bring what a run needs to resume from a registered peak into the store, from MLflow, verified by its hashes.

    Returns the settings of its run, and step -> output: those before `finetune` whole, of `finetune` this checkpoint alone.
    Raises CorruptError, TrackingAwayError.
    """
    folder, store = fetch(version, machine), Store.of(machine)
    origin, outputs = read_json(folder / "origin" / ORIGIN), {}
    for step, version_of in origin["versions"].items():
        source = folder / "origin" / step
        outputs[step] = _stored(store, step, version_of, read_json(source / MANIFEST), {".": source})
    if version.policy_step != PRETRAINED_STEP:
        from grpo.policy.checkpoints import checkpoint_name  # It imports torch.

        # Of this output there is one checkpoint alone: its version is its own.
        whole = read_json(folder / "policy" / MANIFEST)["output_hash"]
        facts = {"parts": {"step": "finetune", "checkpoint": whole}, "code": origin["code"]}
        place = f"{CHECKPOINTS}/{checkpoint_name(version.policy_step)}"
        outputs["finetune"] = _stored(store, "finetune", whole[:24], facts, {place: folder / "policy"})
    return origin["settings"], outputs


def _stored(store: Store, step: str, version: str, facts: Mapping[str, Any], folders: Mapping[str, Path]) -> StepOutput:
    """Return an output of the store, which is made if there is none: of these facts of its manifest, and place -> copy of a folder."""
    with store.making(step, version) as making:
        if making.output is None:
            with making.filling({name: facts[name] for name in ("parts", "code")}) as folder:
                for place, source in folders.items():
                    shutil.copytree(source, folder / place, dirs_exist_ok=True)
                (folder / MANIFEST).unlink(missing_ok=True)
        assert making.output is not None
        return making.output


def register(run: Run, results: Results, store: Store, client: MlflowClient, parent: "Logged") -> str:
    """Register the policies that `select` chose, offer them the aliases, and say in a line each what `peak` and `champion` are now.

    After an outage another policy may have become champion meanwhile: it stays, because the chosen one has not played it. The call is
    idempotent.
    """
    preset, decision, versions = run.facts["preset"], results.decision, dict[str, Version]()
    model = f"{MODEL}{preset}"
    with unless_there():
        client.create_registered_model(model, description=page("model", model=model))
    for role in (PEAK, CHAMPION):
        key = f"{parent.data.tags[RUN]}/{role}"
        found = client.search_model_versions(f"name = '{model}' and tags.`{CHILD}` = '{key}'")
        if not found:
            source, files = _log_model(run, store, role, client, parent)
            made = client.create_model_version(
                model,
                source=source,
                run_id=parent.info.run_id,
                tags={CHILD: key, _POLICY: json.dumps(_facts(role, run, decision) | {"files": files})},
                description=page("version", results=results, role=role),
                await_creation_for=0,  # Creation is immediate: nothing is copied.
            )
            found = [made]
        # Of several, created by calls whose response came too late, the first.
        versions[role] = min((_version(each, preset) for each in found), key=lambda each: each.number)
    peak, champion = (_named(role, preset, client) for role in (PEAK, CHAMPION))
    if peak is None or is_better_peak(versions[PEAK], peak):
        peak = versions[PEAK]
        client.set_registered_model_alias(model, PEAK, str(peak.number))
    if champion is None or (decision.replaces_previous and champion.weights == decision.previous_weights):
        champion = versions[CHAMPION]
        client.set_registered_model_alias(model, CHAMPION, str(champion.number))
    return f"registry: {preset}/peak is version {peak.number}\nregistry: {preset}/champion is version {champion.number}"


def _log_model(run: Run, store: Store, role: str, client: MlflowClient, parent: "Logged") -> tuple[str, str]:
    """Log MLflow's model of a policy to the files of the run's parent; return its address, and the hash of the hashes of its files.

    A peak's model has its whole checkpoint, and beside it what `fetch_origin` takes from there.
    """
    from steps.policies.mlflow_model import POLICY, write_model  # MLflow's flavours take seconds to import.

    output, place = run.output_of("select"), f"policies/{role}"
    assert output is not None
    with tempfile.TemporaryDirectory() as made:
        files, folder = Path(made) / "files", Path(made) / "model"
        files.mkdir()
        if role == PEAK:
            shutil.copytree(store.file(output, role), files / POLICY)
            outputs = {step: output for step in RESUMED_WITH if (output := run.output_of(step)) is not None}
            for step, output in outputs.items():
                shutil.copytree(store.open(output), files / "origin" / step)
            versions = {step: output["version"] for step, output in outputs.items()}
            write_json(files / "origin" / ORIGIN, {"settings": run.facts["settings"], "code": run.facts["code"], "versions": versions})
        else:
            copy_policy(store.file(output, role), files / POLICY)
        write_model(files, folder)
        with waiting():
            client.log_artifacts(parent.info.run_id, str(folder), place)
        return f"{parent.info.artifact_uri}/{place}", sha256_json(file_hashes(files))


def _facts(role: str, run: Run, decision: Decision) -> dict[str, Any]:
    """Return what a version says of its policy."""
    output = run.output_of("select")
    assert output is not None
    step = decision.peak_step if role == PEAK else decision.champion_step
    weights = {PRETRAINED_STEP: decision.initial_weights, decision.candidate_step: decision.candidate_weights}.get(step)
    return {
        "run": run.name,
        "role": role,
        "output_hash": output["output_hash"],
        "policy_step": step,
        "weights": weights or "",
        "initial_weights": decision.initial_weights,
        "low": decision.peak_low if role == PEAK else None,
    }


def _named(name: str, preset: str, client: MlflowClient) -> Version | None:
    """Return the version with this alias, or this number as `v7`."""
    get = client.get_model_version_by_alias if name in ALIASES else client.get_model_version
    try:
        return _version(get(f"{MODEL}{preset}", name.removeprefix("v")), preset)
    except MlflowException as error:
        if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
            return None
        raise


def _version(found: Any, preset: str) -> Version:
    return Version(preset=preset, number=int(found.version), source=found.source, **json.loads(found.tags[_POLICY]))


def is_better_peak(offered: Version, held: Version) -> bool:
    """Return whether the alias `peak` goes to the offered version from the one that has it now."""
    if held.initial_weights != offered.initial_weights:
        return offered.number > held.number
    return offered.low is not None and (held.low is None or offered.low > held.low)
