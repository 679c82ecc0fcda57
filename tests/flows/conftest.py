"""The real flow, run once on the preset `test`; many small tests read what it left."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  A part of torch that loads late, and no longer once Metaflow's own typing_extensions is loaded.
from presets import TEST
from real_flow import SECRETS, FlowRun, run_flow


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> FlowRun:
    cwd = tmp_path_factory.mktemp("first")
    give_tables(cwd / "home")
    return run_flow(cwd, {"preset": TEST}, variables=SECRETS)


@pytest.fixture
def tracking(first_run: FlowRun) -> Any:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{first_run.home / 'mlflow.db'}"
    return MlflowClient(uri, registry_uri=uri)
