"""An index of the flow runs in MLflow's tracking store, which is only read."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpo.base.files import parse_json_object
from grpo.base.suggestions import nearest
from grpo.metrics.table import declared_name, tracked_name
from steps.runs.names import LAST, RUN_NAMES, SHORTEST_BEGINNING, NotFoundError
from steps.runs.rows import RunRow, rows_of
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say
from steps.step_io.aliases import ALIASES
from steps.store.outputs import StepOutput
from steps.tracking.registry import Version, version_of
from steps.tracking.tags import OUTPUT_HASH, PARENT, PRESET, REUSED, ROLE, RUN, SETTINGS, STEP, VERSION

_RECENT: Final = 20
"""Runs that are looked through for the time of each step."""


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
    """The last value of each metric, by the names of the table of metrics."""
    tags: Mapping[str, str]

    @property
    def output(self) -> StepOutput:
        """What identifies its output, of a step that has one, for who takes it over."""
        return StepOutput(step=self.name, version=self.version, output_hash=self.output_hash, reused=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """A policy that a run registered."""

    role: str
    """`champion` or `peak` of its run."""
    version: Version
    aliases: tuple[str, ...]
    """The registry's aliases that it has now."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called: its aliases, and its version as `v7`."""
        return *self.aliases, f"v{self.version.number}"


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
    settings: Mapping[str, str]
    """The settings by which runs are compared, by dotted name, as short texts."""
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

    @property
    def outputs(self) -> dict[str, StepOutput]:
        """Step -> its last output."""
        return {step.name: step.output for step in self.steps if step.output_hash}

    def policy(self, role: str) -> Registered | None:
        """Return the policy that the run registered as its `champion` or `peak`, or None."""
        return next((policy for policy in reversed(self.policies) if policy.role == role), None)

    def registered(self, name: str) -> Registered | None:
        """Return the policy of this run with this alias or version, such as `peak` or `v7`, or None."""
        return next((policy for policy in self.policies if name in policy.names), None)


def read_runs(machine: Machine, *, last: int | None = None) -> list[TrackedRun]:
    """Return the flow runs, or the `last` so many, the newest first; empty when the store has none or does not exist yet.

    Raises TrackingAwayError when the store does not answer.
    """
    index = _Index(machine, last)
    return [index.tracked(parent) for parent in index.parents]


def find_run(name: str, machine: Machine, *, names: str = RUN_NAMES) -> TrackedRun:
    """Return the run with this name, one of `RUN_NAMES`.

    Raises NotFoundError, which says which `names` there could be, when there is none or the beginning of an id is ambiguous;
    TrackingAwayError when the store does not answer.
    """
    index = _Index(machine)
    return index.tracked(index.named(name, names))


def find_runs(names: Iterable[str], machine: Machine) -> dict[str, TrackedRun]:
    """Return the runs with these Metaflow run ids, by id; those that the store does not have are left out.

    Raises TrackingAwayError when the store does not answer.
    """
    wanted, index = set(names), _Index(machine)
    return {run: index.tracked(parent) for parent in index.parents if (run := parent.tags.get(RUN)) in wanted and run is not None}


def step_seconds(machine: Machine, preset: str) -> dict[str, float]:
    """Return how long each step took in the latest of the newest runs of a preset that computed it; a step's tasks count as one.

    Raises TrackingAwayError when the store does not answer.
    """
    found: dict[str, float] = {}
    for run in read_runs(machine, last=_RECENT):
        spans: dict[str, list[tuple[float, float]]] = {}
        for step in run.steps if run.tags.get(PRESET) == preset else ():
            if step.output_hash and not step.is_reused and step.seconds is not None:
                spans.setdefault(step.name, []).append((step.started, step.started + step.seconds))
        took = {name: max(end for _, end in tasks) - min(begin for begin, _ in tasks) for name, tasks in spans.items()}
        found = took | found
    return found


def step_metric(machine: Machine, step: TrackedStep, metric: str) -> dict[int, float]:
    """Return a metric's values by training step; of several values at one step the last."""
    return rows_of(machine).metric(step.mlflow_run, tracked_name(metric))


class _Index:
    """Flow runs, the newest first, and the policies that they registered."""

    def __init__(self, machine: Machine, last: int | None = None) -> None:
        self._rows = rows_of(machine)
        self.parents = self._rows.parents(last)
        self._policies = self._registered() if self.parents else {}

    def _registered(self) -> dict[str, list[Registered]]:
        """Return MLflow's id of a flow run -> the policies that it registered, the earliest first."""
        found: dict[str, list[Registered]] = {}
        for each in self._rows.versions():
            if PARENT in each.tags:
                version = version_of(each.number, each.tags)
                registered = Registered(role=each.tags[ROLE], version=version, aliases=each.aliases)
                found.setdefault(version.flow_run, []).append(registered)
        return found

    def tracked(self, parent: RunRow) -> TrackedRun:
        children, compared = self._rows.children(parent.run_id), parent.tags.get(SETTINGS)
        return TrackedRun(
            mlflow_run=parent.run_id,
            metaflow_run=parent.tags.get(RUN, ""),
            experiment=parent.experiment,
            settings={} if compared is None else parse_json_object(compared.encode(), f"{SETTINGS} of run {parent.run_id}"),
            tags=parent.tags,
            steps=tuple(_step(child) for child in children if STEP in child.tags),
            policies=tuple(self._policies.get(parent.run_id, ())),
            **_ended(parent),
        )

    def named(self, name: str, names: str) -> RunRow:
        """Return the flow run with this name; raises NotFoundError."""
        if not self.parents:
            raise NotFoundError(
                f"no runs in {self._rows.uri} yet, so {name!r} names none: `make run CONFIG=smoke` makes one in 3 to 7 minutes;"
                " CHESS_GRPO_HOME or MLFLOW_TRACKING_URI say where others are"
            )
        holders = [run for run, policies in self._policies.items() if any(name in policy.names for policy in policies)]
        if holders:
            found = [self._rows.run(holders[0])]
        elif name == LAST:
            found = [parent for parent in self.parents if parent.status == "FINISHED"][:1]
            if found and found[0] is not self.parents[0]:
                newest = self.parents[0]
                say(f"last: run {found[0].tags.get(RUN)}, the latest that finished; run {newest.tags.get(RUN)} is newer", sys.stderr)
        else:
            found = [parent for parent in self.parents if name in (parent.tags.get(RUN), parent.run_id)][:1]
            if not found and len(name) >= SHORTEST_BEGINNING:
                found = [parent for parent in self.parents if parent.run_id.startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(parent.run_id for parent in found)
            raise NotFoundError(f"{name!r} is ambiguous: it begins the ids of {len(found)} runs, {several}; give more characters")
        runs = [str(parent.tags.get(RUN)) for parent in self.parents]
        close = nearest(name, [LAST, *ALIASES, *runs, *(each for policies in self._policies.values() for each in policies[-1].names)])
        hint = "let a run finish first; " if name in (LAST, *ALIASES) else close
        raise NotFoundError(
            f"no run or policy in {self._rows.uri} is called {name!r}; {hint}give {names}; the newest runs are {', '.join(runs[:3])}"
            " (`chess-grpo runs` shows all)"
        )


def _step(child: RunRow) -> TrackedStep:
    tags = child.tags
    return TrackedStep(
        name=tags[STEP],
        mlflow_run=child.run_id,
        version=tags.get(VERSION, ""),
        output_hash=tags.get(OUTPUT_HASH, ""),
        is_reused=tags.get(REUSED) == str(True),
        metrics={declared_name(name): value for name, value in child.metrics.items()},
        tags=tags,
        **_ended(child),
    )


def _ended(run: RunRow) -> dict[str, Any]:
    seconds = None if run.ended is None or run.status == "RUNNING" else (run.ended - run.started) / 1_000
    return {"status": run.status.lower(), "started": run.started / 1_000, "seconds": seconds}
