"""Whatever happens to a tracking store: in the end the one that a run belongs to has every row of it once, and no other has any."""

import sqlite3
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from made_runs import machine_of
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from ports import free_port
from tracked_runs import SETTINGS, TrackedRun, client_of, counts, curve, rows_of, told

from grpo.metrics.records import Record
from steps.names import RESULTS
from steps.pages.results import read_results
from steps.run.machine import Machine, sqlite_address
from steps.run.objects import StoreError
from steps.run.store import Store
from steps.track.client import TrackingStore
from steps.track.publish import Known, publish, publish_all

PARENT = "+191 Elo, better · default, seed 0"
BRIEF = "default, seed 0"


def test_a_run_is_there_with_parameters_curves_pages_and_its_verdict(here: Machine) -> None:
    run = TrackedRun(here)
    run.select()
    assert run.publish() == ""
    assert run.runs.unpublished() == []
    found = told(here.home)
    assert {step: Counter(rows_of(found, step)) for step in counts(run)} == counts(run)
    runs = found["runs"]
    assert runs.keys() == {PARENT, "04 pretrain", "07 finetune", "10 select", "11 report"}
    assert {run["status"] for run in runs.values()} == {"FINISHED"}
    parent = runs[PARENT]
    assert parent["tags"]["mlflow.note.content"].startswith("# Verdict: better")
    assert {"seed", "grpo.num_steps"} <= parent["params"].keys()
    assert parent["rows"]["curves/3 entropy"] == runs["07 finetune"]["rows"]["curves/3 entropy"]
    assert parent["rows"]["selection/verdict_elo"] == ["100 40.123456"], "a headline: once, and not rounded"
    assert parent["files"] == ["settings.json"]
    assert runs["11 report"]["files"] == ["report.md", "results.json"]
    assert found["aliases"] == {"chess-policy-default": {"peak": 1, "champion": 2}}


def test_the_dataset_is_an_input_and_a_parameter_of_the_run_and_the_registered_policies_name_it(here: Machine) -> None:
    files = {**SETTINGS, "boards": {**SETTINGS["boards"], "files": ["games/own.pgn"]}}
    run = TrackedRun(here, settings=files)
    run.step("join_boards")
    assert run.publish() == ""
    run.select()
    assert run.publish() == ""
    joined, reported = run.run.output_of("join_boards"), run.run.output_of("report")
    assert joined is not None
    assert reported is not None
    parent = told(here.home)["runs"][PARENT]
    assert parent["inputs"] == [("engine games", joined["output_hash"][:36])], "logged once"
    assert parent["params"]["dataset"] == joined["output_hash"]
    assert parent["params"]["boards.files"] == "own.pgn"
    trained_on = read_results(run.store.file(reported, RESULTS)).dataset.output_hash
    versions = client_of(here.home).search_model_versions("name = 'chess-policy-default'")
    assert {each.tags["chess_grpo.dataset"] for each in versions} == {trained_on}


def test_a_run_that_belongs_to_another_disk_creates_nothing_here(here: Machine, tmp_path: Path) -> None:
    run = TrackedRun(here, tracking=sqlite_address(tmp_path / "elsewhere" / "mlflow.db"))
    assert "is not on this machine" in run.publish()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("sqlite:///mlflow.db?timeout=9", "sqlite:////{}/mlflow.db?timeout=9"),
        ("sqlite:///./mlflow.db", "sqlite:////{}/mlflow.db"),
        ("file:mlruns", "file:///{}/mlruns"),
        ("sqlite:////shared/mlflow.db", "sqlite:////shared/mlflow.db"),
        ("file:///shared/mlruns", "file:///shared/mlruns"),
        ("http://host:5000", "http://host:5000"),
    ],
)
def test_a_relative_address_names_the_working_directory(given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each folder would have a database of its own."""
    (tmp_path / "50%").mkdir()
    monkeypatch.chdir(tmp_path / "50%")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert Machine.here().tracking_uri == meant.format(f"{tmp_path}/50%25".removeprefix("/"))


def test_the_environments_address_is_taken_where_it_differs_by_its_secrets_alone() -> None:
    machine = machine_of(Path("/home"), "http://me:secret@host/mlflow")
    assert TrackingStore.of_run("http://host/mlflow", machine)._uri == machine.tracking_uri
    assert TrackingStore.of_run("http://other/mlflow", machine)._uri == "http://other/mlflow"


ACCOUNTS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_AUTH")


@pytest.mark.parametrize("held", [*ACCOUNTS, "credentials"])
def test_an_account_goes_to_no_address_but_the_one_that_it_was_given_for(
    held: str, here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(TrackingStore, "client", property(lambda store: asked.append(store._uri)))
    monkeypatch.setenv("HOME", str(tmp_path))
    theirs = "http://theirs.org/mlflow"
    run = TrackedRun(here, tracking=theirs)
    if held == "credentials":
        (tmp_path / ".mlflow").mkdir()
        (tmp_path / ".mlflow" / held).write_text("[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = s3cret\n")
    else:
        monkeypatch.setenv(held, "s3cret")
    reason = run.publish()
    assert f"the account for the tracking store {theirs}, which the run belongs to, is missing" in reason
    assert f"Set MLFLOW_TRACKING_URI={theirs} and its account, then `chess-grpo track`" in reason
    assert "s3cret" not in reason
    assert asked == []
    assert [each.name for each in run.runs.unpublished()] == [run.name], "the rows wait"


def test_the_password_of_a_database_goes_to_no_other_database(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrackedRun(here, tracking="postgresql://theirs.org/mlflow")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    assert "PGPASSWORD is for sqlite:///" in run.publish()


def test_a_damaged_copy_in_the_store_of_outputs_is_not_told_as_a_fault_of_the_tracking_store(here: Machine) -> None:
    run = TrackedRun(here)
    run.step("finetune", curve("grpo/entropy", 3))
    with patch.object(Store, "open", side_effect=StoreError("s3://shop: S3 refuses (AccessDenied)")):
        assert run.publish() == "s3://shop: S3 refuses (AccessDenied)"


def test_metrics_of_other_code_are_logged_with_their_names(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: 0 of 120 rows were logged, and never again."""
    monkeypatch.setattr("steps.run.work.refuse_undeclared", lambda _: None)
    run = TrackedRun(here)
    run.step("finetune", [Record(step, {"grpo/entropie": 0.5, "grpo/loss": 0.25}) for step in range(12)])
    assert run.publish() == ""
    assert rows_of(told(here.home), "finetune")["grpo/entropie"] == 12
    assert Counter(rows_of(told(here.home), "finetune")) == counts(run)["finetune"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_step_that_begins_anew_as_another_version_is_another_curve_and_the_runs_own_is_that_of_the_version_that_finished(
    is_gone: bool, here: Machine
) -> None:
    """The rows of both were one curve, and the later rows of equal numbers were lost."""
    run = TrackedRun(here)
    run.work(first := run.begin("finetune"), [Record(step, {"grpo/entropy": 1.0}) for step in (1, 2, 3)])
    if not is_gone:
        first.end("failed", error="the loss is NaN")
    assert publish(run.run, run.store, here, task=("finetune", "")) == ""
    second = run.runs.begin(run.name, "finetune", "", "b" * 24)
    run.work(second, [Record(1, {"grpo/entropy": 0.5})])
    assert publish(run.run, run.store, here, task=("finetune", "")) == ""
    run.step("finetune", [Record(step, {"grpo/entropy": 0.5}) for step in (1, 2, 3, 4)], attempt=second)
    for again in (False, True):
        assert publish_all(here, again=again) == {"7": ""}
        client = client_of(here.home)
        found = {
            each.data.tags.get("chess_grpo.version", "parent"): (
                each.info.status,
                [(row.step, row.value) for row in client.get_metric_history(each.info.run_id, "curves/3 entropy")],
            )
            for each in client.search_runs(["1"])
        }
        latest = [(step, 0.5) for step in (1, 2, 3, 4)]
        assert found == {
            "parent": (found["parent"][0], latest),
            first.version: ("KILLED" if is_gone else "FAILED", [(step, 1.0) for step in (1, 2, 3)]),
            second.version: ("FINISHED", latest),
        }


def test_a_database_that_is_empty_again_gets_everything_when_it_is_asked_for(here: Machine, give_tables: Any, tmp_path: Path) -> None:
    run = TrackedRun(here)
    run.select()
    assert run.publish() == ""
    before = told(here.home)
    with sqlite3.connect(give_tables(tmp_path / "new") / "mlflow.db") as new, sqlite3.connect(here.home / "mlflow.db") as database:
        new.backup(database)
    assert publish_all(here) == {}
    assert publish_all(here, again=True) == {"7": ""}
    assert told(here.home) == before
    with sqlite3.connect(here.home / "mlflow.db") as database:  # As from a backup: the tags say that all is there.
        assert database.execute("DELETE FROM metrics WHERE step = 2").rowcount
    assert publish_all(here, again=True) == {"7": ""}
    assert told(here.home) == before


def test_a_slow_server_costs_a_start_its_limit_and_no_more(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = TrackedRun(here, "1", tracking="http://slow.org")
    release = threading.Event()
    monkeypatch.setattr("steps.track.publish._View.publish", lambda *_: "" * release.wait())
    assert publish_all(here, seconds=0.01) == {"1": "the tracking store http://slow.org is slow: not done within 0 s"}
    release.set()
    assert publish_all(here, seconds=600.0) == {"1": ""}
    monkeypatch.setattr("steps.track.publish._View.publish", lambda: "another number of arguments")
    with pytest.raises(TypeError):
        publish_all(here, runs=[slow.run], seconds=600.0)


def test_a_failed_run_says_what_happened_in_which_step(here: Machine) -> None:
    run = TrackedRun(here, launcher="")
    run.begin("pretrain").end("failed", error="the loss is NaN")
    run.runs.close_gone()
    run.publish()
    runs = told(here.home)["runs"]
    assert runs["04 pretrain"]["status"] == "FAILED"
    assert "the loss is NaN" in runs["04 pretrain"]["tags"]["mlflow.note.content"]
    note = runs[BRIEF]["tags"]["mlflow.note.content"]
    assert note.startswith("# Failed in `pretrain`\n\n> the loss is NaN")
    assert "resume --origin-run-id 7" in note


def test_rows_that_the_store_lost_after_a_call_that_succeeded_are_sent_before_the_step_is_called_logged(here: Machine) -> None:
    run, known = TrackedRun(here), Known()
    attempt = run.begin("finetune")
    run.work(attempt, curve("grpo/entropy", 6))
    assert publish(run.run, run.store, here, task=("finetune", ""), known=known) == ""
    with sqlite3.connect(here.home / "mlflow.db") as database:  # A server that answers before it has written.
        assert database.execute("DELETE FROM metrics WHERE step IN (2, 5)").rowcount > 4
    run.step("finetune", curve("grpo/entropy", 6), attempt=attempt)
    assert publish(run.run, run.store, here, task=("finetune", ""), known=known) == ""
    assert Counter(rows_of(told(here.home), "finetune")) == counts(run)["finetune"]


def test_long_texts_are_cut_to_what_every_store_takes(here: Machine) -> None:
    """B1: on PostgreSQL a tag of more than 8,000 characters refused the whole run."""
    files = [f"/data/games-{number}-{'x' * 80}.pgn" for number in range(200)]
    settings = {**SETTINGS, "boards": {**SETTINGS["boards"], "files": files}}
    command = "python flow " + " ".join(files)
    run = TrackedRun(here, settings=settings, command=command, head="## Configuration\n\n" + command)
    assert run.publish() == ""
    [parent] = told(here.home)["runs"].values()
    assert all(len(value) <= 8_000 for value in parent["tags"].values())
    assert all(len(value) <= 6_000 for value in parent["params"].values())


def test_a_refusal_is_told_as_one_and_the_rest_is_logged(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrackedRun(here)
    run.select()
    log_batch = MlflowClient.log_batch

    def refuse(self: MlflowClient, run_id: str, **given: Any) -> Any:
        if any(tag.key == "git.commit" for tag in given.get("tags", [])):
            raise MlflowException("(psycopg2.errors.StringDataRightTruncation) value too long for type", error_code=3)
        return log_batch(self, run_id, **given)

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    reason = run.publish()
    assert "refuses what describes run 7 (" in reason
    assert "does not answer" not in reason
    assert Counter(rows_of(told(here.home), "finetune")) == counts(run)["finetune"]
    assert [each.name for each in run.runs.unpublished()] == [run.name], "not all of it is there"


def test_a_home_with_any_characters_has_its_store_there(tmp_path: Path) -> None:
    home = tmp_path / "a?b c#d"
    machine = machine_of(home, sqlite_address(home / "mlflow.db"))
    assert TrackedRun(machine).publish() == ""
    assert (home / "mlflow.db").is_file()
    assert (home / "mlartifacts").is_dir()


def test_of_many_runs_a_store_that_is_away_is_asked_once(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    for name in ("1", "2", "3"):
        TrackedRun(here, name, tracking=away)
    TrackedRun(here, "4")
    asked: list[str] = []
    real = TrackingStore.of_run
    monkeypatch.setattr(TrackingStore, "of_run", lambda address, machine: asked.append(address) or real(address, machine))
    found = publish_all(here)
    assert found.keys() == {"1", "2", "3", "4"}
    assert found["4"] == ""
    assert all("does not answer" in found[name] for name in ("1", "2", "3"))
    assert Counter(asked) == {away: 1, here.tracking_uri: 1}
