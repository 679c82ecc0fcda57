"""The real flow, run once on the preset `test`; many small tests read what it left."""

from typing import Any

import pytest
from real_flow import FlowRun, run_flow, run_in_one_process


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> FlowRun:
    """The preset `test` from an empty directory."""
    return run_flow(tmp_path_factory.mktemp("first"), {"preset": "test"})


@pytest.fixture(scope="session")
def second_run(tmp_path_factory: pytest.TempPathFactory) -> FlowRun:
    """The same, with the same seed, in another empty directory, and in one process where the first had one for each task."""
    return run_in_one_process(tmp_path_factory.mktemp("second"), {"preset": "test"})


@pytest.fixture
def tracking(first_run: FlowRun) -> Any:
    """A client of the first run's tracking store."""
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{first_run.home / 'mlflow.db'}"
    return MlflowClient(uri, registry_uri=uri)
