"""The command `chess-grpo compare`: two runs side by side, with the games that would decide between them.

Results can be compared when their yardsticks are the same: the same opponent and rules, the same ladder, the same boards. A score against
the pretrained policy says nothing about a run that began with another one. Only games as played are compared: they decide.
"""

from collections.abc import Iterator

import click

from grpo.settings.names import compared_settings
from grpo.statistics.intervals import Unit, difference
from steps.cli.runs import status_of
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
    """Two runs side by side: A and B are ids of runs, or `last`.

    The settings that differ and, where both were measured with the same yardstick (same opponent and rules, same ladder, same held-out
    boards), the results with the difference and its 95 % interval. It names the games that would decide the rest.
    """
    store = Store.of(Machine.here())
    runs = [find_run(name, store) for name in (first, second)]
    of_first, of_second = (results_of(run, store) for run in runs)
    verdicts = [status_of(run) if found is None else found.decision.verdict for run, found in zip(runs, (of_first, of_second), strict=True)]
    facts = zip("AB", runs, verdicts, strict=True)
    print(text_table([(side, run.name, when(run.started), verdict, run.facts["label"]) for side, run, verdict in facts]))
    if runs[0].name == runs[1].name:
        print("A and B are one and the same run: there is nothing to compare.")
    elif of_first is None or of_second is None:
        print("No results to compare: both runs must have reached the step `report`.")
    else:
        print("\n".join(comparison(of_first, of_second)))
        print(
            "No score against a third player says who would win between the two champions. Their games do:"
            f" `chess-grpo match {runs[0].name} {runs[1].name} --pairs 300`"
        )
    return 0


def comparison(first: Results, second: Results) -> Iterator[str]:
    """Yield a line for each setting and each result of two runs that differs, and one for all that cannot be compared."""
    before, after = compared_settings(first.settings), compared_settings(second.settings)
    pairs = {name: (before.get(name, "-"), after.get(name, "-")) for name in sorted(before.keys() | after.keys())}
    if first.dataset == second.dataset:
        yield f"Data, the same: {first.dataset}"
    else:
        yield from ["Data differ:", f"  A: {first.dataset}", f"  B: {second.dataset}"]
    changed = [f"  {name}: A {one}, B {other}" for name, (one, other) in pairs.items() if one != other]
    yield from ["Settings that differ:", *changed] if changed else ["Settings that differ: none"]
    here, there = ({each.name: each for each in results.measurements} for results in (first, second))
    rows, same, apart = [], [], dict[str, list[str]]()
    for name in dict.fromkeys([*here, *there]):
        one, other = here.get(name), there.get(name)
        if one is None or other is None:
            apart.setdefault(f"only {'A' if other is None else 'B'} has it", []).append(name)
        elif one.output == other.output:
            same.append(name)
        elif reason := " and another ".join(_differing(one, other)):
            apart.setdefault(f"another {reason}", []).append(name)
        else:
            rows.append(_row(one, other))
    yield f"Results: {'A, B, and A less B with its 95 % interval' if rows else 'none can be compared'}"
    if rows:
        yield from text_table(rows, indent="  ").splitlines()
        yield (
            "The interval of the difference decides; one that holds 0 shows no difference, which does not mean that there is none. Samples"
            " count as independent, and of many rows one may mislead."
        )
    if same:
        yield f"Measured once, for the later run reused it: {'; '.join(same)}."
    if apart:
        reasons = [f"{why}: {', '.join(names)}" for why, names in apart.items()]
        yield f"Not comparable: {'; '.join(reasons)}."


def _row(one: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return a result, its two values, their difference (as of independent samples), and which run is shown to be better."""
    found, values = difference(one.estimate, other.estimate), [each.estimate.text(each.unit).partition(" ")[0] for each in (one, other)]
    is_shown = not found.low <= 0 <= found.high
    better = "A" if (found.value > 0) == (one.unit != Unit.REGRET) else "B"
    return one.name, *values, found.text(one.unit, is_change=True), f"{better} is better" if is_shown else ""


def _differing(one: Measurement, other: Measurement) -> list[str]:
    """Return the parts of two yardsticks that differ or are unknown."""
    mine, theirs = one.yardstick, other.yardstick
    return [name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) is None or mine.get(name) != theirs.get(name)]
