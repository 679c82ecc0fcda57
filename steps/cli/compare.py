"""Command `chess-grpo compare`."""

from collections.abc import Iterator
from typing import Any

import click

from grpo.settings.names import compared_settings, short
from grpo.statistics.intervals import Unit, difference
from steps.cli.runs import status_of
from steps.cli.show import code_of
from steps.cli.tables import text_table, when
from steps.pages.known import results_of
from steps.pages.results import Measurement, Results
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import find_run


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
def command(first: str, second: str) -> int:
    """Compare two runs: settings, results, differences with 95 % intervals. A and B are run ids or `last`."""
    store = Store.of(Machine.here())
    runs = [find_run(name, store) for name in (first, second)]
    results = [results_of(run, store) for run in runs]
    outcomes = [status_of(run) if document is None else document.decision.verdict for run, document in zip(runs, results, strict=True)]
    rows = zip("AB", runs, outcomes, strict=True)
    print(text_table([(side, run.name, when(run.started), verdict, run.facts["label"]) for side, run, verdict in rows]))
    if runs[0].name == runs[1].name:
        print("A and B are the same run.")
    elif results[0] is None or results[1] is None:
        print("No results to compare: both runs must have reached the step `report`.")
    else:
        codes = [code_of(run) for run in runs]
        if codes[0] != codes[1] or runs[0].facts["code"]["is_dirty"]:
            print(f"Code may explain differences: A {codes[0]}; B {codes[1]}")
        print("\n".join(comparison(results[0], results[1])))
        print(f"Only games show which champion is stronger: `chess-grpo match {runs[0].name} {runs[1].name} --pairs 300`")
    return 0


def comparison(first: Results, second: Results) -> Iterator[str]:
    if first.dataset == second.dataset:
        yield f"Same data: {first.dataset}"
    else:
        yield from ["Data differ:", f"  A: {first.dataset}", f"  B: {second.dataset}"]
    settings_a, settings_b = compared_settings(first.settings), compared_settings(second.settings)
    values = {name: (settings_a.get(name), settings_b.get(name)) for name in sorted(settings_a | settings_b)}
    changed = [_change(name, a, b) for name, (a, b) in values.items() if a != b]
    yield from ["Settings that differ:", *changed] if changed else ["Settings that differ: none"]
    results_a, results_b = ({result.name: result for result in results.measurements} for results in (first, second))
    rows, reused, not_compared = [], [], dict[str, list[str]]()
    for name in results_a | results_b:
        a, b = results_a.get(name), results_b.get(name)
        if a is None or b is None:
            not_compared.setdefault(f"only in {'A' if b is None else 'B'}", []).append(name)
        elif a.output == b.output:
            reused.append(name)
        elif reason := " and ".join(_differing(a, b)):
            not_compared.setdefault(f"another or unknown {reason}", []).append(name)
        else:
            rows.append(_row(a, b))
    yield f"Results: {'A, B, and A minus B with its 95 % interval' if rows else 'none can be compared'}"
    if rows:
        yield from text_table(rows, indent="  ").splitlines()
        yield "An interval that contains 0 neither shows nor excludes a difference. Among many rows, one may mislead by chance."
        yield "Intervals count A and B as independent, so shared boards and openings make them too wide; ratings count the ladder as exact."
    if reused:
        yield f"Equal outputs, reused or computed again: {'; '.join(reused)}."
    if not_compared:
        reasons = [f"{reason}: {', '.join(names)}" for reason, names in not_compared.items()]
        yield f"Not comparable: {'; '.join(reasons)}."


def _change(name: str, a: Any, b: Any) -> str:
    text_a, text_b = short(name, a), short(name, b)
    if text_a == text_b:
        text_a, text_b = str(a), str(b)
    return f"  {name}: A {text_a}, B {text_b}"


def _row(a: Measurement, b: Measurement) -> tuple[str, ...]:
    # Values without their intervals.
    values = [result.estimate.text(result.unit).partition(" ")[0] for result in (a, b)]
    change = difference(a.estimate, b.estimate)
    better = "A" if (change.value > 0) == (a.unit != Unit.REGRET) else "B"  # A lower regret is better.
    return a.name, *values, change.text(a.unit, is_change=True), "" if change.low <= 0 <= change.high else f"{better} is better"


def _differing(a: Measurement, b: Measurement) -> list[str]:
    yardstick_a, yardstick_b = a.yardstick, b.yardstick
    return [name for name in yardstick_a | yardstick_b if yardstick_a.get(name) is None or yardstick_a.get(name) != yardstick_b.get(name)]
