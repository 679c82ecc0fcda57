"""Addresses of pages in the MLflow UI."""

from typing import Final

_TRAINING: Final = "workflowType=machine_learning"
"""Opens a page in MLflow's mode *Model training*; without it MLflow 3 opens in its mode for prompts and traces."""


def runs_address(server: str, experiment_id: str) -> str:
    """Return the address of the table of runs in the UI at `server`.

    >>> runs_address("http://127.0.0.1:5000/", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning'
    """
    return f"{_root(server)}#/experiments/{experiment_id}/runs?{_TRAINING}"


def run_address(server: str, experiment_id: str, run_id: str) -> str:
    """Return the address of a run's page in the UI at `server`; an empty `server` gives a link within it.

    >>> run_address("", "1", "0a1b")
    '#/experiments/1/runs/0a1b?workflowType=machine_learning'
    """
    return f"{_root(server)}#/experiments/{experiment_id}/runs/{run_id}?{_TRAINING}"


def _root(server: str) -> str:
    return f"{server.rstrip('/')}/" if server else ""
