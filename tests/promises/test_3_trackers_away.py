"""Promise 3: MLflow or W&B away at start, in the middle, at the end, for good: training goes on, and all is logged later, once."""

import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from canary import files_with
from made_run import COUNT, STEPS, do_run, rows_logged
from made_runs import machine_of
from toggled_server import Fault, ToggledServer
from tracked_runs import TrackedRun, counts, curve, rows_of, told
from wandb_doubles import WandbServer

from steps.run.machine import OFF, OFFLINE, ONLINE, Machine
from steps.run.records import Attempt
from steps.track import client as tracking_client
from steps.track import sender
from steps.track import wandb as mirroring
from steps.track.client import TrackingStore
from steps.track.publish import publish, publish_all
from steps.track.sender import journal_of
from steps.track.trackers import publisher_of
from steps.track.wandb import mirror_of

KEY = "0123456789abcdef" * 2 + "01234567"
OWN = ("_step", "_runtime", "_timestamp", "step")
"""Names that W&B, or the mirror, adds to a row of metrics."""


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
    (tmp_path / "server").mkdir()
    shutil.copy(tables, tmp_path / "server" / "mlflow.db")
    with ToggledServer(tmp_path / "server") as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(tables, folder / "mlflow.db")
    with ToggledServer(folder) as server:
        run = TrackedRun(machine_of(folder / "home", server.address))
        run.select()
        assert run.publish() == ""
        assert run.runs.unpublished() == []
        rows = {step: Counter(rows_of(told(folder), step)) for step in counts(run)}
        assert rows == counts(run)
        return told(folder)


def small_library(tmp_path: Path) -> Path:
    (folder := tmp_path / "library" / "grpo").mkdir(parents=True)
    (folder / "__init__.py").write_text('"""Nothing."""\n')
    return folder


@pytest.mark.parametrize("seed", [9, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(20) if seed != 9)])
def test_outages_of_any_length_while_the_run_works_leave_no_trace(
    seed: int, server: ToggledServer, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    rng, left, fault = random.Random(seed), 0, None

    def decide(number: int, call: str) -> Fault | None:
        nonlocal left, fault
        if not left:
            left = rng.randrange(1, 12)
            fault = rng.choice([None, None, *(each for each in Fault if each != Fault.SILENT)])
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


def test_a_token_that_is_not_accepted_costs_nothing_and_with_the_right_one_every_row_is_there_once(
    server: ToggledServer, tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steps.track.mlflow_model._LIBRARY", small_library(tmp_path))
    run, server.token = TrackedRun(machine_of(tmp_path / "home", server.address)), "s3cret-t0ken"
    run.select()
    for token in ("", "wrong-token"):
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)
        assert "does not accept the account (401: who are you?): set MLFLOW_TRACKING_USERNAME" in run.publish()
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", server.token)
    assert run.publish() == ""
    assert told(server.folder) == undisturbed
    assert files_with(tmp_path, server.token) == [], "not in what the run leaves, and not in the store"


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
    assert [each.name for each in run.runs.unpublished()] == [run.name]
    server.start()
    assert publish_all(other) == {"7": ""}
    found = told(server.folder)
    assert {step: Counter(rows_of(found, step)) for step in counts(run)} == counts(run)
    assert told(here.home) == {"runs": {}, "aliases": {}}


def test_rows_are_logged_while_the_step_works(
    server: ToggledServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sender, "_SECONDS_BETWEEN", 0.02)
    run = TrackedRun(machine_of(tmp_path / "home", server.address))
    attempt = run.begin("finetune")
    publisher = publisher_of(run.machine, attempt)
    publisher.start()
    run.work(attempt, curve("grpo/entropy", 3))
    while "curves/3 entropy" not in told(server.folder)["runs"].get("07 finetune", {"rows": {}})["rows"]:
        pass
    run.step("finetune", curve("grpo/entropy", 6), attempt=attempt)
    publisher.seconds_at_end = 600.0
    publisher.finish()
    assert "WARNING" not in capsys.readouterr().out
    assert Counter(rows_of(told(server.folder), "finetune")) == counts(run)["finetune"]


def test_lines_that_are_said_again_after_a_kill_are_logged_once_though_their_times_are_others(
    server: ToggledServer, tmp_path: Path
) -> None:
    run = TrackedRun(machine_of(tmp_path / "home", server.address))
    attempt = run.begin("finetune")
    publisher = publisher_of(run.machine, attempt)
    publisher.is_over.set()  # Each call sends once.
    run.work(attempt, curve("grpo/entropy", 6))
    publisher.run()
    run.seconds = 2.0
    for count in (0, 2, 4):
        run.work(attempt, curve("grpo/entropy", count))
        publisher.run()
        if not count:  # As a new process, of the same try or of another.
            publisher = publisher_of(run.machine, attempt)
            publisher.is_over.set()
    run.step("finetune", curve("grpo/entropy", 7), attempt=attempt)
    publisher.run()
    assert Counter(rows_of(told(server.folder), "finetune")) == counts(run)["finetune"]


def test_a_server_that_never_answers_does_not_hold_up_the_step(
    server: ToggledServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "600")
    server.fault = lambda *_: Fault.SILENT
    machine = machine_of(tmp_path / "home", server.address)
    run = TrackedRun(machine)
    attempt = run.begin("finetune")
    publisher = publisher_of(machine, attempt)
    publisher.start()
    run.step("finetune", curve("grpo/entropy", 6), attempt=attempt)
    publisher.seconds_at_end = 0.1
    publisher.finish()
    assert "it did not finish within" in capsys.readouterr().out
    server.fault = lambda *_: None
    server.release()
    publisher.join()
    assert run.publish() == ""


def test_away_for_a_whole_run_it_costs_each_step_a_line_and_later_every_row_is_there_once(
    runs_here: Machine, server: ToggledServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    server.stop()
    assert do_run("1").status == "finished"
    assert capsys.readouterr().out.count("WARNING") == len(STEPS)
    server.start()
    assert publish_all(replace(runs_here, tracking_uri=server.address)) == {"1": ""}
    assert rows_logged(server.folder) == [list(range(COUNT))] * len(STEPS)


# W&B: online runs log to a server of our own (`wandb_doubles`).


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "BASE_URL", "PROJECT", "ENTITY", "MODE", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setattr(sender, "_SECONDS_BETWEEN", 0.05)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    import wandb

    wandb.teardown()  # It keeps the address of the server of the test before.
    return replace(machine_of(tmp_path, "http://127.0.0.1:9"), mirror=OFFLINE)


def mirrored(run: TrackedRun, attempt: Attempt, work: Callable[[], Any]) -> None:
    mirror = mirror_of(run.machine, attempt)
    assert mirror is not None
    mirror.start()
    try:
        work()
    finally:
        mirror.seconds_at_end = 600.0
        mirror.finish()


def assert_whole(server: WandbServer, run: TrackedRun) -> None:
    """Assert that a server has one run, with each line of the journal once."""
    [found] = server.runs.values()
    [((step, _), attempt)] = run.run.latest().items()
    rows = journal_of(attempt, run.store)
    assert sorted(found["rows"]) == list(range(len(rows)))
    for number, row in enumerate(rows):
        told, expected = found["rows"][number], {name: value for name, value in row["record"].items() if name != "step"}
        assert {name: float(value) for name, value in told.items() if name not in OWN} == pytest.approx(expected, nan_ok=True)
        assert told["step"] == row["record"]["step"]
    assert (found["exit_code"], server.num_again) == (0, 0)
    assert (found["groupName"], found["jobType"], found["displayName"]) == ("7", step, f"7/{step}")


def synchronised(run: TrackedRun, monkeypatch: pytest.MonkeyPatch, folders: str) -> None:
    """Upload the one folder that is there, as people do, and assert that it is whole."""
    [folder] = (run.machine.home / "wandb").glob(folders)
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        command = [Path(sys.executable).with_name("wandb"), "sync", "--no-skip-online", folder]
        subprocess.run(command, check=True, capture_output=True, cwd=run.machine.home)
        assert_whole(server, run)


def test_two_tries_of_a_step_are_one_run_with_every_line_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        run = TrackedRun(replace(machine, mirror=ONLINE))
        first = run.begin("finetune")
        mirrored(run, first, lambda: (run.work(first, curve("grpo/entropy", 2)), first.end("killed")))
        second = run.runs.begin(run.name, "finetune", "", first.version)
        mirrored(run, second, lambda: run.step("finetune", curve("grpo/entropy", 4), attempt=second))
    assert_whole(server, run)


def test_a_step_that_begins_anew_as_another_version_is_another_run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        run = TrackedRun(replace(machine, mirror=ONLINE))
        first = run.begin("finetune")
        mirrored(run, first, lambda: (run.work(first, curve("grpo/entropy", 2)), first.end("failed")))
        second = run.runs.begin(run.name, "finetune", "", "b" * 24)
        mirrored(run, second, lambda: run.step("finetune", curve("grpo/entropy", 4), attempt=second))
    assert [found["exit_code"] for found in server.runs.values()] == [1, 0]
    del server.runs[next(iter(server.runs))]
    assert_whole(server, run)


def test_a_server_that_is_silent_or_gone_costs_the_step_a_line(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with WandbServer() as server:
        server.is_silent = True
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setattr(mirroring, "_SECONDS_TO_BEGIN", 1.0)
        run = TrackedRun(replace(machine, mirror=ONLINE))
        attempt = run.begin("report")
        mirrored(run, attempt, lambda: run.step("report", curve("grpo/entropy", 4), attempt=attempt))
    assert f"report: saved offline for W&B; upload it by: wandb sync {run.machine.home}/wandb/offline-run-*\n" in capsys.readouterr().out
    synchronised(run, monkeypatch, "offline-run-*")


def test_a_server_that_goes_away_in_the_middle_costs_the_step_a_line_and_its_folder_has_every_row(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(mirroring, "_SECONDS_AT_END", 2.0)
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        run = TrackedRun(replace(machine, mirror=ONLINE))
        attempt = run.begin("finetune")

        def lose_it() -> None:
            run.work(attempt, curve("grpo/entropy", 2))
            while not server.runs:
                time.sleep(0.05)
            server.__exit__()
            run.step("finetune", curve("grpo/entropy", 4), attempt=attempt)

        mirrored(run, attempt, lose_it)
    said = capsys.readouterr().out
    assert "finetune: WARNING: not logged to W&B yet (TimeoutError" in said
    assert "upload it by: wandb sync" in said
    synchronised(run, monkeypatch, "run-*")


def test_it_is_off_by_default_and_where_offline_files_would_be_lost(machine: Machine) -> None:
    run = TrackedRun(machine)
    attempt = run.begin("finetune")
    for of in (replace(machine, mirror=OFF), replace(machine, is_container=True)):
        assert mirror_of(of, attempt) is None
