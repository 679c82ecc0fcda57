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

from grpo.base.files import MANIFEST, file_hashes, read_json, sha256_json, verified_manifest
from steps import STEPS
from steps.pages.results import Results
from steps.pages.templates import page
from steps.run.aliases import ALIASES, CHAMPION, PEAK, PRETRAINED_STEP
from steps.run.machine import Machine
from steps.run.names import CHECKPOINTS
from steps.run.records import Run
from steps.run.step import StepOutput
from steps.run.store import Store
from steps.track.client import CHILD, RUN, TrackingStore, cut, locked, waiting
from steps.track.notes import flowing
from steps.track.outages import ArtifactError

# isort: split
# After `steps.track.client`, which sets what MLflow reads once.
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

if TYPE_CHECKING:
    from mlflow.entities import Run as Logged

MODEL: Final = "chess-policy-"
ORIGIN: Final = "origin.json"
RESUMED_WITH: Final = STEPS[STEPS.index("join_boards") : STEPS.index("finetune")]
"""Steps whose outputs are beside a registered peak: a run that resumes from it takes them, and need not measure again."""
_POLICY: Final = "chess_grpo.policy"
"""Tag of a version: what is known of its policy, as JSON."""
_OUTPUT: Final = "chess_grpo.output"
"""Tag of a version: hash of the output of `select` that has its files, and its role there."""
_LONGEST: Final = 4_900
"""Of a description: its column takes 5,000 characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A version of a registered model."""

    preset: str
    number: int
    run: str
    """Metaflow's id of the run that registered it."""
    role: str
    """`champion` or `peak`: its folder in the output."""
    output: StepOutput
    """The output of `select` that has its files."""
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


def presets(machine: Machine) -> list[str]:
    """Return the presets that have a registered model, sorted; none when there is no store yet. Raises TrackingAwayError."""
    tracking = TrackingStore(machine.tracking_uri)
    if not tracking.exists:
        return []
    models = tracking.ask("the registry", lambda: tracking.client.search_registered_models(f"name LIKE '{MODEL}%'", max_results=1_000))
    return sorted(model.name.removeprefix(MODEL) for model in models)


def named(name: str, preset: str, machine: Machine) -> Version | None:
    """Return the version of a preset that has this alias, or this number as `v7`; None when there is none. Raises TrackingAwayError."""
    tracking = TrackingStore(machine.tracking_uri)
    return tracking.ask(f"{preset}/{name}", lambda: _named(name, preset, tracking.client)) if tracking.exists else None


def fetch(version: Version, machine: Machine) -> Path:
    """Return the folder of a version's files below the home, downloaded from MLflow and verified by its hashes; `policy` is in it.

    Raises ArtifactError, TrackingAwayError.
    """
    target, tracking = machine.home / "registered" / f"{version.preset}-v{version.number}-{version.files[:12]}", machine.tracking_uri
    with locked(target.with_suffix(".lock")):
        if target.is_dir() and sha256_json(file_hashes(target)) == version.files:
            return target
        shutil.rmtree(target, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder, waiting():
            given = {"dst_path": folder, "tracking_uri": tracking}
            what = f"the files of version {version.number} of {MODEL}{version.preset}"
            found = Path(TrackingStore(tracking).ask(what, lambda: download_artifacts(f"{version.source}/artifacts", **given)))
            if sha256_json(file_hashes(found)) != version.files:
                raise ArtifactError(f"{what} in MLflow are damaged")
            found.rename(target)
    return target


def fetch_origin(version: Version, machine: Machine) -> tuple[dict[str, Any], dict[str, StepOutput]]:
    """Bring what a run needs to resume from a registered peak into the store, from MLflow, verified by its hashes.

    Returns the settings of its run, and step -> output: those before `finetune` whole, of `finetune` this checkpoint alone.
    Raises ArtifactError, TrackingAwayError.
    """
    folder, store = fetch(version, machine), Store.of(machine)
    if not (folder / "origin").is_dir():
        raise ArtifactError(
            f"version {version.number} of {MODEL}{version.preset} is a {version.role}, which has no checkpoint in MLflow: resume from"
            f" {version.preset}/{PEAK}, or where CHESS_GRPO_STORE has run {version.run}"
        )
    origin, outputs = read_json(folder / "origin" / ORIGIN), {}
    for step, output in origin["outputs"].items():
        source = folder / "origin" / step
        outputs[step] = _stored(store, step, output["version"], source, verified_manifest(source))
    if version.policy_step != PRETRAINED_STEP:
        from grpo.policy.checkpoints import checkpoint_name  # It imports torch.

        manifest = verified_manifest(folder / "policy")
        # Of this output there is one checkpoint alone: its version is its own.
        with tempfile.TemporaryDirectory() as made:
            shutil.copytree(folder / "policy", Path(made) / CHECKPOINTS / checkpoint_name(version.policy_step))
            facts = {"parts": {"step": "finetune", "checkpoint": manifest["output_hash"]}, "code": origin["code"]}
            outputs["finetune"] = _stored(store, "finetune", str(manifest["output_hash"])[:24], Path(made), facts)
    return origin["settings"], outputs


def _stored(store: Store, step: str, version: str, source: Path, manifest: Mapping[str, Any]) -> StepOutput:
    """Return an output of the store, which is made from a folder if there is none."""
    with store.making(step, version) as making:
        if making.output is None:
            with making.filling({name: manifest[name] for name in ("parts", "code")}) as folder:
                shutil.copytree(source, folder, dirs_exist_ok=True, ignore=lambda at, _: [MANIFEST] if at == str(source) else [])
        assert making.output is not None
        return making.output


def register(run: Run, results: Results, store: Store, client: MlflowClient, parent: "Logged") -> tuple[str, str]:
    """Register the policies that `select` chose, offer them the aliases, and say in a line each what `peak` and `champion` are now.

    After an outage another policy may have become champion meanwhile: it stays, because the chosen one has not played it. The call is
    idempotent.
    """
    preset, decision = run.facts["preset"], results.decision
    model = f"{MODEL}{preset}"
    try:
        client.create_registered_model(model, description=cut(flowing(page("model", model=model)), _LONGEST))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    peak, champion = (_registered(role, run, results, store, client, parent) for role in (PEAK, CHAMPION))
    best, held = (_named(role, preset, client) for role in (PEAK, CHAMPION))
    if best is None or is_better_peak(peak, best):
        client.set_registered_model_alias(model, PEAK, str(peak.number))
        best = peak
    if held is None or (decision.replaces_previous and held.weights == decision.previous_weights):
        client.set_registered_model_alias(model, CHAMPION, str(champion.number))
        held = champion
    return f"{preset}/peak is version {best.number}", f"{preset}/champion is version {held.number}"


def _registered(role: str, run: Run, results: Results, store: Store, client: MlflowClient, parent: "Logged") -> Version:  # noqa: PLR0917
    """Return a run's version for a role, which is registered if it is not yet."""
    from steps.track.mlflow_model import log_model  # MLflow's flavours take seconds to import.

    decision, output, model = results.decision, run.output_of("select"), f"{MODEL}{run.facts['preset']}"
    assert output is not None
    tags = {CHILD: f"{parent.data.tags[RUN]}/{role}", _OUTPUT: f"{output['output_hash']}/{role}"}
    found = [client.search_model_versions(f"name = '{model}' and tags.`{name}` = '{value}'") for name, value in tags.items()]
    if found[0]:
        first, *doubles = sorted(found[0], key=lambda each: int(each.version))
        for double in doubles:  # Created by a call whose response came too late.
            client.delete_model_version(model, double.version)
        return _version(first, run.facts["preset"])
    # Of an earlier run with the same output the files are there.
    known = _version(found[1][0], run.facts["preset"]) if found[1] else None
    source, files = (known.source, known.files) if known else log_model(run, store, role, client, parent)
    step = decision.peak_step if role == PEAK else decision.champion_step
    weights = {PRETRAINED_STEP: decision.initial_weights, decision.candidate_step: decision.candidate_weights}.get(step)
    facts = {
        "run": run.name,
        "role": role,
        "output": {**output, "reused": True},
        "policy_step": step,
        "weights": weights or "",
        "initial_weights": decision.initial_weights,
        "low": decision.peak_low if role == PEAK else None,
        "files": files,
    }
    made = client.create_model_version(
        model,
        source=source,
        run_id=parent.info.run_id,
        tags=tags | {_POLICY: json.dumps(facts)},
        description=cut(flowing(page("version", results=results, role=role)), _LONGEST),
        await_creation_for=0,  # Creation is immediate: nothing is copied.
    )
    return _version(made, run.facts["preset"])


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
        return True
    return offered.low is not None and (held.low is None or offered.low > held.low)
