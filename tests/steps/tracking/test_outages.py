"""An outage of the tracking store, whenever and however long, stops no step; afterwards the store holds what it would have held without.

The store is MLflow's own, behind HTTP, and its faults are real ones on the wire; `toggled_server` says which there are.
"""

import errno
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from ports import free_port
from toggled_server import Fault, ToggledServer, picture

from grpo.base.files import StorageError
from grpo.metrics.table import Record
from grpo.settings.tree import read_settings
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
from steps.tracking.child_run import ChildRun
from steps.tracking.delivery import Delivery
from steps.tracking.journal import Journal, JournalFolder, Reader
from steps.tracking.outages import RetryPolicy, TrackingAwayError
from steps.tracking.registry import MODEL, Choice, Chosen, Registry
from steps.tracking.step_notes import run_name, step_note
from steps.tracking.tags import EXPERIMENT, NOTE, PEAK_STEP
from steps.tracking.tracker import Tracker

STUBBORN = RetryPolicy(between_tries=(0.0,) * 300, between_asks=(0.0,) * 3, at_end=600.0, at_failure=600.0)
"""Tries at once and again: what it meets is over as soon as it was met."""
BRISK = RetryPolicy(between_deliveries=0.02, after_outage=0.02, longest=0.02, between_tries=(), between_asks=(), at_end=600.0)
"""Gives up at the first outage, and soon tries again."""
NAME = "7"


class Run:
    """A small run: a parent, a step whose output is kept whole, a step that chooses champion and peak, and the end."""

    def __init__(self, server: ToggledServer, home: Path) -> None:
        self.server = server
        self.machine = Machine(stockfish="none", home=home, tracking_uri=server.address, device="cpu", num_threads=1)

    def start(self) -> Job:
        settings = {"seed": 0, "grpo": {"num_steps": 3}}
        run = Tracker(self.machine).start_flow_run(
            metaflow_run=NAME, settings=settings, tags={"git.commit": "abc"}, note="a run", files={"settings.json": "{}"}
        )
        code = {"commit": "abc", "is_dirty": False, "lock": "l"}
        return Job(settings=settings, code=code, metaflow_run=NAME, mlflow_run=run, is_fresh=False, origin=None, story="asked for")

    def pretrain(self, job: Job, body: Callable[[Work], None] | None = None) -> StepOutput:
        def publish(folder: Path, child: ChildRun) -> None:
            child.dataset(name="smoke boards, 3", digest="d" * 64, source="file:///boards", profile={"rows": 3})
            child.tag({"chess_grpo.dataset": "d"})
            child.note("# Boards")
            child.file(folder / "deep", "again")

        spec = StepSpec(name="pretrain", body="steps.step_io.work", published=("deep/report.json", "not there"))
        return run_step(job, self.machine, spec, settings={}, inputs={}, work=body or write, publish=publish)

    def select(self, job: Job, pretrained: StepOutput) -> StepOutput:
        def publish(folder: Path, child: ChildRun) -> None:
            child.content("card.md", b"made for this")
            child.tag_flow_run({PEAK_STEP: 2, "chess_grpo.verdict": "better"})
            child.choose(chosen(job["mlflow_run"]))

        inputs = {"pretrained": pretrained["output_hash"]}
        spec = StepSpec(name="select", body="steps.step_io.work")
        return run_step(job, self.machine, spec, settings={}, inputs=inputs, work=write_choice, publish=publish)

    def end(self, job: Job) -> int:
        return Tracker(self.machine).end_flow_run(job["mlflow_run"], {"chess_grpo.verdict": "better"}, "# Verdict")

    def rest(self, job: Job) -> int:
        """Do all that follows `start`, and return of how many steps something waits when it has ended."""
        self.select(job, self.pretrain(job))
        return self.end(job)

    def deliver_left(self) -> None:
        Tracker(self.machine).deliver_left()

    def told(self) -> dict[str, Any]:
        """Return what the server holds; nothing else may wait to be told."""
        assert not files_of(self.machine.home), "nothing is kept of what was told"
        return picture(self.server.folder)


def files_of(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "outbox").rglob("*") if path.is_file())


def write(work: Work) -> None:
    (work.folder / "deep" / "er").mkdir(parents=True)
    (work.folder / "deep" / "er" / "weights").write_bytes(bytes(range(256)) * 40)
    (work.folder / "deep" / "report.json").write_text("{}")
    (work.folder / "empty").write_text("")
    for step in range(1, 4):
        work.record(Record(step, {"grpo/entropy": 1.0 / step, "grpo/reward_mean": float("nan") if step == 2 else 0.5}))
    work.record(Record(3, {"imitation/top1": 0.5, "imitation/validation_loss": float("nan")}))


def write_choice(work: Work) -> None:
    for alias in (PEAK, CHAMPION):
        (work.folder / alias).mkdir()
        (work.folder / alias / "weights").write_text(alias)
    work.record(Record(2, {"selection/verdict_elo": 0.6}))


def chosen(flow_run: str, *, is_beaten: bool = False, seen: int | None = None) -> Chosen:
    peak = Choice(policy_step=2, initial_weights="w", low=0.55)
    return Chosen(flow_run=flow_run, description="better", peak=peak, champion=replace(peak, low=None), is_beaten=is_beaten, seen=seen)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Path:
    """A tracking store with its tables and the experiment."""
    folder = give_tables(tmp_path_factory.mktemp("tables"))
    with ToggledServer(folder) as server:
        assert Tracker(Run(server, folder / "home").machine).experiment
    return folder / "mlflow.db"


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Callable[[RetryPolicy], None]:
    return lambda chosen: monkeypatch.setattr(tracking, "RetryPolicy", lambda: chosen)


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
def run(server: ToggledServer, tmp_path: Path, policy: Callable[[RetryPolicy], None]) -> Run:
    policy(BRISK)
    return Run(server, tmp_path / "home")


@pytest.fixture
def job(run: Run) -> Job:
    return run.start()


@pytest.fixture(scope="module")
def undisturbed(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a store holds after a run without any outage."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(tables, folder / "mlflow.db")
    with ToggledServer(folder) as server:
        run = Run(server, folder / "home")
        assert run.rest(run.start()) == 0
        return run.told()


def test_the_undisturbed_run_is_all_there(undisturbed: dict[str, Any]) -> None:
    pretrain, select, parent = undisturbed["runs"]
    assert [run["name"] for run in (parent, pretrain, select)] == [NAME, "04 pretrain", "10 select"]
    assert {run["status"] for run in undisturbed["runs"]} == {"FINISHED"}
    assert parent["params"] == {"seed": "0", "grpo.num_steps": "3"}
    assert parent["tags"]["chess_grpo.champion"] == "registry: alias champion set to version 2"
    assert pretrain["metrics"]["grpo/reward_mean"] == ["1 0.5", "2 nan", "3 0.5"]
    wanted = {"deep/er/weights", "again/er/weights", "empty", "report.json", "manifest.json", "history.jsonl"}
    assert wanted <= pretrain["artifacts"].keys()
    assert pretrain["datasets"] == parent["datasets"] == ["d" * 32]
    headlines = {"imitation/top1": ["0 0.5"], "imitation/validation_loss": ["0 nan"], "selection/verdict_elo": ["0 0.6"]}
    assert parent["metrics"] == headlines
    assert parent["tags"][NOTE] == "# Verdict"
    assert parent["artifacts"].keys() == {"settings.json"}
    assert select["tags"][NOTE].startswith(step_note("select"))
    assert "card.md" in select["artifacts"]
    assert undisturbed["aliases"] == {PEAK: 1, CHAMPION: 2}
    assert [version["folder"] for version in undisturbed["versions"]] == [PEAK, CHAMPION]


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=[] if fault == Fault.LOST else pytest.mark.prove) for fault in Fault])
def test_when_every_call_fails_once_nothing_is_missing_and_nothing_twice(
    fault: Fault,
    run: Run,
    job: Job,
    server: ToggledServer,
    policy: Callable[[RetryPolicy], None],
    undisturbed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault in (Fault.SILENT, Fault.LATE):
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    policy(STUBBORN)
    met: set[str] = set()

    def decide(number: int, call: str) -> Fault | None:
        is_new = call not in met
        met.add(call)
        return fault if is_new else None

    server.fault = decide
    assert run.rest(job) == 0
    server.fault = lambda *_: None
    assert run.told() == undisturbed


@pytest.mark.parametrize("seed", [9, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(20) if seed != 9)])
def test_outages_of_any_length_and_kind_leave_no_trace(
    seed: int, run: Run, job: Job, server: ToggledServer, policy: Callable[[RetryPolicy], None], undisturbed: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    policy(rng.choice([replace(BRISK, between_tries=(0.0,) * rng.randrange(4)), STUBBORN]))
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
    run.rest(job)
    server.fault = lambda *_: None
    run.deliver_left()
    assert num_failed > 3
    assert run.told() == undisturbed


@pytest.mark.parametrize("disk", ["output set aside", "vanished"])
def test_a_run_ends_though_the_server_went_away_after_start_and_what_waits_is_told_later(
    disk: str, run: Run, job: Job, undisturbed: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if disk == "vanished":
        run.machine = replace(run.machine, shared=str(tmp_path / "shared"))
    run.server.stop()
    pretrained = run.pretrain(job)
    assert (pretrained["reused"], Store(run.machine.home).has(pretrained)) == (False, True)
    run.select(job, pretrained)
    assert run.end(job) == 3
    said = capsys.readouterr().out
    for writer in ("pretrain", "select", "end"):
        assert f"{writer}: WARNING: the tracking store {run.server.address} is away (" in said
    if disk == "output set aside":
        (store := Store(run.machine.home)).discard("pretrain", pretrained["version"])
        with store.writing("pretrain", pretrained["version"], {}) as folder:
            (folder / "empty").write_text("other")
    if disk == "vanished":
        assert not files_of(run.machine.home), "it went to the shared store"
        shutil.rmtree(run.machine.home)
        run.machine = replace(run.machine, home=tmp_path / "second")
        assert Tracker(run.machine).deliver(job["mlflow_run"], 60.0), "it is still away"
    run.server.start()
    run.deliver_left()
    assert run.told() == undisturbed
    assert not FolderObjects(tmp_path / "shared").keys("outbox/")


def test_what_was_told_but_not_noted_before_a_crash_is_told_again_and_leaves_no_trace(
    run: Run, job: Job, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class CrashError(BaseException):
        pass

    run.server.stop()
    run.rest(job)
    run.server.start()
    shutil.copytree(run.machine.home / "outbox", tmp_path / "kept")
    save, noted, num_crashes = Journal.save, set(), 0

    def crash_at_first(journal: Journal, reader: Reader, state: Any) -> None:
        if (place := (journal.path, state["offset"], state["num_files"])) not in noted:
            noted.add(place)
            raise CrashError
        save(journal, reader, state)

    monkeypatch.setattr(Journal, "save", crash_at_first)
    tracker = Tracker(run.machine)
    while tracker.runs_left():
        with closing(tracker.journals.pending(Reader.MLFLOW)) as journals:
            try:
                for journal in journals:
                    Delivery(journal, tracker, Store(run.machine.home)).run(is_over=True)
            except CrashError:
                num_crashes += 1
    assert num_crashes == len(noted) > 20
    assert run.told() == undisturbed
    monkeypatch.undo()
    shutil.copytree(tmp_path / "kept", run.machine.home / "outbox", dirs_exist_ok=True)
    run.deliver_left()
    assert run.told() == undisturbed, "the same when all of it was forgotten"


def test_a_server_that_never_answers_does_not_hold_up_the_work(
    run: Run,
    job: Job,
    server: ToggledServer,
    policy: Callable[[RetryPolicy], None],
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, Any],
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "600")
    policy(replace(BRISK, at_end=0.1))
    arrived, num_before = threading.Event(), len(server.calls)

    def silent(number: int, call: str) -> Fault:
        arrived.set()
        return Fault.SILENT

    server.fault = silent

    def body(work: Work) -> None:
        assert arrived.wait(600), "the tracker was told of the step at its beginning"
        write(work)

    pretrained = run.pretrain(job, body)
    assert len(server.calls) == num_before + 1, "while it waits, nothing else is tried"
    server.fault = lambda *_: None
    server.release()
    for thread in threading.enumerate():
        if thread.name == "tracking":
            thread.join()
    policy(BRISK)
    run.select(job, pretrained)
    assert run.end(job) == 0
    assert run.told() == undisturbed


def test_what_a_killed_step_had_to_say_is_told_and_its_run_is_said_to_be_killed(run: Run, job: Job) -> None:
    journal = JournalFolder(run.machine.home).begin(job["mlflow_run"], "pretrain")
    journal.append("begin", key=f"{NAME}/pretrain/0", step="pretrain", tags={}, time=5)
    journal.append("record", time=6, record={"step": 1, "grpo/entropy": 0.5})
    with journal.path.open("a") as file:
        file.write('{"kind": "record", "record": {"step": 2, "grpo/entr')
    run.deliver_left()
    assert [each["name"] for each in picture(run.server.folder)["runs"]] == [NAME], "its writer lives, as far as is known"
    journal.close()
    run.deliver_left()
    killed, _ = run.told()["runs"]
    assert (killed["status"], killed["metrics"]) == ("KILLED", {"curves/4 entropy": ["1 0.5"]})


def test_a_run_that_a_late_answer_made_twice_is_deleted(run: Run, job: Job, undisturbed: dict[str, Any]) -> None:
    client = MlflowClient(run.server.address)

    def body(work: Work) -> None:
        write(work)
        experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
        while not (found := client.search_runs([experiment], f"attributes.run_name = '{run_name('pretrain')}'")):
            time.sleep(0.01)
        client.create_run(experiment, run_name=run_name("pretrain"), tags=found[0].data.tags)

    run.select(job, run.pretrain(job, body))
    run.end(job)
    assert run.told() == undisturbed


def test_start_needs_the_store_and_says_what_to_do(tmp_path: Path) -> None:
    machine = Machine(stockfish="none", home=tmp_path, tracking_uri=f"http://127.0.0.1:{free_port()}", device="cpu", num_threads=1)
    findings, _ = preflight(read_settings("test"), machine)
    found = next(finding for finding in findings if finding.what == "tracking")
    assert not found.is_fine
    assert "unset MLFLOW_TRACKING_URI for the local SQLite store, or start that server" in found.detail
    with pytest.raises(TrackingAwayError, match="start it or fix the network"):
        Tracker(machine, STUBBORN).start_flow_run(metaflow_run=NAME, settings={}, tags={}, note="")


def test_select_does_not_beat_a_champion_that_it_cannot_see(tmp_path: Path) -> None:
    machine = Machine(stockfish="none", home=tmp_path, tracking_uri=f"http://127.0.0.1:{free_port()}", device="cpu", num_threads=1)
    here: Any = SimpleNamespace(machine=machine)
    found = evaluation._incumbent(here, None)
    assert (found.version, found.folder, found.label) == (None, None, "cannot be played")
    assert "does not answer" in found.problem


def test_who_became_champion_during_the_outage_stays(run: Run, job: Job) -> None:
    tracker, parent = Tracker(run.machine), job["mlflow_run"]

    def registered(key: str, **changes: Any) -> str:
        return Registry(tracker).enter(chosen(parent, **changes), holder=parent, key=key)[1]

    # What a late answer has made twice is deleted.
    for _ in range(2):
        policy = {"holder": parent, "folder": PEAK, "flow_run": parent, "policy_step": 2, "initial_weights": "w", "low": 0.55}
        Registry(tracker).register(**policy, description="", key=f"first/{PEAK}")
    assert registered("first") == "registry: alias champion set to version 3", "nobody had it"
    # Two runs have beaten version 3 in an outage: whoever is told first has the alias, for the other has not played it.
    assert registered("second", is_beaten=True, seen=3) == "registry: alias champion set to version 5"
    assert registered("third", is_beaten=True, seen=3) == "registry: alias champion stays at version 5"
    # A run whose `select` could not see the registry has beaten nobody.
    assert registered("fourth") == "registry: alias champion stays at version 5"
    for key in ("first", "second", "third", "fourth"):
        registered(key, is_beaten=True, seen=3)
    numbers = sorted(int(each.version) for each in tracker.client.search_model_versions(f"name = '{MODEL}'"))
    assert numbers == [1, 3, 4, 5, 6, 7, 8, 9]
    assert picture(run.server.folder)["aliases"] == {PEAK: 1, CHAMPION: 5}


def test_a_full_disk_is_no_outage(run: Run, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MlflowClient, "log_artifact", full)
    with pytest.raises(StorageError, match="free disk space"):
        run.pretrain(job)
