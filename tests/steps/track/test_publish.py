"""Whatever happens to a tracking store: in the end the one that a run belongs to has every row of it once, and no other has any."""

import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import machine_of
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from toggled_server import Fault, ToggledServer
from tracked_runs import SETTINGS, TrackedRun, counts, curve, forget, told

from grpo.settings.metrics import Record
from steps.run.machine import Machine, sqlite_address
from steps.track import client as tracking_client
from steps.track import publish as publishing
from steps.track.client import TrackingStore
from steps.track.outages import TrackingAwayError
from steps.track.publish import Publisher, publish, publish_all

PARENT = "better +191 Elo, no ladder gain shown · default, seed 0"
BRIEF = "default, seed 0"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Path:
    """A tracking store with its tables and the experiment of a server."""
    folder = give_tables(tmp_path_factory.mktemp("tables"))
    with ToggledServer(folder) as server:
        assert TrackingStore(server.address).experiment
    return folder / "mlflow.db"


@pytest.fixture
def server(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToggledServer]:
    """Give a server that answers, whose clients wait long: a machine can be busy."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    monkeypatch.setattr(tracking_client, "_SHORT", "60")
    monkeypatch.setattr(tracking_client, "_SECONDS_FOR_FILES", 60)
    (tmp_path / "server").mkdir()
    shutil.copy(tables, tmp_path / "server" / "mlflow.db")
    with ToggledServer(tmp_path / "server") as made:
        yield made


@pytest.fixture
def here(tmp_path: Path, give_tables: Callable[[Path], Path]) -> Machine:
    """A machine with an SQLite store of its own."""
    home = give_tables(tmp_path / "home")
    return machine_of(home, sqlite_address(home / "mlflow.db"))


@pytest.fixture(scope="module")
def undisturbed(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a server has of a run without any outage."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(tables, folder / "mlflow.db")
    with ToggledServer(folder) as server:
        run = TrackedRun(machine_of(folder / "home", server.address))
        run.select()
        assert run.publish() == ""
        assert run.run.is_published
        rows = {step: Counter(run_rows(told(folder), step)) for step in counts(run)}
        assert rows == counts(run)
        return told(folder)


def run_rows(found: dict[str, Any], step: str) -> dict[str, int]:
    """Return metric -> number of its rows of a step, or of the parent."""
    [run] = [each for each in found["runs"].values() if each["tags"]["chess_grpo.step"] == step]
    return {name: len(points) for name, points in run["rows"].items()}


def small_library(tmp_path: Path) -> Path:
    """Return a folder with code."""
    (folder := tmp_path / "library" / "grpo").mkdir(parents=True)
    (folder / "__init__.py").write_text('"""Nothing."""\n')
    return folder


def test_a_run_is_there_with_parameters_curves_pages_and_its_verdict(undisturbed: dict[str, Any]) -> None:
    runs = undisturbed["runs"]
    assert runs.keys() == {PARENT, "04 pretrain", "07 finetune", "10 select", "11 report"}
    assert {run["status"] for run in runs.values()} == {"FINISHED"}
    parent = runs[PARENT]
    assert parent["tags"]["mlflow.note.content"].startswith("# Verdict: better")
    assert {"seed", "grpo.num_steps"} <= parent["params"].keys()
    assert parent["rows"]["curves/4 entropy"] == runs["07 finetune"]["rows"]["curves/4 entropy"]
    assert parent["rows"]["selection/verdict_elo"] == ["100 40.123456"], "a headline: once, and not rounded"
    assert parent["files"] == ["settings.json"]
    assert runs["11 report"]["files"] == ["report.md", "results.json"]
    assert undisturbed["aliases"] == {"chess-policy-default": {"peak": 1, "champion": 2}}


def test_what_is_published_again_changes_nothing_and_writes_nothing(here: Machine) -> None:
    run = TrackedRun(here)
    run.select()
    assert run.publish() == ""
    before = told(here.home)
    forget(run)
    assert run.publish() == ""
    assert told(here.home) == before
    assert publish_all(here) == {}, "all is logged"


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=[] if fault == Fault.LOST else pytest.mark.prove) for fault in Fault])
def test_when_every_call_fails_once_nothing_is_missing_and_nothing_twice(
    fault: Fault, server: ToggledServer, tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is done and not answered is also what a process leaves that is killed then."""
    if fault in (Fault.SILENT, Fault.LATE):
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        monkeypatch.setattr(tracking_client, "_SHORT", "1")
        monkeypatch.setattr(tracking_client, "_SECONDS_FOR_FILES", 1)
    # Of the many files of the library's code a few do.
    monkeypatch.setattr("steps.track.mlflow_model._LIBRARY", small_library(tmp_path))
    run, met = TrackedRun(machine_of(tmp_path / "home", server.address)), set[str]()
    run.select()

    def decide(number: int, call: str) -> Fault | None:
        which = call.partition(" #")[0] if call.startswith("PUT") else call  # Of a model's files some have the time in them.
        is_new = which not in met
        met.add(which)
        return fault if is_new else None

    server.fault = decide
    num_failed = 0
    while reason := run.publish():
        assert "does not answer" in reason
        num_failed += 1
    assert num_failed > 40
    server.fault = lambda *_: None
    assert told(server.folder) == undisturbed


@pytest.mark.parametrize("seed", [9, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(20) if seed != 9)])
def test_outages_of_any_length_while_the_run_works_leave_no_trace(
    seed: int, server: ToggledServer, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    rng, left, fault = random.Random(seed), 0, None

    def decide(number: int, call: str) -> Fault | None:
        nonlocal left, fault
        if not left:
            left = rng.randrange(1, 12)
            fault = rng.choice([None, None, *(each for each in Fault if each not in (Fault.SILENT, Fault.LATE))])
        left -= 1
        return fault

    run = TrackedRun(machine_of(tmp_path / "home", server.address))
    server.fault = decide
    attempt = run.begin("finetune")
    for count in range(1, 4):
        run.work(attempt, curve("grpo/entropy", count))
        run.publish()
    attempt.end("killed")
    run.publish()
    run.select()
    run.publish()
    server.fault = lambda *_: None
    assert run.publish() == ""
    assert told(server.folder) == undisturbed


def test_rows_go_to_the_store_that_the_run_belongs_to_or_nowhere(server: ToggledServer, here: Machine, tmp_path: Path) -> None:
    """U1: A is away, the environment names B, A comes back."""
    run = TrackedRun(replace(here, tracking_uri=server.address))
    run.work(attempt := run.begin("finetune"), curve("grpo/entropy", 2))
    assert run.publish() == ""
    server.stop()
    attempt.end("killed")
    run.select()
    other = replace(here, tracking_uri=here.tracking_uri)
    for _ in range(2):
        assert f"the tracking store {server.address} does not answer" in publish(run.run, run.store, other)
    assert told(here.home) == {"runs": {}, "aliases": {}}
    assert not run.run.is_published
    server.start()
    assert publish_all(other) == {"7": ""}
    found = told(server.folder)
    assert {step: Counter(run_rows(found, step)) for step in counts(run)} == counts(run)
    assert told(here.home) == {"runs": {}, "aliases": {}}


def test_a_run_that_belongs_to_another_disk_creates_nothing_here(here: Machine, tmp_path: Path) -> None:
    run = TrackedRun(here, tracking=sqlite_address(tmp_path / "elsewhere" / "mlflow.db"))
    assert "is not on this machine" in run.publish()
    assert not (tmp_path / "elsewhere").exists()


def test_the_environments_address_is_taken_where_it_differs_by_its_secrets_alone() -> None:
    machine = machine_of(Path("/home"), "http://me:secret@host/mlflow")
    assert TrackingStore.of_run("http://host/mlflow", machine)._uri == machine.tracking_uri
    assert TrackingStore.of_run("http://other/mlflow", machine)._uri == "http://other/mlflow"


@pytest.mark.parametrize("is_one_disk", [True, False])
def test_processes_that_publish_one_run_at_once_make_nothing_twice(is_one_disk: bool, here: Machine, tmp_path: Path) -> None:
    run = TrackedRun(here)
    run.select()
    reasons: list[str] = []

    def publish_once(number: int) -> None:
        # Of another machine are the lock files, and nothing else.
        machine = here if is_one_disk else replace(here, home=tmp_path / f"machine-{number}")
        reasons.append(publish(run.run, run.store, machine))

    threads = [threading.Thread(target=publish_once, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not is_one_disk:  # Who has lost its own parent to a double is refused, and begins again.
        forget(run)
        run.publish()
    else:
        assert reasons == [""] * 3
    found = told(here.home)
    assert len(found["runs"]) == 5
    assert {step: Counter(run_rows(found, step)) for step in counts(run)} == counts(run)
    assert found["aliases"] == {"chess-policy-default": {"peak": 1, "champion": 2}} or not is_one_disk


def test_a_killed_run_says_where_and_how_it_goes_on_and_later_has_every_row_once(here: Machine) -> None:
    run = TrackedRun(here)
    run.work(attempt := run.begin("finetune"), curve("grpo/entropy", 3))
    assert run.publish() == ""
    assert told(here.home)["runs"][BRIEF]["tags"]["mlflow.note.content"].startswith("**Running**, at `finetune`, step 7 of 11")
    attempt.end("killed", error={"what": "its process ended without a word", "remedy": ""})
    assert run.publish() == ""
    runs = told(here.home)["runs"]
    assert (runs["07 finetune"]["status"], len(runs["07 finetune"]["rows"]["curves/4 entropy"])) == ("KILLED", 3)
    run.step("finetune", curve("grpo/entropy", 5), attempt=run.runs.begin("7", "finetune", "", attempt.version))
    assert run.publish() == ""
    again = told(here.home)["runs"]["07 finetune"]
    assert (again["status"], len(again["rows"]["curves/4 entropy"])) == ("FINISHED", 5)


def test_a_failed_run_says_what_happened_in_which_step(here: Machine) -> None:
    run = TrackedRun(here, launcher="")
    run.begin("pretrain").end("failed", error={"what": "the loss is NaN", "remedy": "set pretrain.learning_rate"})
    run.runs.close_gone()
    run.publish()
    runs = told(here.home)["runs"]
    assert runs["04 pretrain"]["status"] == "FAILED"
    assert "the loss is NaN" in runs["04 pretrain"]["tags"]["mlflow.note.content"]
    if run.run.status == "failed":
        note = runs[BRIEF]["tags"]["mlflow.note.content"]
        assert note.startswith("# Failed in `pretrain`\n\n> the loss is NaN")
        assert "resume --origin-run-id 7" in note


def test_a_machine_that_goes_on_from_anothers_progress_logs_each_row_once(here: Machine) -> None:
    run = TrackedRun(here)
    run.work(attempt := run.begin("finetune"), curve("grpo/entropy", 4))
    assert run.publish() == ""
    attempt.end("killed")
    progress = here.home / "progress" / "finetune" / attempt.version
    shutil.rmtree(progress)  # The other one has what was saved last: here nothing. It says every line anew, at its own times.
    run.step("finetune", curve("grpo/entropy", 6), attempt=run.runs.begin("7", "finetune", "", attempt.version))
    assert run.publish() == ""
    assert Counter(run_rows(told(here.home), "finetune")) == counts(run)["finetune"]


def test_rows_that_the_store_has_lost_are_found_by_counting_and_sent_again(here: Machine) -> None:
    run = TrackedRun(here)
    run.step("finetune", curve("grpo/entropy", 6))
    assert run.publish() == ""
    before = told(here.home)
    with sqlite3.connect(here.home / "mlflow.db") as database:
        assert database.execute("DELETE FROM metrics WHERE step IN (2, 5)").rowcount > 4
    forget(run)
    assert run.publish() == ""
    assert told(here.home) == before


def test_long_texts_are_cut_to_what_every_store_takes_and_are_there_as_files(here: Machine) -> None:
    """B1: on PostgreSQL a tag of more than 8,000 characters refused the whole run."""
    files = [f"/data/games-{number}-{'x' * 80}.pgn" for number in range(200)]
    settings = {**SETTINGS, "boards": {**SETTINGS["boards"], "files": files}}
    command = "python flow " + " ".join(files)
    run = TrackedRun(here, settings=settings, command=command, label="preset " * 100, head="## Configuration\n\n" + command)
    assert run.publish() == ""
    [parent] = told(here.home)["runs"].values()
    limits = {"mlflow.runName": 250}
    assert all(len(value) <= limits.get(name, 8_000) for name, value in parent["tags"].items())
    assert all(len(value) <= 6_000 for value in parent["params"].values())
    assert {"whole/chess_grpo.command.txt", "whole/mlflow.note.content.txt"} <= set(parent["files"])


def test_a_refusal_is_told_as_one_and_the_rest_is_logged(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrackedRun(here)
    run.step("finetune", curve("grpo/entropy", 3))
    log_batch = MlflowClient.log_batch

    def refuse(self: MlflowClient, run_id: str, **given: Any) -> Any:
        if any(tag.key == "git.commit" for tag in given.get("tags", [])):
            raise MlflowException("(psycopg2.errors.StringDataRightTruncation) value too long for type", error_code=3)
        return log_batch(self, run_id, **given)

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    reason = run.publish()
    assert "refuses the tag git.commit (" in reason
    assert "does not answer" not in reason
    runs = told(here.home)["runs"]
    assert Counter(run_rows({"runs": runs}, "finetune")) == counts(run)["finetune"]
    assert "chess_grpo.command" in runs[BRIEF]["tags"]


def in_a_process(machine: Machine, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Publish all runs in a process of its own."""
    code = (
        "import sys; sys.path[:0] = sys.argv[3:]\n"
        "from pathlib import Path; from made_runs import machine_of; from steps.track.publish import publish_all\n"
        "print(publish_all(machine_of(Path(sys.argv[1]), sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(machine.home), machine.tracking_uri, *sys.path]
    return subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=limit)


def test_a_home_with_any_characters_has_its_store_there_and_nowhere_else(tmp_path: Path) -> None:
    """B5."""
    home = tmp_path / "a?b%20c#d" / "e%"
    machine = machine_of(home, sqlite_address(home / "mlflow.db"))
    TrackedRun(machine).select()
    assert in_a_process(machine).stdout.splitlines()[-1] == "{'7': ''}"
    assert [path.name for path in tmp_path.iterdir()] == ["a?b%20c#d"]
    assert (home / "mlflow.db").is_file()
    assert (home / "mlartifacts").is_dir()


def test_a_full_disk_is_one_line_and_no_traceback(here: Machine) -> None:
    """F7."""
    TrackedRun(here).step("finetune", [Record(step, {"grpo/loss": step / 7}) for step in range(3_000)])
    size = (here.home / "mlflow.db").stat().st_size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50_000, size + 50_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = in_a_process(here, limit)
    [line] = done.stdout.splitlines()
    assert "cannot be written" in line
    assert "Traceback" not in done.stderr, done.stderr


def test_rows_are_logged_while_the_step_works_and_a_store_that_is_away_costs_one_line(
    server: ToggledServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("_SECONDS_BETWEEN", "_SECONDS_AFTER_OUTAGE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(publishing, name, 0.02)
    machine = machine_of(tmp_path / "home", server.address)
    run = TrackedRun(machine)
    attempt = run.begin("finetune")
    publisher = Publisher(machine, attempt)
    publisher.start()
    run.work(attempt, curve("grpo/entropy", 3))
    while "curves/4 entropy" not in told(server.folder)["runs"].get("07 finetune", {"rows": {}})["rows"]:
        pass
    server.stop()
    said = ""
    while "WARNING" not in said:
        said += capfd.readouterr().out
        assert publisher.is_alive()
    assert f"finetune: WARNING: not logged to MLflow yet (the tracking store {server.address} does not answer (" in said
    run.step("finetune", curve("grpo/entropy", 6), attempt=attempt)
    publisher.finish(600.0)
    assert "WARNING" not in capfd.readouterr().out, "said once"
    server.start()
    assert publish_all(machine) == {"7": ""}
    assert Counter(run_rows(told(server.folder), "finetune")) == counts(run)["finetune"]


def test_a_server_that_never_answers_does_not_hold_up_the_step(
    server: ToggledServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "600")
    server.fault = lambda *_: Fault.SILENT
    machine = machine_of(tmp_path / "home", server.address)
    run = TrackedRun(machine)
    attempt = run.begin("finetune")
    publisher = Publisher(machine, attempt)
    publisher.start()
    run.step("finetune", curve("grpo/entropy", 6), attempt=attempt)
    publisher.finish(0.1)
    assert "it did not finish within" in capsys.readouterr().out
    server.fault = lambda *_: None
    server.release()
    publisher.join()
    assert run.publish() == ""


def test_of_many_runs_a_store_that_is_away_is_asked_once(here: Machine, server: ToggledServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1", "2", "3"):
        TrackedRun(here, name, tracking=server.address)
    TrackedRun(here, "4")
    server.stop()
    asked: list[str] = []
    real = TrackingStore.of_run
    monkeypatch.setattr(TrackingStore, "of_run", lambda address, machine: asked.append(address) or real(address, machine))
    found = publish_all(here)
    assert found.keys() == {"1", "2", "3", "4"}
    assert found["4"] == ""
    assert all("does not answer" in found[name] for name in ("1", "2", "3"))
    assert Counter(asked) == {server.address: 1, here.tracking_uri: 1}


def test_a_store_is_asked_again_while_a_task_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("steps.track.client.time.sleep", slept.append)
    store = TrackingStore.of(replace(machine_of(Path("/home"), "http://127.0.0.1:9"), task="7/screen/1"))

    def fail() -> None:
        raise OSError("gone")

    with pytest.raises(TrackingAwayError, match="does not answer"):
        store.ask("a question", fail)
    assert slept == [1.0, 2.0, 4.0, 8.0]
