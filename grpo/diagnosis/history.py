"""A run's history: quantities by step, from our own records or from the tables of other trainers."""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Any, Final, Self

from grpo.base.errors import PlainError
from grpo.diagnosis.records import Record
from grpo.settings.metrics import METRICS
from grpo.settings.shared import TERM_PAIRS, TERMS

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("grpo/loss", "language/loss", "loss", "total_loss", "training_loss"),
    "policy_loss": ("ppo_loss", "policy_loss", "pg_loss"),
    "kl_penalty": ("kl_penalty",),
    "entropy_bonus": ("entropy_bonus",),
    "entropy": ("grpo/entropy", "language/entropy", "entropy", "entropy_loss", "policy_entropy", "entropy/mean", "entropy_avg"),
    "normalised_entropy": ("grpo/normalised_entropy", "language/normalised_entropy"),
    "kl": ("grpo/kl_reference", "language/kl_reference", "kl", "kl_loss", "kl_divergence", "kl_avg"),
    "kl_max": ("language/kl_max",),
    "kl_old": ("grpo/kl_old", "approx_kl", "approxkl", "approxkl_avg", "ppo_kl"),
    "clip_fraction": (
        *("grpo/clip_fraction", "language/clip_fraction", "clip_fraction", "clipfrac", "clipfrac_avg", "pg_clipfrac"),
        "clip_ratio/region_mean",
    ),
    "sampler_gap": (
        *("language/sampled_scored_gap", "sampling/sampling_logp_difference/mean", "rollout_probs_diff_mean", "rollout_corr/kl"),
        *("vllm_vs_local_logprob_diff_mean", "train_rollout_logprob_abs_diff", "mismatch_kl/mean", "mismatch_kl/all/mean"),
    ),
    "reward": (
        *("grpo/reward_mean", "language/reward_mean", "reward", "reward/mean", "avg_reward", "mean_reward", "scores", "raw_reward"),
        *("critic/score/mean", "critic/rewards/mean", "ep_reward_mean", "ep_rew_mean"),
    ),
    "gain": ("grpo/reward_gain",),
    "reward_std": ("grpo/reward_std", "language/reward_std", "reward_std", "step_reward_std"),
    "reward_p90": ("reward_p90",),
    "silent_groups": ("grpo/zero_variance_groups", "language/zero_variance_groups", "frac_reward_zero_std"),
    "agreement": ("grpo/agreement", "language/agreement", "action_agreement", "action_agreement_mean"),
    "training_regret": ("grpo/regret",),
    "regret": ("heldout/regret_sampled", "regret"),
    "regret_best": ("heldout/regret_best",),
    "gradient_norm": ("grpo/gradient_norm", "language/gradient_norm", "grad_norm"),
    "skipped": ("grpo/skipped", "language/skipped"),
    "parsed": ("language/parse_rate", "parsed_fraction"),
    "truncated": ("language/truncated", "truncated_fraction", "completions/clipped_ratio", "response_length/clip_ratio"),
    "entropy_coefficient": ("control/entropy_coefficient", "entropy_coef"),
    "entropy_saturated": ("control/entropy_saturated",),
    "kl_saturated": ("control/kl_saturated",),
    **{f"logit_share/{term}": (f"grpo/logit_share/{term}",) for term in TERMS},
    **{f"logit_gradient/{term}": (f"grpo/logit_gradient/{term}",) for term in TERMS},
    **{f"logit_cosine/{one}_{other}": (f"grpo/logit_cosine/{one}_{other}",) for one, other in TERM_PAIRS},
}
"""Quantity -> its columns in our histories, the field notes, TRL, verl, open-instruct, slime and prime-rl; sections left out."""
_BY_COLUMN: Final = {column: quantity for quantity, columns in COLUMNS.items() for column in columns}
_SECTIONS: Final = ("train/", "training/", "actor/", "objective/", "optim/", "policy/", "debug/", "rollout/")
_STEPS: Final = ("step", "step_to", "global_step", "training_step", "total_timesteps")
_OF_LANGUAGE_MODELS: Final = ("language/", "completion", "response_length", "sequence_length", "parsed", "truncated", "vllm")
_LARGEST: Final = 1e100
"""The squares of larger numbers overflow."""


class HistoryError(PlainError, ValueError):
    """A file cannot be read as a history; the message says which and why."""


class When(Flag):
    """When a check is asked."""

    BEFORE = auto()
    """Of the first rollout, before any update."""
    DURING = auto()
    """After a step."""
    END = auto()
    """Of a whole history."""


@dataclass(slots=True)
class Series:
    """The finite values of one quantity by step; never empty."""

    column: str
    """Name in the file."""
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def way(self) -> str:
        """Return a text with the first and the last value."""
        return f"{self.column} from {self.values[0]:.3g} (step {self.steps[0]:,.0f}) to {self.values[-1]:.3g} (step {self.steps[-1]:,.0f})"

    def first_step(self, *, below: float) -> float:
        """Return the first step with a value below a limit; the last step if there is none."""
        return next((step for step, value in zip(self.steps, self.values, strict=True) if value < below), self.steps[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Games of one checkpoint; a win is 1, a draw 0.5."""

    step: float
    score: float
    games: float


@dataclass(slots=True, kw_only=True)
class History:
    """What was recorded of one run; grows during the run."""

    when: When = When.END
    is_ours: bool = False
    """Whether our trainer made it: entropy and KL are exact, every step has a row, and its assertions held."""
    is_of_language_model: bool = False
    """Whether entropies are over tokens or answers, which ln(legal moves) does not bound."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Settings that checks compare with: `critical_entropy`."""
    series: dict[str, Series] = field(default_factory=dict)
    """By quantity."""
    not_finite: dict[str, list[float]] = field(default_factory=dict)
    """Column -> steps at which it was recorded as NaN or infinite."""
    events: dict[str, float] = field(default_factory=dict)
    """Event of our trainer -> the last step with it."""
    evaluations: tuple[Evaluation, ...] = ()
    unused: dict[str, None] = field(default_factory=dict)
    """Columns that no check reads, in their order."""

    @classmethod
    def of_records(cls, records: Iterable[Record]) -> Self:
        """Return the history of our own trainer's records."""
        history = cls(is_ours=True)
        for record in records:
            history.add_record(record)
        return history

    def add_record(self, record: Record) -> None:
        """Add the next record of our own trainer."""
        self.events |= {event.name: record.step for event in record.events}
        self.add(record.step, dict(sorted(record.metrics.items())))  # As in a file, so that a resumed run finds the same.

    def add(self, step: float, row: Mapping[str, float]) -> None:
        """Add a row of columns; of two columns of one quantity the first that was seen counts."""
        for column, value in row.items():
            self.is_of_language_model |= any(word in column.lower() for word in _OF_LANGUAGE_MODELS)
            quantity = quantity_of(column)
            if quantity is None:
                self.unused[column] = None
            elif not abs(value) <= _LARGEST:
                self.not_finite.setdefault(column, []).append(step)
            elif (series := self.series.setdefault(quantity, Series(column))).column == column:
                series.steps.append(step)
                series.values.append(value)

    def block_size(self, series: Series) -> int:
        """Return how many rows make a level: ten, or a fifth of another trainer's short table."""
        if self.when == When.BEFORE:
            return 1
        return 10 if self.is_ours else min(10, max(1, len(series.values) // 5))

    def blocks(self, series: Series) -> list[tuple[float, float, float]]:
        """Return first step, last step and median of each whole block of rows, from the beginning on; and of the last rows at the end."""
        size, number = self.block_size(series), len(series.values)
        starts = [*range(0, number - size + 1, size)]
        if number % size and starts and self.when == When.END:
            starts.append(number - size)
        return [(series.steps[at], series.steps[at + size - 1], statistics.median(series.values[at : at + size])) for at in starts]

    def levels(self, quantity: str) -> tuple[float, float] | None:
        """Return a quantity's levels at the beginning and at the end; None without a block of rows."""
        blocks = self.blocks(self.series[quantity]) if quantity in self.series else []
        return (blocks[0][2], blocks[-1][2]) if blocks else None

    def at_start(self, quantity: str) -> float | None:
        """Return a quantity's value before the first update; None where it was not recorded then."""
        series = self.series.get(quantity)
        return series.values[0] if series is not None and series.steps[0] <= (1 if self.is_ours else 0) else None

    def together(self, *quantities: str) -> list[tuple[float, ...]]:
        """Return step and values of the rows that have all these quantities."""
        tables = [dict(zip(self.series[name].steps, self.series[name].values, strict=True)) for name in quantities if name in self.series]
        if len(tables) < len(quantities):
            return []
        return [(step, *(table[step] for table in tables)) for step in tables[0] if all(step in table for table in tables)]


def quantity_of(column: str) -> str | None:
    """Return the quantity of a column; None if no check reads it, as of evaluations during training.

    >>> quantity_of("train/reward"), quantity_of("actor/pg_clipfrac"), quantity_of("Training Loss"), quantity_of("val/entropy")
    ('reward', 'clip_fraction', 'loss', None)
    """
    if column in METRICS:
        return _BY_COLUMN.get(column)
    name = "/".join(part.strip() for part in column.lower().split("/")).replace(" ", "_")
    return _BY_COLUMN.get(name) or next((_BY_COLUMN.get(name.removeprefix(start)) for start in _SECTIONS if name.startswith(start)), None)


def read_tables(paths: Sequence[Path]) -> History:
    """Return the history of one run from its tables, CSV or JSON lines; of equal cells the first table's counts.

    A cell that is no number was not recorded. Rows with `score` and `games` are evaluations; a table with a column `metric` has one row a
    metric, of which `first` is known to be of step 0. Raises HistoryError for a file that cannot be read.
    """
    merged: dict[float, dict[str, float]] = {}
    for path in paths:
        for number, row in enumerate(_rows(path), start=1):
            step = next((row[name] for name in _STEPS if math.isfinite(row.get(name, math.nan))), number)
            known = merged.get(step, {})
            merged[step] = known | row | known
    history = History(is_ours=any(column in METRICS for row in merged.values() for column in row))
    for step, row in sorted(merged.items()):
        if 0 <= row.get("score", -1) <= 1 and "games" in row:
            history.evaluations += (Evaluation(step=step, score=row["score"], games=row["games"]),)
        history.add(
            step, {column: value for column, value in row.items() if column.lower() not in (*_STEPS, "step_from", "score", "games")}
        )
    return history


def _rows(path: Path) -> Iterator[dict[str, float]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        is_json = text.lstrip().startswith("{")
        found = [json.loads(line) for line in text.splitlines() if line.strip()] if is_json else [*csv.DictReader(io.StringIO(text))]
    except (OSError, ValueError, csv.Error) as error:
        raise HistoryError(f"{path}: is neither CSV nor JSON lines of one row a step ({error})") from None
    if not all(isinstance(row, dict) for row in found):
        raise HistoryError(f"{path}: is not JSON lines of one object a step")
    if found and "metric" in found[0]:
        found = [{"step": 0, **{row.get("metric"): row.get("first") for row in found}}]
    for row in found:
        yield {_step_name(column): number for column, cell in row.items() if (number := _number(cell)) is not None}


def _step_name(column: Any) -> str:
    """Return the name of a column; of a step's column without capitals and sections, such as `train/global_step`."""
    name = str(column).strip()
    return name.lower().rpartition("/")[2] if name.lower().rpartition("/")[2] in _STEPS else name


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
