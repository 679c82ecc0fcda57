"""An index of the flow runs in MLflow's tracking store, which is only read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from grpo.base.errors import PlainError
from grpo.base.suggestions import nearest
from steps.runtime.machine import Machine
from steps.step_io.aliases import ALIASES
from steps.tracking.client import EXPERIMENT
from steps.tracking.registry import MODEL, Version, version_of
from steps.tracking.registry_reader import reading
from steps.tracking.tags import FLOW, OUTPUT_HASH, PARENT, REUSED, RUN, STEP, VERSION

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

LAST: Final = "last"
NAMES: Final = f"{LAST}, {', '.join(ALIASES)}, Metaflow's run id, or MLflow's or its beginning"
"""The names by which a run can be found."""
_ALL: Final = 1_000
"""The newest flow runs that are searched; more than any store has had."""


class NoRunError(PlainError, LookupError):
    """The tracking store has no such run; the message lists the newest runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedStep:
    """A step of a run, as a child run of MLflow."""

    name: str
    mlflow_run: str
    status: str
    """`running` (or killed), `finished` or `failed`."""
    started: float
    """Seconds since 1970."""
    seconds: float | None
    """Duration; None while it has not ended."""
    version: str
    """Empty when it has no output."""
    output_hash: str
    is_reused: bool
    """Whether its output was reused from the store."""
    metrics: Mapping[str, float]
    """The last value of each metric."""
    tags: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """A policy that a run registered."""

    role: str
    """`champion` or `peak` of its run."""
    version: Version
    aliases: tuple[str, ...]
    """The registry's aliases that it has now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """A flow run."""

    mlflow_run: str
    metaflow_run: str
    experiment: str
    """MLflow's id of the experiment."""
    status: str
    """As in `TrackedStep`."""
    started: float
    seconds: float | None
    params: Mapping[str, str]
    """The settings, flat, as MLflow stores them."""
    tags: Mapping[str, str]
    steps: tuple[TrackedStep, ...]
    """All attempts of all steps, the earliest first."""
    policies: tuple[Registered, ...]

    @property
    def aliases(self) -> tuple[str, ...]:
        """The registry's aliases that policies of this run have now."""
        return tuple(sorted(alias for policy in self.policies for alias in policy.aliases))

    def output_of(self, name: str) -> TrackedStep | None:
        """Return a step's last attempt that produced an output, or None."""
        return next((step for step in reversed(self.steps) if step.name == name and step.output_hash), None)

    def policy(self, role: str) -> Registered | None:
        """Return the policy that the run registered as its `champion` or `peak`, or None."""
        return next((policy for policy in reversed(self.policies) if policy.role == role), None)


def read_runs(machine: Machine, *, last: int = _ALL) -> list[TrackedRun]:
    """Return the newest flow runs, the newest first; empty when the store has none or does not exist yet.

    Raises RegistryError when the store does not answer.
    """
    with reading(machine) as client:
        if client is None:
            return []
        found = _parents(client, last)
        policies = _policies(client)
        return [_tracked(client, parent, policies) for parent in found]


def find_run(name: str, machine: Machine) -> TrackedRun:
    """Return the run with this name.

    Args:
        name: `last`, an alias of the registry (the run whose policy has it), Metaflow's run id, or MLflow's or its beginning.
        machine: says where the store is.

    Raises:
        NoRunError: there is none, or the beginning is ambiguous.
        RegistryError: the store does not answer.
    """
    with reading(machine) as client:
        parents = [] if client is None else _parents(client, _ALL)
        if client is None or not parents:
            raise NoRunError(f"no runs in {machine.tracking_uri} yet: `make run CONFIG=smoke` makes one in 3 minutes")
        policies = _policies(client)
        return _tracked(client, _matching(name, parents, policies), policies)


def find_runs(names: Iterable[str], machine: Machine) -> dict[str, TrackedRun]:
    """Return the runs with these Metaflow run ids, by id; those that the store does not have are left out.

    Raises RegistryError when the store does not answer.
    """
    wanted = set(names)
    with reading(machine) as client:
        parents = [] if client is None else _parents(client, _ALL)
        if client is None or not parents:
            return {}
        policies = _policies(client)
        found = [parent for parent in parents if parent.data.tags.get(RUN) in wanted]
        return {parent.data.tags[RUN]: _tracked(client, parent, policies) for parent in found}


def step_metric(machine: Machine, step: TrackedStep, metric: str) -> dict[int, float]:
    """Return a metric's values by training step; of several values at one step the last."""
    with reading(machine) as client:
        found = [] if client is None else client.get_metric_history(step.mlflow_run, metric)
    return {each.step: each.value for each in found}


def _parents(client: "MlflowClient", last: int) -> list["Run"]:
    if (experiment := client.get_experiment_by_name(EXPERIMENT)) is None:
        return []
    condition, order = f"tags.`{STEP}` = '{FLOW}'", ["attributes.start_time DESC"]
    return list(client.search_runs([experiment.experiment_id], condition, order_by=order, max_results=last))


def _matching(name: str, parents: Sequence["Run"], policies: Mapping[str, Sequence[Registered]]) -> "Run":
    if name == LAST:
        return parents[0]
    if name in ALIASES:
        holders = {run for run, registered in policies.items() if any(name in each.aliases for each in registered)}
        held = [parent for parent in parents if parent.info.run_id in holders]
        if not held:
            raise NoRunError(f"no policy has the alias {name!r}; {_some(parents)}")
        return held[0]
    exact = [parent for parent in parents if name in (parent.data.tags.get(RUN), parent.info.run_id)]
    beginning = [parent for parent in parents if name and parent.info.run_id.startswith(name)]
    if exact:
        return exact[0]
    if len(beginning) > 1:
        several = ", ".join(parent.info.run_id for parent in beginning)
        raise NoRunError(f"{name!r} is ambiguous: it begins the ids of {len(beginning)} runs, {several}; give more characters")
    if not beginning:
        close = nearest(name, [LAST, *ALIASES, *(str(parent.data.tags.get(RUN)) for parent in parents)])
        raise NoRunError(f"no run is called {name!r}; {close}{_some(parents)}")
    return beginning[0]


def _some(parents: Sequence["Run"]) -> str:
    newest = ", ".join(str(parent.data.tags.get(RUN)) for parent in parents[:3])
    return f"a run is named by {NAMES}; the newest here: {newest} (`chess-grpo runs` shows all)"


def _policies(client: "MlflowClient") -> dict[str, list[Registered]]:
    """Return MLflow's id of a flow run -> the policies that it registered, the earliest first."""
    models = client.search_registered_models(f"name = '{MODEL}'")
    if not models:
        return {}
    aliases = {alias: str(number) for alias, number in models[0].aliases.items()}
    found: dict[str, list[Registered]] = {}
    for each in sorted(client.search_model_versions(f"name = '{MODEL}'"), key=lambda each: int(each.version)):
        if PARENT in each.tags:
            named = tuple(alias for alias, number in aliases.items() if number == str(each.version))
            registered = Registered(role=PurePosixPath(each.source).name, version=version_of(each.version, each.tags), aliases=named)
            found.setdefault(registered.version.flow_run, []).append(registered)
    return found


def _tracked(client: "MlflowClient", parent: "Run", policies: Mapping[str, Sequence[Registered]]) -> TrackedRun:
    condition = f"tags.`{PARENT}` = '{parent.info.run_id}'"
    children = client.search_runs([parent.info.experiment_id], condition, order_by=["attributes.start_time ASC"])
    return TrackedRun(
        mlflow_run=parent.info.run_id,
        metaflow_run=parent.data.tags.get(RUN, ""),
        experiment=parent.info.experiment_id,
        params=dict(parent.data.params),
        tags=dict(parent.data.tags),
        steps=tuple(_step(child) for child in children if STEP in child.data.tags),
        policies=tuple(policies.get(parent.info.run_id, ())),
        **_ended(parent),
    )


def _step(child: "Run") -> TrackedStep:
    tags = dict(child.data.tags)
    return TrackedStep(
        name=tags[STEP],
        mlflow_run=child.info.run_id,
        version=tags.get(VERSION, ""),
        output_hash=tags.get(OUTPUT_HASH, ""),
        is_reused=tags.get(REUSED) == str(True),
        metrics=dict(child.data.metrics),
        tags=tags,
        **_ended(child),
    )


def _ended(run: "Run") -> dict[str, Any]:
    info = run.info
    seconds = None if info.end_time is None or info.status == "RUNNING" else (info.end_time - info.start_time) / 1_000
    return {"status": info.status.lower(), "started": info.start_time / 1_000, "seconds": seconds}
