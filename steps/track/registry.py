"""MLflow's registry: a registered model for each preset, `chess-policy-PRESET`, with the aliases `champion` and `peak`.

`peak` is the policy with the best lower confidence bound against its initial policy. Bounds against different initial policies cannot be
compared. The alias moves when no version has it, when the initial policy is another (the newest then gets it), or when the lower bound is
higher. So a later, worse run does not take it from a better one. `champion` is replaced only by a policy that has beaten it in games.
"""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.files import MANIFEST, file_hashes, read_json, sha256_json, verified_manifest
from steps import STEPS
from steps.pages.results import Results
from steps.pages.templates import model_note, version_note
from steps.run.aliases import ALIASES, CHAMPION, PEAK, PRETRAINED_STEP
from steps.run.machine import Machine
from steps.run.names import CHECKPOINTS
from steps.run.records import Run
from steps.run.step import StepOutput
from steps.run.store import Store
from steps.track.client import CHILD, FILES, METAFLOW_RUN, OUTPUT_HASH, RUN, VERSION, TrackingStore, cut, locked
from steps.track.notes import flowing
from steps.track.outages import ArtifactError

# isort: split
# After `steps.track.client`, which sets what MLflow reads once.
from mlflow.exceptions import MlflowException

if TYPE_CHECKING:
    from mlflow.entities import Run as Logged

MODEL: Final = "chess-policy-"
ORIGIN: Final = "origin.json"
RESUMED_WITH: Final = STEPS[STEPS.index("join_boards") : STEPS.index("finetune")]
"""Steps whose outputs are beside a registered peak: a run that resumes from it takes them, and need not measure again."""
_ROLE: Final = "chess_grpo.role"
_POLICY_STEP: Final = "chess_grpo.policy_step"
_LOW: Final = "chess_grpo.peak_lower_bound"
_INITIAL: Final = "chess_grpo.initial_weights"
_WEIGHTS: Final = "chess_grpo.weights"
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
    tracking = TrackingStore.of(machine)
    if not tracking.exists:
        return []

    def found() -> list[str]:
        models = tracking.client.search_registered_models(f"name LIKE '{MODEL}%'", max_results=1_000)
        return [model.name.removeprefix(MODEL) for model in models]

    return sorted(tracking.ask("the registry", found))


def named(name: str, preset: str, machine: Machine) -> Version | None:
    """Return the version of a preset that has this alias, or this number as `v7`; None when there is none. Raises TrackingAwayError."""
    tracking = TrackingStore.of(machine)
    if not tracking.exists:
        return None
    return tracking.ask(f"{preset}/{name}", lambda: Registry(tracking, preset).named(name))


def fetch(version: Version, machine: Machine) -> Path:
    """Return the folder of a version's policy below the home, downloaded from MLflow and verified by its hashes; raises ArtifactError."""
    return _fetched(version, machine) / "policy"


def fetch_origin(version: Version, machine: Machine) -> tuple[dict[str, Any], dict[str, StepOutput]]:
    """Bring what a run needs to resume from a registered peak into the store, from MLflow, verified by its hashes.

    Returns the settings of its run, and step -> output: those before `finetune` whole, of `finetune` this checkpoint alone.
    Raises ArtifactError, TrackingAwayError.
    """
    folder, store = _fetched(version, machine), Store.of(machine)
    if not (folder / "origin" / ORIGIN).is_file():
        raise ArtifactError(
            f"version {version.number} of {MODEL}{version.preset} is a {version.role}, which has no checkpoint in MLflow: resume from"
            f" {version.preset}/{PEAK}, or where CHESS_GRPO_STORE has run {version.run}"
        )
    origin, outputs = read_json(folder / "origin" / ORIGIN), {}
    for step, output in origin["outputs"].items():
        source = folder / "origin" / step
        outputs[step] = _stored(store, step, output["version"], source, verified_manifest(source))
    if version.policy_step != PRETRAINED_STEP:
        from grpo.train.checkpoints import checkpoint_name  # It imports torch.

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


def _fetched(version: Version, machine: Machine) -> Path:
    """Return the folder of a version's files below the home."""
    target = machine.home / "registered" / f"{version.preset}-v{version.number}-{version.files[:12]}"
    with locked(target.with_suffix(".lock")):
        if target.is_dir() and sha256_json(file_hashes(target)) == version.files:
            return target
        shutil.rmtree(target, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            found = TrackingStore.of(machine).download(f"{version.source}/artifacts", Path(folder))
            if sha256_json(file_hashes(found)) != version.files:
                raise ArtifactError(f"the files of version {version.number} of {MODEL}{version.preset} in MLflow are damaged")
            found.rename(target)
    return target


class Registry:
    """The registered model of a preset; its first run with a policy creates it."""

    def __init__(self, tracking: TrackingStore, preset: str) -> None:
        """Connect to nothing yet."""
        self._tracking, self._preset, self._model = tracking, preset, f"{MODEL}{preset}"

    def enter(self, run: Run, results: Results, store: Store, parent: "Logged") -> tuple[str, str]:
        """Register the policies that `select` chose, offer them the aliases, and say in a line each what `peak` and `champion` are now.

        After an outage another policy may have become champion meanwhile: it stays, because the chosen one has not played it. The call is
        idempotent.
        """
        self._make_model()
        peak, champion = (self._entered(role, run, results, store, parent) for role in (PEAK, CHAMPION))
        best, held, decision = self.named(PEAK), self.named(CHAMPION), results.decision
        if best is None or is_better_peak(peak, best):
            self._give(PEAK, best := peak)
        if held is None or (decision.replaces_previous and held.weights == decision.previous_weights):
            self._give(CHAMPION, held := champion)
        return f"{self._preset}/peak is version {best.number}", f"{self._preset}/champion is version {held.number}"

    def named(self, name: str) -> Version | None:
        """Return the version with this alias, or this number as `v7`."""
        client = self._tracking.client
        try:
            if name in ALIASES:
                found = client.get_model_version_by_alias(self._model, name)
            else:
                found = client.get_model_version(self._model, name.removeprefix("v"))
        except MlflowException as error:
            if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                return None
            raise
        return self._version(found)

    def _entered(self, role: str, run: Run, results: Results, store: Store, parent: "Logged") -> Version:
        """Return a run's version for a role, which is registered if it is not yet."""
        from steps.track.mlflow_model import log_model  # MLflow's flavours take seconds to import.

        client, decision, output = self._tracking.client, results.decision, run.output_of("select")
        assert output is not None
        key = f"{parent.data.tags[RUN]}/{role}"
        found = client.search_model_versions(f"name = '{self._model}' and tags.`{CHILD}` = '{key}'")
        if found:
            first, *doubles = sorted(map(self._version, found), key=lambda each: each.number)
            for double in doubles:  # Created by a call whose response came too late.
                client.delete_model_version(self._model, str(double.number))
            return first
        step = decision.peak_step if role == PEAK else decision.champion_step
        weights = {PRETRAINED_STEP: decision.initial_weights, decision.candidate_step: decision.candidate_weights}.get(step)
        model, files = log_model(self._tracking, run, store, role=role, policy_step=step, parent=parent.info.run_id)
        tags = {
            CHILD: key,
            METAFLOW_RUN: run.name,
            _ROLE: role,
            _POLICY_STEP: str(step),
            _INITIAL: decision.initial_weights,
            _WEIGHTS: weights or "",
            VERSION: output["version"],
            OUTPUT_HASH: output["output_hash"],
            FILES: files,
        }
        if role == PEAK and decision.peak_low is not None:
            tags[_LOW] = repr(decision.peak_low)
        made = client.create_model_version(
            self._model,
            # Not `models:/ID`: MLflow 3.17 would look for that in the store of the environment.
            source=model.artifact_location,
            run_id=parent.info.run_id,
            model_id=model.model_id,
            tags=tags,
            description=cut(flowing(version_note(results, role)), _LONGEST),
            await_creation_for=0,  # Creation is immediate: nothing is copied.
        )
        return self._version(made)

    def _make_model(self) -> None:
        try:
            self._tracking.client.create_registered_model(self._model, description=cut(flowing(model_note(self._model)), _LONGEST))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _give(self, alias: str, version: Version) -> None:
        self._tracking.client.set_registered_model_alias(self._model, alias, str(version.number))

    def _version(self, found: Any) -> Version:
        tags, low = found.tags, found.tags.get(_LOW)
        output = StepOutput(step="select", version=tags[VERSION], output_hash=tags[OUTPUT_HASH], reused=True)
        return Version(
            preset=self._preset,
            number=int(found.version),
            run=tags[METAFLOW_RUN],
            role=tags[_ROLE],
            output=output,
            policy_step=int(tags[_POLICY_STEP]),
            source=found.source,
            weights=tags[_WEIGHTS],
            initial_weights=tags[_INITIAL],
            low=None if low is None else float(low),
            files=tags[FILES],
        )


def is_better_peak(offered: Version, held: Version) -> bool:
    """Return whether the alias `peak` goes to the offered version from the one that has it now."""
    if held.initial_weights != offered.initial_weights:
        return True
    return offered.low is not None and (held.low is None or offered.low > held.low)
