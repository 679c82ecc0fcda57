"""Records of runs, each written once, in the store: what began, how it ended, and whether trackers have it.

`runs/RUN/start.json` describes a run. `runs/RUN/NUMBER.begun.json` begins an attempt of a task, `NUMBER.ended.json` ends it. A number is
taken by who creates its record first, so the numbers say which attempt of a run began later, whatever the machines' clocks say. Times are
shown; nothing is decided by them.

`marks/RUN/` says in names of empty records what starts and commands need to know of all runs without reading their records:
`NUMBER.order` is the place of the run among all runs; `COUNT.over` says that the run was over after so many attempts, `COUNT.stopped`
that its user stopped it then, `COUNT.published` that its tracking store had everything then, `COUNT.reopened` that a further attempt
began, which makes the other three void.
`aliases/ID.json` says which run has this other id: Metaflow gives a run that is resumed a new one.

Trackers, pages and commands are views of these records and of the outputs that they name.
"""

import os
import re
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, TypeAdapter
from typing_extensions import TypedDict

from grpo.base.door import ID_PATTERN, STRICT, FileName, Id, VersionHash
from grpo.settings.types import S3_SCHEME
from steps.run.machine import TASK
from steps.run.processes import LAUNCHER, state_of
from steps.run.step import StepName, StepOutput
from steps.run.store import Store
from steps.run.versions import CodeFacts
from steps.run.work import read_journal

Status = Literal["running", "finished", "failed", "killed"]
LAST: Final = "end"
"""The step with which a run is finished."""
_BEGUN, _ENDED = ".begun.json", ".ended.json"
_ATTEMPT: Final = re.compile(r"runs/(?P<run>[^/]+)/(?P<number>[0-9]{6,9})\.(?:begun|ended)\.json")
_MARK: Final = re.compile(r"marks/(?P<run>[^/]+)/(?P<number>[0-9]{1,9})\.(?P<name>order|over|stopped|published|reopened)")
_STOPPED: Final = "stopped by Ctrl-C or SIGTERM"
_LOST: Final = "its process is gone: it was killed, or its machine was lost"


Seconds = Annotated[float, Field(gt=-1e11, lt=1e11)]
"""Since 1970, by some machine's clock."""


@STRICT
class OriginFacts(TypedDict):
    """The checkpoint that a run was resumed from."""

    name: str
    """The name as typed, such as RUN/STEP; an alias or a version with its preset, such as `smoke/peak`."""
    run: Id
    step: int
    """The checkpoint's step; 0 is the pretrained policy."""


@STRICT
class RunFacts(TypedDict):
    """What is known of a run when it starts."""

    run: Id
    """Metaflow's id."""
    preset: Id
    settings: dict[str, Any]
    code: CodeFacts
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
    texts: dict[FileName, str]
    """Small files, by name: the settings as typed."""
    origin: OriginFacts | None
    started: Seconds
    launcher: str
    """Token of the process that runs it (`steps.run.processes`); empty where a service does."""


@STRICT
class _Alias(TypedDict):
    """Another id of a run."""

    run: Id


@STRICT
class _Begun(TypedDict):
    """The record with which an attempt begins; see `Attempt`."""

    step: StepName
    part: Annotated[str, StringConstraints(pattern=r"^([0-9]{1,4} of [0-9]{1,4})?$")]
    version: VersionHash | Literal[""]
    started: Seconds
    launcher: str
    task: str


@STRICT
class _Ended(TypedDict):
    """The record with which an attempt ends; see `Attempt`."""

    status: Literal["finished", "failed", "killed"]
    ended: Seconds
    output: StepOutput | None
    error: str
    num_lines: int


_START_FORM: Final = TypeAdapter(RunFacts)
_ALIAS_FORM: Final = TypeAdapter(_Alias)
_BEGUN_FORM: Final = TypeAdapter(_Begun)
_ENDED_FORM: Final = TypeAdapter(_Ended)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try of a step's task."""

    run: str
    step: str
    part: str
    """Which of the step's parallel tasks it is, such as "1 of 2"; empty for a step of one task."""
    number: int
    """From 0, among all attempts of the run; a later attempt has a higher number."""
    version: str
    started: float
    """Seconds since 1970."""
    launcher: str
    """Token of the process that started it, another than the run's own where that was resumed; empty where a service does."""
    task: str = ""
    """Metaflow's RUN/STEP/TASK, where RUN is another id than the run's own if the run was resumed; empty outside of a flow."""
    status: Status = "running"
    ended: float | None = None
    """Seconds since 1970; of a killed process, the last that is known of it. None while it is at work."""
    output: StepOutput | None = None
    error: str = ""
    """Why it ended without an output."""
    num_lines: int | None = None
    """Lines of its journal when it ended without an output: another run may append more. None while it is at work."""
    store: Store = field(repr=False, compare=False)

    def end(self, status: Status, *, output: StepOutput | None = None, error: str = "", at: float = 0) -> "Attempt":
        """Record how it ended, now or `at` a time, and return it as it is then; who was first stands."""
        num_lines = 0 if status == "finished" else len(read_journal(self.store.progress(self.step, self.version)))
        facts = {"status": status, "ended": at or time.time(), "output": output, "error": error, "num_lines": num_lines}
        self.store.create(key := f"runs/{self.run}/{self.number:06d}{_ENDED}", facts)
        return replace(self, **self.store.read_all([key], _ENDED_FORM).get(key, facts))


@dataclass(kw_only=True, slots=True)
class _Marks:
    """The marks of one run: the highest number of each name, -1 where there is none."""

    order: int = -1
    over: int = -1
    stopped: int = -1
    published: int = -1
    reopened: int = -1

    @property
    def is_over(self) -> bool:
        return self.over > self.reopened

    @property
    def is_published(self) -> bool:
        return self.published > self.reopened


class Run:
    """A run; each record is read once, when it is first asked for: a new object sees what has happened since."""

    def __init__(self, store: Store, facts: RunFacts, keys: frozenset[str], marks: _Marks) -> None:
        """Take what was known of the run when it started, the keys of its attempts' records, and its marks."""
        self._store, self.facts, self.name, self._marks = store, facts, facts["run"], marks
        self._begun = sorted(key for key in keys if key.endswith(_BEGUN))
        self._ended = keys - set(self._begun)

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts, in the order of their beginning; one without an end was killed if a later one of the same task has begun."""
        begun = self._store.read_all(self._begun, _BEGUN_FORM)
        ended = self._store.read_all(sorted(self._ended), _ENDED_FORM)
        later: dict[tuple[str, str], float] = {}
        attempts: list[Attempt] = []
        for key, facts in reversed(begun.items()):
            number, end = int(key.rpartition("/")[2].removesuffix(_BEGUN)), key.replace(_BEGUN, _ENDED)
            attempt = Attempt(run=self.name, number=number, **facts, store=self._store)
            if end in ended:
                attempt = replace(attempt, **ended[end])
            elif end in self._ended:
                error = f"the record {end}, which says how it ended, is damaged"
                attempt = replace(attempt, status="killed", ended=attempt.started, error=error, num_lines=0)
            elif (attempt.step, attempt.part) in later:
                attempt = replace(attempt, status="killed", ended=later[attempt.step, attempt.part], error=_LOST)
            later[attempt.step, attempt.part] = attempt.started
            attempts.append(attempt)
        return tuple(reversed(attempts))

    def latest(self) -> dict[tuple[str, str], Attempt]:
        """Return (step, part) -> the latest attempt."""
        return {(attempt.step, attempt.part): attempt for attempt in self.attempts}

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
        launcher = "gone" if self._marks.is_over else state_of(self.launcher)
        if launcher == "alive" or (launcher == "unknown" and ("running" in states or not states & {"failed", "killed"})):
            return "running"
        return "failed" if "failed" in states else "killed"

    @property
    def launcher(self) -> str:
        """Token of the process that runs it, or resumed it last; empty where a service does."""
        return next((attempt.launcher for attempt in reversed(self.attempts) if attempt.launcher), self.facts["launcher"])

    @property
    def places(self) -> tuple[str, ...]:
        """The values of `--with` with which the run was launched, as far as its records tell them: a service ran it, or its launcher."""
        return () if self.launcher or not str(self._store).startswith(S3_SCHEME) else ("batch",)

    @property
    def other_ids(self) -> tuple[str, ...]:
        """The ids that Metaflow gave when the run was resumed."""
        ids = dict.fromkeys(attempt.task.partition("/")[0] for attempt in self.attempts)
        return tuple(other for other in ids if other not in ("", self.name))

    @property
    def order(self) -> int:
        """The place of the run among all runs of the store; a later run has a higher one."""
        return self._marks.order

    @property
    def started(self) -> float:
        """Seconds since 1970."""
        return self.facts["started"]

    @property
    def ended(self) -> float | None:
        """Seconds since 1970; None while it runs."""
        if self.status == "running":
            return None
        return next((attempt.ended or attempt.started for attempt in reversed(self.attempts)), self.started)

    @property
    def error(self) -> str:
        """Why its latest attempt that did not finish failed, or was killed, or that its user stopped it between two tasks; else empty."""
        if self.failure is not None:
            return self.failure.error
        return _STOPPED if self._is_stopped and self.status == "killed" else ""

    @property
    def failed_step(self) -> str:
        """The step of that attempt; empty when there is none."""
        return "" if self.failure is None else self.failure.step

    def set_published(self) -> None:
        """Record that the tracking store has all of it; of a run that is not recorded as over nobody has all."""
        if self.status != "running" and all(attempt.ended is not None for attempt in self.attempts):
            self._set("published")

    def set_stopped(self) -> None:
        """Record that the user stops it."""
        self._set("stopped")

    @property
    def why_gone(self) -> str:
        """Reason why its processes are gone, as far as it is known."""
        return _STOPPED if self._is_stopped else _LOST

    @property
    def _is_stopped(self) -> bool:
        return self._marks.stopped > self._marks.reopened

    def set_over(self) -> None:
        """Record that no process works on the run any more."""
        self._set("over")

    def _set(self, mark: str) -> None:
        self._store.create(f"marks/{self.name}/{len(self._begun)}.{mark}", {})

    @property
    def failure(self) -> Attempt | None:
        """The latest attempt that failed or was killed and was not repeated."""
        broken = [attempt for attempt in self.latest().values() if attempt.status in ("failed", "killed")]
        # Where one of several tasks fails, the scheduler ends the others.
        return max(broken, key=lambda attempt: (attempt.status == "failed", attempt.number), default=None)


class Runs:
    """All runs whose records a store has."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin_run(self, facts: RunFacts) -> None:
        """Record that a run starts; where its task is tried again, the first try stands."""
        marks = self._marks()
        if facts["run"] not in marks:
            self._store.create(f"marks/{facts['run']}/{max((mark.order for mark in marks.values()), default=0) + 1}.order", {})
        self._store.create(_start(facts["run"]), facts)

    def begin(self, run: str, step: str, part: str, version: str) -> Attempt:
        """Record that an attempt begins; a run that was over goes on by that."""
        facts: dict[str, Any] = {"step": step, "part": part, "version": version}
        facts |= {"launcher": os.environ.get(LAUNCHER, ""), "started": time.time(), "task": os.environ.get(TASK, "")}
        number = sum(key.endswith(_BEGUN) for key in self._store.keys(f"runs/{run}/"))
        if (other_id := facts["task"].partition("/")[0]) not in ("", run):
            self._store.create(_alias(other_id), {"run": run})
        marks = self._marks(run).get(run, _Marks())
        if marks.is_over or marks.is_published or marks.stopped > marks.reopened:
            self._store.create(f"marks/{run}/{max(marks.over, marks.stopped, marks.published)}.reopened", {})
        while not self._store.create(f"runs/{run}/{number:06d}{_BEGUN}", facts):
            number += 1
        return Attempt(run=run, number=number, **facts, store=self._store)

    def all(self) -> list[Run]:
        """Return all runs, the newest first; one whose record is damaged is named in a warning, and left out."""
        keys: dict[str, set[str]] = {}
        for key in self._store.keys("runs/"):
            keys.setdefault(key.split("/")[1], set()).add(key)
        facts, marks = self._store.read_all(map(_start, keys), _START_FORM), self._marks()
        runs = [
            Run(self._store, facts[_start(run)], _attempts(run_keys), marks.get(run, _Marks()))
            for run, run_keys in keys.items()
            if _start(run) in facts
        ]
        return sorted(runs, key=lambda run: run.order, reverse=True)

    def newest(self, count: int) -> list[Run]:
        """Return this many runs, the newest first; of older runs no record is read."""
        marks = self._marks()
        return self._named(sorted(marks, key=lambda run: marks[run].order)[-count:])

    def unpublished(self) -> list[Run]:
        """Return the runs of which no tracking store has all as they ended, the newest first; of other runs no record is read."""
        return self._named([run for run, marks in self._marks().items() if not marks.is_published])

    def get(self, run: str) -> Run | None:
        """Return a run by any of its ids; one whose record is damaged is named in a warning, and not found."""
        if re.fullmatch(ID_PATTERN, run) is None:
            return None
        if (facts := self._store.read_all([_start(run)], _START_FORM).get(_start(run))) is None:
            # Metaflow gives a run that is resumed a new id.
            alias = self._store.read_all([_alias(run)], _ALIAS_FORM).get(_alias(run))
            return None if alias is None or alias["run"] == run else self.get(alias["run"])
        if facts["run"] != run:
            return None
        return Run(self._store, facts, _attempts(self._store.keys(f"runs/{run}/")), self._marks(run).get(run, _Marks()))

    def close_gone(self) -> list[Run]:
        """Record that the runs are over whose launchers are gone, and return those that this ended; of another machine nobody is judged."""
        open_runs = self._named([run for run, marks in self._marks().items() if not (marks.is_over or marks.is_published)])
        gone = [run for run in open_runs if state_of(run.launcher) == "gone"]
        return [over for run in gone if (over := self.close(run)).status != "finished"]

    def close(self, run: Run) -> Run:
        """End what was at work of a run whose launcher is gone, or is this process, and return the run as it is then."""
        for attempt in run.attempts:
            if attempt.ended is None:
                rows = read_journal(self._store.progress(attempt.step, attempt.version))
                attempt.end("killed", error=run.why_gone, at=rows[-1]["time"] / 1_000 if rows else attempt.started)
        run.set_over()
        over = self.get(run.name)
        assert over is not None
        return over

    def _named(self, names: list[str]) -> list[Run]:
        """Return the runs of these names, the newest first."""
        return sorted((run for run in map(self.get, names) if run is not None), key=lambda run: run.order, reverse=True)

    def _marks(self, run: str = "") -> dict[str, _Marks]:
        """Return run -> its marks; of all runs, or of one. Only names are read."""
        marks: dict[str, _Marks] = {}
        for match in filter(None, map(_MARK.fullmatch, self._store.keys(f"marks/{run}/" if run else "marks/"))):
            of_run = marks.setdefault(match["run"], _Marks())
            setattr(of_run, match["name"], max(getattr(of_run, match["name"]), int(match["number"])))
        return marks


def _attempts(keys: "set[str] | list[str]") -> frozenset[str]:
    """Return those of a run's keys that are records of attempts."""
    return frozenset(key for key in keys if _ATTEMPT.fullmatch(key))


def _alias(run: str) -> str:
    return f"aliases/{run}.json"


def _start(run: str) -> str:
    return f"runs/{run}/start.json"
