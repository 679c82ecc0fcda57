"""An outage of the tracking store, whenever and however long, stops no step; afterwards the store holds what it would have held without.

The store is MLflow's own, behind HTTP, and its faults are real ones on the wire; `toggled_server` says which there are.
"""

import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from toggled_server import Fault, ServerProcess, ToggledServer, free_port

from grpo.base.files import StorageError, sha256_file
from grpo.metrics.table import Record
from steps.cli.track import deliver_journals
from steps.pipeline import evaluation
from steps.pipeline.job import Job
from steps.pipeline.run_step import run_step
from steps.preflight.checks import preflight
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work
from steps.store.objects import FolderObjects
from steps.store.outputs import StepOutput, Store
from steps.tracking import client as tracking_store
from steps.tracking import tracker as tracking
from steps.tracking.client import EXPERIMENT
from steps.tracking.delivery import Delivery
from steps.tracking.journal import DeliveryProgress, Journal, JournalFolder
from steps.tracking.outages import RetryPolicy, TrackingAwayError, is_refusal
from steps.tracking.registry import MODEL, Choice, Chosen, Registry
from steps.tracking.step_notes import run_name, step_note
from steps.tracking.tags import CHILD, NOTE, NOTE_TIME, PEAK_STEP
from steps.tracking.tracker import ChildRun, Tracker

STUBBORN = RetryPolicy(between_tries=(0.0,) * 300, between_asks=(0.0,) * 3, at_end=600.0, at_failure=600.0)
"""Tries at once and again: what it meets is over as soon as it was met."""
BRISK = RetryPolicy(between_deliveries=0.0, after_outage=0.0, longest=0.0, between_tries=(), between_asks=(), at_end=600.0)
"""Gives up at the first outage, and tries again with the next record."""
NAME = "7"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Path:
    """A tracking store with its tables and the experiment."""
    folder = give_tables(tmp_path_factory.mktemp("tables"))
    with ToggledServer(folder) as server:
        Tracker(server_machine(server, folder / "home"))
    return folder / "mlflow.db"


def server_machine(server: ToggledServer | ServerProcess, home: Path) -> Machine:
    return Machine(stockfish="none", home=home, tracking_uri=server.address, device="cpu", num_threads=1)


@pytest.fixture
def server(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToggledServer]:
    """Give a server that answers, whose clients wait long: a machine can be busy."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    monkeypatch.setattr(tracking_store, "_SECONDS_FOR_A_FILE", 0.0)
    (tmp_path / "server").mkdir()
    shutil.copy(tables, tmp_path / "server" / "mlflow.db")
    with ToggledServer(tmp_path / "server") as made:
        yield made


@pytest.fixture
def machine(server: ToggledServer, tmp_path: Path) -> Machine:
    return server_machine(server, tmp_path / "home")


@pytest.fixture
def retry_policy(monkeypatch: pytest.MonkeyPatch) -> Callable[[RetryPolicy], None]:
    return lambda chosen: monkeypatch.setattr(tracking, "RetryPolicy", lambda: chosen)


class Run:
    """A small run: a parent, a step whose output is kept whole, a step that chooses champion and peak, and the end."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def start(self) -> Job:
        settings = {"seed": 0, "grpo": {"num_steps": 3}}
        run = Tracker(self.machine).start_flow_run(
            metaflow_run=NAME, settings=settings, tags={"git.commit": "abc"}, note="a run", files={"settings.json": "{}"}
        )
        code = {"commit": "abc", "is_dirty": False, "lock": "l"}
        return Job(settings=settings, code=code, metaflow_run=NAME, mlflow_run=run, is_fresh=False, origin=None, story="asked for")

    def pretrain(self, job: Job, body: Callable[[Work], None] | None = None) -> StepOutput:
        def publish(folder: Path, child: ChildRun) -> None:
            columns = [{"name": "fen", "type": "string", "required": True}]
            child.dataset(digest="d" * 64, source="file:///boards", profile={"rows": 3}, schema=columns)
            child.headline({"imitation/top1": 0.5, "imitation/validation_loss": float("nan")})
            child.tag({"chess_grpo.dataset": "d"})
            child.note("# Boards")
            child.file(folder / "deep", "again")

        return run_step(
            job,
            self.machine,
            StepSpec(name="pretrain", body="steps.step_io.work"),
            settings={},
            inputs={},
            work=body or write,
            publish=publish,
        )

    def select(self, job: Job, pretrained: StepOutput) -> StepOutput:
        def publish(folder: Path, child: ChildRun) -> None:
            card = self.machine.home / "card.md"
            card.write_text("made for this, and gone at once")
            child.file(card)
            card.unlink()
            child.tag_flow_run({PEAK_STEP: 2, "chess_grpo.verdict": "better"})
            child.choose(chosen(job["mlflow_run"]))

        inputs = {"pretrained": pretrained["output_hash"]}
        return run_step(
            job,
            self.machine,
            StepSpec(name="select", body="steps.step_io.work"),
            settings={},
            inputs=inputs,
            work=write_choice,
            publish=publish,
        )

    def end(self, job: Job) -> int:
        return Tracker(self.machine, must_answer=False).end_flow_run(job["mlflow_run"], {"chess_grpo.verdict": "better"}, "# Verdict")

    def whole(self) -> int:
        """Do all of it, and return how many records wait when it has ended."""
        job = self.start()
        self.select(job, self.pretrain(job))
        return self.end(job)


def write(work: Work) -> None:
    (work.folder / "deep" / "er").mkdir(parents=True)
    (work.folder / "deep" / "er" / "weights").write_bytes(bytes(range(256)) * 40)
    (work.folder / "deep" / "report.json").write_text("{}")
    (work.folder / "empty").write_text("")
    for step in range(1, 4):
        work.record(Record(step, {"grpo/entropy": 1.0 / step, "grpo/reward_mean": float("nan") if step == 2 else 0.5}))


def write_choice(work: Work) -> None:
    for alias in (PEAK, CHAMPION):
        (work.folder / alias).mkdir()
        (work.folder / alias / "weights").write_text(alias)
    work.record(Record(2, {"selection/score_best": 0.6}))


def chosen(flow_run: str, *, is_beaten: bool = False, seen: int | None = None) -> Chosen:
    peak = Choice(policy_step=2, initial_weights="w", low=0.55)
    return Chosen(flow_run=flow_run, description="better", peak=peak, champion=replace(peak, low=None), is_beaten=is_beaten, seen=seen)


def picture(folder: Path) -> dict[str, Any]:
    """Return all that a server keeps in its folder of the experiment and the registry, but for ids and times; it is not asked."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:

        def asked(question: str, *given: Any) -> list[tuple[Any, ...]]:
            return store.execute(question, given).fetchall()

        runs = asked("SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active'")
        names = {run_id: f"<{name}>" for run_id, name, _ in runs}

        def named(text: str) -> str:
            for run_id, name in names.items():
                text = text.replace(run_id, name)
            return text

        def told(tags: list[tuple[Any, ...]]) -> dict[str, str]:
            kept = {name: named(value) for name, value in tags if not name.startswith("mlflow.artifact") and name != NOTE_TIME}
            if CHILD in kept:
                kept[CHILD] = "/".join(part if len(part) != 12 else "*" for part in kept[CHILD].split("/"))
            if "chess_grpo.peak" in kept:
                kept["chess_grpo.peak"] = kept["chess_grpo.peak"].partition(":")[0]
            return kept

        def metrics(run_id: str) -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            question = "SELECT key, step, CASE is_nan WHEN 1 THEN 'nan' ELSE value END FROM metrics WHERE run_uuid = ?"
            for key, step, value in sorted(asked(question, run_id), key=str):
                found.setdefault(key, []).append(f"{step} {value}")
            return found

        def files(run_id: str) -> dict[str, str]:
            roots = list((folder / "files").glob(f"*/{run_id}/artifacts"))
            paths = [(root, path) for root in roots for path in root.rglob("*") if path.is_file()]
            return {path.relative_to(root).as_posix(): sha256_file(path) for root, path in paths}

        datasets = "SELECT digest FROM datasets JOIN inputs ON dataset_uuid = source_id WHERE destination_id = ?"
        versions = "SELECT version, run_id, source FROM model_versions WHERE name = ? AND current_stage != 'Deleted_Internal'"
        version_tags = "SELECT key, value FROM model_version_tags WHERE name = ? AND version = ?"
        return {
            "runs": sorted(
                (
                    {
                        "name": name,
                        "status": status,
                        "tags": told(asked("SELECT key, value FROM tags WHERE run_uuid = ?", run_id)),
                        "params": dict(asked("SELECT key, value FROM params WHERE run_uuid = ?", run_id)),
                        "metrics": metrics(run_id),
                        "datasets": [digest for (digest,) in asked(datasets, run_id)],
                        "artifacts": files(run_id),
                    }
                    for run_id, name, status in runs
                ),
                key=lambda run: (str(run["name"]), str(run["status"])),
            ),
            "versions": [
                {"number": str(number), "tags": told(asked(version_tags, MODEL, number)), "run": named(run_id), "folder": Path(source).name}
                for number, run_id, source in sorted(asked(versions, MODEL))
            ],
            "aliases": dict(asked("SELECT alias, version FROM registered_model_aliases WHERE name = ?", MODEL)),
        }


@pytest.fixture(scope="module")
def undisturbed(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a store holds after a run without any outage."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(tables, folder / "mlflow.db")
    with ToggledServer(folder) as server:
        assert Run(server_machine(server, folder / "home")).whole() == 0
        found = picture(server.folder)
    assert not files_of(folder / "home"), "nothing is kept of what was told"
    return found


def files_of(home: Path) -> list[str]:
    return sorted(path.relative_to(home).as_posix() for path in (home / "outbox").rglob("*") if path.is_file())


def test_the_undisturbed_run_is_all_there(undisturbed: dict[str, Any]) -> None:
    pretrain, select, parent = sorted(undisturbed["runs"], key=lambda run: str(run["name"]))
    assert [run["name"] for run in (parent, pretrain, select)] == [NAME, "04 pretrain", "10 select"]
    assert {run["status"] for run in undisturbed["runs"]} == {"FINISHED"}
    assert parent["params"] == {"seed": "0", "grpo.num_steps": "3"}
    assert parent["tags"]["chess_grpo.champion"] == "champion is version 2 now"
    assert pretrain["metrics"]["grpo/reward_mean"] == ["1 0.5", "2 nan", "3 0.5"]
    assert {"deep/er/weights", "again/er/weights", "empty", "manifest.json", "history.jsonl"} <= pretrain["artifacts"].keys()
    assert pretrain["datasets"] == parent["datasets"] == ["d" * 32]
    assert parent["metrics"] == {
        "imitation/top1": ["0 0.5"],
        "imitation/validation_loss": ["0 nan"],
        "selection/score_best": ["0 0.6"],
    }
    assert parent["tags"][NOTE] == "# Verdict"
    assert parent["artifacts"].keys() == {"settings.json"}
    assert select["tags"][NOTE].startswith(step_note("select"))
    assert "card.md" in select["artifacts"]
    assert undisturbed["aliases"] == {PEAK: 1, CHAMPION: 2}
    assert [version["folder"] for version in undisturbed["versions"]] == [PEAK, CHAMPION]


def failing_once(server: ToggledServer, fault: Fault) -> None:
    """Let each call that differs from all before it fail, and pass when it is made again."""
    met: set[str] = set()

    def decide(number: int, call: str) -> Fault | None:
        if call in met:
            return None
        met.add(call)
        return fault

    server.fault = decide


ALL_FAULTS = [pytest.param(fault, marks=[] if fault == Fault.LOST else pytest.mark.prove) for fault in Fault]


@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_when_every_call_fails_once_nothing_is_missing_and_nothing_twice(
    fault: Fault,
    server: ToggledServer,
    machine: Machine,
    retry_policy: Callable[[RetryPolicy], None],
    undisturbed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault in (Fault.SILENT, Fault.LATE):
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    retry_policy(STUBBORN)
    run = Run(machine)
    job = run.start()
    failing_once(server, fault)
    run.select(job, run.pretrain(job))
    assert run.end(job) == 0
    server.fault = lambda *_: None
    assert picture(server.folder) == undisturbed
    assert not files_of(machine.home)


def test_a_run_ends_though_the_server_went_away_after_start_and_what_waits_is_told_later(
    server: ToggledServer,
    machine: Machine,
    retry_policy: Callable[[RetryPolicy], None],
    undisturbed: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    server.stop()
    selected = run.select(job, run.pretrain(job))
    assert (selected["reused"], Store(machine.home).has(selected)) == (False, True)
    num_waiting = run.end(job)
    assert num_waiting == JournalFolder(machine.home).num_waiting(job["mlflow_run"]) > 20
    said = capsys.readouterr().out
    for writer in ("pretrain", "select", "end"):
        assert f"{writer}: WARNING: the tracking store {server.address} is away (" in said
    server.start()
    Tracker(machine).deliver_left()
    assert picture(server.folder) == undisturbed
    assert not files_of(machine.home)


def test_the_next_step_tells_what_the_last_could_not(
    server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None], undisturbed: dict[str, Any]
) -> None:
    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    server.stop()
    pretrained = run.pretrain(job)
    server.start()
    run.select(job, pretrained)
    assert not files_of(machine.home)
    assert run.end(job) == 0
    assert picture(server.folder) == undisturbed


@pytest.mark.parametrize("seed", [9, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(20) if seed != 9)])
def test_outages_of_any_length_and_kind_leave_no_trace(
    seed: int, server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None], undisturbed: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    retry_policy(rng.choice([replace(BRISK, between_tries=(0.0,) * rng.randrange(4)), STUBBORN]))
    run = Run(machine)
    job = run.start()
    left, fault, num_failed = 0, None, 0

    def decide(number: int, call: str) -> Fault | None:
        nonlocal left, fault, num_failed
        if not left:
            left = rng.randrange(1, 12)
            fault = rng.choice([None, None, *(each for each in Fault if each not in (Fault.SILENT, Fault.LATE))])
        left -= 1
        num_failed += fault is not None
        return fault

    server.fault = decide
    run.select(job, run.pretrain(job))
    run.end(job)
    server.fault = lambda *_: None
    Tracker(machine).deliver_left()
    assert num_failed > 3
    assert picture(server.folder) == undisturbed
    assert not files_of(machine.home)


def test_what_was_told_but_not_noted_before_a_crash_is_told_again_and_leaves_no_trace(
    server: ToggledServer,
    machine: Machine,
    retry_policy: Callable[[RetryPolicy], None],
    undisturbed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class CrashError(BaseException):
        pass

    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    server.stop()
    run.select(job, run.pretrain(job))
    run.end(job)
    server.start()
    save, noted = Journal.save, set()

    def crash_at_first(journal: Journal, progress: DeliveryProgress) -> None:
        if (place := (journal.path, progress.offset)) not in noted:
            noted.add(place)
            raise CrashError
        save(journal, progress)

    monkeypatch.setattr(Journal, "save", crash_at_first)
    num_crashes, tracker = 0, Tracker(machine)
    while tracker.journals.parents():
        with closing(tracker.journals.pending(job["mlflow_run"])) as journals:
            try:
                for journal in journals:
                    Delivery(journal, tracker, Store(machine.home)).run(is_left=True)
            except CrashError:
                num_crashes += 1
    assert num_crashes == len(noted) > 20
    assert picture(server.folder) == undisturbed


def test_progress_that_was_forgotten_altogether_is_made_again_without_a_trace(
    server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    server.stop()
    run.select(job, run.pretrain(job))
    run.end(job)
    server.start()
    shutil.copytree(machine.home / "outbox", tmp_path / "kept")
    for _ in range(2):
        shutil.copytree(tmp_path / "kept", machine.home / "outbox", dirs_exist_ok=True)
        Tracker(machine).deliver_left()
        assert picture(server.folder) == undisturbed


def test_a_server_that_never_answers_does_not_hold_up_the_work(
    server: ToggledServer,
    machine: Machine,
    retry_policy: Callable[[RetryPolicy], None],
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, Any],
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "600")
    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    retry_policy(replace(BRISK, at_end=0.1, between_deliveries=3600.0, after_outage=3600.0))
    arrived = threading.Event()

    def silent(number: int, call: str) -> Fault:
        arrived.set()
        return Fault.SILENT

    server.fault = silent

    def body(work: Work) -> None:
        assert arrived.wait(60), "the tracker was told of the step at its beginning"
        write(work)
        assert [thread.name for thread in threading.enumerate()].count("tracking") == 1, "it still waits for its answer"

    num_before = len(server.calls)
    pretrained = run.pretrain(job, body)
    assert len(server.calls) == num_before + 1, "while it waits, nothing else is tried"
    server.fault = lambda *_: None
    server.release()
    for thread in threading.enumerate():
        if thread.name == "tracking":
            thread.join()
    retry_policy(BRISK)
    run.select(job, pretrained)
    assert run.end(job) == 0
    assert picture(server.folder) == undisturbed


def test_a_store_that_is_away_is_tried_only_now_and_then(
    server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None]
) -> None:
    retry_policy(replace(BRISK, after_outage=3600.0, longest=3600.0))
    run = Run(machine)
    job = run.start()
    server.fault = lambda *_: Fault.UNAVAILABLE
    num_before = len(server.calls)

    def body(work: Work) -> None:
        while len(server.calls) == num_before:
            time.sleep(0.01)
        write(work)
        for step in range(200):
            work.record(Record(step, {"grpo/entropy": 1.0}))

    run.pretrain(job, body)
    assert len(server.calls) == num_before + 2, "at the beginning and at the end"


def test_a_step_that_fails_during_an_outage_says_so_when_that_is_over(
    server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None]
) -> None:
    def fail(work: Work) -> None:
        raise ZeroDivisionError

    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    server.stop()
    with pytest.raises(ZeroDivisionError):
        run.pretrain(job, fail)
    server.start()
    Tracker(machine).deliver_left()
    assert {each["name"]: each["status"] for each in picture(server.folder)["runs"]} == {NAME: "FAILED", run_name("pretrain"): "FAILED"}
    run.pretrain(job)
    assert {(each["name"], each["status"]) for each in picture(server.folder)["runs"]} == {
        (NAME, "RUNNING"),
        (run_name("pretrain"), "FAILED"),
        (run_name("pretrain"), "FINISHED"),
    }


def test_what_a_killed_step_had_to_say_is_told_and_its_run_is_said_to_be_killed(
    server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None]
) -> None:
    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    journal = JournalFolder(machine.home).begin(job["mlflow_run"], "pretrain")
    journal.append("child", key=f"{NAME}/pretrain/0", step="pretrain", tags={}, time=5)
    journal.append("metrics", rows=[["grpo/entropy", 0.5, 6, 1]])
    with journal.path.open("a") as file:
        file.write('{"kind": "metrics", "rows": [["grpo/entr')
    Tracker(machine).deliver_left()
    assert [each["name"] for each in picture(server.folder)["runs"]] == [NAME], "its writer lives, as far as is known"
    journal.close()
    Tracker(machine).deliver_left()
    killed = next(each for each in picture(server.folder)["runs"] if each["name"] == run_name("pretrain"))
    assert (killed["status"], killed["metrics"]) == ("KILLED", {"grpo/entropy": ["1 0.5"]})
    assert not files_of(machine.home)


def test_a_run_that_a_late_answer_made_twice_is_deleted(
    server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None], undisturbed: dict[str, Any]
) -> None:
    retry_policy(STUBBORN)
    run, client = Run(machine), MlflowClient(server.address)
    job = run.start()

    def body(work: Work) -> None:
        write(work)
        experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
        while not (found := client.search_runs([experiment], f"attributes.run_name = '{run_name('pretrain')}'")):
            time.sleep(0.01)
        client.create_run(experiment, run_name=run_name("pretrain"), tags=found[0].data.tags)

    run.select(job, run.pretrain(job, body))
    run.end(job)
    assert picture(server.folder) == undisturbed


def test_start_needs_the_store_and_says_what_to_do(tmp_path: Path, retry_policy: Callable[[RetryPolicy], None]) -> None:
    from grpo.settings.tree import read_settings

    retry_policy(BRISK)

    machine = Machine(stockfish="none", home=tmp_path, tracking_uri=f"http://127.0.0.1:{free_port()}", device="cpu", num_threads=1)
    findings, _ = preflight(read_settings("test"), machine)
    found = next(finding for finding in findings if finding.what == "tracking")
    assert not found.is_fine
    assert "unset MLFLOW_TRACKING_URI for the local SQLite store, or start that server" in found.detail
    tracker = Tracker(machine, must_answer=False, retry_policy=BRISK)
    with pytest.raises(MlflowException):
        Tracker(machine, retry_policy=BRISK)
    patient = Tracker(machine, must_answer=False, retry_policy=STUBBORN)
    with pytest.raises(TrackingAwayError, match="start it or mend the network"):
        patient.start_flow_run(metaflow_run=NAME, settings={}, tags={}, note="")
    with pytest.raises(MlflowException):
        tracker.holder(StepOutput(step="pretrain", version="v", output_hash="h", reused=True))


def test_select_does_not_beat_a_champion_that_it_cannot_see(tmp_path: Path) -> None:
    machine = Machine(stockfish="none", home=tmp_path, tracking_uri=f"http://127.0.0.1:{free_port()}", device="cpu", num_threads=1)
    here: Any = SimpleNamespace(machine=machine)
    found = evaluation._incumbent(here, None)
    assert (found.version, found.folder, found.label) == (None, None, "cannot be played")
    assert "does not answer" in found.problem


def registered(tracker: Tracker, run: str, key: str, **changes: Any) -> tuple[str, str]:
    return Registry(tracker).enter(chosen(run, **changes), holder=run, key=key)


def test_who_became_champion_during_the_outage_stays(server: ToggledServer, machine: Machine) -> None:
    tracker = Tracker(machine)
    run = Run(machine).start()["mlflow_run"]
    assert registered(tracker, run, "first")[1] == "champion is version 2 now", "nobody had it"
    # Two runs have beaten version 2 in an outage: whoever is told first has the alias, for the other has not played it.
    assert registered(tracker, run, "second", is_beaten=True, seen=2)[1] == "champion is version 4 now"
    assert registered(tracker, run, "third", is_beaten=True, seen=2)[1] == "champion stays version 4"
    # A run whose `select` could not see the registry has beaten nobody.
    assert registered(tracker, run, "fourth")[1] == "champion stays version 4"
    for key in ("first", "second", "third", "fourth"):
        registered(tracker, run, key, is_beaten=True, seen=2)
    assert len(tracker.client.search_model_versions(f"name = '{MODEL}'")) == 8
    assert Registry(tracker).named(CHAMPION) is not None
    assert picture(server.folder)["aliases"] == {PEAK: 1, CHAMPION: 4}


def test_a_version_that_a_late_answer_made_twice_is_deleted(machine: Machine) -> None:
    tracker = Tracker(machine)
    run = Run(machine).start()["mlflow_run"]
    registry = Registry(tracker)
    for _ in range(2):
        registry.register(
            holder=run, folder=PEAK, flow_run=run, policy_step=2, initial_weights="w", low=0.55, description="", key=f"k/{PEAK}"
        )
    registered(tracker, run, "k")
    assert sorted(int(each.version) for each in tracker.client.search_model_versions(f"name = '{MODEL}'")) == [1, 3]


def test_what_the_store_refuses_is_set_aside_loudly_and_the_rest_is_told(
    server: ToggledServer,
    machine: Machine,
    retry_policy: Callable[[RetryPolicy], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    retry_policy(BRISK)
    tracker, run = Tracker(machine), Run(machine).start()["mlflow_run"]
    with tracker.child(run, "pretrain", {}) as child:
        child.tag({"a tag's name with a\ttab": 1})
        child.tag({"next": 1})
    assert "rejected a record of kind 'tags'" in capsys.readouterr().out
    [name] = files_of(machine.home)
    assert "with a\\ttab" in (machine.home / name).read_text()
    [told] = (each for each in picture(server.folder)["runs"] if each["name"] == run_name("pretrain"))
    assert (told["status"], told["tags"]["next"]) == ("FINISHED", "1")


def test_a_file_is_told_as_it_was_though_its_output_was_set_aside(
    server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None], undisturbed: dict[str, Any]
) -> None:
    retry_policy(BRISK)
    run, store = Run(machine), Store(machine.home)
    job = run.start()
    server.stop()
    pretrained = run.pretrain(job)
    run.select(job, pretrained)
    run.end(job)
    server.start()
    store.discard("pretrain", pretrained["version"])
    with store.writing("pretrain", pretrained["version"], {}) as folder:
        (folder / "empty").write_text("other")
    Tracker(machine).deliver_left()
    assert picture(server.folder) == undisturbed


def test_a_spoilt_file_is_not_told_as_what_it_was(
    server: ToggledServer, machine: Machine, retry_policy: Callable[[RetryPolicy], None], capsys: pytest.CaptureFixture[str]
) -> None:
    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    server.stop()
    pretrained = run.pretrain(job)
    (Store(machine.home).folder("pretrain", pretrained["version"]) / "deep" / "er" / "weights").write_text("spoilt")
    server.start()
    Tracker(machine).deliver_left()
    child = next(each for each in picture(server.folder)["runs"] if each["name"] == run_name("pretrain"))
    assert "deep/er/weights" not in child["artifacts"]
    assert "rejected a record of kind 'held_file'" in capsys.readouterr().out


def test_what_a_vanishing_disk_could_not_tell_goes_to_the_shared_objects_and_is_told_from_there_once(
    server: ToggledServer, machine: Machine, tmp_path: Path, undisturbed: dict[str, Any], retry_policy: Callable[[RetryPolicy], None]
) -> None:
    retry_policy(BRISK)
    machine = replace(machine, shared=str(tmp_path / "shared"))
    objects = FolderObjects(tmp_path / "shared")
    run = Run(machine)
    job = run.start()
    server.stop()
    run.select(job, run.pretrain(job))
    assert run.end(job) > 20
    assert not files_of(machine.home)
    shutil.rmtree(machine.home)
    second, third = (Tracker(replace(machine, home=tmp_path / name), must_answer=False) for name in ("second", "third"))
    assert second.journals.parents() == [job["mlflow_run"]]
    assert second.deliver(job["mlflow_run"], 60.0)
    server.start()
    with closing(second.journals.pending(job["mlflow_run"])) as taken:
        name = next(taken).path.name
        others = [journal.path.name for journal in third.journals.pending(job["mlflow_run"])]
        assert name not in others, "what one has taken is another's no more"
        assert len(others) == 2
    second.deliver_left()
    assert picture(server.folder) == undisturbed
    assert not objects.keys("outbox/")
    assert not files_of(tmp_path / "second")


def test_the_command_track_tells_what_waits_and_says_what_does(
    server: ToggledServer,
    machine: Machine,
    retry_policy: Callable[[RetryPolicy], None],
    undisturbed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from argparse import Namespace

    monkeypatch.setenv("CHESS_GRPO_HOME", str(machine.home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()
    server.stop()
    run.select(job, run.pretrain(job))
    num_waiting = run.end(job)
    capsys.readouterr()
    assert deliver_journals(Namespace(only_lists=True)) == 1
    assert capsys.readouterr().out == f"MLflow run {job['mlflow_run']}: 0 records logged, {num_waiting} wait\n"
    with pytest.raises(TrackingAwayError, match="run this again later"):
        deliver_journals(Namespace(only_lists=False))
    server.start()
    capsys.readouterr()
    assert deliver_journals(Namespace(only_lists=False)) == 0
    assert f"MLflow run {job['mlflow_run']}: {num_waiting} records logged, 0 wait\nEverything is logged" in capsys.readouterr().out
    assert picture(server.folder) == undisturbed


def test_a_full_disk_is_no_outage(machine: Machine, retry_policy: Callable[[RetryPolicy], None], monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    retry_policy(BRISK)
    run = Run(machine)
    job = run.start()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MlflowClient, "log_artifact", full)
    with pytest.raises(StorageError, match="free disk space"):
        run.pretrain(job)


def test_a_full_database_is_named_whatever_sqlalchemy_was_about_to_do(tmp_path: Path) -> None:
    from sqlalchemy import create_engine, select, text
    from sqlalchemy.exc import OperationalError
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

    class Base(DeclarativeBase):
        pass

    class Page(Base):
        __tablename__ = "pages"
        number: Mapped[int] = mapped_column(primary_key=True)
        words: Mapped[str]

    engine = create_engine(f"sqlite:///{tmp_path / 'small.db'}")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.execute(text("PRAGMA max_page_count = 3"))
        session.add(Page(number=1, words="x" * 100_000))
        with pytest.raises(OperationalError, match=r"^.raised as a result of Query-invoked autoflush") as full:
            session.scalars(select(Page)).all()
    engine.dispose()
    with pytest.raises(StorageError, match=r"cannot be written \(database or disk is full\): free disk space"):
        is_refusal(full.value)


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (MlflowException("(sqlite3.OperationalError) database is locked", error_code=4), False),
        (MlflowException("API request to endpoint /x failed with error code 404 != 200. Response body: '<html>'", error_code=4), False),
        (ConnectionError("refused"), False),
    ],
    ids=["locked database", "page of a proxy", "refused"],
)
def test_what_another_try_may_mend_is_no_refusal(error: Exception, is_final: bool) -> None:
    assert is_refusal(error) == is_final


@pytest.mark.prove
def test_the_real_server_is_killed_at_any_moment_and_started_again(
    tables: Path, tmp_path: Path, retry_policy: Callable[[RetryPolicy], None], undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    retry_policy(replace(BRISK, between_tries=(0.0,)))
    shutil.copy(tables, tmp_path / "mlflow.db")
    rng = random.Random(0)
    with ServerProcess(tmp_path) as server:
        run = Run(server_machine(server, tmp_path / "home"))
        job = run.start()
        killer = threading.Timer(rng.uniform(0.0, 0.5), server.kill)
        killer.start()
        pretrained = run.pretrain(job)
        killer.join()
        for _ in range(2):
            server.start()
            killer = threading.Timer(rng.uniform(0.0, 0.5), server.kill)
            killer.start()
            Tracker(run.machine, must_answer=False).deliver(job["mlflow_run"], 60.0)
            killer.join()
        run.select(job, pretrained)
        assert run.end(job) > 0
        server.start()
        Tracker(run.machine).deliver_left()
        assert picture(server.folder) == undisturbed
