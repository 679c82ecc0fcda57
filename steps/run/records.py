"""Records of runs, each written once, in the store: what began, how it ended, and whether trackers have it.

`runs/RUN/start.json` describes a run. `runs/RUN/STEP/PART/NUMBER.begun.json` begins an attempt of a task, `NUMBER.ended.json` ends it.
`runs/RUN/COUNT.over` says that a run was over after so many attempts, `COUNT.published` that its tracking store had all of it then: where
it is resumed, further attempts make both void. Trackers, pages and commands are views of these records and of the outputs that they name.
"""

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypedDict, cast

from steps.run.processes import LAUNCHER, state_of
from steps.run.step import StepOutput
from steps.run.store import Store
from steps.run.work import read_journal

Status = Literal["running", "finished", "failed", "killed"]
LAST: Final = "end"
"""The step with which a run is finished."""
_BEGUN, _ENDED, _OVER, _PUBLISHED = ".begun.json", ".ended.json", ".over", ".published"
_GONE: Final = "its process is gone: it was killed, or its machine was lost"


class RunFacts(TypedDict):
    """What is known of a run when it starts."""

    run: str
    """Metaflow's id."""
    preset: str
    settings: dict[str, Any]
    code: dict[str, Any]
    """Of `describe_code`: the commit, and whether files differ from it."""
    tracking: str
    """The address of the tracking store that the run belongs to, without secrets."""
    command: str
    """The command that starts an equal run."""
    label: str
    """How trackers name it."""
    tags: dict[str, str]
    """For trackers."""
    head: str
    """What its description begins with, in Markdown."""
    texts: dict[str, str]
    """Small files, by name: the settings as typed."""
    origin: dict[str, Any] | None
    """What it was resumed from."""
    started: float
    """Seconds since 1970."""
    launcher: str
    """Token of the process that runs it (`steps.run.processes`); empty where a service does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try of a step's task."""

    run: str
    step: str
    part: str
    """Which of the step's parallel tasks it is, such as "1 of 2"; empty for a step of one task."""
    number: int
    """From 0, among the attempts of this step and part."""
    version: str
    started: float
    """Seconds since 1970."""
    launcher: str
    """Token of the process that started it, another than the run's own where that was resumed; empty where a service does."""
    status: Status = "running"
    ended: float | None = None
    """Seconds since 1970; of a killed process, the last that is known of it. None while it is at work."""
    output: StepOutput | None = None
    error: str = ""
    """Why it ended without an output."""
    store: Store = field(repr=False, compare=False)

    def end(self, status: Status, *, output: StepOutput | None = None, error: str = "", at: float = 0) -> "Attempt":
        """Record how it ended, now or `at` a time, and return it as it is then; who was first stands."""
        facts = {"status": status, "ended": at or time.time(), "output": output, "error": error}
        self.store.create(key := f"{_place(self.run, self.step, self.part)}{self.number}{_ENDED}", facts)
        return replace(self, **self.store.read_all([key]).get(key, facts))


class Run:
    """A run; each record is read once, when it is first asked for: a new object sees what has happened since."""

    def __init__(self, store: Store, facts: RunFacts, keys: frozenset[str]) -> None:
        """Take what was known of the run when it started, and the keys of its records."""
        self._store, self.facts, self.name, self.keys = store, facts, facts["run"], keys

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts, in the order of their beginning; one without an end was killed if a later one of the same task has begun."""
        records = self._store.read_all(sorted(key for key in self.keys if key.endswith((_BEGUN, _ENDED))))
        found: list[Attempt] = []
        for key, begun in records.items():
            if key.endswith(_BEGUN):
                ended = records.get(key.replace(_BEGUN, _ENDED), {})
                found.append(Attempt(**begun | ended, store=self._store))
        later: dict[tuple[str, str], float] = {}
        for number, attempt in sorted(enumerate(found), key=lambda each: -each[1].number):
            if attempt.ended is None and (attempt.step, attempt.part) in later:
                found[number] = replace(attempt, status="killed", ended=later[attempt.step, attempt.part], error=_GONE)
            later[attempt.step, attempt.part] = attempt.started
        return tuple(sorted(found, key=lambda attempt: (attempt.started, attempt.number)))

    def latest(self) -> dict[tuple[str, str], Attempt]:
        """Return (step, part) -> the latest attempt."""
        return {(attempt.step, attempt.part): attempt for attempt in sorted(self.attempts, key=lambda attempt: attempt.number)}

    def output_of(self, step: str) -> StepOutput | None:
        """Return the output of a step of one task, None while there is none."""
        outputs = [attempt.output for attempt in self.attempts if attempt.step == step and not attempt.part and attempt.output]
        return outputs[-1] if outputs else None

    @property
    def status(self) -> Status:
        """How it is, or ended; what a scheduler of another host does next is not known, so a failed step ends such a run."""
        if self.attempts and (self.attempts[-1].step, self.attempts[-1].status) == (LAST, "finished"):
            return "finished"
        states = {attempt.status for attempt in self.latest().values()}
        launcher = "gone" if _mark(self.name, self.keys, _OVER) in self.keys else state_of(self.launcher)
        if launcher == "alive" or (launcher == "unknown" and ("running" in states or not states & {"failed", "killed"})):
            return "running"
        return "failed" if "failed" in states else "killed"

    @property
    def launcher(self) -> str:
        """Token of the process that runs it, or resumed it last; empty where a service does."""
        return next((attempt.launcher for attempt in reversed(self.attempts) if attempt.launcher), self.facts["launcher"])

    @property
    def started(self) -> float:
        """Seconds since 1970."""
        return self.facts["started"]

    @property
    def ended(self) -> float | None:
        """Seconds since 1970; None while it runs."""
        if self.status == "running":
            return None
        return max([self.started, *(attempt.ended or attempt.started for attempt in self.attempts)])

    @property
    def error(self) -> str:
        """Why its latest attempt that did not finish failed, or was killed; empty when there is none."""
        return "" if self._broken is None else self._broken.error

    @property
    def failed_step(self) -> str:
        """The step of that attempt; empty when there is none."""
        return "" if self._broken is None else self._broken.step

    def set_published(self) -> None:
        """Record that the tracking store has all of it; of a run that is not recorded as over nobody has all."""
        if self.status != "running" and all(attempt.ended is not None for attempt in self.attempts):
            self._store.create(_mark(self.name, self.keys, _PUBLISHED), {})

    @property
    def _broken(self) -> Attempt | None:
        broken = [attempt for attempt in self.latest().values() if attempt.status in ("failed", "killed")]
        # Where one of several tasks fails, the scheduler ends the others.
        return max(broken, key=lambda attempt: (attempt.status == "failed", attempt.started), default=None)


class Runs:
    """All runs whose records a store has."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin_run(self, facts: RunFacts) -> None:
        """Record that a run starts; where its task is tried again, the first try stands."""
        self._store.create(_start(facts["run"]), facts)

    def begin(self, run: str, step: str, part: str, version: str) -> Attempt:
        """Record that an attempt begins; a run that was over goes on by that."""
        facts: dict[str, Any] = {"run": run, "step": step, "part": part, "version": version}
        facts |= {"launcher": os.environ.get(LAUNCHER, ""), "started": time.time()}
        place = _place(run, step, part)
        number = sum(key.endswith(_BEGUN) for key in self._store.keys(place))
        while not self._store.create(f"{place}{number}{_BEGUN}", facts | {"number": number}):
            number += 1
        return Attempt(**facts, number=number, store=self._store)

    def all(self) -> list[Run]:
        """Return all runs, the newest first; one whose record is damaged is named in a warning, and left out."""
        return self._without("")

    def unpublished(self) -> list[Run]:
        """Return the runs of which no tracking store has all as they ended, the newest first."""
        return self._without(_PUBLISHED)

    def get(self, run: str) -> Run | None:
        """Return a run by Metaflow's id; one whose record is damaged is named in a warning, and not found."""
        found = None if "/" in run else self._store.read_all([_start(run)]).get(_start(run))
        return None if found is None else Run(self._store, cast(RunFacts, found), frozenset(self._store.keys(f"runs/{run}/")))

    def close_gone(self) -> list[Run]:
        """Record that the runs are over whose launchers are gone, and return those that this ended; of another machine nobody is judged."""
        gone = [run for run in self._without(_OVER) if state_of(run.launcher) == "gone"]
        return [over for run in gone if (over := self.close(run)).status != "finished"]

    def close(self, run: Run) -> Run:
        """End what was at work of a run whose launcher is gone, or is this process, and return the run as it is then."""
        for attempt in run.attempts:
            if attempt.ended is None:
                times = [row["time"] / 1_000 for row in read_journal(self._store.progress(attempt.step, attempt.version))]
                attempt.end("killed", error=_GONE, at=max([attempt.started, *times]))
        self._store.create(_mark(run.name, run.keys, _OVER), {})
        over = self.get(run.name)
        assert over is not None
        return over

    def _without(self, state: str) -> list[Run]:
        """Return the runs that are not in a state, the newest first; of the others only keys are read. Empty for all."""
        keys: dict[str, set[str]] = {}
        for key in self._store.keys("runs/"):
            keys.setdefault(key.split("/")[1], set()).add(key)
        wanted = [_start(run) for run, its in keys.items() if not state or _mark(run, its, state) not in its]
        found = self._store.read_all(wanted).values()
        runs = [Run(self._store, cast(RunFacts, facts), frozenset(keys[facts["run"]])) for facts in found]
        return sorted(runs, key=lambda run: run.started, reverse=True)


def _mark(run: str, keys: Collection[str], state: str) -> str:
    """Return the key that says that a run was in a state after as many attempts as its keys have."""
    return f"runs/{run}/{sum(key.endswith(_BEGUN) for key in keys)}{state}"


def _start(run: str) -> str:
    return f"runs/{run}/start.json"


def _place(run: str, step: str, part: str) -> str:
    return "/".join(("runs", run, step, *([part.replace(" ", "-")] if part else []), ""))
