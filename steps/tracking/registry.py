"""MLflow's model registry: versions of policies, and the aliases `champion` (to play) and `peak` (to resume from).

`peak` is the policy with the best lower confidence bound against its initial policy. Bounds against different initial policies cannot be
compared. The alias moves when no version has it, when the initial policy is another (the newest then gets it), or when the lower bound is
higher. So a later, worse run does not take it from a better one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from grpo.base.files import CorruptError
from grpo.policy.files import IncompatibleError, is_policy, policy_facts
from steps.step_io.aliases import CHAMPION, PEAK
from steps.tracking.addresses import run_address
from steps.tracking.tags import CHILD, LOGGED_MODEL, PARENT, ROLE

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.tracking import MlflowClient

    from steps.store.outputs import StepOutput
    from steps.tracking.client import TrackingStore

MODEL: Final = "chess-policy"
POLICY_STEP: Final = "chess_grpo.policy_step"
_ROLES: Final = {PEAK: "Peak of its run, to resume from", CHAMPION: "Champion of its run, to play"}
_LOW: Final = "chess_grpo.peak_lower_bound"
_INITIAL: Final = "chess_grpo.initial_weights"
_REPLACES: Final = "chess_grpo.replaces_champion"
"""Number of the champion that a version has beaten; 0 if there was none."""
_VERSIONS: Final = "mlflow.modelVersions"
_TOGETHER_MILLISECONDS: Final = 3_600_000
"""Versions that were registered within this time may be of runs that ended together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A version of the registered model."""

    number: int
    flow_run: str
    """MLflow's id of the parent run."""
    policy_step: int
    """Training step of the checkpoint; 0 is the run's initial policy."""
    initial_weights: str | None
    """Hash of the initial policy; None where that was not recorded."""
    low: float | None
    """Lower bound of its score against the initial policy; None if it is not a peak or was not screened."""

    @property
    def bound_text(self) -> str:
        """Its lower bound as text."""
        return "no lower bound" if self.low is None else f"lower bound {self.low:.4f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A policy that `select` chose for an alias; its output has it in the folder of that name."""

    policy_step: int
    initial_weights: str
    low: float | None
    """As in `Version`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The policies that `select` registers, with all facts that the aliases depend on, because delivery may be delayed."""

    flow_run: str
    """MLflow's id of the parent run."""
    description: str
    peak: Choice
    champion: Choice
    is_beaten: bool
    """Whether the champion was shown in games to be better than the version `seen`."""
    seen: int | None
    """The registry's champion when `select` began; None when there was none, or the registry did not answer."""

    @classmethod
    def from_plain(cls, facts: Mapping[str, Any]) -> Self:
        """Rebuild it from the result of `dataclasses.asdict`."""
        return cls(**{**facts, "peak": Choice(**facts["peak"]), "champion": Choice(**facts["champion"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySource:
    """The output of `select`, from which MLflow's models are made."""

    run: str
    """MLflow's id of the child run that made or reused it."""
    output: "StepOutput"
    folder: Path


class Registry:
    """The registered model of a tracking store; the first run with a policy creates it."""

    def __init__(self, store: "TrackingStore") -> None:
        self._store = store

    @property
    def _client(self) -> "MlflowClient":
        return self._store.client

    def enter(self, chosen: Chosen, *, holder: str, key: str, source: PolicySource | None = None) -> tuple[str, str]:
        """Register the chosen policies, offer them the aliases, and return two sentences on `peak` and `champion`.

        A champion is replaced only by a policy that was shown to be better than that champion. After an outage another policy may have
        become champion meanwhile: it stays, because the chosen policy has not played it. The call is idempotent.

        Args:
            chosen: the choice of `select`.
            holder: the MLflow run that has the policies among its artifacts.
            key: key of the child run, by which existing versions are found.
            source: the output that has the policies; None when it is not known, and the versions are then no models that MLflow loads.
        """
        peak, champion = (self._entered(chosen, alias, holder, f"{key}/{alias}", source) for alias in (PEAK, CHAMPION))
        if self.named(PEAK) == peak:
            done = f"registry: alias peak is version {peak.number}: {peak.bound_text}, as was found before an outage"
        else:
            done = self.offer_peak(peak)
        held = self.named(CHAMPION)
        if held is None or (chosen.is_beaten and held.number == chosen.seen):
            held = self._make_champion(champion, instead_of=0 if held is None else held.number)
        if held == champion:
            return done, f"registry: alias champion set to version {champion.number}"
        return done, f"registry: alias champion stays at version {held.number}"

    def _make_champion(self, version: Version, *, instead_of: int) -> Version:
        """Give a version the alias `champion`, and return the version that has it then.

        Two runs that end at the same time may both have beaten the same champion, and not each other. So each says first whom it
        replaces, and gives the alias to the earliest of those that replace the same one: the later of the two sees both.
        """
        self._client.set_model_version_tag(MODEL, str(version.number), _REPLACES, str(instead_of))
        self.give(CHAMPION, version)
        made = self._client.get_model_version(MODEL, str(version.number)).creation_timestamp
        found = self._client.search_model_versions(f"name = '{MODEL}' and tags.`{_REPLACES}` = '{instead_of}'")
        # Somebody may have given the alias back to a champion that was replaced long ago.
        rivals = [version_of(each.version, each.tags) for each in found if abs(each.creation_timestamp - made) <= _TOGETHER_MILLISECONDS]
        first = min(rivals, key=lambda each: each.number, default=version)
        if first != version:
            self.give(CHAMPION, first)
        return first

    def _entered(self, chosen: Chosen, alias: str, holder: str, key: str, source: PolicySource | None) -> Version:
        choice = chosen.peak if alias == PEAK else chosen.champion
        self._make_model()
        found = sorted(
            self._client.search_model_versions(f"name = '{MODEL}' and tags.`{CHILD}` = '{key}'"), key=lambda each: int(each.version)
        )
        for duplicate in found[1:]:  # Created by a call whose response came too late.
            self._client.delete_model_version(MODEL, duplicate.version)
        if found:
            return version_of(found[0].version, found[0].tags)
        return self.register(
            holder=holder,
            folder=alias,
            flow_run=chosen.flow_run,
            policy_step=choice.policy_step,
            initial_weights=choice.initial_weights,
            low=choice.low,
            description=f"{_ROLES[alias]}: step {choice.policy_step:,}. {chosen.description}",
            key=key,
            model=None if source is None else self._logged_model(source, alias, choice.policy_step, chosen.flow_run),
        )

    def _logged_model(self, source: PolicySource, alias: str, policy_step: int, flow_run: str) -> "LoggedModel | None":
        """Return MLflow's model of a policy; None where its files are not those of a policy that this code can load."""
        folder = source.folder / alias
        if not is_policy(folder):
            return None
        try:
            policy_facts(folder)
        except (CorruptError, IncompatibleError):
            return None
        from steps.tracking.mlflow_model import log_model  # MLflow's flavours take seconds to import.

        return log_model(
            self._store,
            source.folder,
            role=alias,
            run=source.run,
            flow_run=flow_run,
            output_hash=source.output["output_hash"],
            policy_step=policy_step,
        )

    def register(
        self,
        *,
        holder: str,
        folder: str,
        flow_run: str,
        policy_step: int,
        initial_weights: str,
        low: float | None,
        description: str,
        key: str = "",
        model: "LoggedModel | None" = None,
    ) -> Version:
        """Create and return a version of a policy.

        Args:
            holder: the MLflow run that has the policy among its artifacts.
            folder: its artifact path.
            flow_run: MLflow's id of the parent run that chose it.
            policy_step: training step of its checkpoint.
            initial_weights: hash of the run's initial policy.
            low: lower bound of a peak's score against the initial policy; None if it is not a peak.
            description: description on the registry's page.
            key: key by which it can be found again.
            model: MLflow's model of the policy, which is then the version's source; None if there is only the folder.
        """
        self._make_model()
        tags = {PARENT: flow_run, POLICY_STEP: str(policy_step), _INITIAL: initial_weights, CHILD: key, ROLE: folder}
        tags |= {} if low is None else {_LOW: repr(low)}
        tags |= {} if model is None else {LOGGED_MODEL: model.model_id}
        files = f"{self._store.asked(lambda: self._client.get_run(holder)).info.artifact_uri}/{folder}"
        made = self._client.create_model_version(
            MODEL,
            # Not `models:/ID`: MLflow 3.17 would look for that in the store of the environment.
            source=files if model is None else model.artifact_location,
            run_id=holder,
            model_id=None if model is None else model.model_id,
            tags=tags,
            description=f"{description}\n\n[The run that chose it]({run_address('', self._store.experiment, flow_run)})".strip(),
            await_creation_for=0,  # Creation is immediate: nothing is copied.
        )
        if model is not None:  # By this tag MLflow's pages lead from a model to its versions; a later run of the same output adds its own.
            versions = json.loads(self._client.get_logged_model(model.model_id).tags.get(_VERSIONS, "[]"))
            versions.append({"name": MODEL, "version": str(made.version)})
            self._client.set_logged_model_tags(model.model_id, {_VERSIONS: json.dumps(versions)})
        return version_of(made.version, tags)

    def named(self, alias: str) -> Version | None:
        """Return the version with this alias, or None when none has it; raises TrackingAwayError when the store does not answer."""
        from mlflow.exceptions import MlflowException

        def found() -> Version | None:
            try:
                held = self._client.get_model_version_by_alias(MODEL, alias)
            except MlflowException as error:
                if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                    return None
                raise
            return version_of(held.version, held.tags)

        return self._store.asked(found)

    def give(self, alias: str, version: Version) -> None:
        """Give a version the alias; another version loses it."""
        self._client.set_registered_model_alias(MODEL, alias, str(version.number))

    def offer_peak(self, offered: Version) -> str:
        """Give a version the alias `peak` if it should have it, and return a sentence with the result and the reason.

        Two runs that end at the same time may both set it. So each checks again after setting it, and gives it to the best version that
        is registered by then: the later of the two sees both.
        """
        held = self.named(PEAK)
        is_moved, why = should_have_peak(offered, held)
        if held is not None and not is_moved:
            return f"registry: alias peak stays at version {held.number}: {why}"
        self.give(PEAK, offered)
        best = self._best_of(offered)
        if best != offered:
            self.give(PEAK, best)
            return (
                f"registry: alias peak set to version {best.number}, registered meanwhile: {best.bound_text} against {offered.bound_text}"
            )
        return f"registry: alias peak set to version {offered.number}: {why}"

    def _best_of(self, offered: Version) -> Version:
        """Return the best of all peaks from the same initial policy; of ties the earliest."""
        found = self._client.search_model_versions(f"name = '{MODEL}' and tags.`{_INITIAL}` = '{offered.initial_weights}'")
        peaks = [version for version in (version_of(each.version, each.tags) for each in found) if version.low is not None]
        better = [version for version in peaks if version.low is not None and (offered.low is None or version.low > offered.low)]
        return max(better, key=lambda version: (version.low or 0.0, -version.number), default=offered)

    def _make_model(self) -> None:
        from mlflow.exceptions import MlflowException

        from steps.tracking.notes import MODEL_NOTE  # It imports the settings, which commands that only read do not need.

        if found := self._client.search_registered_models(f"name = '{MODEL}'"):
            if found[0].description != MODEL_NOTE:
                self._client.update_registered_model(MODEL, MODEL_NOTE)
            return
        tags = {"task": "chess move probabilities", "code_licence": "MIT"}
        try:
            self._client.create_registered_model(MODEL, tags=tags, description=MODEL_NOTE)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            # Another run created it between our search and our call.


def should_have_peak(offered: Version, held: Version | None) -> tuple[bool, str]:
    """Return whether the alias `peak` goes to the offered version from the one that has it now, and why."""
    if held is None:
        return True, f"the first one; {offered.bound_text}"
    if held.initial_weights is None:
        return True, f"version {held.number}, which had it, does not name its initial policy; {offered.bound_text}"
    if held.initial_weights != offered.initial_weights:
        return True, f"version {held.number}, which had it, has another initial policy or scores games otherwise; {offered.bound_text}"
    if offered.low is not None and (held.low is None or offered.low > held.low):
        return True, f"{offered.bound_text}, above the {held.bound_text} of version {held.number}"
    return False, f"its {held.bound_text} is not below this run's {offered.bound_text}, against the same initial policy"


def version_of(number: Any, tags: Mapping[str, str]) -> Version:
    """Convert an MLflow model version, given its number and tags."""
    low = tags.get(_LOW)
    return Version(
        number=int(number),
        flow_run=tags[PARENT],
        policy_step=int(tags[POLICY_STEP]),
        initial_weights=tags.get(_INITIAL),
        low=None if low is None else float(low),
    )
