"""Saved views of the runs table in the MLflow UI (menu *Views*): filter, columns and order.

MLflow 3 stores a view as a zlib-compressed tag of the experiment. The format is internal to its UI, so a test opens them in a browser.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from steps.tracking.tags import FLOW, FOUND, STEP, VERDICT

SHARE_KEY: Final = "viewStateShareKey"
_TRAINING: Final = "workflowType=machine_learning"
"""Opens a page in MLflow's mode *Model training*; without it MLflow 3 opens in its mode for prompts and traces."""
_TAG: Final = "mlflow.sharedViewState."
RUNS: Final = "chess-grpo-runs"
STEPS_VIEW: Final = "chess-grpo-steps"

_COMPARED: Final = (
    f"tags.`{VERDICT}`",
    f"tags.`{FOUND}`",
    "metrics.`selection/score_best`",
    "metrics.`selection/score_best_low`",
    "metrics.`selection/score_best_high`",
    "metrics.`selection/ladder_gain`",
    "metrics.`selection/ladder_gain_low`",
    "metrics.`selection/ladder_gain_high`",
    "metrics.`selection/rating`",
    "metrics.`run/regret_after`",
    "params.`grpo.learning_rate`",
)


def view_address(server: str, experiment_id: str, view: str = RUNS) -> str:
    """Return the address of the runs table in a saved view, `RUNS` by default, as the UI at `server` shows it.

    >>> view_address("http://127.0.0.1:5000/", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=chess-grpo-runs&workflowType=machine_learning'
    """
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?{SHARE_KEY}={view}&{_TRAINING}"


def run_address(server: str, experiment_id: str, run_id: str) -> str:
    """Return the address of a run's page in the UI at `server`; an empty `server` gives a link within it.

    >>> run_address("", "1", "0a1b")
    '/#/experiments/1/runs/0a1b?workflowType=machine_learning'
    """
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}?{_TRAINING}"


def saved_views() -> dict[str, str]:
    """Return the experiment's tags of two views: a comparison of runs, and the steps of each run in order."""
    return {
        f"{_TAG}{RUNS}": _view("Runs compared", condition=f"tags.`{STEP}` = '{FLOW}'", columns=_COMPARED, is_rising=False),
        f"{_TAG}{STEPS_VIEW}": _view("Steps in order", condition="", columns=("attributes.`Dataset`",), is_rising=True),
    }


def _view(name: str, *, condition: str, columns: Sequence[str], is_rising: bool) -> str:
    state: Mapping[str, Any] = {
        "searchFilter": condition,
        "orderByKey": "attributes.start_time",
        "orderByAsc": is_rising,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns),
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "FIRST_10_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()
    return json.dumps({"name": name, "createdAt": 1, "updatedAt": 1, "state": f"deflate;{packed}"})
