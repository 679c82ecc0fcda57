"""The flow compiles to a workflow of Argo for Kubernetes. No cluster runs it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from real_flow import FLOW
from s3_server import s3_server

from steps import STEPS

PACKAGES = ("kubernetes==31.0.0", "durationpy", "oauthlib", "requests-oauthlib", "websocket-client")
"""Packages that only Metaflow's compiler needs; an old version, because new ones are seven times as large."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with PACKAGES, or an empty one if they are installed."""
    folder = tmp_path_factory.mktemp("packages")
    if find_spec("kubernetes") is None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--retries=1",
            "--no-deps",
            "--no-compile",
            "--target",
            str(folder),
            *PACKAGES,
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"Metaflow lacks its package kubernetes, and no package index answers: {made.stderr[-300:]}")
    return folder


@pytest.fixture(scope="module")
def templates(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each step's template in the compiled workflow."""
    settings = ["--config-value", "settings", 'preset = "smoke"\nresources.training.num_gpus = 1\nresources.games.num_cpus = 3']
    command = [sys.executable, str(FLOW), *settings, "--with", "kubernetes", "argo-workflows", "create", "--only-json"]
    with s3_server() as variables:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CHESS_", "METAFLOW_", "MLFLOW_"))}
        environment = {
            **inherited,
            **variables,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH")))),
            "METAFLOW_HOME": str(packages),
            "METAFLOW_USER": "tester",
            "METAFLOW_S3_ENDPOINT_URL": variables["AWS_ENDPOINT_URL"],
            "METAFLOW_DATASTORE_SYSROOT_S3": "s3://shop/metaflow",
            "METAFLOW_KUBERNETES_CONTAINER_IMAGE": "registry/chess-grpo:gpu",
            "MLFLOW_TRACKING_URI": "https://mlflow.internal",
            "MLFLOW_TRACKING_PASSWORD": "hunter2",
            "CHESS_GRPO_SECRETS": "chess/tracking",
        }
        done = subprocess.run(command, cwd=packages, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "hunter2" not in done.stdout
    compiled = {each["name"]: each for each in json.loads(done.stdout)["spec"]["templates"]}
    return {name: compiled[name.replace("_", "-")] for name in ("start", *STEPS, "end")}


def test_every_step_has_the_resources_of_the_settings_retries_and_a_limit(templates: dict[str, dict[str, Any]]) -> None:
    plays_games = ("calibrate", "baseline", "screen", "confirm", "select")
    for name, template in templates.items():
        asked = template["container"]["resources"]
        assert float(asked["requests"]["cpu"]) == (3 if name in plays_games else 2), name
        is_training = name in ("pretrain", "finetune")
        assert float(asked["requests"]["memory"].removesuffix("M")) == (4_096 if is_training else 7_000), name
        assert asked["limits"] == {"nvidia.com/gpu": str(int(is_training))}, name
        assert template["retryStrategy"]["limit"] == 3, name
        assert template["activeDeadlineSeconds"] == (2_880 if is_training else 720) * 60, name
        assert template["container"]["image"] == "registry/chess-grpo:gpu", name


def test_every_step_has_the_store_the_server_and_the_names_of_secrets(templates: dict[str, dict[str, Any]]) -> None:
    for template in templates.values():
        variables = {row["name"]: row.get("value") for row in template["container"]["env"]}
        assert variables["CHESS_GRPO_STORE"] == "s3://shop/metaflow/chess-grpo"
        assert variables["MLFLOW_TRACKING_URI"] == "https://mlflow.internal"
        assert variables["CHESS_GRPO_SECRETS"] == "chess/tracking"


def test_the_tasks_of_a_fan_out_run_at_once(templates: dict[str, dict[str, Any]]) -> None:
    for name in ("build_boards", "confirm"):
        assert "split-index" in json.dumps(templates[name]["inputs"])
