"""Promise 2: a full disk, a damaged output, a damaged or half-written checkpoint: a clear error or recomputation, nothing else lost."""

import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_disk import KINDS, NUM_BYTES_LEFT, BadDisk, on_bad_disk
from doubles import CPU, TINY
from made_run import do_run, forked, hashes, status_of
from pydantic import TypeAdapter
from tracked_runs import TrackedRun
from trainings import Driver, Result, goes_on, progress_of, steps_of

from grpo.base.files import StorageError, replace_file, verified_manifest
from grpo.metrics.records import Record
from grpo.policy.checkpoints import TrainingState, checkpoint_folders, save_checkpoint
from grpo.policy.policy import new_policy
from grpo.settings.tree import Settings
from steps.run.machine import Machine
from steps.run.store import Store
from steps.run.work import JOURNAL, Work, read_journal
from steps.track.publish import publish_all

NOISE = os.urandom(6 * NUM_BYTES_LEFT)
Write = Callable[[Path, int], object]
"""Writes something into a place, with a number from 0."""


def checkpoint(place: Path, number: int) -> None:
    policy = new_policy(TINY, seed=0, device=CPU)
    state = TrainingState(step=number, control={}, facts={}, tensors={})
    save_checkpoint(place, policy, state)
    for folder in checkpoint_folders(place):
        verified_manifest(folder)


def output(place: Path, number: int) -> None:
    with Store(place, place).making("boards", f"v{number}") as making, making.filling({}) as folder:
        (folder / "boards.parquet").write_bytes(NOISE)
    verified_manifest(Store(place, place).folder("boards", f"v{number}"))


def record(place: Path, number: int) -> None:
    store, facts = Store(place, place), {"texts": NOISE.hex()}
    store.create(f"runs/{number}/start.json", facts)
    assert store.read_all([key := f"runs/{number}/start.json"], TypeAdapter(dict[str, str])) == {key: facts}


def file(place: Path, number: int) -> None:
    replace_file(place / "report.json", content := NOISE + bytes([number]))
    assert (place / "report.json").read_bytes() == content


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [checkpoint, output, record, file])
def test_what_finds_no_room_leaves_nothing_of_itself_and_all_that_was_there_and_is_written_later(
    write: Write, kind: str, tmp_path: Path
) -> None:
    def body(disk: BadDisk) -> None:
        write(disk.place, 0)
        disk.spoil()
        before = files_of(disk.place)
        with pytest.raises(StorageError) as caught:
            write(disk.place, 1)
        said = str(caught.value)
        assert said.startswith(str(disk.place))
        assert "could not be written (" in said
        if kind in ("full", "limited"):
            [free] = re.findall(r"([\d,]+) bytes are free", said)
            assert int(free.replace(",", "")) == pytest.approx(disk.free(), rel=0.1, abs=4096), "its lock took a page at that moment"
        assert "free disk space, or raise" in said or f"write permission in {disk.place}" in said
        assert files_of(disk.place) == before
        disk.mend()
        write(disk.place, 1)

    on_bad_disk(kind, tmp_path / "disk", body)


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "locks" and path.name != "filling")
    return {str(path): path.read_bytes() for path in found}


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
        path = disk.place / JOURNAL
        with pytest.raises(StorageError, match=rf"^{path} could not be written .*: [\d,]+ bytes are free"):
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


def test_training_on_a_full_disk_loses_no_checkpoint_and_the_same_command_goes_on(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    status, log = driver.run(home, limit=[3, 60_000])
    assert status == 1
    target = progress_of(home) / "checkpoints" / "step-00000006"
    assert f"StorageError: {target} could not be written (File too large): " in log
    assert f"To resume from step 4, saved in {progress_of(home)}, run the same command again; after --fresh run `resume`" in log
    assert steps_of(home) == [2, 4]
    assert sorted(path.name for path in progress_of(home).iterdir()) == ["aside", "checkpoints"]
    goes_on(driver, home, whole())


def test_a_tracking_store_on_a_full_disk_is_one_line_and_no_traceback(here: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    TrackedRun(here).step("finetune", [Record(step, {"grpo/loss": step / 7}) for step in range(800)])
    size = (here.home / "mlflow.db").stat().st_size + 30_000

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        print(publish_all(here), flush=True)

    capfd.readouterr()
    assert status_of(forked(limited)) == 0
    said = capfd.readouterr()
    [line] = said.out.splitlines()
    assert "cannot be written" in line
    assert "Traceback" not in said.err


# Damage.


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def test_behind_a_damaged_checkpoint_the_one_before_it_is_taken_and_the_end_is_the_same(
    driver: Driver, whole: Callable[..., Result], home: Path
) -> None:
    assert driver.told_at(home, "before a minibatch's update", 13)[0] == 75
    saved = steps_of(home)
    newest = progress_of(home) / "checkpoints" / f"step-{saved[-1]:08}" / "state.safetensors"
    flip(newest)
    log = goes_on(driver, home, whole())
    assert f"WARNING: {newest} is changed since it was written; it is deleted" in log
    assert f"resuming from step {saved[-2]}," in log


def test_where_all_checkpoints_are_damaged_it_starts_anew_and_says_so(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    driver.kill_at(home, "before a minibatch's update", 10)
    for folder in (progress_of(home) / "checkpoints").iterdir():
        flip(folder / "state.safetensors")
    log = goes_on(driver, home, whole())
    assert log.count("WARNING") == 2
    assert f"no checkpoint in {progress_of(home)} can be resumed; training begins anew" in log


def test_a_checkpoint_whose_history_is_lost_is_not_gone_on_from(driver: Driver, whole: Callable[..., Result], home: Path) -> None:
    few = {"steps_per_checkpoint": 3}
    driver.kill_at(home, "before a minibatch's update", 14, grpo=few)
    journal = progress_of(home) / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:11], b"\0\0\0\n", *lines[12:]]))
    log = goes_on(driver, home, whole(**few), grpo=few)
    assert "is of a step that the journal does not have" in log
    assert "resuming from step 3," in log


def test_a_damaged_output_is_computed_again_by_the_same_command_and_nothing_else_is(
    runs_here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    run = do_run("1")
    made = run.output_of("baseline")
    assert made is not None
    flip(Store.of(runs_here).folder("baseline", made["version"]) / "result")
    capsys.readouterr()
    again = do_run("2")
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if "from 0" in line] == ["baseline from 0"]
    assert "result is changed" in said
    assert (again.status, hashes(again)) == ("finished", hashes(run))
