"""The real flow, run through `metaflow.Runner` in a directory of its own."""

import atexit
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forking import Forks, inherited

ROOT = Path(__file__).resolve().parents[2]
FLOW = ROOT / "flows" / "chess_grpo.py"

CANARY = "canary-5f0c1e7a"
_NAMES = ("AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY", "DATABASE_PASSWORD")
SECRETS = dict.fromkeys(_NAMES, CANARY)
"""Variables with secrets in them; none may ever be found in what a run leaves."""

os.environ.setdefault("METAFLOW_USER", "tester")


@dataclass(frozen=True)
class FlowRun:
    home: Path
    succeeded: bool
    output: str
    run_id: str
    data: SimpleNamespace

    def folder(self, step_output: Mapping[str, Any]) -> Path:
        return self.home / "outputs" / step_output["step"] / step_output["version"]


def run_flow(cwd: Path, settings: Mapping[str, Any], *, variables: Mapping[str, str] | None = None) -> FlowRun:
    """Run the flow in a working directory of its own, with an environment that no other test has touched."""
    from metaflow import Runner

    (cwd / ".metaflow").mkdir(parents=True, exist_ok=True)  # Metaflow uses the nearest one above, of another test or of a person.
    home = cwd / "home"
    environment = _environment(home) | dict(variables or {})
    runner = Runner(str(FLOW), show_output=False, cwd=str(cwd), env=environment, config_value=[("settings", dict(settings))])
    with runner.run() as running:
        succeeded, run = running.status == "successful", running.run
        data = {artifact.id: artifact.data for artifact in run["end"].task} if succeeded else {}
        said = running.stdout + running.stderr
        return FlowRun(home=home, succeeded=succeeded, output=said, run_id=run.id, data=SimpleNamespace(**data))


def run_in_one_process(cwd: Path, settings: Mapping[str, Any], *, home: Path | None = None, **parameters: Any) -> FlowRun:
    """Run the flow's steps in one process, a tenth of the cost of a flow: see `jobs.py`. There is no card."""
    cwd.mkdir(parents=True, exist_ok=True)
    home, run, log = home or cwd / "home", f"one-process-{cwd.name}", cwd / "log"
    job = {"run": run, "settings": json.dumps(dict(settings)), "parameters": parameters, "environment": _environment(home)}
    status = _forks().wait(_forks().fork(**job, cwd=str(cwd), log=str(log)))
    left = json.loads((cwd / "artifacts" / run / "end.json").read_text()) if status == 0 else {}
    return FlowRun(home=home, succeeded=status == 0, output=log.read_text(), run_id=run, data=SimpleNamespace(**left))


@cache
def _forks() -> Forks:
    """Return the process that has imported what all steps need, started when it is first asked for."""
    forks = Forks("flow")
    atexit.register(forks.close)
    return forks


def outputs_in(artifacts: Mapping[str, Any]) -> dict[str, Any]:
    """Return step -> its output, of the artifacts of a run."""
    return {each["step"]: each for each in artifacts.values() if isinstance(each, dict) and "output_hash" in each}


def _environment(home: Path) -> dict[str, str]:
    return inherited() | {"CHESS_GRPO_HOME": str(home), "CHESS_GRPO_DEVICE": "cpu", "CHESS_GRPO_THREADS": "1"}
