"""Rows of MLflow's tracking store: from the tables of an SQLite file, or else by MLflow's client, whose import takes seconds."""

import json
import sqlite3
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from steps.runtime.machine import Machine, sqlite_file
from steps.runtime.terminal_lines import say
from steps.tracking.registry import MODEL
from steps.tracking.tags import EXPERIMENT, FLOW, PARENT, STEP

if TYPE_CHECKING:
    from mlflow.entities import Run

_KNOWN: Final = ("dc11669786a5",)
"""Versions of MLflow's tables (alembic's) that `SqliteRows` was tested with: MLflow 3.17."""
_FLOW_RUNS: Final = """
SELECT runs.run_uuid, runs.experiment_id, runs.status, runs.start_time, runs.end_time FROM runs
JOIN experiments ON experiments.experiment_id = runs.experiment_id AND experiments.name = ?
JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = ? AND tags.value = ?
WHERE runs.lifecycle_stage = 'active' ORDER BY runs.start_time DESC, runs.run_uuid LIMIT ?"""
_TAGGED_RUNS: Final = """
SELECT runs.run_uuid, runs.experiment_id, runs.status, runs.start_time, runs.end_time FROM runs
JOIN experiments ON experiments.experiment_id = runs.experiment_id AND experiments.name = ?
JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = ? AND tags.value = ?
WHERE runs.lifecycle_stage = 'active' ORDER BY runs.start_time, runs.run_uuid"""
_RUN: Final = "SELECT run_uuid, experiment_id, status, start_time, end_time FROM runs WHERE run_uuid = ?"
_TAGS: Final = "SELECT run_uuid, key, value FROM tags WHERE run_uuid IN (SELECT value FROM json_each(?))"
_LATEST: Final = "SELECT run_uuid, key, value, is_nan FROM latest_metrics WHERE run_uuid IN (SELECT value FROM json_each(?))"
_VERSIONS: Final = "SELECT version FROM model_versions WHERE name = ? ORDER BY version"
_VERSION_TAGS: Final = "SELECT version, key, value FROM model_version_tags WHERE name = ?"
_ALIASES: Final = "SELECT version, alias FROM registered_model_aliases WHERE name = ? ORDER BY rowid"
_METRIC: Final = "SELECT step, value, is_nan FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY timestamp, step, value"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """A run of MLflow."""

    run_id: str
    experiment: str
    """Id of the experiment."""
    status: str
    """MLflow's word, such as FINISHED."""
    started: int
    """Milliseconds since 1970."""
    ended: int | None
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    """The last value of each metric."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionRow:
    """A version of the registered model."""

    number: int
    tags: Mapping[str, str]
    aliases: tuple[str, ...]


class Rows(Protocol):
    """What is asked of a tracking store. The methods raise TrackingAwayError when it does not answer."""

    uri: str
    """Its address, as messages show it."""

    def parents(self, newest: int | None = None) -> list[RunRow]:
        """Return the flow runs, or the newest so many, the newest first."""

    def run(self, run_id: str) -> RunRow:
        """Return a run by its id, a deleted one too."""

    def children(self, run_id: str) -> list[RunRow]:
        """Return the child runs of a run, the earliest first."""

    def versions(self) -> list[VersionRow]:
        """Return the versions of the registered model, the earliest first."""

    def metric(self, run_id: str, name: str) -> dict[int, float]:
        """Return a metric's values by training step; of several values at one step the last."""


def rows_of(machine: Machine) -> Rows:
    """Return the rows of this machine's tracking store."""
    file = sqlite_file(machine.tracking_uri)
    if file is not None and (not file.is_file() or _is_known(file)):
        return SqliteRows(file, machine.shown_uri)
    return MlflowRows(machine)


def _is_known(file: Path) -> bool:
    try:
        with closing(_opened(file)) as database:
            found = [version for (version,) in database.execute("SELECT version_num FROM alembic_version")]
    except sqlite3.Error:  # No database, or one without MLflow's tables: MLflow's client says what is wrong with it.
        return False
    if not (known := set(found) <= set(_KNOWN)):
        say(f"reading by MLflow's client, which takes some seconds: the tables' version {', '.join(found)} is not known", sys.stderr)
    return known


def _opened(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)


class SqliteRows:
    """Reads the tables of an SQLite store, and creates nothing there."""

    def __init__(self, file: Path, uri: str) -> None:
        """Read from this file, which may not exist yet: then there is nothing in it."""
        self._file, self.uri = file, uri

    def parents(self, newest: int | None = None) -> list[RunRow]:
        """Return the flow runs, or the newest so many, the newest first."""
        return self._runs(_FLOW_RUNS, (EXPERIMENT, STEP, FLOW, -1 if newest is None else newest))

    def run(self, run_id: str) -> RunRow:
        """Return a run by its id, a deleted one too."""
        [found] = self._runs(_RUN, (run_id,))
        return found

    def children(self, run_id: str) -> list[RunRow]:
        """Return the child runs of a run, the earliest first."""
        return self._runs(_TAGGED_RUNS, (EXPERIMENT, PARENT, run_id))

    def versions(self) -> list[VersionRow]:
        """Return the versions of the registered model, the earliest first."""
        tags = self._by_owner(_VERSION_TAGS, (MODEL,))
        aliases = self._asked(_ALIASES, (MODEL,))
        rows = self._asked(_VERSIONS, (MODEL,))
        return [
            VersionRow(
                number=number,
                tags=tags.get(number, {}),
                aliases=tuple(alias for of, alias in aliases if of == number),
            )
            for (number,) in rows
        ]

    def metric(self, run_id: str, name: str) -> dict[int, float]:
        """Return a metric's values by training step; of several values at one step the last."""
        return {step: _number(value, is_nan) for step, value, is_nan in self._asked(_METRIC, (run_id, name))}

    def _runs(self, query: str, values: tuple[Any, ...]) -> list[RunRow]:
        rows = self._asked(query, values)
        ids = json.dumps([row[0] for row in rows])
        tags, latest = (self._by_owner(about, (ids,)) for about in (_TAGS, _LATEST))
        return [
            RunRow(
                run_id=run_id,
                experiment=str(experiment),
                status=status,
                started=started,
                ended=ended,
                tags=tags.get(run_id, {}),
                metrics=latest.get(run_id, {}),
            )
            for run_id, experiment, status, started, ended in rows
        ]

    def _by_owner(self, query: str, values: tuple[Any, ...]) -> dict[Any, dict[str, Any]]:
        """Return owner -> key -> value; a fourth column says whether the value is NaN."""
        found: dict[Any, dict[str, Any]] = {}
        for owner, key, value, *is_nan in self._asked(query, values):
            found.setdefault(owner, {})[key] = _number(value, is_nan[0]) if is_nan else value
        return found

    def _asked(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        if not self._file.is_file():
            return []
        try:
            with closing(_opened(self._file)) as database:
                return database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            from steps.tracking.outages import TrackingAwayError

            raise TrackingAwayError(
                f"the tracking store {self.uri} does not answer ({error}): close what writes to it, or set MLFLOW_TRACKING_URI to another"
            ) from error


def _number(value: float, is_nan: int) -> float:
    return float("nan") if is_nan else value


class MlflowRows:
    """Asks MLflow's client, which knows servers and databases of all kinds."""

    def __init__(self, machine: Machine) -> None:
        """Ask the tracking store of a machine."""
        from steps.tracking.client import TrackingStore

        self._store = TrackingStore.of(machine)
        self.uri = self._store.uri

    def parents(self, newest: int | None = None) -> list[RunRow]:
        """Return the flow runs, or the newest so many, the newest first."""
        found = list(map(_row, self._store.search(f"tags.`{STEP}` = '{FLOW}'", newest=newest)))
        return found if newest is not None else found[::-1]

    def run(self, run_id: str) -> RunRow:
        """Return a run by its id, a deleted one too."""
        return _row(self._store.asked(lambda: self._store.client.get_run(run_id)))

    def children(self, run_id: str) -> list[RunRow]:
        """Return the child runs of a run, the earliest first."""
        return list(map(_row, self._store.search(f"tags.`{PARENT}` = '{run_id}'")))

    def versions(self) -> list[VersionRow]:
        """Return the versions of the registered model, the earliest first."""
        from steps.tracking.client import pages

        store, condition = self._store, f"name = '{MODEL}'"
        models = store.asked(lambda: store.client.search_registered_models(condition))
        search = partial(store.client.search_model_versions, condition)
        found: Iterable[Any] = store.asked(lambda: list(pages(lambda token: search(page_token=token)))) if models else ()
        return [
            VersionRow(
                number=int(each.version),
                tags=each.tags,
                aliases=tuple(alias for alias, number in models[0].aliases.items() if str(number) == str(each.version)),
            )
            for each in sorted(found, key=lambda each: int(each.version))
        ]

    def metric(self, run_id: str, name: str) -> dict[int, float]:
        """Return a metric's values by training step; of several values at one step the last."""
        return {each.step: each.value for each in self._store.asked(lambda: self._store.client.get_metric_history(run_id, name))}


def _row(run: "Run") -> RunRow:
    return RunRow(
        run_id=run.info.run_id,
        experiment=run.info.experiment_id,
        status=run.info.status,
        started=run.info.start_time,
        ended=run.info.end_time,
        tags=dict(run.data.tags),
        metrics=dict(run.data.metrics),
    )
