"""`chess-grpo doctor`: what is wrong is found with its remedy, and the machine is as it was."""

import json
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ports import free_port

from grpo.settings.tree import ConfigError, read_settings
from steps.cli.main import main
from steps.preflight import doctor
from steps.preflight.doctor import examine
from steps.runtime.machine import Machine, Mirror
from steps.store.versions import describe_code
from steps.tracking.journal import JournalFolder

BATCH = {
    "METAFLOW_BATCH_JOB_QUEUE": "queue",
    "METAFLOW_DATASTORE_SYSROOT_S3": "s3://bucket/metaflow",
    "METAFLOW_ECS_S3_ACCESS_IAM_ROLE": "role",
    "MLFLOW_TRACKING_URI": "http://tracker",
}
KEY = "0123456789" * 4


@pytest.fixture
def machine(tmp_path: Path, stockfish: str, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which nothing was ever run, and no variable says anything."""
    for name in [name for name in os.environ if name.startswith(("METAFLOW_", "WANDB_", "MLFLOW_TRACKING", "CHESS_GRPO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", stockfish)
    return Machine.here()


def found(machine: Machine, settings: str = "smoke") -> dict[str, tuple[bool, str]]:
    return {finding.what: (finding.is_fine, finding.detail) for finding in examine(read_settings(settings), machine)}


def test_a_machine_on_which_nothing_was_run_is_looked_at_and_left_as_it_was(machine: Machine, tmp_path: Path) -> None:
    lines = found(machine)
    assert list(lines) == ["python", "packages", "settings", "stockfish", "disk", "tracking", "device", "W&B"]
    assert {what for what, (is_fine, _) in lines.items() if not is_fine} <= {"packages"}, "a developer's packages may be newer"
    assert lines["tracking"][1].endswith("mlflow.db (does not exist yet; the first run creates it)")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_there_is_asked_and_not_written_to(machine: Machine, tmp_path: Path, give_tables: Callable[[Path], Path]) -> None:
    give_tables(machine.home)
    before = (machine.home / "mlflow.db").read_bytes()
    assert found(machine)["tracking"] == (True, machine.tracking_uri)
    assert (machine.home / "mlflow.db").read_bytes() == before
    assert [path.name for path in machine.home.iterdir()] == ["mlflow.db"]


def test_a_server_that_does_not_answer_and_a_file_that_is_no_store_are_named(machine: Machine) -> None:
    is_fine, detail = found(replace(machine, tracking_uri="http://127.0.0.1:1"))["tracking"]
    assert not is_fine
    assert detail.startswith("http://127.0.0.1:1 does not open (Connection refused); unset MLFLOW_TRACKING_URI for the local")
    machine.home.mkdir()
    (machine.home / "mlflow.db").write_text("no database, but long enough to look at" * 10)
    is_fine, detail = found(machine)["tracking"]
    assert not is_fine
    assert "does not open (" in detail


def test_bad_settings_are_one_line_and_the_others_are_looked_at_all_the_same(machine: Machine) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_settings("grpo.lerning_rate = 1")
    findings = {finding.what: finding for finding in examine(refusal.value, machine)}
    assert not findings["settings"].is_fine
    assert "did you mean learning_rate?" in findings["settings"].detail
    assert findings["stockfish"].is_fine


# Packages.


def test_packages_that_differ_from_the_lock_are_named_with_both_versions(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import version

    lock = tmp_path / "requirements-run.lock"
    lock.write_text(f"pydantic==0.1\n    # via x\nnumpy=={version('numpy')}\nnot-installed-here==1.0 ; sys_platform == 'win32'\n")
    monkeypatch.setitem(doctor.LOCKS, "lock", lock)
    is_fine, detail = found(machine)["packages"]
    assert not is_fine
    assert detail == (f"not as in requirements-run.lock: pydantic {version('pydantic')}, not 0.1: `make setup` installs those of the lock")
    lock.write_text(f"numpy=={version('numpy')}\n")
    assert found(machine)["packages"] == (True, "1 as in requirements-run.lock")


def test_an_environment_that_was_installed_from_another_lock_says_so(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "run-lock").write_text("another\n")
    is_fine, detail = found(machine)["packages"]
    assert not is_fine
    assert detail.startswith("installed from another requirements-run.lock than this checkout's: `make setup`")
    (tmp_path / "run-lock").write_text(describe_code()["lock"])
    assert found(machine)["packages"][0]


# What is elsewhere.


def test_steps_that_wait_to_be_told_are_counted(machine: Machine) -> None:
    assert "journals" not in found(machine)
    journal = JournalFolder(machine.home).begin("run", "start")
    is_fine, detail = found(machine)["journals"]
    assert is_fine
    assert detail.startswith("1 steps are not logged to MLflow yet")
    journal.close()


def test_batch_is_looked_at_where_metaflow_is_set_up_for_it(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "batch" not in found(machine)
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)
    assert found(machine)["batch"] == (True, "queue queue")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    is_fine, detail = found(machine)["batch"]
    assert not is_fine
    assert detail.startswith("`run --with batch` would be refused: MLFLOW_TRACKING_URI: it is not set")
    monkeypatch.delenv("METAFLOW_ECS_S3_ACCESS_IAM_ROLE")
    assert "not set: METAFLOW_ECS_S3_ACCESS_IAM_ROLE (the role by which" in found(machine)["batch"][1]


@pytest.mark.parametrize(
    ("mode", "key", "words"),
    [
        ("off", False, "off (CHESS_GRPO_WANDB=online turns it on)"),
        ("off", True, "off (CHESS_GRPO_WANDB=online turns it on)"),
        ("online", True, "online; a key is in WANDB_API_KEY"),
        ("online", False, "online; there is no WANDB_API_KEY, so it is saved below"),
        ("offline", False, "offline: saved below"),
    ],
)
def test_the_mirror_is_told_of_and_its_key_never_printed(
    mode: str, key: bool, words: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    is_fine, detail = found(replace(machine, mirror=Mirror(mode)))["W&B"]
    assert is_fine
    assert detail.startswith(words)
    assert KEY not in detail


def test_a_shared_store_is_looked_at_and_not_written_to(machine: Machine, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    assert found(replace(machine, shared=str(shared)))["shared store"][0]
    assert not shared.exists()


# Typed.


def test_the_exit_code_says_whether_all_is_fine(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda name: None)
    assert main(["doctor", "--config", "smoke", "--set", "seed=3"]) == 0
    assert capsys.readouterr().out.endswith("All checks passed: `make run CONFIG=smoke SET=seed=3` can start.\n")
    assert main(["doctor", "--set", "sed=3"]) == 1
    said = capsys.readouterr().out
    assert "  FAIL  settings   settings: unknown key sed; did you mean seed?" in said
    assert said.endswith("1 of 8 checks failed; each line says how to fix it.\n")
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["is_fine"]
    assert facts["findings"][0]["what"] == "python"


# The UI.

Started = list[tuple[list[str], dict[str, str]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Return what this process became instead of going on."""
    calls: Started = []

    def become(path: str, words: list[str], environment: dict[str, str]) -> None:
        calls.append((words, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    return calls


def test_the_ui_is_mlflows_on_the_store_of_this_home(
    machine: Machine,
    give_tables: Callable[[Path], Path],
    started: Started,
    capsys: pytest.CaptureFixture[str],
) -> None:
    give_tables(machine.home)
    port = free_port()
    with pytest.raises(SystemExit):
        main(["ui", "--port", str(port)])
    ((words, environment),) = started
    assert words[1:4] == ["-m", "mlflow", "ui"]
    assert words[words.index("--port") + 1] == str(port)
    assert environment["MLFLOW_BACKEND_STORE_URI"] == machine.tracking_uri
    assert not any(machine.tracking_uri in word for word in words)
    assert f"http://127.0.0.1:{port}" in capsys.readouterr().out


def test_the_ui_names_the_last_runs_page_and_how_a_moved_homes_artifacts_are_found(
    machine: Machine, started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steps.tracking.tracker import Tracker

    run = Tracker(machine).start_flow_run(metaflow_run="7", settings={"seed": 0}, tags={}, note="", files={"settings.toml": "seed = 0"})
    machine.home.rename(tmp_path / "moved")
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "moved"))
    with pytest.raises(SystemExit):
        main(["ui", "--port", str(free_port())])
    said = capsys.readouterr().out
    assert f"until `chess-grpo doctor --repair`, 1 runs look for their artifacts in {machine.home}" in said
    assert re.search(rf"The last one, 7:\nhttp://127\.0\.0\.1:\d+/#/experiments/1/runs/{run}\?workflowType=machine_learning\n", said)


def test_a_store_that_is_not_there_is_made_with_our_experiment_as_a_run_makes_it(
    machine: Machine, started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    from steps.tracking.client import TrackingStore
    from steps.tracking.tags import EXPERIMENT

    with pytest.raises(SystemExit):
        main(["ui", "--port", str(free_port())])
    assert "does not exist yet and is created now" in capsys.readouterr().out
    experiment = TrackingStore(machine, ()).client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    assert experiment.artifact_location == (machine.home / "mlartifacts").as_uri()


def test_a_port_that_is_taken_is_refused_with_one_that_is_free(
    machine: Machine,
    give_tables: Callable[[Path], Path],
    started: Started,
    capsys: pytest.CaptureFixture[str],
) -> None:
    give_tables(machine.home)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"chess-grpo: port {port} of 127.0.0.1 is in use (Address already in use): if it is this UI, open http://")
    assert "`chess-grpo ui --port " in said
    assert started == []
