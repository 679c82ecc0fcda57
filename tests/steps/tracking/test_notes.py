"""What the tracking store's pages say, and that telling it twice, late or in the wrong order leaves what telling it once does."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grpo.base.errors import PlainError
from grpo.base.files import write_json
from grpo.dataset.table import BOARD_SCHEMA
from grpo.metrics.table import METRICS
from grpo.settings.roles import compared_settings
from grpo.settings.tree import preset_names, read_settings
from steps.pipeline.job import Job
from steps.pipeline.run_step import run_step
from steps.runtime.machine import Machine
from steps.step_io.names import FINDINGS, HISTORY
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work
from steps.store.outputs import Store
from steps.tracking import notes
from steps.tracking.dataset_schema import dataset_columns
from steps.tracking.delivery import Delivery
from steps.tracking.journal import Journal, Reader
from steps.tracking.launch import FLOW_FILE, Launch, launch_of
from steps.tracking.step_notes import STEP_NOTES, headlines, run_name
from steps.tracking.tags import NOTE
from steps.tracking.tracker import Tracker

FOUND = {
    "name": "kl_trap",
    "severity": "critical",
    "evidence": ["KL 0.001 at steps 3 to 9"],
    "cause": "The anchor holds the policy.",
    "remedy": "Set grpo.kl_coefficient = 0.",
    "page": "docs/diagnosis.md#kl_trap",
}


def settings_of(text: str) -> dict[str, Any]:
    return read_settings(text).model_dump(mode="json")


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize(
    "more", ["", "seed = 7\ngrpo.learning_rate = 0.0123\nboards.games.nodes = [1, 2]\ngrpo.self_play.repetition = 'ignored'"]
)
def test_a_runs_settings_come_back_from_the_text_that_its_page_shows(preset: str, more: str) -> None:
    settings = settings_of(f'preset = "{preset}"\n{more}')
    assert settings_of(launch_of(settings).text) == settings


def test_a_setting_that_must_be_taken_away_is_written_in_a_language_with_a_word_for_nothing() -> None:
    launch = Launch(preset="clean", differences={"seed": 3, "boards.filters.min_rating": None}, seed=3)
    assert json.loads(launch.text) == {"preset": "clean", "seed": 3, "boards": {"filters": {"min_rating": None}}}
    assert read_settings(launch.text).boards.filters.min_rating is None


@pytest.mark.parametrize("preset", preset_names())
def test_parameters_are_short_and_typed_and_none_of_them_is_nothing(preset: str) -> None:
    settings = settings_of(preset)
    settings["boards"]["games"]["nodes"] = list(range(100, 200))
    found = compared_settings(settings)
    assert all(0 < len(value) <= 60 for value in found.values())
    assert found["boards.games.nodes"] == "100 ... 199 (100)"
    assert float(found["grpo.learning_rate"]) == settings["grpo"]["learning_rate"]
    assert found["grpo.mirrors_boards"] in ("true", "false")
    assert not [name for name in found if name.startswith(("resources.", "boards.num_tasks"))]
    assert not {"None", "null", "", "[]"} & set(found.values())


def test_the_experiments_page_names_every_group_and_unit_and_fits() -> None:
    note = notes.experiment_note("1")
    assert len(note) < 5_000
    lines = note.splitlines()
    for spec in METRICS.values():
        [row] = [line for line in lines if line.startswith(f"| `{spec.name.partition('/')[0]}/` |")]
        assert spec.unit in row


def test_children_sort_by_name_in_the_order_in_which_they_run() -> None:
    names = [run_name(step) for step in STEP_NOTES]
    assert names == sorted(names)
    assert [name.partition(" ")[2] for name in names] == list(STEP_NOTES)


def test_every_headline_is_a_declared_metric() -> None:
    for chapter in STEP_NOTES.values():
        assert set(chapter.headlines) <= METRICS.keys()


def finetuned(folder: Path) -> Path:
    folder.mkdir()
    rows = [{"step": 0, "heldout/regret_best": 0.234567}, {"step": 1, "grpo/entropy": 1.5}, {"step": 2, "grpo/entropy": 1.25}]
    rows += [{"step": 2, "heldout/regret_best": 0.125}]
    (folder / HISTORY).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_headlines_have_the_regret_before_training_and_the_number_of_findings(tmp_path: Path) -> None:
    folder = finetuned(tmp_path / "finetune")
    assert headlines("finetune", folder) == {"run/regret_before": 0.2346}, "as many digits as a column shows"
    (folder / FINDINGS).parent.mkdir()
    write_json(folder / FINDINGS, {"verdict": "findings", "findings": [FOUND, FOUND]})
    assert headlines("finetune", folder)["run/findings"] == 2
    write_json(folder / FINDINGS, {"verdict": "healthy", "findings": [FOUND | {"name": "healthy"}]})
    assert headlines("finetune", folder)["run/findings"] == 0


def test_no_page_is_longer_than_the_store_takes() -> None:
    assert len(notes.failed("x" * 20_000, metaflow_run="7", step="select", why="no")) < 8_000


def test_every_column_of_the_dataset_has_a_word_of_mlflow() -> None:
    columns = dataset_columns(BOARD_SCHEMA)
    assert [column["name"] for column in columns] == BOARD_SCHEMA.names
    assert columns[0] == {"name": "fen", "type": "string", "required": True}
    unknown = pa.schema([pa.field("when", pa.date32())])
    with pytest.raises(ValueError, match="has no type"):
        dataset_columns(unknown)


# What the store holds.


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
    data = {"digest": "d" * 64, "source": "file:///b", "profile": {"num_rows": 3}, "schema": dataset_columns(BOARD_SCHEMA)}
    kinds = {"begin": begun, "story": page, "file": file, "dataset": data}
    deliver(tracker, machine, job, *({"kind": kind, **facts} for kind, facts in kinds.items()), times=3)
    told = parent(tracker, job)
    assert told.data.tags[NOTE] == "under way"
    [logged] = told.inputs.dataset_inputs
    assert json.loads(logged.dataset.schema)["mlflow_colspec"][0] == {"name": "fen", "type": "string", "required": True}
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


def test_a_page_that_a_person_has_written_stays_and_one_of_ours_is_brought_up_to_date(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, _ = begin(machine)
    client, experiment = tracker.client, tracker.experiment

    def page() -> str:
        return str(client.get_experiment(experiment).tags[NOTE])

    assert page() == notes.experiment_note(experiment)
    monkeypatch.setattr("steps.tracking.client.experiment_note", lambda experiment: "a newer text")
    tracker.describe_experiment()
    assert page() == "a newer text"
    client.set_experiment_tag(experiment, NOTE, "a person's")
    monkeypatch.undo()
    tracker.describe_experiment()
    assert page() == "a person's"
