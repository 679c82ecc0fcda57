"""Several first runs at once in one home: one of them makes the tables of the tracking store, and all of them are in it."""

import os
from pathlib import Path

from mlflow.tracking import MlflowClient

from steps.runtime.machine import Machine
from steps.tracking.tracker import Tracker

NUM_RUNS = 3


def begin(home: Path, number: int) -> None:
    """Begin a run as the flow's first step does, with a child run and a metric."""
    machine = Machine(stockfish="", home=home, tracking_uri=f"sqlite:///{home / 'mlflow.db'}", device="cpu", num_threads=1)
    tracker = Tracker(machine)
    run = tracker.start_flow_run(metaflow_run=str(number), settings={"seed": number}, tags={}, note="")
    with tracker.child(run, "start", {}) as child:
        child.tag({"number": number})


def test_three_first_runs_at_once_on_one_store_are_all_in_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gate, opener = os.pipe()
    children = []
    for number in range(NUM_RUNS):
        if not (child := os.fork()):
            status = 1
            try:
                os.close(opener)
                os.read(gate, 1)  # Until all are there.
                begin(home, number)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(gate)
    os.close(opener)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * NUM_RUNS
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    [experiment] = [found for found in client.search_experiments() if found.name == "chess-grpo"]
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.data.params["seed"] for run in runs if run.data.params) == ["0", "1", "2"]
    assert sorted(run.data.tags["number"] for run in runs if "number" in run.data.tags) == ["0", "1", "2"]
    assert {run.info.status for run in runs if "number" in run.data.tags} == {"FINISHED"}
