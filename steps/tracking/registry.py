"""The registry of policies: versions that were found good, and the aliases that say which to play and which to go on from.

`peak` names, of the policies that came from one initial policy, the one with the best lower bound against it; bounds against different
initial policies cannot be compared. So a later, worse run does not take it away from a better one: the alias moves when nobody has it, when
the initial policy is another (the newest then has it), or when the lower bound is higher.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from steps.step_io.aliases import CHAMPION, PEAK
from steps.tracking.notes import MODEL_NOTE
from steps.tracking.tags import CHILD, NOTE_DIGEST, PARENT, digest_of_note, is_own_note

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

    from steps.tracking.client import TrackingStore

MODEL: Final = "chess-policy"
POLICY_STEP: Final = "chess_grpo.policy_step"
_ROLES: Final = {PEAK: "Peak of its run, to go on from", CHAMPION: "Champion of its run, to play"}
_LOW: Final = "chess_grpo.peak_lower_bound"
_INITIAL: Final = "chess_grpo.initial_weights"


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A version of the registered model."""

    number: int
    flow_run: str
    """MLflow's id of the parent run."""
    policy_step: int
    """Of the checkpoint; 0 is the run's initial policy."""
    initial_weights: str | None
    """Hash of the initial policy; None where that was not recorded."""
    low: float | None
    """Lower bound of its score against the initial policy; None for what is no peak, or was not screened."""

    @property
    def standing(self) -> str:
        """Its lower bound, in words."""
        return "no lower bound" if self.low is None else f"lower bound {self.low:.4f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A policy that `select` chose for an alias; it lies in its output, in the folder that is called like the alias."""

    policy_step: int
    initial_weights: str
    low: float | None
    """As in `Version`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What `select` has to say to the registry; it may wait until that answers, so all is in it that the aliases depend on."""

    flow_run: str
    """MLflow's id of the parent run."""
    description: str
    peak: Choice
    champion: Choice
    is_beaten: bool
    """Whether the champion was shown to be better than the version that was seen, which it has played."""
    seen: int | None
    """The version that was champion when `select` began; None when there was none, or the registry did not answer."""

    @classmethod
    def from_plain(cls, facts: Mapping[str, Any]) -> Self:
        """Return what `dataclasses.asdict` made plain."""
        return cls(**{**facts, "peak": Choice(**facts["peak"]), "champion": Choice(**facts["champion"])})


class Registry:
    """The registered model of a tracking store, made by the first run that has a policy for it."""

    def __init__(self, store: "TrackingStore") -> None:
        self._store = store

    @property
    def _client(self) -> "MlflowClient":
        return self._store.client

    def enter(self, chosen: Chosen, *, holder: str, key: str) -> tuple[str, str]:
        """Register what was chosen, offer it the aliases, and return in words what became of `peak` and of `champion`.

        The champion gives way only to a policy that was shown to be better than that very champion. Where this is told late, after an
        outage, another may have become champion meanwhile: then that one stays, for nobody has played it. Told again, it changes nothing.

        Args:
            chosen: by `select`.
            holder: the MLflow run that has the policies among its artifacts.
            key: of the child run, by which versions that were made already are found.
        """
        peak, champion = (self._entered(chosen, alias, holder, f"{key}/{alias}") for alias in (PEAK, CHAMPION))
        if self.named(PEAK) == peak:
            done = f"peak moves to version {peak.number}: {peak.standing}, as was found before an outage"
        else:
            done = self.offer_peak(peak)
        held = self.named(CHAMPION)
        if held is None or (chosen.is_beaten and held.number == chosen.seen):
            self.give(CHAMPION, champion)
            held = champion
        if held == champion:
            return done, f"champion is version {champion.number} now"
        return done, f"champion stays version {held.number}"

    def _entered(self, chosen: Chosen, alias: str, holder: str, key: str) -> Version:
        choice = chosen.peak if alias == PEAK else chosen.champion
        self._make_model()
        found = sorted(
            self._client.search_model_versions(f"name = '{MODEL}' and tags.`{CHILD}` = '{key}'"), key=lambda each: int(each.version)
        )
        for double in found[1:]:  # Of a call whose answer came too late.
            self._client.delete_model_version(MODEL, double.version)
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
    ) -> Version:
        """Make and return a version of a policy.

        Args:
            holder: the MLflow run that has the policy among its artifacts.
            folder: where, among them.
            flow_run: MLflow's id of the parent run that chose it.
            policy_step: its checkpoint's step.
            initial_weights: hash of the policy that the run began with.
            low: as a peak: the lower bound of its score against that one; None for what is no peak.
            description: what the registry's page says of it.
            key: by which it can be found again.
        """
        self._make_model()
        tags = {PARENT: flow_run, POLICY_STEP: str(policy_step), _INITIAL: initial_weights, CHILD: key}
        tags |= {} if low is None else {_LOW: repr(low)}
        made = self._client.create_model_version(
            MODEL,
            source=f"{self._store.artifact_uri(holder)}/{folder}",
            run_id=holder,
            tags=tags,
            description=f"{description}\n\n[The run that chose it](#/experiments/{self._store.experiment}/runs/{flow_run})".strip(),
            await_creation_for=0,  # It is there at once: there is nothing to copy.
        )
        return version_of(made.version, tags)

    def named(self, alias: str) -> Version | None:
        """Return the version with this alias, or None when none has it; raises TrackingAwayError when the store does not answer."""
        found = self._store.asked(lambda: version_with_alias(self._client, alias))
        return None if found is None else version_of(found.version, found.tags)

    def give(self, alias: str, version: Version) -> None:
        """Give a version the alias, whoever had it."""
        self._client.set_registered_model_alias(MODEL, alias, str(version.number))

    def offer_peak(self, offered: Version) -> str:
        """Give a version the alias `peak` if it should have it, and return in words what was done and why.

        Two runs that end at the same moment may both find that it is theirs. So whoever has set it looks once more, and gives it to the
        best that is registered by then: the later of the two sees both.
        """
        held = self.named(PEAK)
        is_moved, why = should_have_peak(offered, held)
        if held is not None and not is_moved:
            return f"peak stays at version {held.number}: {why}"
        self.give(PEAK, offered)
        best = self._best_of(offered)
        if best != offered:
            self.give(PEAK, best)
            return f"peak moves to version {best.number}, which was registered meanwhile: {best.standing} against {offered.standing}"
        return f"peak moves to version {offered.number}: {why}"

    def _best_of(self, offered: Version) -> Version:
        """Return the best of all peaks from the same initial policy; of equals the earliest."""
        found = self._client.search_model_versions(f"name = '{MODEL}' and tags.`{_INITIAL}` = '{offered.initial_weights}'")
        peaks = [version for version in (version_of(each.version, each.tags) for each in found) if version.low is not None]
        better = [version for version in peaks if version.low is not None and (offered.low is None or version.low > offered.low)]
        return max(better, key=lambda version: (version.low or 0.0, -version.number), default=offered)

    def _make_model(self) -> None:
        from mlflow.exceptions import MlflowException

        tags = {NOTE_DIGEST: digest_of_note(MODEL_NOTE), "task": "chess move probabilities", "code_licence": "MIT"}
        if found := self._client.search_registered_models(f"name = '{MODEL}'"):
            is_own = is_own_note(found[0].description, found[0].tags.get(NOTE_DIGEST))
            if is_own and found[0].description != MODEL_NOTE:
                self._client.set_registered_model_tag(MODEL, NOTE_DIGEST, tags[NOTE_DIGEST])
                self._client.update_registered_model(MODEL, MODEL_NOTE)
            return
        try:
            self._client.create_registered_model(MODEL, tags=tags, description=MODEL_NOTE)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            # Another first run made it between our look and our call: it is there, and that is all we want.


def version_with_alias(client: "MlflowClient", alias: str) -> "ModelVersion | None":
    """Return MLflow's version of the model that has this alias, or None when none has it."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(MODEL, alias)
    except MlflowException as error:
        if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
            return None
        raise


def should_have_peak(offered: Version, held: Version | None) -> tuple[bool, str]:
    """Return whether the alias `peak` goes to the offered version from the one that has it now, and why."""
    if held is None:
        return True, f"nobody had it; {offered.standing}"
    if held.initial_weights is None:
        return True, f"version {held.number}, which had it, does not say which initial policy it came from; {offered.standing}"
    if held.initial_weights != offered.initial_weights:
        return True, f"version {held.number}, which had it, came from another initial policy or counts games otherwise; {offered.standing}"
    if offered.low is not None and (held.low is None or offered.low > held.low):
        return True, f"{offered.standing}, above the {held.standing} of version {held.number}"
    return False, f"its {held.standing} is not below this run's {offered.standing}, against the same initial policy"


def version_of(number: Any, tags: dict[str, str]) -> Version:
    """Return what MLflow's version with this number and these tags says."""
    low = tags.get(_LOW)
    return Version(
        number=int(number),
        flow_run=tags[PARENT],
        policy_step=int(tags[POLICY_STEP]),
        initial_weights=tags.get(_INITIAL),
        low=None if low is None else float(low),
    )
