"""The journal of a step at work: its content after kills and torn lines, and what each listener gets."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from made_work import Listener

from grpo.base.files import CorruptError
from grpo.metrics.records import Event, Record
from grpo.settings.tree import Settings
from steps.names import HISTORY
from steps.run.machine import Machine
from steps.run.work import JOURNAL, Work, read_history, read_journal, record_of

RECORDS = [Record(step, {"grpo/entropy": 1 / (step + 3), "grpo/loss": -0.1}) for step in range(4)]
WARNED = Record(4, {"grpo/loss": 0.25}, (Event("entropy_critical", "0.1 of 0.15"),))


def at_work(tmp_path: Path, **given: Any) -> Work:
    """Return the work of a new process that goes on in the same progress folder."""
    for name in ("progress", "output"):
        (tmp_path / name).mkdir(exist_ok=True)
    machine = Machine(stockfish="", home=tmp_path, tracking_uri="", device="cpu", num_threads=1)
    return Work(folder=tmp_path / "output", progress_folder=tmp_path / "progress", settings=Settings(), machine=machine, **given)


def say(work: Work, records: Iterable[Record]) -> None:
    for record in records:
        work.log(record)
        work.log(Record(record.step, {"time/rollout": record.step / 7}), is_aside=True)


def journal(tmp_path: Path) -> list[tuple[int, bool]]:
    return [(row["record"]["step"], row["aside"]) for row in read_journal(tmp_path / "progress")]


def test_the_history_gives_back_every_record_to_the_last_bit_and_nothing_of_what_is_aside(tmp_path: Path) -> None:
    listeners = Listener(), Listener()
    work = at_work(tmp_path, listeners=listeners)
    say(work, [*RECORDS, WARNED])
    work.progress(5, 9, "steps")
    work.write_history()
    assert read_history(tmp_path / "output") == [*RECORDS, WARNED] == list(work.history())
    assert "time" not in (tmp_path / "output" / HISTORY).read_text()
    assert (tmp_path / "output" / JOURNAL).read_bytes() == (tmp_path / "progress" / JOURNAL).read_bytes()
    for listener in listeners:
        assert listener.progresses == [(5, 9, "steps")]
        assert [record for record in listener.records if "time/rollout" not in record.metrics] == [*RECORDS, WARNED]


def test_after_a_kill_the_journal_is_cut_to_where_the_step_goes_on_and_each_line_is_the_same_again(tmp_path: Path) -> None:
    say(at_work(tmp_path), RECORDS[:3])
    before = (tmp_path / "progress" / JOURNAL).read_bytes().splitlines()
    work = at_work(tmp_path)
    assert list(work.history()) == RECORDS[:3]
    work.go_on_after(0)
    assert list(work.history()) == RECORDS[:1]
    assert (tmp_path / "progress" / JOURNAL).read_bytes().splitlines() == before[:2]
    say(work, RECORDS[1:])
    times = [row["time"] for row in read_journal(tmp_path / "progress")]
    assert times[:6] == [json.loads(line)["time"] for line in before], "of a killed run that is logged later nothing is missing"
    assert journal(tmp_path) == [(step, is_aside) for step in range(4) for is_aside in (False, True)]
    assert list(work.history()) == RECORDS


@pytest.mark.parametrize(
    "torn",
    [
        b'{"aside": false, "record": {"st',
        b"\0\0\0\0\n",
        b'{"time": 1, "aside": false, "record": {}}\n',
        b'{"aside": false, "record": {"grpo/loss": 0.5, "step": 3}, "time": 1}\n',
    ],
)
def test_a_journal_counts_up_to_the_first_torn_line_and_the_rest_goes(torn: bytes, tmp_path: Path) -> None:
    say(at_work(tmp_path), RECORDS[:3])
    path = tmp_path / "progress" / JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert len(read_journal(tmp_path / "progress")) == 6
    work = at_work(tmp_path)
    work.go_on_after(2)
    assert path.read_bytes() == whole
    say(work, RECORDS[3:])
    assert path.read_bytes().startswith(whole)
    assert len(journal(tmp_path)) == 8
    assert list(work.history()) == RECORDS


@pytest.mark.parametrize("at", [3, 60, -30])
def test_a_digit_that_flips_in_the_journal_is_noticed(at: int, tmp_path: Path) -> None:
    """R12: a step that goes on after a kill would else write another history under the same version."""
    say(at_work(tmp_path), RECORDS)
    path = tmp_path / "progress" / JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(number for number in range(at % len(lines[4]), len(lines[4])) if lines[4][number : number + 1].isalnum())
    lines[4] = lines[4][:place] + bytes([lines[4][place] ^ 1]) + lines[4][place + 1 :]
    path.write_bytes(b"".join(lines))
    assert len(read_journal(tmp_path / "progress")) == 4
    assert list(at_work(tmp_path).history()) == RECORDS[:2]


def test_records_of_other_code_are_read_with_their_names_as_they_are(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_text('{"step": 3, "no/such": 1, "events": [{"name": "unheard of", "message": "it happened"}]}\n')
    assert read_history(tmp_path) == [Record(3, {"no/such": 1}, (Event("unheard of", "it happened"),))]
    for foreign in (
        "[]",
        "{}",
        '{"step": "3"}',
        '{"step": 3, "a": "b"}',
        '{"step": 3, "events": [{"name": 1, "message": ""}]}',
        '{"step": 3, "events": 1}',
    ):
        (tmp_path / HISTORY).write_text(f"{foreign}\n")
        with pytest.raises(CorruptError, match=HISTORY):
            read_history(tmp_path)


def test_a_metric_that_is_not_declared_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no/such"):
        at_work(tmp_path).log(Record(1, {"no/such": 1.0}))


def test_what_a_step_that_begins_anew_does_not_say_again_is_in_no_history(tmp_path: Path) -> None:
    say(at_work(tmp_path), RECORDS)
    work = at_work(tmp_path)
    say(work, RECORDS[:2])
    work.write_history()
    assert read_history(tmp_path / "output") == RECORDS[:2]


def test_what_is_observed_is_told_to_those_who_listen_again_after_a_kill_too_and_is_in_no_file(tmp_path: Path) -> None:
    def observe(record: Record) -> tuple[Event, ...]:
        return (Event("finding", "critical: nan_steps: seen"),) if record.step == 1 else ()

    def found(listener: Listener) -> list[int]:
        return [record.step for record in listener.records if record.events]

    first, second = Listener(), Listener()
    say(at_work(tmp_path, listeners=(first,), observe=observe), RECORDS[:2])
    work = at_work(tmp_path, listeners=(second,), observe=observe)
    work.go_on_after(1)
    assert found(first) == found(second) == [1]
    assert not any(record_of(row["record"]).events for row in read_journal(tmp_path / "progress"))
