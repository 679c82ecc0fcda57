"""An outage of the tracking store, whenever and however long, stops no step; afterwards the store holds what it would have held without.

The store is MLflow's own, behind HTTP, and its faults are real ones on the wire; `toggled_server` says which there are.
"""

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from toggled_server import Fault, ServerProcess, ToggledServer, free_port

from grpo.content import StorageError, sha256_file
from grpo.metrics import Record
from steps import pipeline, tracking, tracking_store
from steps.aliases import CHAMPION, PEAK
from steps.delivery import Delivery
from steps.machine import Machine
from steps.objects import FolderObjects
from steps.outages import Patience, TrackingAwayError, is_refusal
from steps.outbox import Journal, Outbox, Progress
from steps.preflight import preflight
from steps.registry import MODEL, Choice, Chosen, Registry
from steps.running import Job, run_step
from steps.store import StepOutput, Store
from steps.track_command import deliver_outbox
from steps.tracking import ChildRun, Tracker
from steps.tracking_store import EXPERIMENT
from steps.tracking_tags import CHILD, PEAK_STEP
from steps.work import Work

STUBBORN = Patience(between_tries=(0.0,) * 300, between_asks=(0.0,) * 3, at_end=600.0, at_failure=600.0)
"""Tries at once and again: what it meets is over as soon as it was met."""
BRISK = Patience(between_deliveries=0.0, after_outage=0.0, longest=0.0, between_tries=(), between_asks=(), at_end=600.0)
"""Gives up at the first outage, and tries again with the next record."""
NAME = "7"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tracking store with its tables and the experiment."""
    folder = tmp_path_factory.mktemp("tables")
    with ToggledServer(folder) as server:
        server_machine(server, folder / "home")
        Tracker(server_machine(server, folder / "home"))
    return folder / "mlflow.db"


def server_machine(server: ToggledServer | ServerProcess, home: Path) -> Machine:
    return Machine(stockfish="none", home=home, tracking_uri=server.address, device="cpu", num_threads=1)


@pytest.fixture
def server(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToggledServer]:
    """Give a server that answers, whose clients wait a second."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(tracking_store, "_SECONDS_FOR_A_FILE", 0.0)
    (tmp_path / "server").mkdir()
    shutil.copy(tables, tmp_path / "server" / "mlflow.db")
    with ToggledServer(tmp_path / "server") as made:
        yield made


@pytest.fixture
def machine(server: ToggledServer, tmp_path: Path) -> Machine:
    return server_machine(server, tmp_path / "home")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[Patience], None]:
    return lambda chosen: monkeypatch.setattr(tracking, "Patience", lambda: chosen)


class Run:
    """A small run: a parent, a step whose output is kept whole, a step that chooses champion and peak, and the end."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def start(self) -> Job:
        settings = {"seed": 0, "grpo": {"num_steps": 3}}
        run = Tracker(self.machine).start_flow_run(metaflow_run=NAME, settings=settings, tags={"git.commit": "abc"}, note="a run")
        code = {"commit": "abc", "is_dirty": False, "lock": "l"}
        return Job(settings=settings, code=code, metaflow_run=NAME, mlflow_run=run, is_fresh=False, origin=None)

    def pretrain(self, job: Job, body: Callable[[Work], None] | None = None) -> StepOutput:
        def publish(folder: Path, child: ChildRun) -> None:
            child.dataset(digest="d" * 64, source="file:///boards", profile={"rows": 3})
            child.tag({"chess_grpo.dataset": "d"})
            child.note("# Boards")
            child.file(folder / "deep", "again")

        return run_step(
            job, self.machine, step="pretrain", module="steps.work", settings={}, inputs={}, work=body or write, publish=publish
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
            job, self.machine, step="select", module="steps.work", settings={}, inputs=inputs, work=write_choice, publish=publish
        )

    def end(self, job: Job) -> int:
        return Tracker(self.machine, must_answer=False).end_flow_run(job["mlflow_run"], {"chess_grpo.verdict": "better"})

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


def picture(uri: str) -> dict[str, Any]:
    """Return all that a store holds of the experiment and the registry, but for ids and times."""
    client = MlflowClient(uri, registry_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    runs = client.search_runs([experiment], order_by=["attributes.start_time ASC"])
    names = {run.info.run_id: f"<{run.info.run_name}>" for run in runs}

    def named(text: str) -> str:
        for run_id, name in names.items():
            text = text.replace(run_id, name)
        return text

    def told(tags: dict[str, str]) -> dict[str, str]:
        kept = {name: named(value) for name, value in tags.items() if not name.startswith("mlflow.artifact")}
        if CHILD in kept:
            kept[CHILD] = "/".join(part if len(part) != 12 else "*" for part in kept[CHILD].split("/"))
        if "chess_grpo.peak" in kept:
            kept["chess_grpo.peak"] = kept["chess_grpo.peak"].partition(":")[0]
        return kept

    def files(run_id: str, folder: str | None = None) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in client.list_artifacts(run_id, folder):
            if each.is_dir:
                found |= files(run_id, each.path)
            else:
                found[each.path] = sha256_file(Path(client.download_artifacts(run_id, each.path)))
        return found

    def history(run_id: str, key: str) -> list[str]:
        return sorted(f"{each.step} {each.value}" for each in client.get_metric_history(run_id, key))

    return {
        "runs": sorted(
            (
                {
                    "name": run.info.run_name,
                    "status": run.info.status,
                    "tags": told(run.data.tags),
                    "params": run.data.params,
                    "metrics": {key: history(run.info.run_id, key) for key in sorted(run.data.metrics)},
                    "datasets": [each.dataset.digest for each in run.inputs.dataset_inputs],
                    "artifacts": files(run.info.run_id),
                }
                for run in runs
            ),
            key=str,
        ),
        "versions": sorted(
            (
                {"number": each.version, "tags": told(each.tags), "run": named(each.run_id), "folder": Path(each.source).name}
                for each in client.search_model_versions(f"name = '{MODEL}'")
            ),
            key=str,
        ),
        "aliases": [dict(each.aliases) for each in client.search_registered_models()],
    }


@pytest.fixture(scope="module")
def undisturbed(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a store holds after a run without any outage."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(tables, folder / "mlflow.db")
    with ToggledServer(folder) as server:
        assert Run(server_machine(server, folder / "home")).whole() == 0
        found = picture(server.address)
    assert not files_of(folder / "home"), "nothing is kept of what was told"
    return found


def files_of(home: Path) -> list[str]:
    return sorted(path.relative_to(home).as_posix() for path in (home / "outbox").rglob("*") if path.is_file())


def test_the_undisturbed_run_is_all_there(undisturbed: dict[str, Any]) -> None:
    parent, pretrain, select = undisturbed["runs"]
    assert [run["name"] for run in (parent, pretrain, select)] == [NAME, "pretrain", "select"]
    assert {run["status"] for run in undisturbed["runs"]} == {"FINISHED"}
    assert parent["params"] == {"seed": "0", "grpo.num_steps": "3"}
    assert parent["tags"]["chess_grpo.champion"] == "champion is version 2 now"
    assert pretrain["metrics"]["grpo/reward_mean"] == ["1 0.5", "2 nan", "3 0.5"]
    assert {"deep/er/weights", "again/er/weights", "empty", "manifest.json", "history.jsonl"} <= pretrain["artifacts"].keys()
    assert pretrain["datasets"] == ["d" * 32]
    assert "card.md" in select["artifacts"]
    assert undisturbed["aliases"] == [{PEAK: "1", CHAMPION: "2"}]
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


ALL_FAULTS = [
    pytest.param(fault, marks=[] if fault in (Fault.DROPPED, Fault.LOST, Fault.TOO_MANY) else pytest.mark.prove) for fault in Fault
]


@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_when_every_call_fails_once_nothing_is_missing_and_nothing_twice(
    fault: Fault, server: ToggledServer, machine: Machine, patience: Callable[[Patience], None], undisturbed: dict[str, Any]
) -> None:
    patience(STUBBORN)
    run = Run(machine)
    job = run.start()
    failing_once(server, fault)
    run.select(job, run.pretrain(job))
    assert run.end(job) == 0
    server.fault = lambda *_: None
    assert picture(server.address) == undisturbed
    assert not files_of(machine.home)
