"""Saved views of the runs table in the MLflow UI (menu *Views*): filter, columns and order.

MLflow 3 stores a view as a zlib-compressed tag of the experiment. The format is internal to its UI, so a test opens them in a browser.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

from grpo.base.files import CorruptError, parse_json_object
from grpo.metrics.table import MAIN_CURVES, tracked_name
from steps.tracking.tags import FLOW, FOUND, RUN, RUN_NAME, SENTENCE, STEP

SHARE_KEY: Final = "viewStateShareKey"
_TRAINING: Final = "workflowType=machine_learning"
"""Opens a page in MLflow's mode *Model training*; without it MLflow 3 opens in its mode for prompts and traces."""
_TAG: Final = "mlflow.sharedViewState."
RUNS: Final = "chess-grpo-runs"
STEPS_VIEW: Final = "chess-grpo-steps"

CURVES: Final = "chess-grpo-curves"

_COMPARED: Final[Mapping[str, int]] = {
    "metrics.`selection/verdict_elo`": 160,
    "metrics.`selection/ladder_gain`": 160,
    "metrics.`selection/heldout_regret`": 180,
    "params.`grpo.learning_rate`": 150,
    f"tags.`{FOUND}`": 160,
    f"tags.`{SENTENCE}`": 520,
    f"tags.`{RUN}`": 150,
}
"""Columns of the comparison after the run's name, which has the verdict, and their widths in pixels."""
_FIRST: Final = {"attributes.`Run Name`": 420, "attributes.`Created`": 120}
_SMOOTHING: Final = 60
"""Of curves, 0 to 100."""
_WRITTEN: Final = 1
"""`updatedAt` of a view that this software wrote; the UI puts the time there when a person changes it."""


def view_address(server: str, experiment_id: str, view: str = RUNS) -> str:
    """Return the address of the runs table in a saved view, `RUNS` by default, as the UI at `server` shows it.

    >>> view_address("http://127.0.0.1:5000/", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=chess-grpo-runs&workflowType=machine_learning'
    """
    charts = "&compareRunsMode=CHART" if view == CURVES else ""
    return f"{_root(server)}#/experiments/{experiment_id}/runs?{SHARE_KEY}={view}{charts}&{_TRAINING}"


def run_address(server: str, experiment_id: str, run_id: str) -> str:
    """Return the address of a run's page in the UI at `server`; an empty `server` gives a link within it.

    >>> run_address("", "1", "0a1b")
    '#/experiments/1/runs/0a1b?workflowType=machine_learning'
    """
    return f"{_root(server)}#/experiments/{experiment_id}/runs/{run_id}?{_TRAINING}"


def _root(server: str) -> str:
    return f"{server.rstrip('/')}/" if server else ""


def saved_views(newest: str = "") -> dict[str, str]:
    """Return the experiment's tags of three views: a comparison of runs, their curves, and the steps of the newest run in order.

    Args:
        newest: Metaflow's id of the run whose steps are listed; "" lists those of all runs.
    """
    flows = f"tags.`{STEP}` = '{FLOW}'"
    charts = {"compareRunCharts": [_chart(name) for name in MAIN_CURVES], "compareRunSections": [_SECTION]}
    return {
        f"{_TAG}{RUNS}": _view("Runs compared", condition=flows, columns=_COMPARED),
        f"{_TAG}{CURVES}": _view("Curves", condition=flows, columns=_COMPARED, more=charts),
        f"{_TAG}{STEPS_VIEW}": _view(
            "Steps of the newest run",
            condition=f"tags.`{RUN}` = '{newest}'" if newest else "",
            columns={"attributes.`Duration`": 110},
            # By name, which begins with the step's number: ordered by time, the UI would fold the steps into their run.
            order=f"tags.`{RUN_NAME}`",
            is_rising=True,
        ),
    }


def is_own_view(view: str) -> bool:
    """Return whether a stored view may be replaced: this software wrote it, and nobody has changed it."""
    try:
        return bool(parse_json_object(view.encode(), "a saved view").get("updatedAt") == _WRITTEN)
    except CorruptError:  # Written by something else.
        return False


_SECTION: Final = {
    "uuid": "curves",
    "name": "curves",
    "display": True,
    "isReordered": False,
    "deleted": False,
    "isGenerated": True,
    "columns": 2,  # With three, the titles are cut beside MLflow's Assistant.
}


def _chart(name: str) -> Mapping[str, Any]:
    tracked = tracked_name(name)
    return {
        "type": "LINE",
        "uuid": tracked,
        "metricSectionId": _SECTION["uuid"],
        "metricKey": tracked,
        "displayName": tracked.partition("/")[2],
        "isGenerated": True,
        "deleted": False,
        "lineSmoothness": _SMOOTHING,
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _view(
    name: str,
    *,
    condition: str,
    columns: Mapping[str, int],
    order: str = "attributes.start_time",
    is_rising: bool = False,
    more: Mapping[str, Any] | None = None,
) -> str:
    widths = {**_FIRST, **columns}
    state: Mapping[str, Any] = {
        "searchFilter": condition,
        "orderByKey": order,
        "orderByAsc": is_rising,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns),
        "columnOrder": list(widths),  # The UI ignores the widths of columns that are not in this list.
        "columnWidths": widths,
        "runsHiddenMode": "FIRST_10_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": _SMOOTHING, "selectedXAxisMetricKey": ""},
        **(more or {}),
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()
    return json.dumps({"name": name, "createdAt": 1, "updatedAt": _WRITTEN, "state": f"deflate;{packed}"})
