"""Records of runs in the store, each written once.

A task runs a step, or one part of a parallel step; an attempt is one try of a task. The launcher is the process that started or resumed the
run. The launcher's token shows whether the launcher still lives; on AWS Batch and Kubernetes, the token is only `batch` or `kubernetes`.

- `runs/RUN/start.json`: facts of the run.
- `runs/RUN/NUMBER.begun.json`, `NUMBER.ended.json`: an attempt. The highest NUMBER is the latest; clocks differ, so times do not count.
- `marks/RUN/NUMBER.order`: the latest run has the highest NUMBER.
- `marks/RUN/COUNT.MARK`: state after COUNT attempts. MARK is `over` (all attempts have ended), `stopped` (by the user), `published`
  (complete in the tracking store), or `reopened` (another attempt began; cancels the marks up to COUNT).
- `aliases/ID.json`: first id of the run to which Metaflow's `resume` gave the id ID.
"""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, TypeAdapter
from typing_extensions import TypedDict

from grpo.base.door import ID_PATTERN, STRICT, FileName, Id, VersionHash
from steps.run.machine import TASK
from steps.run.processes import LAUNCHER, PLACES, state_of
from steps.run.step import StepName, StepOutput
from steps.run.store import Store
from steps.run.versions import CodeFacts
from steps.run.work import read_journal

Status = Literal["running", "finished", "failed", "killed"]
LAST: Final = "end"  # Last step of a finished run.
_BEGUN, _ENDED = ".begun.json", ".ended.json"
_ATTEMPT: Final = re.compile(r"runs/[^/]+/[0-9]{6,9}\.(?:begun|ended)\.json")
_MARK: Final = re.compile(r"marks/(?P<run>[^/]+)/(?P<number>[0-9]{1,9})\.(?P<name>order|over|stopped|published|reopened)")
_STOPPED: Final = "stopped by Ctrl-C or SIGTERM"
_LOST: Final = "its process is gone: it was killed, or its machine was lost"


Seconds = Annotated[float, Field(gt=-1e11, lt=1e11)]  # Since 1970; milliseconds would exceed the limit.


@STRICT
class OriginFacts(TypedDict):
    """The checkpoint that a run was resumed from."""

    name: str  # Such as `17/400` or `smoke/peak`.
    run: Id
    step: int  # GRPO step; 0 is the pretrained policy.


@STRICT
class RunFacts(TypedDict):
    run: Id  # Metaflow's id.
    preset: Id
    settings: dict[str, Any]
    code: CodeFacts
    tracking: str  # Address of the tracking store, without secrets.
    command: str  # Starts an equal run.
    label: str  # Name in trackers.
    tags: dict[str, str]
    head: str  # Beginning of the trackers' description (Markdown).
    texts: dict[FileName, str]  # File name -> text of settings, for trackers.
    origin: OriginFacts | None
    started: Seconds
    launcher: str  # Token.


@STRICT
class _Alias(TypedDict):
    run: Id


@STRICT
class _Begun(TypedDict):
    step: StepName
    part: Annotated[str, StringConstraints(pattern=r"^([0-9]{1,4} of [0-9]{1,4})?$")]
    version: VersionHash | Literal[""]
    started: Seconds
    launcher: str
    task: str


@STRICT
class _Ended(TypedDict):
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
    run: str
    step: str
    part: str  # Parallel task, such as "1 of 2"; empty for a step of one task.
    number: int  # From 0, among the run's attempts.
    version: str
    started: float  # Seconds since 1970.
    launcher: str  # Token.
    task: str = ""  # Metaflow's RUN/STEP/TASK, with a resumed run's second id; empty outside of a flow.
    status: Status = "running"
    ended: float | None = None  # Seconds since 1970; of a killed process, an estimate.
    output: StepOutput | None = None
    error: str = ""
    num_lines: int | None = None  # Lines of the journal (metrics) at a failed or killed end; 0 if finished.
    store: Store = field(repr=False, compare=False)

    def end(self, status: Status, *, output: StepOutput | None = None, error: str = "", at: float = 0) -> "Attempt":
        """Record the end, unless it is recorded. Return the attempt as recorded. `at`: seconds since 1970, or 0 for now."""
        num_lines = 0 if status == "finished" else len(read_journal(self.store.progress(self.step, self.version)))
        facts = {"status": status, "ended": at or time.time(), "output": output, "error": error, "num_lines": num_lines}
        self.store.create(key := f"runs/{self.run}/{self.number:06d}{_ENDED}", facts)
        return replace(self, **self.store.read_all([key], _ENDED_FORM).get(key, facts))


@dataclass(kw_only=True, slots=True)
class _Marks:
    """Highest NUMBER or COUNT of each mark of a run; -1 without the mark."""

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

    @property
    def is_stopped(self) -> bool:
        return self.stopped > self.reopened


class Run:
    """Only a new object shows later changes."""

    def __init__(self, store: Store, facts: RunFacts, keys: Iterable[str], marks: _Marks) -> None:
        self._store, self.facts, self.name, self._marks = store, facts, facts["run"], marks
        attempt_keys = sorted(filter(_ATTEMPT.fullmatch, keys))
        self._begun = [key for key in attempt_keys if key.endswith(_BEGUN)]
        self._ended = [key for key in attempt_keys if key.endswith(_ENDED)]

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts, earliest first.

        An attempt counts as killed if the record of its end is damaged, or missing although the task has a later attempt.
        """
        begun = self._store.read_all(self._begun, _BEGUN_FORM)
        ended = self._store.read_all(self._ended, _ENDED_FORM)
        later: dict[tuple[str, str], float] = {}
        attempts: list[Attempt] = []
        for key, facts in reversed(begun.items()):
            number, ended_key = int(key.rpartition("/")[2].removesuffix(_BEGUN)), key.replace(_BEGUN, _ENDED)
            attempt = Attempt(run=self.name, number=number, **facts, store=self._store)
            if ended_key in ended:
                attempt = replace(attempt, **ended[ended_key])
            elif ended_key in self._ended:
                error = f"the record of the attempt's end, {ended_key}, is damaged"
                attempt = replace(attempt, status="killed", ended=attempt.started, error=error, num_lines=0)
            elif (attempt.step, attempt.part) in later:
                attempt = replace(attempt, status="killed", ended=later[attempt.step, attempt.part], error=_LOST)
            later[attempt.step, attempt.part] = attempt.started
            attempts.append(attempt)
        return tuple(reversed(attempts))

    def latest(self) -> dict[tuple[str, str], Attempt]:
        return {(attempt.step, attempt.part): attempt for attempt in self.attempts}

    def output_of(self, step: str) -> StepOutput | None:
        """Return the latest output of a step that is one task."""
        outputs = [attempt.output for attempt in self.attempts if attempt.step == step and not attempt.part and attempt.output]
        return outputs[-1] if outputs else None

    @property
    def status(self) -> Status:
        """`finished` after the step `end`, else `running` while the launcher lives, else `failed` or `killed`.

        A launcher on another machine counts as alive while a task is running, and until a task fails or is killed.
        """
        if self.attempts and (self.attempts[-1].step, self.attempts[-1].status) == (LAST, "finished"):
            return "finished"
        states = {attempt.status for attempt in self.latest().values()}
        launcher = "gone" if self._marks.is_over else state_of(self.launcher)
        if launcher == "alive" or (launcher == "unknown" and ("running" in states or not states & {"failed", "killed"})):
            return "running"
        return "failed" if "failed" in states else "killed"

    @property
    def launcher(self) -> str:
        return next((attempt.launcher for attempt in reversed(self.attempts) if attempt.launcher), self.facts["launcher"])

    @property
    def places(self) -> tuple[str, ...]:
        """Values of `--with` to resume the run."""
        return (self.launcher,) if self.launcher in PLACES else ()

    @property
    def other_ids(self) -> tuple[str, ...]:
        """Ids that Metaflow's `resume` gave."""
        ids = dict.fromkeys(attempt.task.partition("/")[0] for attempt in self.attempts)
        return tuple(other for other in ids if other not in ("", self.name))

    @property
    def order(self) -> int:
        return self._marks.order

    @property
    def started(self) -> float:
        return self.facts["started"]

    @property
    def ended(self) -> float | None:
        """Seconds since 1970; None while running."""
        if self.status == "running":
            return None
        return next((attempt.ended or attempt.started for attempt in reversed(self.attempts)), self.started)

    @property
    def error(self) -> str:
        if self.failure is not None:
            return self.failure.error
        return _STOPPED if self._marks.is_stopped and self.status == "killed" else ""

    @property
    def failed_step(self) -> str:
        return "" if self.failure is None else self.failure.step

    def set_published(self) -> None:
        if self.status != "running" and all(attempt.ended is not None for attempt in self.attempts):
            self._add_mark("published")

    def set_stopped(self) -> None:
        self._add_mark("stopped")

    def _add_mark(self, mark: str) -> None:
        self._store.create(f"marks/{self.name}/{len(self._begun)}.{mark}", {})

    @property
    def failure(self) -> Attempt | None:
        """Latest failed, else latest killed attempt, of tasks that were not tried again; None without any."""
        broken = [attempt for attempt in self.latest().values() if attempt.status in ("failed", "killed")]
        # After a failure, the scheduler kills the parallel tasks, so the failed attempt is the cause.
        return max(broken, key=lambda attempt: (attempt.status == "failed", attempt.number), default=None)


class Runs:
    def __init__(self, store: Store) -> None:
        self._store = store

    def begin_run(self, facts: RunFacts) -> None:
        """A second call changes nothing."""
        marks = self._marks()
        if facts["run"] not in marks:
            self._store.create(f"marks/{facts['run']}/{max((mark.order for mark in marks.values()), default=0) + 1}.order", {})
        self._store.create(_start_key(facts["run"]), facts)

    def begin(self, run: str, step: str, part: str, version: str) -> Attempt:
        """Record that an attempt begins, and reopen a run that is over, stopped or published."""
        facts: dict[str, Any] = {"step": step, "part": part, "version": version}
        facts |= {"launcher": os.environ.get(LAUNCHER, ""), "started": time.time(), "task": os.environ.get(TASK, "")}
        number = sum(key.endswith(_BEGUN) for key in self._store.keys(f"runs/{run}/"))
        if (other_id := facts["task"].partition("/")[0]) not in ("", run):
            self._store.create(_alias_key(other_id), {"run": run})
        marks = self._marks(run).get(run, _Marks())
        if marks.is_over or marks.is_published or marks.is_stopped:
            self._store.create(f"marks/{run}/{max(marks.over, marks.stopped, marks.published)}.reopened", {})
        while not self._store.create(f"runs/{run}/{number:06d}{_BEGUN}", facts):
            number += 1  # Another process has taken the number.
        return Attempt(run=run, number=number, **facts, store=self._store)

    def all(self) -> list[Run]:
        """Return all runs, newest first. Runs with a damaged start record are left out with a warning."""
        keys: dict[str, list[str]] = {}
        for key in self._store.keys("runs/"):
            keys.setdefault(_start_key(key.split("/")[1]), []).append(key)
        facts, marks = self._store.read_all(keys, _START_FORM), self._marks()
        runs = [Run(self._store, fact, keys[key], marks.get(key.split("/")[1], _Marks())) for key, fact in facts.items()]
        return sorted(runs, key=lambda run: run.order, reverse=True)

    def newest(self, count: int) -> list[Run]:
        marks = self._marks()
        return self._named(sorted(marks, key=lambda run: marks[run].order)[-count:])

    def unpublished(self) -> list[Run]:
        return self._named([run for run, marks in self._marks().items() if not marks.is_published])

    def get(self, run: str) -> Run | None:
        """Return the run with this id, its first or from `resume`; None if missing or damaged."""
        if re.fullmatch(ID_PATTERN, run) is None:
            return None
        if (facts := self._store.read_all([_start_key(run)], _START_FORM).get(_start_key(run))) is None:
            alias = self._store.read_all([_alias_key(run)], _ALIAS_FORM).get(_alias_key(run))
            return None if alias is None or alias["run"] == run else self.get(alias["run"])
        if facts["run"] != run:
            return None
        return Run(self._store, facts, self._store.keys(f"runs/{run}/"), self._marks(run).get(run, _Marks()))

    def close_gone(self) -> list[Run]:
        """Close this machine's runs whose launchers are gone. Return the closed runs that are not finished."""
        open_runs = self._named([run for run, marks in self._marks().items() if not (marks.is_over or marks.is_published)])
        gone = [run for run in open_runs if state_of(run.launcher) == "gone"]
        return [closed for run in gone if (closed := self.close(run)).status != "finished"]

    def close(self, run: Run) -> Run:
        """Record that the running attempts were killed and the run is over. The launcher must be gone, or be this process."""
        error = _STOPPED if run._marks.is_stopped else _LOST
        for attempt in run.attempts:
            if attempt.ended is None:
                rows = read_journal(self._store.progress(attempt.step, attempt.version))
                attempt.end("killed", error=error, at=rows[-1]["time"] / 1_000 if rows else attempt.started)
        run._add_mark("over")
        closed = self.get(run.name)
        assert closed is not None
        return closed

    def _named(self, names: list[str]) -> list[Run]:
        return sorted((run for run in map(self.get, names) if run is not None), key=lambda run: run.order, reverse=True)

    def _marks(self, run: str = "") -> dict[str, _Marks]:
        marks: dict[str, _Marks] = {}
        for match in filter(None, map(_MARK.fullmatch, self._store.keys(f"marks/{run}/" if run else "marks/"))):
            of_run = marks.setdefault(match["run"], _Marks())
            setattr(of_run, match["name"], max(getattr(of_run, match["name"]), int(match["number"])))
        return marks


def _alias_key(run: str) -> str:
    return f"aliases/{run}.json"


def _start_key(run: str) -> str:
    return f"runs/{run}/start.json"
