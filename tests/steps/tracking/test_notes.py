"""What the tracking store's pages say, and that telling it twice, late or in the wrong order leaves what telling it once does."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo.base.errors import PlainError
from grpo.settings.tree import preset_names, read_settings
from steps.pipeline.job import Job
from steps.pipeline.run_step import run_step
from steps.runtime.machine import Machine
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work
from steps.store.outputs import Store
from steps.tracking import notes
from steps.tracking.delivery import Delivery
from steps.tracking.journal import Journal, Reader
from steps.tracking.launch import FLOW_FILE, launch_of
from steps.tracking.tags import NOTE
from steps.tracking.tracker import Tracker


@pytest.mark.parametrize("preset", preset_names())
def test_a_runs_settings_come_back_from_the_text_that_its_page_shows(preset: str) -> None:
    settings = read_settings(f'preset = "{preset}"\nseed = 7\ngrpo.learning_rate = 0.0123').model_dump(mode="json")
    assert read_settings(launch_of(settings).text).model_dump(mode="json") == settings


def test_no_page_is_longer_than_the_store_takes() -> None:
    assert len(notes.experiment_note()) < 5_000
    assert len(notes.failed("x" * 20_000, metaflow_run="7", step="select", why="no")) < 8_000


@pytest.fixture
def machine(tmp_path: Path, give_tables: Callable[[Path], Path]) -> Machine:
    home = give_tables(tmp_path / "home")
    return Machine(stockfish="", home=home, tracking_uri=f"sqlite:///{home / 'mlflow.db'}", device="cpu", num_threads=1)


def begin(machine: Machine) -> tuple[Tracker, Job]:
    tracker = Tracker(machine)
    run = tracker.start_flow_run(metaflow_run="7", settings={}, tags={}, note="began", files={"settings.toml": "seed = 1"})
    code = {"commit": "abc", "is_dirty": False, "lock": "l"}
    return tracker, Job(settings={}, code=code, metaflow_run="7", mlflow_run=run, is_fresh=False, origin=None, story="## Configuration")


def parent(tracker: Tracker, job: Job) -> Any:
    return tracker.client.get_run(job["mlflow_run"])


def deliver(tracker: Tracker, machine: Machine, job: Job, *records: Mapping[str, Any], times: int = 1) -> None:
    """Tell records as often as is said, each time from the beginning."""
    journal = tracker.journals.begin(job["mlflow_run"], "test")
    for record in records:
        journal.append(**record)
    for _ in range(times):
        journal.save(Reader.MLFLOW, {})
        Delivery(journal, tracker, Store(machine.home)).run(is_over=False)
    journal.close()


def test_what_a_run_says_of_itself_is_there_once_though_it_is_told_three_times(machine: Machine) -> None:
    tracker, job = begin(machine)
    page = {"note": "under way", "time": 5}
    file = {"is_parent": True, "name": "settings.json", "folder": None, "content": "e30="}
    begun = {"key": "7/pretrain/abc", "step": "pretrain", "tags": {}, "time": 5}
    data = {"digest": "d" * 64, "source": "file:///b", "name": "boards", "profile": {"num_rows": 3}}
    kinds = {"begin": begun, "story": page, "file": file, "dataset": data}
    deliver(tracker, machine, job, *({"kind": kind, **facts} for kind, facts in kinds.items()), times=3)
    told = parent(tracker, job)
    assert told.data.tags[NOTE] == "under way"
    [logged] = told.inputs.dataset_inputs
    assert json.loads(logged.dataset.profile) == {"num_rows": 3}
    assert [file.path for file in tracker.client.list_artifacts(job["mlflow_run"])] == ["settings.json", "settings.toml"]
    [made] = tracker.search("tags.`chess_grpo.step` = 'pretrain'")
    assert made.info.run_name == "04 pretrain"


def test_a_page_that_was_written_earlier_and_is_told_later_replaces_none(machine: Machine) -> None:
    tracker, job = begin(machine)
    for time, note in ((6, "# Verdict"), (5, "under way")):
        deliver(tracker, machine, job, {"kind": "story", "note": note, "time": time})
    assert parent(tracker, job).data.tags[NOTE] == "# Verdict"


class MendableError(PlainError, RuntimeError):
    """An error for people."""


@pytest.mark.parametrize(
    ("error", "said", "unsaid"),
    [
        (MendableError("the disk is full: make room"), "the disk is full: make room", "MendableError"),
        (ValueError("secret-4711"), f"ValueError; the task's log has the message: `python {FLOW_FILE} logs 7/pretrain`", "secret-4711"),
    ],
)
def test_a_failed_runs_page_says_where_and_why_and_how_to_go_on_until_it_does(
    error: Exception, said: str, unsaid: str, machine: Machine
) -> None:
    tracker, job = begin(machine)

    def step(body: Callable[[Work], None]) -> None:
        run_step(job, machine, StepSpec(name="pretrain", body="steps.step_io.work"), settings={}, inputs={}, work=body)

    def fail(work: Work) -> None:
        assert "**Running**, at `pretrain`, step 4 of 11." in page_when_told(tracker, machine, job)
        raise error

    with pytest.raises(type(error)):
        step(fail)
    told = parent(tracker, job)
    page = told.data.tags[NOTE]
    assert page.startswith("# Failed in `pretrain`")
    assert f"> {said}" in page
    assert f"`python {FLOW_FILE} --no-pylint resume --origin-run-id 7`" in page
    assert page.endswith("## Configuration")
    [child] = tracker.search("tags.`chess_grpo.step` = 'pretrain'")
    assert said in child.data.tags[NOTE]
    assert unsaid not in page + child.data.tags[NOTE]
    assert (told.info.status, child.info.status) == ("FAILED", "FAILED")

    def work_well(work: Work) -> None:
        (work.folder / "weights").write_text("x")

    step(work_well)
    told = parent(tracker, job)
    assert (told.info.status, told.data.tags[NOTE].partition(",")[0]) == ("RUNNING", "**Running**")
    assert tracker.end_flow_run(job["mlflow_run"], {}, "# Verdict: better") == 0
    assert parent(tracker, job).data.tags[NOTE] == "# Verdict: better"


def page_when_told(tracker: Tracker, machine: Machine, job: Job) -> str:
    """Return the parent's page once all is told that is in its journals, whoever tells it."""
    waiting = [line.row for path in tracker.journals.folder.glob("*/*.jsonl") for line in Journal(path).entries()]
    pages = [record["note"] for record in waiting if record["kind"] == "story"]
    return str(pages[-1]) if pages else str(parent(tracker, job).data.tags[NOTE])
