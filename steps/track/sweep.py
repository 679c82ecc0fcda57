"""A sweep runs each combination of settings with each seed, and skips runs that any sweep finished with the same key."""

import itertools
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo.base.files import sha256_json
from grpo.settings.tree import ConfigError, Settings, read_settings
from grpo.statistics.intervals import Estimate
from steps.names import RESULTS
from steps.pages.results import read_results
from steps.run.launch import Launch, launch_of
from steps.run.records import Run, Runs
from steps.run.store import Store

SWEEP: Final = "chess_grpo.sweep"  # Run's tag: SWEEP_NAME/RUN_KEY.
SWEEP_VARIABLE: Final = "CHESS_GRPO_SWEEP"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    combination: str  # Values of `--set` as `key = value, ...`.
    seed: int
    key: str  # Hash of settings and `inputs`.
    launch: Launch

    @property
    def name(self) -> str:
        return ", ".join(part for part in (self.combination, f"seed {self.seed}") if part)


def plan_sweep(
    settings: str, seeds: Sequence[int], grid: Sequence[str], *, inputs: Callable[[Settings], Mapping[str, str]]
) -> list[PlannedRun]:
    """Return all runs, seed by seed, so an interrupted sweep has run all combinations about equally often.

    `settings`: preset or path of a TOML file. `grid`: `key=a,b` per varied setting. `inputs` identifies code, engine and files. Raises
    ConfigError for invalid settings or two equal runs.
    """
    runs: dict[str, PlannedRun] = {}
    for seed in seeds:
        for lines in itertools.product(*map(_toml_lines, grid)):
            text = "\n".join([f"preset = {json.dumps(settings)}", *lines, f"seed = {seed}"])
            resolved = read_settings(text)
            values = resolved.model_dump(mode="json")
            key = sha256_json({"settings": values, "inputs": dict(inputs(resolved))})[:24]
            # The launch names a shipped preset, so a later edit of the file changes no run.
            run = PlannedRun(combination=", ".join(lines), seed=seed, key=key, launch=launch_of(values))
            if key in runs:  # A run that counts twice would narrow the intervals.
                raise ConfigError(f"settings: two runs are the same: {runs[key].name}, and {run.name}; give each seed and value once")
            runs[key] = run
    return list(runs.values())


def sweep_name(plan: Sequence[PlannedRun]) -> str:
    return sha256_json([run.key for run in plan])[:12]


def _toml_lines(option: str) -> list[str]:
    key, sign, text = (part.strip() for part in option.partition("="))
    if key == "seed":
        raise ConfigError(f"settings: seed: give seeds as `--seeds {text.replace(',', ' ')}`, not by --set")
    try:
        values = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [_value(word.strip()) for word in text.split(",")]
    if not (key and sign and values):
        raise ConfigError(f"settings: --set {option!r}: give KEY=A,B")
    return [f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}" for value in values]


def _value(word: str) -> Any:
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRow:
    planned: PlannedRun
    verdict: str  # Verdict, else the run's status or `not run`.
    gains: Mapping[str, Estimate]  # Label of a measurement -> gain in Elo.
    is_finished: bool


def read_sweep(plan: Sequence[PlannedRun], store: Store) -> list[SweepRow]:
    """Return a row per planned run: the newest finished run with its key, else the newest."""
    chosen: dict[str, Run] = {}
    keys = {run.key for run in plan}
    for run in Runs(store).all():  # Newest first.
        key = run.facts["tags"].get(SWEEP, "").partition("/")[2]
        if key in keys and (key not in chosen or (run.status == "finished" and chosen[key].status != "finished")):
            chosen[key] = run
    rows = []
    for planned in plan:
        actual = chosen.get(planned.key)
        if actual is not None and actual.status == "finished" and (reported := actual.output_of("report")) is not None:
            decision = read_results(store.file(reported, RESULTS)).decision
            rows.append(SweepRow(planned=planned, verdict=decision.verdict, gains=decision.gains, is_finished=True))
        else:
            rows.append(SweepRow(planned=planned, verdict="not run" if actual is None else actual.status, gains={}, is_finished=False))
    return rows
