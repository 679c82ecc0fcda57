"""Two runs side by side, by their documents: the settings that differ, and the results that can be compared.

Results can be compared when their yardsticks are the same: the same opponent and rules, the same ladder, the same boards. A score against
the pretrained policy says nothing about a run that began with another one. Only games as played are compared: they decide.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo.match.intervals import Estimate, Unit, difference
from grpo.settings.names import compared_settings
from steps.pages.results import Measurement, Results


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The same result of two runs."""

    name: str
    first: Measurement
    second: Measurement
    difference: Estimate
    """First less second, taken as independent samples."""

    @property
    def better(self) -> str:
        """Which is shown to be better: A, the first, or B; empty where neither is."""
        if self.difference.low <= 0 <= self.difference.high:
            return ""
        return "A" if (self.difference.value > 0) == (self.first.unit != Unit.REGRET) else "B"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What two documents say of each other."""

    settings: dict[str, tuple[str, str]]
    """Those that differ, by dotted name; "-" where a run has none."""
    rows: tuple[Row, ...]
    same: tuple[str, ...]
    """Measurements that both runs have of one output, because the later one reused it."""
    apart: dict[str, list[str]]
    """Why it cannot be compared -> measurements."""


def compare(first: Results, second: Results) -> Comparison:
    """Compare the results of two runs."""
    before, after = compared_settings(first.settings), compared_settings(second.settings)
    settings = {name: (before.get(name, "-"), after.get(name, "-")) for name in sorted(before.keys() | after.keys())}
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
            rows.append(Row(name=name, first=one, second=other, difference=difference(one.estimate, other.estimate)))
    differing = {name: pair for name, pair in settings.items() if pair[0] != pair[1]}
    return Comparison(settings=differing, rows=tuple(rows), same=tuple(same), apart=apart)


def comparison_lines(found: Comparison) -> list[str]:
    """Return a comparison for a terminal: a line for each setting and for each row, and one for all that cannot be compared."""
    lines = [f"Settings that differ: {'' if found.settings else 'none'}".rstrip()]
    lines += [f"  {name}: A {one}, B {other}" for name, (one, other) in found.settings.items()]
    lines.append(f"Results: {'A, B, and A less B with its 95 % interval' if found.rows else 'none can be compared'}")
    width = max((len(row.name) for row in found.rows), default=0)
    return [*lines, *(_line(row, width) for row in found.rows), *_sentences(found)]


def _line(row: Row, width: int) -> str:
    one, other = (each.estimate.text(each.unit).partition(" ")[0] for each in (row.first, row.second))
    change = row.difference.text(row.first.unit, is_change=True)
    return f"  {row.name:<{width}}  {one:>7}  {other:>7}  {change}{f'  {row.better} is better' if row.better else ''}"


def _sentences(found: Comparison) -> Iterator[str]:
    if found.rows:
        yield (
            "The interval of the difference decides; one that holds 0 shows no difference, which does not mean that there is none. Samples"
            " count as independent, and of many rows one may mislead."
        )
    if found.same:
        yield f"Measured once, for the later run reused it: {'; '.join(found.same)}."
    if found.apart:
        reasons = [f"{why}: {', '.join(names)}" for why, names in found.apart.items()]
        yield f"Not comparable: {'; '.join(reasons)}."


def _differing(one: Measurement, other: Measurement) -> list[str]:
    """Return the parts of two yardsticks that differ or are unknown."""
    mine, theirs = one.yardstick, other.yardstick
    return [name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) is None or mine.get(name) != theirs.get(name)]
