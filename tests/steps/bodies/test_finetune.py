"""The loop around the trainer, within one process: what is kept, what is told, how it ends. Kills are in test_kills.py."""

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from listeners import Listener
from made_training import SETTINGS, tiny_trainer, trained

from grpo.base.errors import NonFiniteError
from grpo.learning.checkpoints import checkpoint_folders, checkpoint_step, verified_manifest
from grpo.learning.trainer import GrpoTrainer
from grpo.metrics.table import Event, Record
from grpo.settings.grpo import GrpoConfig
from steps.runtime.exit_codes import RESUMABLE
from steps.runtime.sigterm import Terminated, terminable
from steps.step_io.names import HISTORY
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Work, read_history, read_journal
from steps.store.outputs import BusyError, Store


def finetuned(
    home: Path,
    said: list[str],
    listener: Listener | None = None,
    *,
    change: Callable[[GrpoTrainer], None] = lambda trainer: None,
    **changes: Any,
) -> Path:
    """Return the output of a tiny fine-tuning."""
    config = GrpoConfig(**{**SETTINGS, **changes})
    trainer = tiny_trainer(config)
    change(trainer)
    return trained(home, trainer, config, said=said, shown=("heldout/regret_best",), sinks=() if listener is None else (listener,))


def failing_at(step: int, error: BaseException) -> Callable[[GrpoTrainer], None]:
    """Return a change of a trainer after which it fails at a step."""

    def change(trainer: GrpoTrainer) -> None:
        whole = trainer.step

        def failing() -> Record:
            if trainer.num_steps_done + 1 == step:
                raise error
            return whole()

        trainer.step = failing  # type: ignore[method-assign]

    return change


# The loop.


def test_a_run_leaves_history_report_and_the_checkpoints_that_are_kept(tmp_path: Path) -> None:
    folder = finetuned(tmp_path, [])
    history = read_history(folder)
    assert [record.step for record in history] == list(range(7))
    assert [record.step for record in history if "heldout/regret_best" in record.metrics] == [0, 2, 4, 6]
    assert [checkpoint_step(path) for path in checkpoint_folders(folder / "checkpoints")] == [2, 4, 6]
    for path in checkpoint_folders(folder / "checkpoints"):
        verified_manifest(path)
    report = json.loads((folder / "report.json").read_text())
    assert (report["reason"], report["first_step"], report["last_step"]) == ("budget_spent", 0, 6)
    assert not any("time/" in name for record in history for name in record.metrics), "what differs between equal runs"
    assert not (tmp_path / "in_progress" / "finetune" / "v1").exists()


def test_of_many_checkpoints_the_best_and_the_newest_are_kept(tmp_path: Path) -> None:
    folder = finetuned(tmp_path, [], num_steps=10, steps_per_checkpoint=1, num_checkpoints_kept=3, learning_rate=5e-3)
    regrets = {record.step: record.metrics["heldout/regret_best"] for record in read_history(folder) if record.step}
    kept = [checkpoint_step(path) for path in checkpoint_folders(folder / "checkpoints")]
    assert len(kept) == 3
    assert kept[-1] == 10
    assert min(regrets.values()) in {regrets[step] for step in kept}


def test_an_error_keeps_the_checkpoints_and_says_so_and_the_terminal_hears_nothing_twice(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(NonFiniteError) as caught:
        finetuned(tmp_path, said, change=failing_at(6, NonFiniteError("spoilt")))
    place = tmp_path / "in_progress" / "finetune" / "v1"
    assert str(caught.value) == f"spoilt\nThe same command again, without --fresh, resumes from step 5, which is saved in {place}"
    assert not (tmp_path / "outputs" / "finetune" / "v1").exists()
    assert [record.step for record in read_journal(place)] == [0, 1, 2, 3, 4, 5]
    listener = Listener()
    again: list[str] = []
    folder = finetuned(tmp_path, again, listener)
    assert again[0] == f"finetune: resuming from step 5, which is saved in {place}"
    assert [line for line in again if "regret_best" in line] == [line for line in again if line.startswith("finetune: step 6: ")]
    recorded = [record for record in listener.records if not any(name.startswith("time/") for name in record.metrics)]
    assert recorded == read_history(folder)
    assert verified_manifest(folder)["output_hash"] == verified_manifest(finetuned(tmp_path / "whole", []))["output_hash"]


def test_told_to_end_it_leaves_with_the_code_and_what_the_step_had_changed_is_taken_back(tmp_path: Path) -> None:
    def change(trainer: GrpoTrainer) -> None:
        whole = trainer.step

        def told() -> Record:
            record = whole()
            if record.step == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return record

        trainer.step = told  # type: ignore[method-assign]

    with pytest.raises(SystemExit) as caught:
        finetuned(tmp_path, [], change=change)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert caught.value.code == RESUMABLE == 75
    said: list[str] = []
    folder = finetuned(tmp_path, said)
    assert said[0].startswith("finetune: resuming from step 4,")
    assert verified_manifest(folder)["output_hash"] == verified_manifest(finetuned(tmp_path / "whole", []))["output_hash"]


# Being told to end.


def test_the_handler_is_there_in_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with terminable() as check:
        assert signal.getsignal(signal.SIGTERM) is not before
        check()
    assert signal.getsignal(signal.SIGTERM) is before


def test_told_once_it_is_raised_and_the_second_time_would_leave_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Terminated), terminable():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_a_destructor_swallows_is_raised_at_the_next_check() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Terminated), terminable() as check:  # noqa: PT012
            with suppress(Terminated):
                os.kill(os.getpid(), signal.SIGTERM)
            check()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_beside_the_main_thread_nothing_is_installed() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def run() -> None:
        with terminable() as check:
            check()
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


# History, journal, events.


def test_events_are_in_the_history_and_on_the_terminal(tmp_path: Path) -> None:
    said: list[str] = []
    work = Work(tmp_path, (), terminal=TerminalSink("finetune", (), said.append))
    plain, warned = Record(11, {"grpo/loss": 0.5}), Record(12, {"grpo/loss": 0.25}, (Event("entropy_critical", "0.1 of 0.15"),))
    for record in (plain, warned):
        work.record(record)
    work.write_history()
    assert read_history(tmp_path) == [plain, warned]
    assert [json.loads(line).get("events") for line in (tmp_path / HISTORY).read_text().splitlines()] == [
        None,
        [{"name": "entropy_critical", "message": "0.1 of 0.15"}],
    ]
    assert said == ["finetune: step 12: entropy_critical: 0.1 of 0.15"]


@pytest.mark.parametrize(
    "torn", [b"", b'{"step": 3, "grpo/l', b"\0\0\0\0\n", b'{"grpo/loss": 1}\n', b"[]\n", b"\xff\n", b'{"step": 3, "no/such": 1}\n']
)
def test_a_journal_is_read_up_to_the_first_torn_line(torn: bytes, tmp_path: Path) -> None:
    work = Work(tmp_path / "out", (), progress_folder=tmp_path)
    records = [Record(step, {"grpo/loss": step / 3}) for step in range(3)]
    for record in records:
        work.record(record)
    with (tmp_path / HISTORY).open("ab") as file:
        file.write(torn)
    assert read_journal(tmp_path) == records
    again = Work(tmp_path / "out", (), progress_folder=tmp_path)
    again.resume_after(records[:2])
    again.record(records[2])
    assert read_journal(tmp_path) == records
    assert (tmp_path / HISTORY).read_bytes().count(b"\n") == 3


# The progress folder.


def test_a_progress_folder_is_one_writers_alone_and_the_other_versions_are_free(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.progressing("finetune", "v1", is_fresh=False) as progress:
        (progress.folder / "half").write_text("x")
        holder = rf"finetune, version v1, is being made by process {os.getpid()} on"
        with pytest.raises(BusyError, match=holder), store.progressing("finetune", "v1", is_fresh=True):
            pass
        assert (progress.folder / "half").exists()
        with store.progressing("finetune", "v2", is_fresh=False):
            pass


def test_what_is_left_of_a_finished_output_is_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.progressing("finetune", "v1", is_fresh=False) as progress:
        (progress.folder / "half").write_text("x")
    store.forget_progress("finetune", "v1")
    assert progress.folder.exists(), "no output yet"
    with store.writing("finetune", "v1", {}):
        pass
    store.forget_progress("finetune", "v1")
    assert not progress.folder.exists()
