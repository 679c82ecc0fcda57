"""A home that was copied: doctor says where the tracking store still looks for artifacts, and the repair lets it find them here."""

import json
import shutil
from pathlib import Path

import pytest
from logged_runs import machine_of
from mlflow.entities import Dataset, DatasetInput

from steps.preflight.moved_home import homes_elsewhere, repair
from steps.runtime.machine import Machine
from steps.tracking.registry import MODEL
from steps.tracking.tags import NOTE
from steps.tracking.tracker import Tracker


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, Machine, str]:
    """The hidden old home, the new one, and a run with an artifact."""
    old = tmp_path / "old_home"
    tracker = Tracker(machine_of(old))
    run = tracker.start_flow_run(
        metaflow_run="7", settings={"seed": 0}, tags={}, note=f"Champion: `{old}/outputs/c`", files={"settings.toml": "seed = 0"}
    )
    client = tracker.client
    client.log_inputs(run, [DatasetInput(Dataset("boards", "1", "local", json.dumps({"uri": f"{old.as_uri()}/outputs/b"})), [])])
    client.create_registered_model(MODEL)
    client.create_model_version(MODEL, f"{client.get_run(run).info.artifact_uri}/champion", run)
    shutil.copytree(old, tmp_path / "new home")
    old.rename(tmp_path / "hidden")
    return old, machine_of(tmp_path / "new home"), run


def test_a_copied_home_finds_its_artifacts_after_the_repair(copied: tuple[Path, Machine, str]) -> None:
    old, machine, run = copied
    assert homes_elsewhere(machine) == {old: 1}
    backup = repair(machine)
    client = Tracker(machine).client
    assert [each.path for each in client.list_artifacts(run)] == ["settings.toml"]
    [version] = client.search_model_versions(f"name = '{MODEL}'")
    assert version.source == f"{machine.home.as_uri()}/mlartifacts/{run}/artifacts/champion"
    found = client.get_run(run)
    assert found.data.tags[NOTE] == f"Champion: `{machine.home}/outputs/c`"
    assert json.loads(found.inputs.dataset_inputs[0].dataset.source) == {"uri": f"{machine.home.as_uri()}/outputs/b"}
    assert homes_elsewhere(machine) == {}
    assert homes_elsewhere(machine_of(machine.home, tracking=f"sqlite:///{backup}")) == {old: 1}, "the copy is the store as it was"
