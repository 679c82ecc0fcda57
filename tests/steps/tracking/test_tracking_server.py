"""Outputs come back from a tracking server as they went there, without a folder that both machines reach."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from logged_runs import machine_of
from toggled_server import ServerProcess

from grpo.base.files import CorruptError, verified_manifest
from steps.pipeline.job import Job
from steps.pipeline.run_step import run_step
from steps.runs.files import fetch_output
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work
from steps.store.outputs import StepOutput, Store
from steps.tracking.tracker import ArtifactError, Tracker

pytestmark = pytest.mark.prove  # The server takes its time to start.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of an MLflow server of our own."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process.address


def write(work: Work) -> None:
    (work.folder / "deep" / "aside").mkdir(parents=True)
    (work.folder / "deep" / "boards.parquet").write_bytes(bytes(range(256)) * 4000)
    (work.folder / "deep" / "aside" / "page.html").write_text("noon")
    (work.folder / "empty.txt").write_text("")


def made(server: str, home: Path, name: str) -> tuple[Tracker, StepOutput]:
    machine = machine_of(home, server)
    tracker = Tracker(machine)
    parent = tracker.start_flow_run(metaflow_run=name, settings={}, tags={}, note="")
    code = {"commit": "abc", "is_dirty": False, "lock": name}
    job = Job(settings={}, code=code, metaflow_run=name, mlflow_run=parent, is_fresh=False, origin=None)
    return tracker, run_step(job, machine, StepSpec(name="join_boards", body="steps.step_io.work"), settings={}, inputs={}, work=write)


def test_an_output_is_fetched_from_a_server(server: str, tmp_path: Path) -> None:
    _, output = made(server, tmp_path / "first", "fetched")
    folder = fetch_output(machine_of(tmp_path / "second", server), output)
    assert verified_manifest(folder) == verified_manifest(Store(tmp_path / "first").open(output))
    assert (folder / "deep" / "aside" / "page.html").read_text() == "noon"


@pytest.mark.parametrize("fault", ["damaged", "missing"])
def test_what_a_server_lost_or_damaged_is_named(fault: str, server: str, tmp_path: Path) -> None:
    tracker, output = made(server, tmp_path / "first", fault)
    holder = tracker.holder(output)
    assert holder is not None
    root = next(path for path in tmp_path.parent.rglob("files") if path.is_dir())
    [kept] = root.rglob(f"{holder}/artifacts/deep/boards.parquet")
    if fault == "damaged":
        kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    else:
        kept.unlink()
    with pytest.raises(CorruptError if fault == "damaged" else ArtifactError, match=r"deep/boards\.parquet of MLflow run"):
        fetch_output(machine_of(tmp_path / "second", server), output)
    assert not [path for path in (tmp_path / "second").rglob("*") if path.is_file()]
