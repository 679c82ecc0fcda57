"""The command `chess-grpo diagnose`: findings from a run's training history."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, read_json
from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import History
from grpo.diagnosis.reading import HistoryError, columns_text, read_run_history
from steps.runs.names import RUN_NAMES
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say

HEALTHY, FOUND, UNUSABLE = 0, 1, 2


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `diagnose`."""
    parser = commands.add_parser(
        "diagnose",
        description="Diagnose a run from its training history: named findings, each with evidence, cause and remedy.",
    )
    parser.add_argument("name", nargs="?", metavar="RUN", help=f"{RUN_NAMES}, or a folder with a history.jsonl")
    parser.add_argument(
        "--history", nargs="+", type=Path, metavar="FILE", help="tables of one run instead, CSV or JSON lines, also of another trainer"
    )
    parser.add_argument("--evals", type=Path, metavar="FILE.csv", help="a table of step, score and games; needs --history")
    parser.add_argument("--settings", type=Path, metavar="FILE.json", help="that run's settings, for remedies that name them")
    parser.set_defaults(run=diagnose_run)


def diagnose_run(given: argparse.Namespace) -> int:
    """Print the diagnosis; return 0 when healthy, 1 with findings, 2 when the input cannot be used."""
    try:
        name, history, settings = _input(given)
    except PlainError as error:
        say(f"chess-grpo diagnose: {error}", sys.stderr)
        return UNUSABLE
    found = diagnose(history, settings)
    columns = "" if given.history is None else f"{columns_text(history)}\n"
    say(f"{name}: {found.tag}\n{columns}\n{found.text()}")
    return HEALTHY if found.is_healthy else FOUND


def _input(given: argparse.Namespace) -> tuple[str, History, Mapping[str, Any] | None]:
    if (given.name is None) == (given.history is None):
        raise HistoryError("give either a RUN (`chess-grpo diagnose last`) or --history with one or more CSV files")
    settings = None if given.settings is None else _settings(given.settings)
    if given.history is not None:
        history = read_run_history(given.history, evals=given.evals)
        return ", ".join(path.name for path in given.history), history, settings
    if given.evals is not None:
        raise HistoryError("--evals belongs to --history: a run of this project has its own games")
    from steps.runs.history import run_history  # MLflow takes seconds to import.

    found = run_history(given.name, Machine.here())
    return found.name, found.history, settings if settings is not None else found.settings


def _settings(path: Path) -> Mapping[str, Any]:
    """Return the settings in a JSON file."""
    try:
        found = read_json(path)
    except OSError as error:
        raise HistoryError(f"{path}: cannot be read ({error}); give a JSON file with the run's settings") from None
    except CorruptError as error:
        raise HistoryError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise HistoryError(f'{path}: holds no settings; wanted is a JSON object, such as {{"learning_rate": 1e-5}}')
    return found
