"""The tables of an SQLite store, read directly, hold what MLflow's client says."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from logged_runs import LoggedRun, log_run, machine_of

from grpo.metrics.table import Record, tracked_name
from steps.runs.rows import MlflowRows, SqliteRows, rows_of
from steps.tracking.outages import TrackingAwayError
from steps.tracking.tracker import Tracker


def test_both_readers_read_the_same(give_tables: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.tracking.client._PAGE", 2)  # MLflow has more runs than it is asked for at a time.
    machine = machine_of(give_tables(tmp_path / "home"))
    ids = [log_run(machine, LoggedRun(name=name)) for name in ("1001", "1002", "1003")]
    tracker = Tracker(machine)
    with tracker.child(ids[1], "finetune", {}) as child:
        for step, value in ((0, 1.5), (1, math.nan), (2, 0.25)):
            child.log(Record(step, {"grpo/entropy": value}))
    direct, asked = rows_of(machine), MlflowRows(machine)
    assert isinstance(direct, SqliteRows)
    assert [row.run_id for row in direct.parents()] == ids[::-1]
    assert direct.parents() == asked.parents()
    assert direct.parents(2) == asked.parents(2)
    assert direct.versions() == asked.versions()
    assert {alias for version in direct.versions() for alias in version.aliases} == {"champion", "peak"}
    children = direct.children(ids[1])
    assert repr(children) == repr(asked.children(ids[1])), "as text, for NaN is unlike itself"
    found = direct.metric(children[-1].run_id, tracked_name("grpo/entropy"))
    assert repr(found) == repr(asked.metric(children[-1].run_id, tracked_name("grpo/entropy")))
    assert found[2] == 0.25
    tracker.client.delete_run(ids[0])
    assert [row.run_id for row in direct.parents()] == ids[:0:-1]
    assert direct.run(ids[0]) == asked.run(ids[0])


def test_tables_of_another_version_are_left_to_mlflows_client(
    give_tables: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = machine_of(give_tables(tmp_path / "home"))
    monkeypatch.setattr("steps.runs.rows._KNOWN", ("another",))
    assert isinstance(rows_of(machine), MlflowRows)
    assert "the tables' version" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_an_empty_store_and_stays_away(tmp_path: Path) -> None:
    machine = machine_of(tmp_path / "home")
    assert rows_of(machine).parents() == rows_of(machine).versions() == []
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_an_error_with_a_remedy(give_tables: Callable[[Path], Path], tmp_path: Path) -> None:
    machine = machine_of(give_tables(tmp_path / "home"))
    rows = rows_of(machine)
    file = tmp_path / "home" / "mlflow.db"
    file.write_bytes(b"no database at all" * 100)
    with pytest.raises(TrackingAwayError, match=r"does not answer \(file is not a database\)"):
        rows.parents()
    assert isinstance(rows_of(machine), MlflowRows)
