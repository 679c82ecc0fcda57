"""The command `chess-grpo compare`: two runs side by side, with conclusions."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo.statistics.intervals import Unit
from steps.cli.tables import text_table, when
from steps.runs.names import RUN_NAMES
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import wrapped

if TYPE_CHECKING:
    from steps.runs.comparison import Comparison
    from steps.runs.index import TrackedRun
    from steps.runs.results import ResultComparison
    from steps.step_io.results import Measurement


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `compare`."""
    compare = commands.add_parser(
        "compare",
        description="Two flow runs side by side: the settings that differ, the results with 95 % intervals and, where both were measured"
        " with the same yardstick (same opponent and rules, same ladder, same held-out boards), the difference with its interval. It prints"
        " conclusions, and the games that would decide the rest. A and B are named as for `show`.",
    )
    compare.add_argument("first", metavar="A", help=RUN_NAMES)
    compare.add_argument("second", metavar="B", help="the other")
    compare.set_defaults(run=_compare)


def _compare(given: argparse.Namespace) -> int:
    from steps.runs.comparison import compare_runs
    from steps.runs.index import find_run

    machine = Machine.here()
    found = compare_runs(find_run(given.first, machine), find_run(given.second, machine), machine)
    print("\n".join(_lines(found)))
    return 0


def _lines(found: "Comparison") -> Iterator[str]:
    yield text_table([_row("A", found.first), _row("B", found.second)])
    yield "\nSettings that differ" if found.settings else "\nSettings: no difference"
    if found.settings:
        rows = [(name, *("(not set)" if value is None else value for value in pair)) for name, pair in found.settings.items()]
        yield text_table([("", "A", "B"), *rows], indent="  ")
    yield "\nResults, with 95 % intervals"
    yield from _result_lines(found)
    yield "\nWhat follows"
    yield from (wrapped(sentence, "  - ") for sentence in found.conclusions)
    if found.match:
        yield f"\n      {found.match}"


def _result_lines(found: "Comparison") -> Iterator[str]:
    if not found.rows:
        yield "  none yet"
        return
    values = [(f"A {_text(row.first)}", f"B {_text(row.second)}") for row in found.rows]
    for row, line in zip(found.rows, text_table(values, indent="    ").splitlines(), strict=True):
        yield f"  {row.name}"
        yield line
        yield f"    A - B  {_difference(row)}"


def _text(measured: "Measurement | None") -> str:
    from steps.step_io.results_text import interval_text

    return "-" if measured is None else interval_text(measured, measured["unit"])


def _difference(row: "ResultComparison") -> str:
    if row.difference is not None and row.first is not None:
        return row.difference.text(Unit(row.first["unit"]), is_change=True)
    return "the same measurement" if row.is_one_measurement else "not comparable" if row.apart else "-"


def _row(name: str, run: "TrackedRun") -> tuple[str, ...]:
    from steps.runs.settings import from_preset
    from steps.tracking.tags import VERDICT

    return name, run.metaflow_run, when(run.started), run.tags.get(VERDICT, run.status), str(from_preset(run.settings))
