"""Journals of what is to be logged: a damaged line or a full disk costs what it damaged, and nothing else."""

import json
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo.base.files import CorruptError, StorageError, read_lines
from grpo.metrics.table import Record, tracked_name
from steps.runtime.machine import Machine
from steps.runtime.process_id import Writer
from steps.store.object_lease import LeaseLostError
from steps.store.objects import FolderObjects
from steps.store.outputs import Store
from steps.tracking.delivery import Delivery
from steps.tracking.journal import DAMAGED, JournalFolder, Reader
from steps.tracking.tracker import Tracker

DAMAGE = (b"", b"\0" * 40, b"{}", b"[]", b"<html>", b'{"kind": "metr', b"[" * 100_000)


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
        (b'{"kind": "record", "record": {"step": "one", "grpo/entropy": 3.0}}', "record", "no such kind of record"),
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


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_shared_journal_whose_head_is_damaged_is_taken_from_its_beginning(damage: bytes, tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path / "shared")
    first, second = (JournalFolder(tmp_path / name, objects) for name in ("first", "second"))
    journal = first.begin("parent", "step")
    journal.append("tags", tags={"a": "1"})
    first.leave(journal)
    [key] = objects.keys("outbox/")
    stored = objects.get(key)
    assert stored is not None
    objects.put(key, damage + b"\n" + stored.data.partition(b"\n")[2])
    with closing(second.pending(Reader.MLFLOW, "parent")) as pending:
        assert [entry.row["kind"] for entry in next(pending).entries()] in (["tags"], [DAMAGED, "tags"])


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


def test_a_record_that_is_not_whole_yet_waits_for_its_end(tmp_path: Path) -> None:
    journal = JournalFolder(tmp_path).begin("parent", "step")
    journal.append("tags", tags={"a": "1"})
    with journal.path.open("ab") as file:
        file.write(b'{"kind": "tags", "ta')
        file.flush()
        assert [entry.row["kind"] for entry in journal.entries()] == ["tags"]
        file.write(b'gs": {}}\n')
    assert [entry.row["kind"] for entry in journal.entries()] == ["tags", "tags"]


LEASE = "leases/journals/mlflow/parent.json"


@pytest.fixture
def shared(tmp_path: Path) -> Callable[[str], JournalFolder]:
    """Return the journals of a machine, by its name, that has another disk and the same shared store."""
    objects = FolderObjects(tmp_path / "shared")
    return lambda machine: JournalFolder(tmp_path / machine, objects)


def leave_one(machine: JournalFolder, readers: Sequence[Reader] = (Reader.MLFLOW,)) -> None:
    journal = machine.begin("parent", "step", readers)
    journal.append("tags", tags={"a": "1"})
    machine.leave(journal)


def test_a_journal_that_one_machine_delivers_is_left_alone_by_others_until_it_dies(
    tmp_path: Path, shared: Callable[[str], JournalFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = FolderObjects(tmp_path / "shared")
    leave_one(shared("first"))
    with closing(shared("second").pending(Reader.MLFLOW, "parent")) as delivering:
        assert len(next(delivering).entries()) == 1
        held = lease.get(LEASE)
        assert held is not None
        monkeypatch.setattr("time.time", lambda: 4e9)  # The third's clock is wrong; no clocks are compared.
        assert list(shared("third").pending(Reader.MLFLOW, "parent")) == []
    lease.put(LEASE, changed(held.data, writer={**Writer.here().facts(), "started": 1}))  # The second has died while it had the lease.
    with closing(shared("third").pending(Reader.MLFLOW, "parent")) as taken_over:
        assert len(next(taken_over).entries()) == 1


def changed(data: bytes, **facts: Any) -> bytes:
    return json.dumps(json.loads(data) | facts).encode()


def test_a_reader_that_stalled_changes_nothing_of_its_successors(tmp_path: Path, shared: Callable[[str], JournalFolder]) -> None:
    objects = FolderObjects(tmp_path / "shared")
    leave_one(shared("first"))
    [key] = objects.keys("outbox/")
    with closing(shared("second").pending(Reader.MLFLOW, "parent")) as delivering:
        stalled = next(delivering)
        held = objects.get(LEASE)
        assert held is not None
        objects.put(LEASE, changed(held.data, claim="a successor's"))
        with pytest.raises(LeaseLostError):
            stalled.confirm()
        with pytest.raises(LeaseLostError):
            stalled.save(Reader.MLFLOW, {"offset": 1})
        stalled.done(Reader.MLFLOW)
    assert objects.keys("outbox/") == [key], "the successor may have delivered less"


def test_a_copy_that_changed_in_the_shared_store_is_not_overwritten(tmp_path: Path, shared: Callable[[str], JournalFolder]) -> None:
    objects, second = FolderObjects(tmp_path / "shared"), shared("second")
    leave_one(shared("first"))
    [key] = objects.keys("outbox/")
    with closing(second.pending(Reader.MLFLOW, "parent")) as delivering:
        journal = next(delivering)
        objects.put(key, b"a successor's")  # After the look at the lease, and before the write.
        second.share(journal, Reader.MLFLOW)
        found = objects.get(key)
        assert found is not None
        assert found.data == b"a successor's"
        objects.delete(key)


def test_a_reader_that_takes_a_journal_leaves_the_other_readers_copy_there(tmp_path: Path, shared: Callable[[str], JournalFolder]) -> None:
    leave_one(shared("first"), list(Reader))
    with closing(shared("second").pending(Reader.MLFLOW, "parent")) as delivering:
        next(delivering).done(Reader.MLFLOW)
    assert not shared("third").left(Reader.MLFLOW)
    with closing(shared("third").pending(Reader.WANDB)) as delivering:
        assert len(next(delivering).entries()) == 1


def test_a_damaged_lease_of_shared_journals_is_named(tmp_path: Path, shared: Callable[[str], JournalFolder]) -> None:
    leave_one(shared("first"))
    for damage in DAMAGE:
        FolderObjects(tmp_path / "shared").put(LEASE, damage)
        with pytest.raises(CorruptError, match=f"{LEASE} .* delete it"):
            list(shared("second").pending(Reader.MLFLOW))


@pytest.mark.parametrize("damage", DAMAGE)
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


def test_the_last_of_two_readers_deletes_the_journal(tmp_path: Path) -> None:
    folder = JournalFolder(tmp_path)
    for first, last in ((Reader.MLFLOW, Reader.WANDB), (Reader.WANDB, Reader.MLFLOW)):
        journal = folder.begin("parent", "step", list(Reader))
        journal.done(first)
        assert (folder.left(first), len(folder.left(last)), journal.path.exists()) == ([], 1, True)
        journal.done(last)
        assert (folder.left(last), journal.path.exists()) == ([], False)
