"""Fixtures for acceptance tests: tiny trainings that can be killed, and machines for a run of made steps."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made_run
import pytest
from s3_server import s3_server
from tiny_training import prepare
from trainings import Driver, Result, result_of

from grpo.settings.kinds import NETWORK
from steps.run.machine import Machine


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    prepared = tmp_path_factory.mktemp("prepared") / "inputs"
    prepare(prepared)
    driver = Driver(prepared)
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def whole(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """Return a maker of uninterrupted trainings, each configuration trained once."""
    made: dict[str, Result] = {}

    def make(kind: str = NETWORK, **grpo: Any) -> Result:
        key = json.dumps([kind, grpo])
        if key not in made:
            home = tmp_path_factory.mktemp("whole") / "home"
            status, log = driver.run(home, kind, grpo=grpo)
            assert status == 0, log
            made[key] = result_of(home)
            assert len(set(made[key].lines)) == len(made[key].lines)
        return made[key]

    return make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def runs_here(here: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Let runs of made steps take place on the machine `here`."""
    monkeypatch.setenv("CHESS_GRPO_HOME", str(here.home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", here.tracking_uri)
    for name in ("CHESS_GRPO_TASK", "CHESS_GRPO_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(made_run, "before", [])
    return here


@pytest.fixture
def bucket(_quick_clients: None, runs_here: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the store be in a bucket of an S3 that other processes reach too; returns its address."""
    with s3_server() as variables:
        for name, value in {**variables, "CHESS_GRPO_STORE": "s3://shop/store"}.items():
            monkeypatch.setenv(name, value)
        yield "s3://shop/store"
