"""Estimate of a run's remaining seconds, from earlier runs of its preset (named settings) or from its own finished steps."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from steps import STEPS
from steps.run.records import Run

# Seconds on two cores; only ratios count. `calibrate` runs beside `pretrain`.
_MEASURED_SECONDS: Final = {
    "build_boards": 78.0,
    "join_boards": 2.0,
    "check_boards": 12.0,
    "pretrain": 55.0,
    "baseline": 26.0,
    "finetune": 177.0,
    "screen": 31.0,
    "confirm": 25.0,
    "select": 69.0,
    "report": 3.0,
}


def usual_seconds(runs: Iterable[Run], preset: str) -> dict[str, float]:
    """Return step -> median seconds, over finished runs of the preset that computed the step."""
    step_seconds: dict[str, list[float]] = {}
    for run in runs:
        if run.facts["preset"] == preset and run.status == "finished":
            for step, seconds in _computed(run).items():
                step_seconds.setdefault(step, []).append(seconds)
    return {step: median(seconds) for step, seconds in step_seconds.items()}


def seconds_left(run: Run, step: str, usual: Mapping[str, float]) -> float | None:
    """Return the estimated seconds from the beginning of `step` to the run's end, as if no output were reused.

    `usual` is from `usual_seconds`. If empty, the run's own pace counts; None before a step has finished.
    """
    remaining = [name for name in STEPS[STEPS.index(step) :] if name in _MEASURED_SECONDS]
    if usual:
        return sum(usual.get(name, 0.0) for name in remaining)
    finished = _computed(run)
    if not finished:
        return None
    pace = sum(finished.values()) / sum(_MEASURED_SECONDS[name] for name in finished)
    return pace * sum(_MEASURED_SECONDS[name] for name in remaining)


def _computed(run: Run) -> dict[str, float]:
    longest: dict[str, float] = {}
    for attempt in run.latest().values():
        if attempt.step in _MEASURED_SECONDS and attempt.output is not None and not attempt.output["reused"] and attempt.ended is not None:
            # The clock may be set back.
            longest[attempt.step] = max(longest.get(attempt.step, 0.0), attempt.ended - attempt.started)
    return longest
