"""Journals of what is to be logged: a damaged line or a full disk costs what it damaged, and nothing else."""

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from grpo.base.files import StorageError
from grpo.metrics.table import Record
from steps.runtime.machine import Machine
from steps.store.objects import FolderObjects, Stored
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
    assert [point.value for point in tracker.client.get_metric_history(found.info.run_id, "curves/grpo entropy")] == [1.0, 2.0]
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


def test_a_record_that_is_not_whole_yet_waits_for_its_end(tmp_path: Path) -> None:
    journal = JournalFolder(tmp_path).begin("parent", "step")
    journal.append("tags", tags={"a": "1"})
    with journal.path.open("ab") as file:
        file.write(b'{"kind": "tags", "ta')
        file.flush()
        assert [entry.row["kind"] for entry in journal.entries()] == ["tags"]
        file.write(b'gs": {}}\n')
    assert [entry.row["kind"] for entry in journal.entries()] == ["tags", "tags"]


def test_a_journal_that_one_machine_delivers_is_left_alone_by_others_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = FolderObjects(tmp_path / "shared")
    first, second, third = (JournalFolder(tmp_path / name, objects) for name in ("first", "second", "third"))
    journal = first.begin("parent", "step")
    journal.append("tags", tags={"a": "1"})
    first.leave(journal)
    with closing(second.pending(Reader.MLFLOW, "parent")) as delivering:
        assert len(next(delivering).entries()) == 1
        assert list(third.pending(Reader.MLFLOW, "parent")) == []
        then = time.time() + 3_600
        monkeypatch.setattr("steps.tracking.journal.time.time", lambda: then)  # The second has died.
        with closing(third.pending(Reader.MLFLOW, "parent")) as taken_over:
            assert len(next(taken_over).entries()) == 1


def test_of_two_machines_that_find_a_journal_at_once_one_delivers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = FolderObjects(tmp_path / "shared")
    first, second, third = (JournalFolder(tmp_path / name, objects) for name in ("first", "second", "third"))
    first.leave(first.begin("parent", "step"))
    looks, both, get = count(), threading.Barrier(2), FolderObjects.get

    def found_by_both(self: FolderObjects, key: str) -> Stored | None:
        stored = get(self, key)
        if next(looks) < 2:
            both.wait(60)
        return stored

    def deliver(folder: JournalFolder) -> None:
        for journal in folder.pending(Reader.MLFLOW, "parent"):
            delivered.append(folder)
            journal.done(Reader.MLFLOW)

    delivered: list[JournalFolder] = []
    monkeypatch.setattr(FolderObjects, "get", found_by_both)
    threads = [threading.Thread(target=deliver, args=(folder,)) for folder in (second, third)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(delivered) == 1


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
    assert [point.value for point in tracker.client.get_metric_history(found.info.run_id, "curves/grpo entropy")] == [1.0, 2.0]
    assert not list(journal.path.parent.iterdir())


def test_the_last_of_two_readers_deletes_the_journal(tmp_path: Path) -> None:
    folder = JournalFolder(tmp_path)
    for first, last in ((Reader.MLFLOW, Reader.WANDB), (Reader.WANDB, Reader.MLFLOW)):
        journal = folder.begin("parent", "step", list(Reader))
        journal.done(first)
        assert (folder.left(first), len(folder.left(last)), journal.path.exists()) == ([], 1, True)
        journal.done(last)
        assert (folder.left(last), journal.path.exists()) == ([], False)
