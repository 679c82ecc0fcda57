"""A sweep: combinations of settings, each with every seed; and what its runs found, with means over seeds.

A run carries the sweep's name and its own key in its tags, so that the sweep is read back from the records of the store. In MLflow its runs
are found by the same tag; a sweep has no run of its own there.
"""

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from grpo.base.files import sha256_json
from grpo.settings.tree import ConfigError, PolicyConfig, read_settings
from grpo.statistics.intervals import Estimate
from steps.names import RESULTS
from steps.pages.results import read_results
from steps.run.launch import Launch, launch_of
from steps.run.records import Run, Runs
from steps.run.store import Store

SWEEP: Final = "chess_grpo.sweep"
"""Tag of a run: NAME/KEY, of the sweep that started it and of the run in it."""
SWEEP_VARIABLE: Final = "CHESS_GRPO_SWEEP"
"""Variable: the value of that tag, for the process that starts a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run of a sweep."""

    combination: str
    """What `--set` gives it, as `key = value, ...`; empty where there is no `--set`."""
    seed: int
    key: str
    """Hash of all its settings, of the code of all steps and of the engine: a finished run of this key is not run again."""
    policy: PolicyConfig
    launch: Launch

    @property
    def name(self) -> str:
        """The run in words."""
        return ", ".join(part for part in (self.combination, f"seed {self.seed}") if part)


def plan_sweep(settings: str, seeds: Sequence[int], grid: Sequence[str], *, made_by: str) -> list[PlannedRun]:
    """Return the runs of all combinations with all seeds, seed by seed: an interrupted sweep has about as many of each combination.

    Args:
        settings: a preset, or a TOML file.
        seeds: each once.
        grid: `key=a,b` each: values of a setting.
        made_by: what the results depend on besides the settings: code and engine.

    Raises ConfigError for settings that the pipeline refuses, and where two runs would be the same.
    """
    runs: dict[str, PlannedRun] = {}
    for seed in seeds:
        for lines in itertools.product(*map(_lines, grid)):
            text = "\n".join([f"preset = {json.dumps(settings)}", *lines, f"seed = {seed}"])
            resolved = read_settings(text)
            plain = resolved.model_dump(mode="json")
            key = sha256_json({"settings": plain, "made by": made_by})[:24]
            # The launch is complete: a settings file that is edited while the sweep is under way changes nothing.
            run = PlannedRun(combination=", ".join(lines), seed=seed, key=key, policy=resolved.policy, launch=launch_of(plain))
            if key in runs:  # One run that counts twice makes an interval too narrow.
                raise ConfigError(f"settings: two runs are the same: {runs[key].name}, and {run.name}; give each seed and value once")
            runs[key] = run
    return list(runs.values())


def sweep_name(plan: Sequence[PlannedRun]) -> str:
    """Return the name of a sweep: a hash of its runs' keys, which also names its folder."""
    return sha256_json([run.key for run in plan])[:12]


def _lines(option: str) -> list[str]:
    """Return a line of settings for each value of `key=a,b`."""
    key, sign, text = (part.strip() for part in option.partition("="))
    if key == "seed":
        raise ConfigError(f"settings: seed: give seeds as `--seeds {text.replace(',', ' ')}`, not by --set")
    try:
        values = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [_value(word.strip()) for word in text.split(",")]
    if not (key and sign and values):
        raise ConfigError(f"settings: --set {option!r}: give KEY=A,B")
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for value in values]


def _value(word: str) -> Any:
    """Return a TOML value; a word needs no quotes."""
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRow:
    """One run of a sweep, as far as it is."""

    planned: PlannedRun
    verdict: str
    """The status of a run that has none; `not run` before it was started."""
    gains: Mapping[str, Estimate]
    """Measure -> Elo."""
    is_finished: bool


def read_sweep(plan: Sequence[PlannedRun], store: Store) -> list[SweepRow]:
    """Return what came of each planned run: of those with its key the newest that finished, else the newest."""
    best_runs: dict[str, Run] = {}
    keys = {run.key for run in plan}
    for run in Runs(store).all():
        key = run.facts["tags"].get(SWEEP, "").partition("/")[2]
        if key in keys and (key not in best_runs or (run.status == "finished" and best_runs[key].status != "finished")):
            best_runs[key] = run
    rows = []
    for planned in plan:
        ran = best_runs.get(planned.key)
        row = SweepRow(planned=planned, verdict="not run" if ran is None else ran.status, gains={}, is_finished=False)
        if ran is not None and ran.status == "finished" and (reported := ran.output_of("report")) is not None:
            decision = read_results(store.file(reported, RESULTS)).decision
            row = replace(row, verdict=decision.verdict, gains=decision.gains, is_finished=True)
        rows.append(row)
    return rows
