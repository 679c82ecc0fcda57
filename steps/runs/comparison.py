"""Compares two runs: settings, results with confidence intervals, conclusions, and the command for head-to-head games."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steps.runs.index import TrackedRun
from steps.runs.places import policy_name
from steps.runs.results import ResultComparison, compare_results, run_document, run_measurements
from steps.runs.settings import different_settings
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK, PRETRAINED_STEP


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs side by side."""

    first: TrackedRun
    second: TrackedRun
    settings: dict[str, tuple[str | None, str | None]]
    """The settings that differ."""
    rows: tuple[ResultComparison, ...]
    conclusions: tuple[str, ...]
    """Whole sentences."""
    match: str
    """The command for head-to-head games; empty unless there are two policies to play."""


def compare_runs(first: TrackedRun, second: TrackedRun, machine: Machine) -> Comparison:
    """Compare two runs; raises RegistryError when the tracking store does not answer."""
    rows = compare_results(*(run_measurements(run, run_document(run, machine)) for run in (first, second)))
    match = _match(first, second)
    return Comparison(
        first=first,
        second=second,
        settings=different_settings(first.settings, second.settings),
        rows=tuple(rows),
        conclusions=tuple(_conclusions(first, second, rows, match)),
        match=match,
    )


def _match(first: TrackedRun, second: TrackedRun) -> str:
    """Return the command for games between the champions of two runs.

    Where both runs have the same pretrained policy and it stayed the champion of one, the peak of that run plays: otherwise the other
    champion would meet its own start again.
    """
    champions = [policy.version for run in (first, second) if (policy := run.policy(CHAMPION)) is not None]
    if len(champions) < 2:
        return ""
    is_one_start = len({version.initial_weights for version in champions}) == 1
    roles = [PEAK if is_one_start and version.policy_step == PRETRAINED_STEP else CHAMPION for version in champions]
    players = [policy_name(run, role) for run, role in zip((first, second), roles, strict=True)]
    return "" if None in players or players[0] == players[1] else f"chess-grpo match {players[0]} {players[1]} --pairs 300"


def _conclusions(first: TrackedRun, second: TrackedRun, rows: Sequence[ResultComparison], match: str) -> Iterator[str]:
    if first.mlflow_run == second.mlflow_run:
        yield "A and B are one and the same run: there is nothing to conclude."
        return
    unfinished = [name for name, run in (("A", first), ("B", second)) if run.output_of("select") is None]
    if unfinished:
        yield f"{' and '.join(unfinished)} did not finish `select`: there is no candidate to compare."
    comparable = [row for row in rows if row.difference is not None]
    groups = (("A did better in", 1), ("B did better in", 2), ("No difference is shown (which does not mean that there is none) in", 0))
    for words, better in groups:
        if names := [row.name for row in comparable if row.better == better]:
            yield f"{words}: {'; '.join(names)}."
    if one := [row.name for row in rows if row.is_one_measurement]:
        yield f"The same measurement, which the later run reused: {'; '.join(one)}."
    yield from _apart(rows)
    if comparable:
        yield (
            "Differences assume independent samples. Each 95 % interval misses the true value one time in twenty, so of many rows one may"
            " mislead. Whether the intervals of A and B overlap decides nothing; the interval of the difference decides."
        )
    if match:
        yield "No score against a third player says who would win between the two. Head-to-head games do; this command plays them:"
    elif not unfinished:
        yield "Both have the same policy, or its version was deleted: there are no head-to-head games to play."


def _apart(rows: Sequence[ResultComparison]) -> Iterator[str]:
    """Yield, for each reason why results cannot be compared, the results that it applies to."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.apart:
            by_reason.setdefault(" and ".join(row.apart), []).append(row.name)
    for reason, names in by_reason.items():
        yield f"Not comparable, because {reason} differs or is not known: {'; '.join(names)}."
