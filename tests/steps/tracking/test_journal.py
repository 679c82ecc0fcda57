"""Journals of what is to be logged: a damaged line or a full disk costs what it damaged, and nothing else."""

import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from grpo.base.files import StorageError, read_lines
from grpo.metrics.table import Record, tracked_name
from steps.runtime.machine import Machine
from steps.store.objects import FolderObjects
from steps.store.outputs import Store
from steps.tracking.delivery import Delivery
from steps.tracking.journal import DAMAGED, JournalFolder, Reader
from steps.tracking.tracker import Tracker

DAMAGE = (b"", b"\0" * 40, b"[]", b'{"kind": "metr')


@pytest.fixture
def tracker(tmp_path: Path, give_tables: Callable[[Path], Path]) -> Tracker:
    home = give_tables(tmp_path / "home")
    return Tracker(Machine(stockfish="", home=home, tracking_uri=f"sqlite:///{home / 'mlflow.db'}", device="cpu", num_threads=1))


@pytest.fixture
def largest_file() -> Iterator[Callable[[int], None]]:
    """Return what limits the size of files, as a full disk does."""
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_record_that_the_full_disk_cuts_off_leaves_the_journal_as_it_was(tmp_path: Path, largest_file: Callable[[int], None]) -> None:
    journal = JournalFolder(tmp_path).begin("parent", "step")
    journal.append("tags", tags={"a": "1"})
    before = journal.path.read_bytes()
    largest_file(len(before) + 10)
    with pytest.raises(StorageError):
        journal.append("tags", tags={"b": "2"})
    largest_file(2**20)
    assert journal.path.read_bytes() == before
    journal.append("tags", tags={"c": "3"})
    assert [entry.row["tags"] for entry in journal.entries()] == [{"a": "1"}, {"c": "3"}]


@pytest.mark.parametrize(
    ("damage", "kind", "why"),
    [
        *((damage, DAMAGED, "it is damaged") for damage in DAMAGE),
        (b'{"kind": "child", "key": "7/pretrain/1"}', "child", "no such kind of record"),
    ],
)
def test_a_damaged_or_foreign_line_is_set_aside_and_all_others_are_logged(
    damage: bytes, kind: str, why: str, tracker: Tracker, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tracker.start_flow_run(metaflow_run="7", settings={}, tags={}, note="")
    with tracker.child(run, "pretrain", {}) as child:
        child.log(Record(1, {"grpo/entropy": 1.0}))
        with child.journal.path.open("ab") as file:
            file.write(damage + b"\n")
        child.log(Record(2, {"grpo/entropy": 2.0}))
    [found] = tracker.search(f"tags.`mlflow.parentRunId` = '{run}'")
    assert [point.value for point in tracker.client.get_metric_history(found.info.run_id, "curves/4 entropy")] == [1.0, 2.0]
    assert found.info.status == "FINISHED"
    assert f"rejected a record of kind '{kind}' ({why})" in capsys.readouterr().out
    assert [path.read_bytes().count(b"\n") for path in tracker.journals.refused()] == [1]
    tracker.deliver_left()
    assert tracker.end_flow_run(run, {}) == 0


def test_one_record_that_mlflow_refuses_costs_no_other_of_the_same_call(tracker: Tracker) -> None:
    run = tracker.start_flow_run(metaflow_run="9", settings={}, tags={}, note="")
    journal = tracker.journals.begin(run, "pretrain")
    journal.append("begin", key="9/pretrain/1", step="pretrain", tags={}, time=5)
    for step in range(5):
        journal.append("record", time=6, record={"step": step, "no name: ?*" if step == 2 else "grpo/entropy": 1.0})
    Delivery(journal, tracker, Store(tracker.journals.folder)).run(is_over=True)
    [found] = tracker.search(f"tags.`mlflow.parentRunId` = '{run}'")
    assert [point.step for point in tracker.client.get_metric_history(found.info.run_id, tracked_name("grpo/entropy"))] == [0, 1, 3, 4]
    [refused] = tracker.journals.refused()
    assert [entry.row["record"]["step"] for entry in read_lines(refused)] == [2]


@pytest.fixture
def shared(tmp_path: Path) -> Callable[[str], JournalFolder]:
    """Return the journals of a machine, by its name, that has another disk and the same shared store."""
    objects = FolderObjects(tmp_path / "shared")
    return lambda machine: JournalFolder(tmp_path / machine, objects)


def leave_one(machine: JournalFolder, readers: Sequence[Reader] = (Reader.MLFLOW,)) -> None:
    journal = machine.begin("parent", "step", readers)
    journal.append("tags", tags={"a": "1"})
    machine.leave(journal)


def test_a_reader_that_takes_a_journal_leaves_the_other_readers_copy_there(tmp_path: Path, shared: Callable[[str], JournalFolder]) -> None:
    leave_one(shared("first"), list(Reader))
    with closing(shared("second").pending(Reader.MLFLOW, "parent")) as delivering:
        next(delivering).done(Reader.MLFLOW)
    assert not shared("third").left(Reader.MLFLOW)
    with closing(shared("third").pending(Reader.WANDB)) as delivering:
        assert len(next(delivering).entries()) == 1


@pytest.mark.parametrize("damage", DAMAGE[:3])
def test_a_reader_whose_state_is_damaged_begins_again(damage: bytes, tracker: Tracker) -> None:
    run = tracker.start_flow_run(metaflow_run="8", settings={}, tags={}, note="")
    journal = tracker.journals.begin(run, "pretrain")
    journal.append("begin", key="8/pretrain/1", step="pretrain", tags={}, time=5)
    journal.append("record", time=6, record={"step": 1, "grpo/entropy": 1.0})
    Delivery(journal, tracker, Store(tracker.journals.folder)).run(is_over=False)
    journal.path.with_suffix(f".{Reader.MLFLOW}").write_bytes(damage)
    journal.append("record", time=7, record={"step": 2, "grpo/entropy": 2.0})
    journal.close()
    tracker.deliver_left()
    [found] = tracker.search(f"tags.`mlflow.parentRunId` = '{run}'")
    assert [point.value for point in tracker.client.get_metric_history(found.info.run_id, "curves/4 entropy")] == [1.0, 2.0]
    assert not list(journal.path.parent.iterdir())


def test_two_processes_that_deliver_the_same_records_at_once_leave_one_whole_run(tracker: Tracker, tmp_path: Path) -> None:
    run = tracker.start_flow_run(metaflow_run="7", settings={}, tags={}, note="")
    journals = [JournalFolder(tmp_path / name).begin(run, "pretrain") for name in ("one", "two")]
    deliveries = [Delivery(journal, tracker, Store(tmp_path)) for journal in journals]
    search = tracker.search
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracker, "search", lambda *_: [])  # Each asks before the other has created its run.
        for journal, delivery in zip(journals, deliveries, strict=True):
            journal.append("begin", key="7/pretrain/abc", step="pretrain", tags={}, time=5)
            delivery.run(is_over=False)
    assert len(search("tags.`chess_grpo.child` = '7/pretrain/abc'")) == 2
    for journal in journals:
        journal.append("record", time=6, record={"step": 1, "grpo/entropy": 1.0})
        journal.append("ended", is_parent=False, status="FINISHED", time=7)
    for delivery in deliveries:
        delivery.run(is_over=True)
    [left] = search("tags.`chess_grpo.child` = '7/pretrain/abc'")
    assert (left.info.status, [each.step for each in tracker.client.get_metric_history(left.info.run_id, "curves/4 entropy")]) == (
        "FINISHED",
        [1],
    )
