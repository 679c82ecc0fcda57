"""Made logs of policy-gradient runs, healthy and sick, as TRL, verl, Stable-Baselines3, OpenRLHF, W&B and our own trainer would write them.

A kind is a change of a healthy run's curves; a style says which of them are logged, under which names and steps. Lengths, noise, scales,
schedules, logging intervals and missing columns are drawn by the seed. Nothing here imports the diagnosis.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Curves = dict[str, Array]
"""By quantity: one value a row; NaN where nothing was logged."""


@dataclass(slots=True)
class Draft:
    """A run's curves before a style writes them."""

    rng: np.random.Generator
    domain: str
    """What entropies are of: `moves`, `tokens` or `actions`."""
    num_rows: int
    curves: Curves
    spread: float
    """Standard deviation of a single reward."""
    interval: int = 1
    evaluations: list[tuple[int, float, int]] = field(default_factory=list)
    """(step, score, games)"""
    counts_from: int = 1
    nan_from: int | None = None
    """Row from which loss and gradient are NaN."""
    repeats_from: float | None = None
    """Fraction of the run at which a killed run resumes from an earlier step."""

    @property
    def share(self) -> Array:
        """Fraction of the run at each row."""
        return np.linspace(0.0, 1.0, self.num_rows)

    def noise(self, size: float, memory: float = 0.0) -> Array:
        """Return normal noise of this deviation, with a lag-one correlation."""
        white = self.rng.normal(0.0, 1.0, self.num_rows)
        for row in range(1, self.num_rows):
            white[row] = memory * white[row - 1] + np.sqrt(1 - memory**2) * white[row]
        return size * white

    def times(self, size: float) -> Array:
        """Return multiplicative noise around 1."""
        return np.exp(self.noise(size))

    def onset(self, low: float = 0.2, high: float = 0.6) -> Array:
        """Return 0 up to a drawn moment, and from there a line to 1 at the end."""
        start = self.rng.uniform(low, high)
        return np.clip((self.share - start) / (1 - start), 0.0, 1.0)

    def pick(self, low: float, high: float) -> float:
        """Return a number between two positive ones, uniform in its logarithm."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def reward(self, shape: Array, noise: float | None = None) -> None:
        """Set the reward's curve: `shape` in standard deviations of a reward above its start."""
        start = self.curves["reward"][0]
        memory = self.rng.choice([0.0, 0.0, 0.3, 0.9 if self.domain == "actions" else 0.5])
        size = self.rng.uniform(0.03, 0.2) if noise is None else noise
        self.curves["reward"] = self.start_reward + self.spread * (shape + self.noise(size, float(memory)))
        if self.is_fraction:
            self.curves["reward"] = np.clip(self.curves["reward"], 0.0, 1.0)
        assert np.isfinite(start)

    start_reward: float = 0.0
    is_fraction: bool = False


Change = Callable[[Draft], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run."""

    name: str
    change: Change
    expected: frozenset[str] = frozenset()
    """Findings of which one names it rightly; none: it is healthy."""
    needs: tuple[str, ...] = ()
    """Quantities without which nobody could see it."""
    domains: tuple[str, ...] = ("moves", "tokens", "actions")
    min_rows: int = 30
    max_rows: int = 5_000


def draft(kind: Kind, style: "Style", seed: int) -> Draft:
    """Return the curves of a run of this kind."""
    domain = style.domains[0]
    rng = np.random.default_rng([seed, *f"{kind.name} in {style.name}".encode()])
    num_rows = int(np.exp(rng.uniform(np.log(kind.min_rows), np.log(kind.max_rows))))
    scale = str(rng.choice(["fraction", "points", "hundreds"] if domain == "actions" else ["fraction", "fraction", "points", "below"]))
    spread = {"fraction": 0.4, "points": rng.uniform(0.5, 2.0), "hundreds": rng.uniform(20, 100), "below": rng.uniform(0.5, 1.0)}[scale]
    start = {"fraction": rng.uniform(0.2, 0.4), "points": rng.uniform(-1, 2), "hundreds": rng.uniform(-200, 50), "below": -1.0}[scale]
    made = Draft(rng, domain, num_rows, {}, spread)
    made.start_reward, made.is_fraction = start, scale == "fraction"
    made.interval = int(rng.choice([1, 1, 5, 10]) if num_rows < 1_000 else 1)
    _healthy(made)
    kind.change(made)
    return made


def _healthy(made: Draft) -> None:
    """Draw a healthy run's curves."""
    rng, t, curves = made.rng, made.share, made.curves
    gain = rng.uniform(0.8, 1.5)
    shapes = (1 - np.exp(-t / rng.uniform(0.15, 0.5)), t, 1 / (1 + np.exp(-(t - rng.uniform(0.3, 0.5)) * rng.uniform(8, 15))))
    curves["reward"] = np.full(made.num_rows, made.start_reward)
    shape = shapes[rng.integers(len(shapes))]
    made.reward(gain * shape)
    curves["reward_std"] = made.spread * (1 - 0.2 * t) * made.times(0.05)
    curves["group_std"] = 0.7 * made.spread * (1 - 0.2 * t) * made.times(0.08)
    entropy = {"moves": rng.uniform(1.6, 3.0), "tokens": made.pick(0.2, 1.0), "actions": rng.uniform(0.65, 2.8)}[made.domain]
    curves["entropy"] = entropy * (1 - rng.uniform(-0.1, 0.45) * t) * made.times(rng.uniform(0.01, 0.06))
    reached = made.pick(0.005, 0.3 if made.domain == "moves" else 0.15)
    grown = (t + 1 / made.num_rows) ** rng.uniform(0.5, 1.3)
    curves["kl"] = reached * grown * made.times(rng.uniform(0.03, 0.3))
    curves["kl"][0] = 0.0
    curves["kl_old"] = made.pick(0.001, 0.02) * made.times(rng.uniform(0.1, 0.5))
    curves["clip_fraction"] = np.clip(rng.uniform(0.0, 0.1) * made.times(0.3), 0, 1)
    curves["gradient_norm"] = made.pick(0.05, 5.0) * made.pick(0.4, 2.5) ** t * made.times(rng.uniform(0.1, 0.6))
    rate = {"moves": made.pick(1e-5, 1e-3), "tokens": made.pick(1e-7, 2e-5), "actions": made.pick(1e-4, 1e-3)}[made.domain]
    schedules = (np.ones_like(t), np.minimum(1, (t + 1 / made.num_rows) / 0.1), 1 - t, 0.5 * (1 + np.cos(np.pi * t)))
    curves["learning_rate"] = rate * schedules[rng.integers(len(schedules))]
    curves["policy_loss"] = made.noise(made.pick(0.001, 0.03))
    curves["loss"] = curves["policy_loss"] + 0.04 * curves["kl"]
    curves["ratio_mean"] = 1 + made.noise(rng.uniform(0.001, 0.02))
    curves["ratio_max"] = 1 + rng.uniform(0.2, 1.5) * made.times(0.4)
    curves["silent_groups"] = np.clip(rng.uniform(0.05, 0.35) + made.noise(0.04), 0, 1)
    curves["agreement"] = np.clip(rng.uniform(0.15, 0.35) + 0.15 * t + made.noise(0.02), 0, 1)
    curves["effective_sample_size"] = np.clip(0.95 + made.noise(0.01), 0, 1)
    curves["entropy_coefficient"] = np.full(made.num_rows, made.pick(0.001, 0.02))
    curves["optimiser_steps"] = np.full(made.num_rows, 2.0)
    curves["truncated"] = np.clip(rng.uniform(0.0, 0.1) + made.noise(0.02), 0, 1)
    curves["answer_length"] = made.pick(80, 2_000) * made.pick(0.7, 1.8) ** t * made.times(0.06)
    curves["parsed"] = np.clip(rng.uniform(0.85, 0.98) + made.noise(0.02), 0, 1)
    curves["sampler_log_prob_gap"] = made.pick(0.004, 0.03) * made.times(0.2)
    curves["sampler_prob_gap"] = made.pick(0.001, 0.006) * made.times(0.2)
    curves["sampler_ratio"] = 1 + made.noise(0.01)
    curves["advantage_max"] = rng.uniform(1.5, 4.0) * made.times(0.15)
    curves["advantage_min"] = -rng.uniform(1.5, 4.0) * made.times(0.15)
    curves["reward_best"] = np.full(made.num_rows, 1.0 if made.is_fraction else made.start_reward + 3 * made.spread)
    curves["reward_worst"] = np.full(made.num_rows, 0.0 if made.is_fraction else made.start_reward - 3 * made.spread)
    regret = made.pick(0.05, 0.2)
    heldout = np.linspace(0, made.num_rows - 1, max(4, min(20, made.num_rows // 10))).round().astype(int)
    curves["regret"] = np.full(made.num_rows, np.nan)
    curves["regret"][heldout] = (regret * (1 - 0.35 * (1 - np.exp(-3 * t))) * made.times(0.04))[heldout]
    curves["heldout_reward"] = np.full(made.num_rows, np.nan)
    better = made.start_reward + made.spread * (0.8 * gain * shape + made.noise(0.06))
    curves["heldout_reward"][heldout] = (np.clip(better, 0, 1) if made.is_fraction else better)[heldout]


def _flat(made: Draft) -> None:
    made.reward(np.zeros(made.num_rows))
    _hide(made, "regret", "heldout_reward")


def _hide(made: Draft, *names: str) -> None:
    for name in names:
        made.curves.pop(name, None)


def _every(made: Draft, of: Array) -> Array:
    """Return values where the run's held-out measures were taken."""
    rows = np.linspace(0, made.num_rows - 1, max(4, min(20, made.num_rows // 10))).round().astype(int)
    found = np.full(made.num_rows, np.nan)
    found[rows] = of[rows]
    return found


# Healthy kinds.
def _as_it_is(made: Draft) -> None:
    pass


def _noisy(made: Draft) -> None:
    made.reward(1.3 * made.share, noise=0.35)


def _smooth(made: Draft) -> None:
    made.reward(1 - np.exp(-3 * made.share), noise=0.0)
    for name in ("kl", "entropy", "gradient_norm"):
        window = max(1, made.num_rows // 20)
        made.curves[name] = np.convolve(np.pad(made.curves[name], (window, 0), mode="edge"), np.ones(window) / window, "same")[window:]


def _resumed(made: Draft) -> None:
    made.repeats_from = float(made.rng.uniform(0.3, 0.8))


def _restarts(made: Draft) -> None:
    phase = (made.share * made.rng.integers(3, 6)) % 1
    made.curves["learning_rate"] = made.pick(1e-6, 1e-4) * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * phase)))
    made.curves["gradient_norm"] *= 1 + (phase < 0.1)
    made.reward(1.2 * made.share - 0.15 * (phase < 0.1))


def _k1(made: Draft) -> None:
    made.curves["kl"] = made.curves["kl"] * 0.1 + made.noise(made.pick(0.001, 0.02))


def _after_update(made: Draft) -> None:
    made.counts_from, made.interval = 0, 1
    growth = made.pick(0.0015, 0.006)
    power = made.rng.uniform(0.4, 1.0)
    rows = np.arange(1, made.num_rows + 1)
    made.curves["kl"] = np.minimum(growth * rows**power, 0.3) * made.times(0.1)
    if made.rng.random() < 0.5:
        made.interval = int(made.rng.choice([2, 5, 10]))


def _solved(made: Draft) -> None:
    made.start_reward, made.is_fraction, made.spread = float(made.rng.uniform(0.2, 0.5)), True, 0.45
    made.reward((0.97 - made.start_reward) / 0.45 * (1 - np.exp(-made.share / 0.2)), noise=0.03)
    made.curves["silent_groups"] = np.clip(0.2 + 0.75 * (1 - np.exp(-made.share / 0.3)) + made.noise(0.02), 0, 1)
    made.curves["agreement"] = np.clip(0.3 + 0.65 * (1 - np.exp(-made.share / 0.3)), 0, 1)
    made.curves["reward_std"] = 0.45 * (1 - 0.8 * made.share) * made.times(0.1)
    made.curves["gradient_norm"] *= 1 - 0.9 * made.share
    made.curves["entropy"] *= 1 - 0.6 * made.share
    made.curves["reward_best"][:], made.curves["reward_worst"][:] = 1.0, 0.0
    made.curves["heldout_reward"] = _every(made, 0.4 + 0.5 * (1 - np.exp(-made.share / 0.2)) + made.noise(0.01))


def _level_evaluations(made: Draft) -> None:
    games = int(made.rng.choice([400, 400, 800, 2_000]))
    steps = np.linspace(0, made.num_rows - 1, made.rng.integers(4, 12)).astype(int)
    score = made.rng.uniform(0.35, 0.6)
    _hide(made, "regret")  # A regret that falls without a better score is a finding of its own.
    made.evaluations = [(int(step), float(made.rng.binomial(games, score) / games), games) for step in steps]


def _rising_evaluations(made: Draft) -> None:
    games = int(made.rng.choice([200, 400, 1_000]))
    steps = np.linspace(0, made.num_rows - 1, made.rng.integers(4, 9)).astype(int)
    scores = 0.4 + 0.25 * steps / made.num_rows
    made.evaluations = [(int(step), float(made.rng.binomial(games, p) / games), games) for step, p in zip(steps, scores, strict=True)]


def _surer(made: Draft) -> None:
    made.curves["entropy"] *= 1 - made.rng.uniform(0.5, 0.58) * made.share
    if made.domain == "moves":
        made.curves["entropy"] = np.maximum(made.curves["entropy"], 1.25)
    made.reward(1.5 * made.share)


def _longer(made: Draft) -> None:
    made.curves["answer_length"] *= 1 + made.rng.uniform(2, 6) * made.share
    made.curves["truncated"] = np.clip(0.05 + 0.2 * made.share + made.noise(0.02), 0, 1)
    made.reward(1.5 * made.share)


def _late_start(made: Draft) -> None:
    made.reward(1.6 * made.onset(0.3, 0.5))
    made.curves["gradient_norm"] *= 1 + 8 * made.onset(0.3, 0.5)
    made.curves["silent_groups"] = np.clip(0.7 - 0.45 * made.onset(0.3, 0.5), 0, 1)


def _spikes(made: Draft) -> None:
    hit = made.rng.random(made.num_rows) < 0.02
    made.curves["gradient_norm"] *= np.where(hit, made.pick(10, 200), 1.0)
    made.curves["kl"] *= np.where(hit, made.pick(3, 30), 1.0)
    made.curves["ratio_max"] *= np.where(hit, made.pick(3, 10), 1.0)


def _plateau(made: Draft) -> None:
    made.reward(1.2 * np.minimum(1.0, made.share / made.rng.uniform(0.08, 0.2)))


def _few_columns(made: Draft) -> None:
    kept = {"reward", str(made.rng.choice(["kl", "entropy", "gradient_norm"]))}
    made.curves = {name: curve for name, curve in made.curves.items() if name in kept}


def _gaps(made: Draft) -> None:
    for name in list(made.curves):
        if made.rng.random() < 0.5:
            gap = made.rng.integers(2, 6)
            made.curves[name] = np.where(np.arange(made.num_rows) % gap == 0, made.curves[name], np.nan)


def _losses(made: Draft) -> None:
    made.start_reward, made.spread, made.is_fraction = -float(made.rng.uniform(200, 1_500)), float(made.rng.uniform(50, 200)), False
    made.reward(3 * (1 - np.exp(-3 * made.share)))
    _hide(made, "reward_std", "group_std", "reward_best", "reward_worst", "heldout_reward")


def _unanchored(made: Draft) -> None:
    made.curves["kl"] = made.rng.uniform(0.3, 0.7) * made.share**0.7 * made.times(0.1)
    made.reward(1.3 * made.share)


def _dip(made: Draft) -> None:
    middle = made.rng.uniform(0.3, 0.6)
    made.reward(1.5 * made.share - 0.5 * np.exp(-(((made.share - middle) / 0.07) ** 2)))


def _slow(made: Draft) -> None:
    made.reward(0.6 * made.share, noise=0.1)


def _entropy_rises(made: Draft) -> None:
    made.curves["entropy"] *= 1 + made.rng.uniform(0.1, 0.35) * made.share


def _kl_warm_up(made: Draft) -> None:
    made.curves["kl_coefficient"] = made.pick(1e-4, 1e-2) * np.minimum(1, (made.share + 1e-3) / 0.3)


def _shrinking_rewards(made: Draft) -> None:
    made.curves["gradient_norm"] *= 20 ** (-made.share)
    made.curves["reward_std"] *= 1 - 0.5 * made.share
    made.reward(1.4 * (1 - np.exp(-4 * made.share)))


def _overtrained_slightly(made: Draft) -> None:
    made.curves["regret"] = _every(made, 0.1 * (1 - 0.4 * (1 - np.exp(-5 * made.share)) + 0.02 * made.share) * made.times(0.03))


def _settles(made: Draft) -> None:
    made.curves["kl"] = made.pick(0.02, 0.1) * (1 - np.exp(-made.share / 0.05)) * made.times(0.15)
    made.curves["kl"][0] = 0.0
    made.curves["kl_coefficient"] = made.pick(0.01, 0.1) * made.times(0.3)


# Sick kinds.
def _collapses(made: Draft) -> None:
    made.curves["entropy"] *= np.exp(-made.rng.uniform(3.2, 6) * made.share)
    made.reward(0.15 * made.share)
    _hide(made, "regret", "heldout_reward")


def _collapses_at_once(made: Draft) -> None:
    made.curves["entropy"] *= np.where(made.share > made.rng.uniform(0.3, 0.7), 0.03, 1.0)
    made.reward(np.zeros(made.num_rows))
    _hide(made, "regret", "heldout_reward")


def _boosted(made: Draft) -> None:
    _collapses(made)
    made.curves["entropy_coefficient"] = 0.01 * made.pick(20, 100) ** made.share


def _negative_entropy(made: Draft) -> None:
    made.curves["entropy"] = np.where(made.onset() > 0.3, -made.rng.uniform(0.5, 3), made.curves["entropy"])


def _impossible(made: Draft) -> None:
    made.curves["entropy"] = made.curves["entropy"] + made.rng.uniform(5, 12) * (made.onset() > 0.3)


def _explodes_in_entropy(made: Draft) -> None:
    _flat(made)
    if made.domain == "moves":
        start, on = made.rng.uniform(1.6, 2.6), made.onset(0.1, 0.4)
        made.curves["entropy"] = (start + (made.rng.uniform(3.3, 3.6) - start) * np.minimum(1, 1.5 * on)) * made.times(0.02)
        return
    factor = {"tokens": made.pick(6, 12), "actions": made.pick(4, 6)}[made.domain]
    made.curves["entropy"] = np.maximum(made.curves["entropy"], 0.4 if made.domain == "tokens" else 0.0) * factor ** made.onset(0.1, 0.4)


def _nan(made: Draft) -> None:
    row = int(made.num_rows * made.rng.uniform(0.3, 0.9))
    made.nan_from = row


def _overflow(made: Draft) -> None:
    row = int(made.num_rows * made.rng.uniform(0.3, 0.9))
    for name in ("loss", "gradient_norm", "kl"):
        made.curves[name][row:] = 10.0 ** made.rng.uniform(130, 250)


def _kl_exponential(made: Draft) -> None:
    made.curves["kl"] = 0.01 * made.pick(200, 5_000) ** made.onset(0.0, 0.4) * made.times(0.2)
    made.reward(0.3 * made.share - 1.2 * made.onset(0.4, 0.6))


def _kl_line(made: Draft) -> None:
    made.curves["kl"] = made.pick(1.5, 20) * made.share * made.times(0.1)
    made.reward(np.zeros(made.num_rows))
    _hide(made, "regret", "heldout_reward")


def _kl_step(made: Draft) -> None:
    made.curves["kl"] = np.where(made.share > made.rng.uniform(0.4, 0.8), made.pick(3, 50), made.curves["kl"]) * made.times(0.1)
    made.reward(-0.8 * (made.curves["kl"] > 1))


def _kl_hack(made: Draft) -> None:
    made.curves["kl"] = 0.05 * made.pick(200, 800) ** made.share * made.times(0.1)
    made.reward(1.5 * made.share)
    _hide(made, "regret", "heldout_reward")


def _gradients(made: Draft) -> None:
    made.curves["gradient_norm"] *= made.pick(50, 10_000) ** made.onset(0.3, 0.7)
    made.reward(0.2 * made.share - 0.8 * made.onset(0.5, 0.7))


def _gradients_late(made: Draft) -> None:
    made.curves["gradient_norm"] *= np.where(made.share > 0.93, made.pick(100, 1_000), 1.0)
    made.reward(np.zeros(made.num_rows))
    _hide(made, "regret", "heldout_reward")


def _ratios(made: Draft) -> None:
    made.curves["ratio_max"] *= made.pick(30, 3_000) ** made.onset(0.2, 0.6)
    made.curves["ratio_mean"] = 1 + (made.pick(0.6, 3)) * made.onset(0.2, 0.6) ** 2
    made.reward(-0.6 * made.onset(0.3, 0.6))


def _updates(made: Draft) -> None:
    made.curves["kl_old"] = made.pick(0.15, 0.6) * made.times(0.3)
    made.curves["clip_fraction"] = np.clip(0.35 + made.noise(0.05), 0, 1)
    made.reward(0.1 * made.share)
    _hide(made, "regret", "heldout_reward")


def _updates_grow(made: Draft) -> None:
    made.curves["kl_old"] = 0.005 * made.pick(100, 1_000) ** made.onset(0.2, 0.5) * made.times(0.2)
    made.reward(-0.8 * made.onset(0.4, 0.6))


def _loss_explodes(made: Draft) -> None:
    made.curves["loss"] = made.curves["loss"] + made.pick(0.01, 0.05) * made.pick(1e4, 1e6) ** made.onset(0.3, 0.6)
    made.curves["policy_loss"] = made.curves["loss"].copy()
    made.reward(-0.5 * made.onset(0.4, 0.6))


def _all_apart(made: Draft) -> None:
    on = made.onset(0.2, 0.5)
    made.curves["kl"] = 0.02 * 1_000**on * made.times(0.2)
    made.curves["gradient_norm"] *= 100**on
    made.curves["ratio_max"] *= 100**on
    made.curves["clip_fraction"] = np.clip(0.05 + 0.5 * on, 0, 1)
    made.reward(-1.0 * on)


def _falls(made: Draft) -> None:
    made.reward(-made.rng.uniform(0.6, 1.2) * made.share)
    made.curves["regret"] = _every(made, 0.1 * (1 + 0.5 * made.share) * made.times(0.03))
    made.curves["heldout_reward"] = _every(made, made.start_reward - made.spread * 0.6 * made.share)


def _falls_at_last(made: Draft) -> None:
    made.reward(1.0 * np.minimum(1, made.share / 0.3) - 1.3 * made.onset(0.5, 0.6))
    _hide(made, "regret", "heldout_reward")


def _too_slow(made: Draft) -> None:
    made.reward(0.02 * made.share)
    made.curves["learning_rate"][:] = 1e-9
    made.curves["kl"] = np.abs(made.noise(1e-5))
    _hide(made, "regret", "heldout_reward")


def _no_rate(made: Draft) -> None:
    made.curves["learning_rate"] = made.pick(1e-6, 1e-4) * np.clip(1 - made.share / made.rng.uniform(0.1, 0.4), 0, 1)
    made.reward(0.1 * np.minimum(1, made.share / 0.2))
    _hide(made, "regret", "heldout_reward")


def _growing_rate(made: Draft) -> None:
    made.curves["learning_rate"] = 1e-7 * made.pick(1e3, 1e5) ** made.share
    made.reward(0.3 * made.share - 1.0 * made.onset(0.5, 0.7))


def _no_gradient(made: Draft) -> None:
    made.curves["gradient_norm"][:] = 0.0
    _flat(made)


def _hacks(made: Draft) -> None:
    made.reward(1.4 * made.share)
    made.curves["regret"] = _every(made, made.pick(0.05, 0.2) * (1 + made.rng.uniform(0.5, 1.2) * made.share) * made.times(0.05))
    lost = made.rng.uniform(0.6, 1.0)
    made.curves["heldout_reward"] = _every(made, made.start_reward + made.spread * (0.1 - lost * made.share + made.noise(0.05)))


def _overfits(made: Draft) -> None:
    made.reward(1.4 * made.share)
    arch = 4 * made.share * (1 - made.share)
    made.curves["regret"] = _every(made, 0.1 * (1 - 0.45 * arch + 0.15 * made.share) * made.times(0.03))
    made.curves["heldout_reward"] = _every(made, made.start_reward + made.spread * (0.8 * arch - 0.1 * made.share + made.noise(0.04)))


def _first_ratio(made: Draft) -> None:
    made.curves["ratio_mean"] = 1 + made.rng.uniform(0.4, 0.8) * made.times(0.1)


def _clipped_from_start(made: Draft) -> None:
    made.counts_from = 0
    made.curves["clip_fraction"] = np.clip(made.rng.uniform(0.4, 0.6) + made.noise(0.02), 0, 1)


def _kl_at_start(made: Draft) -> None:
    made.counts_from = 0
    made.curves["kl"] = made.rng.uniform(0.03, 0.2) * (1 + 0.2 * made.share) * made.times(0.03)


def _sampler(made: Draft) -> None:
    made.curves["sampler_log_prob_gap"] = made.pick(0.15, 1.0) * made.times(0.2)
    made.curves["sampler_prob_gap"] = made.pick(0.03, 0.2) * made.times(0.2)
    made.curves["sampler_ratio"] = made.rng.uniform(0.3, 0.6) * made.times(0.05)


def _sampler_drifts(made: Draft) -> None:
    on = made.onset(0.2, 0.6)
    made.curves["sampler_log_prob_gap"] = 0.01 * made.pick(30, 100) ** on * made.times(0.2)
    made.curves["sampler_prob_gap"] = 0.003 * made.pick(20, 60) ** on * made.times(0.2)
    made.reward(0.4 * made.share - 1.0 * on)


def _negative_kl(made: Draft) -> None:
    made.curves["kl"] = -made.pick(0.1, 0.5) * (1 + 0.3 * made.share) * made.times(0.2)
    _hide(made, "regret", "heldout_reward")


def _clipped(made: Draft) -> None:
    made.curves["clip_fraction"] = np.clip(0.05 + 0.4 * np.minimum(1, made.share / 0.3) + made.noise(0.02), 0, 1)


def _clipped_more(made: Draft) -> None:
    made.curves["clip_fraction"] = np.clip(0.05 + 0.4 * made.share**2 + made.noise(0.01), 0, 1)


def _stale(made: Draft) -> None:
    made.curves["effective_sample_size"] = np.clip(0.35 + made.noise(0.04), 0, 1)


def _silent(made: Draft) -> None:
    _flat(made)
    made.curves["silent_groups"] = np.clip(0.3 + 0.65 * np.minimum(1, made.share / 0.6) + made.noise(0.02), 0, 1)


def _equal_rewards(made: Draft) -> None:
    made.curves["reward"] = np.full(made.num_rows, made.start_reward)
    for name in ("reward_std", "group_std", "gradient_norm"):
        made.curves[name] = np.zeros(made.num_rows)
    made.curves["silent_groups"] = np.ones(made.num_rows)
    made.curves["reward_best"][:] = made.curves["reward_worst"][:] = made.start_reward
    _hide(made, "regret", "heldout_reward")


def _agree(made: Draft) -> None:
    _flat(made)
    made.curves["agreement"] = np.clip(0.3 + 0.65 * np.minimum(1, made.share / 0.6), 0, 1)


def _advantages(made: Draft) -> None:
    scale = max(1.0, 6 * made.spread)
    made.curves["advantage_max"] = scale * made.pick(300, 1e4) * made.times(0.5)
    made.curves["advantage_min"] = -made.curves["advantage_max"]


def _format(made: Draft) -> None:
    made.curves["parsed"] = np.clip(0.95 - made.rng.uniform(0.4, 0.9) * made.onset(0.1, 0.5) + made.noise(0.02), 0, 1)


def _untrained(made: Draft) -> None:
    made.curves["parsed"] = np.clip(0.01 + np.abs(made.noise(0.01)), 0, 1)
    made.reward(np.zeros(made.num_rows), noise=0.01)
    _hide(made, "regret", "heldout_reward")


def _cut_off(made: Draft) -> None:
    on = made.onset(0.1, 0.4)
    made.curves["truncated"] = np.clip(0.05 + 0.9 * on + made.noise(0.02), 0, 1)
    made.curves["answer_length"] *= 1 + 5 * on
    made.reward(-0.3 * on)


def _shorter(made: Draft) -> None:
    made.curves["answer_length"] *= made.pick(10, 30) ** -made.share
    _flat(made)


def _stuck(made: Draft) -> None:
    made.curves["kl_coefficient"] = np.minimum(0.2, 0.001 * 1.3 ** np.minimum(400, 200 * made.share))


def _lucky(made: Draft) -> None:
    games = int(made.rng.choice([32, 64]))
    steps = np.linspace(0, made.num_rows - 1, 5).astype(int)
    made.evaluations = [(int(step), 0.3 + float(made.rng.uniform(-0.03, 0.03)), games) for step in steps]
    best = made.rng.integers(1, 5)
    made.evaluations[best] = (int(steps[best]), 0.3 + 0.11 * (64 / games) ** 0.5, games)


def _unmeasured(made: Draft) -> None:
    _rising_evaluations(made)
    made.evaluations = made.evaluations[1:]


def _weaker(made: Draft) -> None:
    steps = np.linspace(0, made.num_rows - 1, 5).astype(int)
    made.evaluations = [(int(step), 0.55 - 0.25 * index / 4, 400) for index, step in enumerate(steps)]


def _bonus_is_all(made: Draft) -> None:
    _flat(made)
    made.curves["entropy_bonus"] = -made.rng.uniform(0.3, 1.0) * (1 - 0.3 * made.share) * made.times(0.02)
    made.curves["policy_loss"] = made.noise(0.003)
    _hide(made, "loss")


_LIMITED: Final = 800

HEALTHY: Final = (
    Kind("learns", _as_it_is),
    Kind("30 rows", _as_it_is, max_rows=40),
    Kind("5,000 rows", _as_it_is, min_rows=3_000),
    Kind("noisy reward", _noisy, min_rows=60),
    Kind("smoothed columns", _smooth),
    Kind("resumed after a kill", _resumed),
    Kind("learning-rate restarts", _restarts, min_rows=60),
    Kind("sampled KL around 0", _k1),
    Kind("counted from 0, KL after the update", _after_update, needs=("kl",)),
    Kind("solved task", _solved, needs=("silent_groups",)),
    Kind("level evaluations of many games", _level_evaluations, needs=("evaluations",)),
    Kind("rising evaluations", _rising_evaluations, needs=("evaluations",)),
    Kind("entropy falls by half while it learns", _surer, needs=("entropy",)),
    Kind("longer answers, better reward", _longer, domains=("tokens",), needs=("answer_length",)),
    Kind("learns late", _late_start, min_rows=60),
    Kind("single spikes", _spikes),
    Kind("quick rise, then a plateau", _plateau),
    Kind("two columns", _few_columns),
    Kind("columns with gaps", _gaps, min_rows=120),
    Kind("rewards in large negative numbers", _losses),
    Kind("no KL term", _unanchored, needs=("kl",)),
    Kind("a dip and a recovery", _dip, min_rows=60),
    Kind("learns slowly", _slow, min_rows=200),
    Kind("entropy rises a little", _entropy_rises, needs=("entropy",)),
    Kind("KL coefficient warmed up", _kl_warm_up),
    Kind("gradients shrink", _shrinking_rewards, needs=("gradient_norm",)),
    Kind("held-out regret levels off", _overtrained_slightly, needs=("regret",)),
    Kind("KL settles at its target", _settles, needs=("kl",)),
)


def _sick(name: str, change: Change, expected: str, *needs: str, domains: str = "moves tokens actions", **rows: int) -> Kind:
    return Kind(name, change, frozenset(expected.split()), needs, tuple(domains.split()), **{"min_rows": 40, "max_rows": _LIMITED, **rows})


_COLLAPSE: Final = "entropy_collapse kl_trap"
_APART: Final = "diverging"

SICK: Final = (
    _sick("entropy collapses", _collapses, _COLLAPSE, "entropy"),
    _sick("entropy collapses at once", _collapses_at_once, _COLLAPSE, "entropy"),
    _sick("entropy collapses under a growing bonus", _boosted, "kl_trap", "entropy", "entropy_coefficient"),
    _sick("negative entropy", _negative_entropy, "impossible_entropy", "entropy", domains="moves"),
    _sick("entropy above that of any move", _impossible, "impossible_entropy", "entropy", domains="moves"),
    _sick("entropy grows to chance", _explodes_in_entropy, "entropy_explosion", "entropy"),
    _sick("NaN", _nan, "nan_steps", "loss"),
    _sick("overflow", _overflow, "nan_steps", "loss"),
    _sick("KL grows exponentially", _kl_exponential, _APART, "kl"),
    _sick("KL grows in a line", _kl_line, _APART, "kl"),
    _sick("KL jumps", _kl_step, _APART, "kl"),
    _sick("KL grows, reward rises", _kl_hack, "diverging reward_hacking", "kl"),
    _sick("gradients explode", _gradients, _APART, "gradient_norm"),
    _sick("gradients explode in the last rows", _gradients_late, _APART, "gradient_norm", min_rows=60),
    _sick("ratios run away", _ratios, _APART, "ratio_max"),
    _sick("updates are too large", _updates, "stale_policy high_clip_fraction diverging", "kl_old"),
    _sick("updates grow", _updates_grow, "diverging stale_policy", "kl_old"),
    _sick("loss explodes", _loss_explodes, _APART, "loss"),
    _sick("all runs away within 60 to 100 rows", _all_apart, _APART, "kl", min_rows=60, max_rows=100),
    _sick("reward falls", _falls, "falling_reward", "reward"),
    _sick("reward rises and falls", _falls_at_last, "falling_reward", "reward", min_rows=60),
    _sick("learning rate far too small", _too_slow, "flat_reward", "reward", min_rows=120),
    _sick("learning rate 0 for most of the run", _no_rate, "learning_rate_schedule", "learning_rate"),
    _sick("learning rate grows without end", _growing_rate, "learning_rate_schedule diverging", "learning_rate"),
    _sick("no gradient", _no_gradient, "no_gradient", "gradient_norm", min_rows=120),
    _sick("reward up, held-out measure down", _hacks, "reward_hacking", "heldout", min_rows=80),
    _sick("held-out measure turns", _overfits, "reward_hacking", "heldout", min_rows=150),
    _sick("mean ratio of 1.6 from the start", _first_ratio, "temperature_mismatch scored_otherwise", "ratio_mean"),
    _sick("clipped from the start", _clipped_from_start, "temperature_mismatch high_clip_fraction", "clip_fraction"),
    _sick("KL before the first update", _kl_at_start, "kl_at_step_zero temperature_mismatch", "kl", "step 0"),
    _sick("sampler and trainer disagree", _sampler, "scored_otherwise", "sampler", domains="tokens"),
    _sick("sampler and trainer drift apart", _sampler_drifts, "scored_otherwise", "sampler", domains="tokens"),
    _sick("negative KL", _negative_kl, "scored_otherwise temperature_mismatch", "kl", "sampled KL"),
    _sick("much is clipped", _clipped, "high_clip_fraction stale_policy", "clip_fraction"),
    _sick("more and more is clipped", _clipped_more, "stale_policy", "clip_fraction"),
    _sick("few effective samples", _stale, "stale_policy", "effective_sample_size"),
    _sick("silent groups", _silent, "silent_groups", "silent_groups"),
    _sick("equal rewards", _equal_rewards, "silent_groups", "reward_std"),
    _sick("groups agree", _agree, "group_agreement", "agreement"),
    _sick("advantages explode", _advantages, "exploding_advantages", "advantage_max"),
    _sick("format is lost", _format, "lost_format", "parsed", domains="tokens"),
    _sick("untrained language model", _untrained, "unlearned_language_model", "parsed", domains="tokens"),
    _sick("answers are cut off", _cut_off, "answer_length", "truncated", domains="tokens"),
    _sick("answers shrink", _shorter, "answer_length", "answer_length", domains="tokens", min_rows=120),
    _sick("controller at its bound", _stuck, "saturated_controller", "kl_coefficient", min_rows=100),
    _sick("lucky peak", _lucky, "unbelievable_peak", "evaluations"),
    _sick("no baseline", _unmeasured, "no_baseline", "evaluations"),
    _sick("weaker in games", _weaker, "lost_strength", "evaluations"),
    _sick("the bonus is the loss", _bonus_is_all, "loss_budget dead_monitor", "entropy_bonus", "policy_loss", min_rows=120),
)


@dataclass(frozen=True, slots=True)
class Style:
    """How a trainer logs."""

    name: str
    domains: tuple[str, ...]
    step: str
    columns: Mapping[str, str]
    """Quantity -> name of its column."""
    negated: frozenset[str] = frozenset()
    export: str = ""
    """`run - ` columns of a W&B export, if not empty."""
    steps_per_row: int = 1
    has_step_zero: bool = True
    """Whether a step 0 is before the first update."""


_PLAIN: Final = {
    "reward": "reward",
    "reward_std": "reward_std",
    "group_std": "group_std",
    "entropy": "entropy",
    "kl": "kl",
    "kl_old": "approx_kl",
    "clip_fraction": "clip_fraction",
    "gradient_norm": "grad_norm",
    "learning_rate": "lr",
    "policy_loss": "policy_loss",
    "loss": "loss",
    "ratio_mean": "ratio_mean",
    "ratio_max": "ratio_max",
    "silent_groups": "silent_groups",
    "agreement": "action_agreement",
    "effective_sample_size": "ess",
    "entropy_coefficient": "entropy_coef",
    "kl_coefficient": "kl_coef",
    "regret": "heldout_regret",
    "entropy_bonus": "entropy_bonus",
    "advantage_max": "advantages/max",
    "advantage_min": "advantages/min",
}
_TRL: Final = {
    "reward": "reward",
    "reward_std": "reward_std",
    "entropy": "entropy",
    "kl": "kl",
    "clip_fraction": "clip_ratio/region_mean",
    "gradient_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "loss": "loss",
    "silent_groups": "frac_reward_zero_std",
    "answer_length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "sampler_log_prob_gap": "sampling/sampling_logp_difference/mean",
    "sampler_ratio": "sampling/importance_sampling_ratio/mean",
    "parsed": "rewards/format_reward/mean",
    "heldout_reward": "eval_reward",
}

STYLES: Final = (
    Style("ours", ("moves",), "step", {
        "reward": "grpo/reward_mean", "reward_std": "grpo/reward_std", "group_std": "grpo/group_std_mean", "entropy": "grpo/entropy",
        "kl": "grpo/kl_reference", "kl_old": "grpo/kl_old", "clip_fraction": "grpo/clip_fraction", "gradient_norm": "grpo/gradient_norm",
        "learning_rate": "control/learning_rate", "loss": "grpo/loss", "ratio_max": "grpo/ratio_max", "agreement": "grpo/agreement",
        "silent_groups": "grpo/zero_variance_groups", "effective_sample_size": "grpo/effective_sample_size",
        "entropy_coefficient": "control/entropy_coefficient", "kl_coefficient": "control/kl_coefficient",
        "regret": "heldout/regret_sampled", "optimiser_steps": "grpo/optimiser_steps",
    }),
    Style("plain CSV", ("moves",), "step", _PLAIN),
    Style(
        "W&B export", ("moves",), "Step", {name: f"train/{column}" for name, column in _PLAIN.items()}, export="vivid-fox-12",
        has_step_zero=False,
    ),
    Style("TRL", ("tokens",), "step", _TRL),
    Style(
        "TRL through W&B", ("tokens",), "train/global_step",
        {name: f"train/{column}" for name, column in _TRL.items()} | {"heldout_reward": "eval/reward"}, has_step_zero=False,
    ),
    Style("verl", ("tokens",), "step", {
        "reward": "critic/score/mean", "reward_best": "critic/score/max", "reward_worst": "critic/score/min", "entropy": "actor/entropy",
        "kl": "actor/kl_loss", "kl_old": "actor/ppo_kl", "clip_fraction": "actor/pg_clipfrac", "gradient_norm": "actor/grad_norm",
        "learning_rate": "actor/lr", "policy_loss": "actor/pg_loss", "advantage_max": "critic/advantages/max",
        "advantage_min": "critic/advantages/min", "answer_length": "response_length/mean", "truncated": "response_length/clip_ratio",
        "sampler_prob_gap": "training/rollout_probs_diff_mean", "kl_coefficient": "actor/kl_coef",
        "heldout_reward": "val-core/gsm8k/acc/mean@1",
    }, has_step_zero=False),
    Style("SB3", ("actions",), "time/total_timesteps", {
        "reward": "rollout/ep_rew_mean", "entropy": "train/entropy_loss", "kl_old": "train/approx_kl",
        "clip_fraction": "train/clip_fraction",
        "learning_rate": "train/learning_rate", "policy_loss": "train/policy_gradient_loss", "loss": "train/loss",
        "heldout_reward": "eval/mean_reward",
    }, negated=frozenset({"entropy"}), steps_per_row=2_048, has_step_zero=False),
    Style("OpenRLHF", ("tokens",), "train/global_step", {
        "reward": "train/reward", "group_std": "train/group_reward_std", "entropy": "train/entropy_loss", "kl": "train/kl",
        "clip_fraction": "train/ppo_clip_ratio", "gradient_norm": "train/actor_grad_norm", "learning_rate": "train/actor_lr",
        "policy_loss": "train/policy_loss", "answer_length": "train/response_length", "truncated": "train/rollout/truncated_rate",
        "reward_std": "train/rollout/reward_std", "heldout_reward": "eval/eval_gsm8k_pass1", "sampler_log_prob_gap": "train/vllm_kl",
    }, has_step_zero=False),
)  # fmt: skip
KEPT_BACK: Final = ("verl", "OpenRLHF", "W&B export")
"""Styles that no rule was fitted on."""


def styles_of(kind: Kind) -> list[Style]:
    """Return the styles whose logs can show this kind."""
    return [style for style in STYLES if set(style.domains) & set(kind.domains) and all(_has(style, need) for need in kind.needs)]


def _has(style: Style, need: str) -> bool:
    groups = {
        "heldout": bool({"regret", "heldout_reward"} & style.columns.keys()),
        "sampler": bool({"sampler_log_prob_gap", "sampler_prob_gap"} & style.columns.keys()),
        "evaluations": style.name in ("ours", "plain CSV"),
        "step 0": style.has_step_zero and style.name != "ours",
        "loss": bool({"loss", "policy_loss"} & style.columns.keys()),
        "reward_std": bool({"reward_std", "group_std"} & style.columns.keys()),
        "sampled KL": style.name != "ours",
    }
    return groups.get(need, need in style.columns)


def write_log(folder: Path, kind: Kind, style: Style, seed: int) -> tuple[list[Path], Path | None]:
    """Write a run's log into a folder; return its tables, and that of its evaluations by games if there are any."""
    made = draft(kind, style, seed)
    if style.name == "ours":
        _as_ours(made)
    needed = {need for need in kind.needs if need in style.columns} | {"reward", "optimiser_steps"}
    columns = {name: column for name, column in style.columns.items() if name in made.curves}
    dropped = {name for name in columns if name not in needed and made.rng.random() < 0.15} if kind.name != "two columns" else set()
    if kind.expected & {"reward_hacking", "lost_strength"}:
        dropped -= {"regret", "heldout_reward"}
    if "sampler" in kind.needs:
        dropped -= {"sampler_log_prob_gap", "sampler_prob_gap", "sampler_ratio"}
    names = [name for name in columns if name not in dropped]
    start = made.counts_from if style.has_step_zero else 1
    steps = [(start + row) * made.interval * style.steps_per_row for row in range(made.num_rows)]
    if start == 0 and made.counts_from == 0:
        steps = [row * made.interval * style.steps_per_row for row in range(made.num_rows)]
    lines = [[steps[row], *(_cell(made, style, name, row) for name in names)] for row in range(made.num_rows)]
    if made.repeats_from is not None:
        at = int(made.repeats_from * made.num_rows)
        lines = lines[:at] + lines[max(0, at - 7) :]
    prefix = f"{style.export} - " if style.export else ""
    path = folder / "history.csv"
    _table(path, [style.step, *(f"{prefix}{columns[name]}" for name in names)], lines)
    if not made.evaluations:
        return [path], None
    evaluations = folder / "evaluations.csv"
    _table(evaluations, ["step", "score", "games"], [[steps[at] if at else 0, score, games] for at, score, games in made.evaluations])
    return [path], evaluations


def _as_ours(made: Draft) -> None:
    """Make curves exact, as our trainer logs them."""
    if made.curves.get("kl") is not None and np.median(made.curves["kl"]) > 0 and made.curves["kl"][0] < 0.02:
        made.curves["kl"][0] = 0.0
    if "kl" in made.curves:
        made.curves["kl"] = np.maximum(made.curves["kl"], 0.0)


def _cell(made: Draft, style: Style, name: str, row: int) -> object:
    if made.nan_from is not None and row >= made.nan_from and name in ("loss", "policy_loss", "gradient_norm"):
        return "nan"
    value = float(made.curves[name][row])
    if np.isnan(value):
        return ""
    return -value if name in style.negated else value


def _table(path: Path, head: list[str], lines: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(lines)
