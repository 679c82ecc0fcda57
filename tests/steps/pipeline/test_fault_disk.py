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
from grpo.engine.identity import EngineIdentity
from grpo.language.model.loading import LANGUAGE_FORMAT, load_model
from grpo.language.model.policy import LanguagePolicy
from grpo.learning.checkpoints import NETWORK_FORMAT, TrainingState, latest_valid_checkpoint, save_checkpoint
from grpo.metrics.table import Record
from grpo.policy.distribution import new_policy
from grpo.settings.language import LanguageConfig, SmallModelConfig
from grpo.settings.tree import PolicyConfig
from steps.pipeline.make_output import make_output
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Work, read_journal
from steps.store.outputs import Store

KIND = pytest.mark.parametrize("kind", KINDS)
ROOM_FOR_THE_TOKENIZER = 64 << 10
ENGINE = EngineIdentity(name="Scripted 1", sha256="0" * 64)


def refused(disk: BadDisk, write: Callable[[], object], target: Path, *, at_least: int) -> None:
    """Check that writing ends in the error that says what is needed and what is free, and leaves what was there as it was."""
    before = files_of(disk.place)
    with pytest.raises(StorageError) as caught:
        write()
    said = str(caught.value)
    assert said.startswith(f"{target} could not be written (")
    *needed, free = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) bytes", said))
    assert not at_least if not needed else needed[0] >= at_least
    assert free == pytest.approx(disk.free(), rel=0.1)
    assert "free disk space, or raise" in said or f"write permission in {disk.place}" in said
    assert files_of(disk.place) == before, "nothing is left of it, and nothing else was touched"


def files_of(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size if path.is_file() else -1 for path in folder.rglob("*")}


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
        assert latest_valid_checkpoint(disk.place) == (first, [])
        disk.mend()
        second = save(2)
        assert latest_valid_checkpoint(disk.place) == (second, [])

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
        store = Store(disk.place)

        def make(version: str) -> object:
            terminal = TerminalSink("boards", (), lambda text: None)

            def work(work: Work) -> None:
                pq.write_table(table, work.folder / "boards.parquet")

            return make_output(store, "boards", version, facts={}, body=work, resumes=False, is_fresh=False, sinks=(), terminal=terminal)

        make("old")
        disk.spoil()
        # Where nothing at all can be written, nothing is known of what it would take.
        known = kind in ("full", "limited")
        refused(disk, lambda: make("new"), store.folder("boards", "new"), at_least=NUM_BYTES_LEFT // 2 if known else 0)
        verified_manifest(store.folder("boards", "old"))
        assert store.find("boards", "new") is None
        disk.mend()
        make("new")
        assert pq.read_table(store.folder("boards", "new") / "boards.parquet").equals(table)

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
        journal = disk.place / "history.jsonl"
        work = Work(disk.place, (), progress_folder=disk.place)
        work.resume_after([Record(0, {})])
        work.record(Record(1, {}))
        disk.spoil()

        def go_on() -> None:
            for step in range(2, 2_000):
                work.record(Record(step, {"grpo/entropy": 1 / 3}))

        with pytest.raises(StorageError, match=rf"^{journal} could not be written .*: it needs [\d,]+ bytes, and [\d,]+ bytes are free"):
            go_on()
        num_whole = len(work.history()) - 1
        assert num_whole == 2 if kind == "read-only" else num_whole > 50
        assert [record.step for record in read_journal(disk.place)] == list(range(num_whole)), "the torn line is left out"
        disk.mend()
        whole = read_journal(disk.place)
        again = Work(disk.place, (), progress_folder=disk.place)
        again.resume_after(whole)
        again.record(Record(num_whole, {}))
        assert read_journal(disk.place) == [*whole, Record(num_whole, {})]

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
