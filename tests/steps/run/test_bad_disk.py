"""A disk that takes no more costs nothing that was there: old files stay whole, no temporary one is left, the error says what mends it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_disk import KINDS, NUM_BYTES_LEFT, BadDisk, on_bad_disk
from doubles import CPU, TINY

from grpo.base.files import StorageError, replace_file, verified_manifest
from grpo.language.model.loading import LANGUAGE_FORMAT, load_model
from grpo.language.model.policy import LanguagePolicy
from grpo.policy.distribution import new_policy
from grpo.settings.language import LanguageConfig, SmallModelConfig
from grpo.settings.metrics import Record
from grpo.settings.tree import PolicyConfig, Settings
from grpo.train.checkpoints import NETWORK_FORMAT, TrainingState, checkpoint_folders, save_checkpoint
from steps.run.machine import Machine
from steps.run.names import HISTORY
from steps.run.store import Store
from steps.run.work import Work, read_journal

KIND = pytest.mark.parametrize("kind", KINDS)
ROOM_FOR_THE_TOKENIZER = 64 << 10


def refused(disk: BadDisk, write: Callable[[], object], *targets: Path, at_least: int) -> None:
    """Check that writing ends in the error that says what is needed and what is free, and leaves what was there as it was."""
    before = files_of(disk.place)
    with pytest.raises(StorageError) as caught:
        write()
    said = str(caught.value)
    assert said.startswith(tuple(f"{target} could not be written (" for target in targets))
    *needed, free = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) bytes", said))
    assert not at_least if not needed else needed[0] >= at_least
    assert free == pytest.approx(disk.free(), rel=0.1, abs=4096)  # Its lock took a page at that moment.
    assert "free disk space, or raise" in said or f"write permission in {disk.place}" in said
    assert files_of(disk.place) == before, "nothing is left of it, and nothing else was touched"


def files_of(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@KIND
def test_a_checkpoint_that_finds_no_room_leaves_the_one_before_it(kind: str, tmp_path: Path) -> None:
    def body(disk: BadDisk) -> None:
        policy = new_policy(TINY, seed=0, device=CPU)
        num_bytes = sum(tensor.nbytes for tensor in policy.network.state_dict().values())
        assert num_bytes > NUM_BYTES_LEFT

        def save(step: int) -> Path:
            state = TrainingState(step=step, optimiser={"state": {}, "param_groups": []}, controllers={}, facts={})
            return save_checkpoint(disk.place, policy, TINY, state, NETWORK_FORMAT)

        first = save(1)
        disk.spoil()
        refused(disk, lambda: save(2), disk.place / "step-00000002", at_least=num_bytes)
        assert checkpoint_folders(disk.place) == [first]
        verified_manifest(first)
        disk.mend()
        second = save(2)
        assert checkpoint_folders(disk.place) == [first, second]
        verified_manifest(second)

    on_bad_disk(kind, tmp_path / "disk", body)


@pytest.fixture(scope="module")
def language_policy() -> LanguagePolicy:
    return load_model(LanguageConfig(small=SmallModelConfig(width=64, num_layers=2, num_heads=2)), seed=0, device=CPU)


@KIND
def test_a_language_models_checkpoint_that_finds_no_room_is_refused_with_what_it_needs(
    kind: str, language_policy: LanguagePolicy, tmp_path: Path
) -> None:
    def body(disk: BadDisk) -> None:
        policy = language_policy
        num_bytes = sum(tensor.nbytes for tensor in policy.network.state_dict().values())
        assert num_bytes > ROOM_FOR_THE_TOKENIZER, "so that it is safetensors that finds no room"
        state = TrainingState(step=1, optimiser={"state": {}, "param_groups": []}, controllers={}, facts={})
        disk.spoil(ROOM_FOR_THE_TOKENIZER)

        def save() -> object:
            return save_checkpoint(disk.place, policy, PolicyConfig(kind="language"), state, LANGUAGE_FORMAT)

        refused(disk, save, disk.place / "step-00000001", at_least=num_bytes)

    on_bad_disk(kind, tmp_path / "disk", body)


@KIND
def test_an_output_that_finds_no_room_leaves_no_half_of_itself_and_can_be_made_later(kind: str, tmp_path: Path) -> None:
    num_bytes = 100_000
    table = pa.table({"noise": pa.array([os.urandom(100) for _ in range(num_bytes // 100)])})

    def body(disk: BadDisk) -> None:
        store = Store(disk.place, disk.place)

        def make(version: str) -> None:
            with store.making("boards", version) as making, making.filling({}) as folder:
                pq.write_table(table, folder / "boards.parquet")

        make("old")
        disk.spoil()
        # Where nothing at all can be written, its lock cannot be either, and nothing is known of what it would take.
        lock, known = disk.place / "progress" / "boards" / "new.lock", kind in ("full", "limited")
        refused(disk, lambda: make("new"), store.folder("boards", "new"), lock, at_least=NUM_BYTES_LEFT // 2 if known else 0)
        verified_manifest(store.folder("boards", "old"))
        assert store.find("boards", "new") is None
        disk.mend()
        make("new")
        assert pq.read_table(store.folder("boards", "new") / "boards.parquet").equals(table)

    on_bad_disk(kind, tmp_path / "disk", body)


@KIND
def test_a_record_that_finds_no_room_is_not_there_and_costs_no_other(kind: str, tmp_path: Path) -> None:
    def body(disk: BadDisk) -> None:
        store, facts = Store(disk.place, disk.place), {"texts": os.urandom(3 * NUM_BYTES_LEFT).hex()}
        store.create("runs/1/start.json", {})
        disk.spoil()
        known = kind in ("full", "limited")
        path = disk.place / "runs" / "1" / "end.json"
        refused(disk, lambda: store.create("runs/1/end.json", facts), path, at_least=3 * NUM_BYTES_LEFT if known else 0)
        assert store.read_all(["runs/1/start.json", "runs/1/end.json"]) == {"runs/1/start.json": {}}
        disk.mend()
        assert store.create("runs/1/end.json", facts)

    on_bad_disk(kind, tmp_path / "disk", body)


@KIND
def test_a_file_that_finds_no_room_for_its_new_content_keeps_the_old(kind: str, tmp_path: Path) -> None:
    def body(disk: BadDisk) -> None:
        path = disk.place / "report.json"
        replace_file(path, b"old")
        disk.spoil()
        content = os.urandom(3 * NUM_BYTES_LEFT)
        refused(disk, lambda: replace_file(path, content), path, at_least=len(content))
        assert path.read_bytes() == b"old"
        disk.mend()
        replace_file(path, content)
        assert path.read_bytes() == content

    on_bad_disk(kind, tmp_path / "disk", body)


@pytest.mark.parametrize("kind", ["full", "limited", "read-only"])  # A journal that is open to this user stays so.
def test_a_journal_that_finds_no_room_keeps_every_whole_line(kind: str, tmp_path: Path) -> None:
    def body(disk: BadDisk) -> None:
        machine = Machine(stockfish="", home=disk.place, tracking_uri="", device="cpu", num_threads=1)

        def at_work() -> Work:
            return Work(folder=disk.place / "output", progress_folder=disk.place, settings=Settings(), machine=machine)

        def go_on() -> None:
            for step in range(2, 2_000):
                work.log(Record(step, {"grpo/entropy": 1 / 3}))

        def steps() -> list[int]:
            return [row["record"]["step"] for row in read_journal(disk.place)]

        work = at_work()
        for step in range(2):
            work.log(Record(step, {}))
        disk.spoil()
        path = disk.place / HISTORY
        with pytest.raises(StorageError, match=rf"^{path} could not be written .*: it needs [\d,]+ bytes, and [\d,]+ bytes are free"):
            go_on()
        num_whole = len(steps())
        assert num_whole == 2 if kind == "read-only" else num_whole > 50
        assert steps() == list(range(num_whole)), "the torn line is left out"
        disk.mend()
        work = at_work()
        work.go_on_after(num_whole)
        work.log(Record(num_whole, {}))
        assert steps() == list(range(num_whole + 1))

    on_bad_disk(kind, tmp_path / "disk", body)


def test_the_bad_disk_is_bad(tmp_path: Path) -> None:
    errors = []
    for kind in KINDS:

        def body(disk: BadDisk) -> None:
            (disk.place / "before").write_bytes(bytes(3 * NUM_BYTES_LEFT))
            disk.spoil()
            try:
                (disk.place / "after").write_bytes(bytes(3 * NUM_BYTES_LEFT))
            except OSError as error:
                raise AssertionError(f"refused by {error.strerror}") from None

        with pytest.raises(pytest.fail.Exception) as caught:
            on_bad_disk(kind, tmp_path / kind, body)
        errors.append(str(caught.value).strip().rpartition("refused by ")[2])
    assert errors == ["No space left on device", "File too large", "Read-only file system", "Permission denied"]
