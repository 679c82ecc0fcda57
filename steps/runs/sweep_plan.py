"""The plan of a sweep: combinations of settings, each with every seed, and the key by which a finished run is found again."""

import itertools
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grpo.base.files import sha256_json
from grpo.settings.tree import ConfigError, Settings, read_settings
from steps.tracking.launch import Launch, launch_of

_SWEEPS: Final = "sweeps"
"""The folder of the home with all sweeps."""
_BARE_WORD: Final = re.compile(r"[A-Za-z_][\w./:-]*")
_TOML_WORDS: Final = ("true", "false", "inf", "nan")
_KEY_LENGTH: Final = 24
_ID_LENGTH: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run of a sweep."""

    combination: str
    """What `--set` gives it, as `key = value, ...`; empty where there is no `--set`."""
    seed: int
    key: str
    """Hash of all its settings, of the code of all steps and of the engine: a finished run of this key is not run again."""
    launch: Launch

    @property
    def name(self) -> str:
        """The run in words."""
        return ", ".join(part for part in (self.combination, f"seed {self.seed}") if part)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """All runs of a sweep, seed by seed: an interrupted sweep has about as many runs of each combination."""

    settings: str
    """A preset, or a TOML file."""
    seeds: tuple[int, ...]
    combinations: tuple[str, ...]
    runs: tuple[PlannedRun, ...]
    command: str

    @property
    def id(self) -> str:
        """Hash of the runs' keys; names the sweep's folder, and its run in MLflow."""
        return sha256_json([run.key for run in self.runs])[:_ID_LENGTH]

    @property
    def folder(self) -> str:
        """The sweep's folder below the home."""
        return f"{_SWEEPS}/{self.id}"


def run_id_file(run: PlannedRun) -> str:
    """Return the file below the home in which Metaflow writes the id of the newest run of this key; all sweeps share these."""
    return f"{_SWEEPS}/runs/{run.key}"


def plan_sweep(settings: str, seeds: Sequence[int], grid: Sequence[str], *, made_by: str) -> SweepPlan:
    """Return the runs of all combinations with all seeds.

    Args:
        settings: a preset, or a TOML file.
        seeds: each once.
        grid: `key=a,b` each: values of a setting.
        made_by: what the results depend on besides the settings: code and engine.

    Raises ConfigError for settings that the pipeline refuses, and where two runs would be the same.
    """
    combinations = [(", ".join(lines), lines) for lines in itertools.product(*map(_lines, grid))]
    runs = []
    for seed in seeds:
        for name, lines in combinations:
            found = read_settings("\n".join([f"preset = {json.dumps(settings)}", *lines, f"seed = {seed}"]))
            runs.append(PlannedRun(combination=name, seed=seed, key=_key(found, made_by), launch=_launch(found)))
    _refuse_equal(runs)
    words = ["chess-grpo", "sweep", settings, "--seeds", *map(str, seeds), *(word for each in grid for word in ("--set", each))]
    return SweepPlan(
        settings=settings,
        seeds=tuple(seeds),
        combinations=tuple(name for name, _ in combinations),
        runs=tuple(runs),
        command=shlex.join(words),
    )


def split_values(text: str) -> list[str]:
    """Split a list of values at the commas outside of brackets and quotes.

    >>> split_values("1e-3, 3e-3"), split_values("[1, 300],[1]"), split_values('"a,b",c')
    (['1e-3', '3e-3'], ['[1, 300]', '[1]'], ['"a,b"', 'c'])
    """
    pieces, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and not quote and not depth:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def _lines(given: str) -> list[str]:
    """Return one line of settings for each value of `key=a,b`; text without a value stays as it is, for `read_settings` to refuse."""
    key, sign, values = given.partition("=")
    if key.strip() == "seed":
        raise ConfigError(f"settings: seed: give seeds as `--seeds {' '.join(split_values(values))}`, not by --set")
    return [f"{key.strip()} = {_quoted(value)}" for value in split_values(values)] if sign else [given]


def _quoted(value: str) -> str:
    return json.dumps(value) if _BARE_WORD.fullmatch(value) and value not in _TOML_WORDS else value


def _key(settings: Settings, made_by: str) -> str:
    return sha256_json({"settings": settings.model_dump(mode="json"), "made by": made_by})[:_KEY_LENGTH]


def _launch(settings: Settings) -> Launch:
    # Complete: a settings file that is edited while the sweep is under way changes nothing.
    return launch_of(settings.model_dump(mode="json"))


def _refuse_equal(runs: Sequence[PlannedRun]) -> None:
    """Raise ConfigError where two runs have the same settings: one run that counts twice makes an interval too narrow."""
    by_key: dict[str, PlannedRun] = {}
    for run in runs:
        if (other := by_key.setdefault(run.key, run)) is not run:
            raise ConfigError(f"settings: two runs of the sweep are the same: {other.name}, and {run.name}; give each seed and value once")
