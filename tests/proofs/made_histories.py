"""Made histories of runs, healthy and sick, written as TRL, verl, Stable-Baselines3 and a plain table; nothing here imports the diagnosis.

Lengths (40 to 1,000 rows), levels, noise, its correlation from row to row, and moments are drawn. Thresholds were chosen on CHOOSING, and
are reported on REPORTING. `python tests/proofs/made_histories.py` prints the table; `docs/troubleshooting.md` sums it up.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CHOOSING, REPORTING = 1, 2
NUM_DRAWS: Final = 200
DIALECTS: Final = ("plain", "TRL", "verl", "SB3")


@dataclass
class Draw:
    """A run's curves by quantity, one value a row; NaN where nothing was logged."""

    rng: np.random.Generator
    num_rows: int
    dialect: str
    curves: dict[str, Array] = field(default_factory=dict)
    not_finite: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        pick, rng, at = self.pick, self.rng, self.at
        self.memory = float(rng.choice([0.0, 0.3, 0.6, 0.8]))
        self.spread = {"SB3": pick(20, 100)}.get(self.dialect, pick(0.3, 1.0))
        self.start = {"SB3": rng.uniform(-200, 50)}.get(self.dialect, float(rng.choice([rng.uniform(0.1, 0.4), rng.uniform(-1, 2)])))
        self.noise_size = rng.uniform(0.05, 0.25)
        shapes = (at, 1 - np.exp(-at / rng.uniform(0.1, 0.4)), 1 / (1 + np.exp(-12 * (at - 0.4))), np.sqrt(at))
        self.reward(rng.uniform(0.6, 1.5) * shapes[rng.integers(4)])
        entropy = {"SB3": rng.uniform(0.65, 2.5), "plain": rng.uniform(1.6, 3.0)}.get(self.dialect, pick(0.2, 1.0))
        kept, kl = rng.uniform(0.5, 1.1), pick(0.005, 0.2)
        self.curves |= {
            "reward_std": self.spread * self.times(0.05),
            "entropy": entropy * (1 + (kept - 1) * at) * self.times(rng.uniform(0.01, 0.06)),
            "kl": kl * at ** rng.uniform(0.5, 1.3) * self.times(0.15),
            "kl_old": pick(0.001, 0.015) * self.times(0.3),
            "clip": np.clip(rng.uniform(0.0, 0.1) * self.times(0.3), 0, 1),
            "grad": pick(0.05, 3.0) * pick(0.5, 2.0) ** at * self.times(rng.uniform(0.1, 0.5)),
            "loss": self.noise(pick(0.001, 0.03)),
            "rate": pick(1e-6, 1e-4) * (np.ones_like(at), np.minimum(1, 10 * at), 1 - at)[rng.integers(3)],
            "ratio": 1 + self.noise(0.005),
            "silent": np.clip(rng.uniform(0.05, 0.35) + self.noise(0.04), 0, 1),
            "cut": np.clip(rng.uniform(0.0, 0.15) + self.noise(0.03), 0, 1),
            "length": pick(80, 2_000) * pick(0.7, 1.8) ** at * self.times(0.06),
            "format": np.clip(rng.uniform(0.85, 0.97) + self.noise(0.02), 0, 1),
            "kl_coefficient": np.full(self.num_rows, pick(1e-4, 1e-2)),
        }
        better = self.start + self.spread * (0.6 * shapes[1] + self.noise(0.04))
        self.curves["heldout"] = np.where(np.arange(self.num_rows) % max(1, self.num_rows // 20) == 0, better, np.nan)

    @property
    def at(self) -> Array:
        """Fraction of the run at each row."""
        return np.linspace(0, 1, self.num_rows)

    def pick(self, low: float, high: float) -> float:
        """Return a number that is uniform in its logarithm."""
        return float(np.exp(self.rng.uniform(math.log(low), math.log(high))))

    def noise(self, size: float) -> Array:
        """Return normal noise whose rows are as alike as this run's."""
        rows = self.rng.normal(0, 1, self.num_rows)
        for row in range(1, self.num_rows):
            rows[row] = self.memory * rows[row - 1] + math.sqrt(1 - self.memory**2) * rows[row]
        return size * rows

    def times(self, size: float) -> Array:
        """Return factors around 1."""
        return np.exp(self.noise(size))

    def onset(self, low: float = 0.1, high: float = 0.5) -> Array:
        """Return 0 up to a drawn moment, and from there a line to 1."""
        begin = self.rng.uniform(low, high)
        return np.clip((self.at - begin) / (1 - begin), 0, 1)

    def set(self, **curves: Array) -> None:
        self.curves |= curves

    def scale(self, *names: str, by: Array | float) -> None:
        for name in names:
            self.curves[name] *= by

    def share(self, fraction: Array, size: float = 0.02) -> Array:
        """Return a fraction of answers or groups, with noise, within 0 and 1."""
        return np.clip(fraction + self.noise(size), 0, 1)

    def ramp(self, low: float, high: float = 0.0) -> Array:
        """Return a line to 1 at a moment that is drawn up to `high`, or is `low`."""
        return np.minimum(1, self.at / (self.rng.uniform(low, high) if high else low))

    def reward(self, shape: Array | float, noise_size: float = 0.0) -> None:
        """Set the reward: a shape in deviations of a single reward above the start, and noise."""
        self.noise_size = noise_size or self.noise_size
        self.curves["reward"] = self.start + self.spread * (shape + self.noise(self.noise_size))

    def flat(self) -> None:
        """Let neither training nor held-out reward move, at a level that is not high."""
        self.start = min(self.start, 0.5) if self.dialect != "SB3" else self.start
        self.reward(0.0)
        self.curves.pop("heldout", None)


Change = Callable[[Draw], object]


def _solved(run: Draw) -> None:
    run.start, run.spread, run.noise_size = 0.0, 1.0, 0.01
    run.reward(0.97 - run.rng.uniform(0, 0.4) * np.exp(-run.at / 0.1))
    run.curves["reward"] = np.clip(run.curves["reward"], 0, 1)
    run.curves["silent"] = np.clip(0.5 + 0.4 * run.at + run.noise(0.03), 0, 1)
    run.curves["heldout"] *= np.nan


def _decays(run: Draw) -> None:
    run.set(rate=run.pick(1e-6, 1e-4) * 0.5 * (1 + np.cos(math.pi * run.at)))
    run.curves["rate"][-1] = 0.0


HEALTHY: Final[Mapping[str, Change]] = {
    "learns": lambda _: None,
    "noisy rise": lambda run: run.reward(1.5 * run.at, noise_size=0.35),
    "solved from early on": _solved,
    "entropy settles": lambda run: (
        run.set(entropy=run.curves["entropy"][0] * (1 - run.rng.uniform(0.4, 0.65) * (1 - np.exp(-4 * run.at))) * run.times(0.03)),
        run.reward(1.2 * (1 - np.exp(-4 * run.at))),
    ),
    "KL levels off": lambda run: run.set(kl=run.pick(0.02, 0.3) * (1 - np.exp(-run.at / 0.1)) * run.times(0.1)),
    "spikes of up to ten times": lambda run: [
        run.scale(name, by=np.where(run.rng.random(run.num_rows) < 0.02, run.pick(3, 10), 1)) for name in ("kl", "grad", "kl_old")
    ],
    "a dip and a recovery": lambda run: run.reward(1.3 * run.at - 0.5 * np.exp(-(((run.at - run.rng.uniform(0.3, 0.6)) / 0.07) ** 2))),
    "learning rate decays to 0": _decays,
    "longer answers": lambda run: (
        run.scale("length", by=1 + run.rng.uniform(2, 5) * run.at),
        run.set(cut=run.share(0.05 + 0.25 * run.at)),
    ),
    "quick rise, then a plateau": lambda run: run.reward(1.2 * run.ramp(0.08, 0.3)),
    "KL is off": lambda run: run.set(kl=np.zeros(run.num_rows), kl_coefficient=np.zeros(run.num_rows)),
    # In every fifth row; nan is said between them.
    "nan where nothing was measured": lambda run: run.set(
        **{name: np.where(np.arange(run.num_rows) % 5 == 0, run.curves[name], np.inf) for name in ("kl", "entropy", "grad")}
    ),
}


def _collapses_in_spite(run: Draw) -> None:
    run.scale("entropy", by=np.exp(-run.rng.uniform(3.5, 6) * run.onset()))
    run.start -= 2 * run.spread  # What is at 0.9 of 0 to 1 may be sure.
    run.reward(run.at)


def _entropy_explodes(run: Draw) -> None:
    entropy = np.maximum(run.curves["entropy"], 0.4)
    if run.dialect == "plain":
        run.set(entropy=np.minimum(entropy + 3.4 * run.onset(), 3.5) * run.times(0.01))
    else:
        run.set(entropy=entropy * run.pick(5, 10) ** run.onset())
    run.flat()


def _overfits(run: Draw) -> None:
    run.reward(1.4 * run.at)
    lost = run.start + run.spread * (2 + 0.3 * np.minimum(1, 5 * run.at) - run.rng.uniform(1.2, 2) * run.onset(0.2, 0.5) + run.noise(0.04))
    run.set(heldout=np.where(np.isnan(run.curves["heldout"]), np.nan, lost))


def _extreme(run: Draw) -> None:
    rows = run.rng.integers(5, run.num_rows - 5, 3)
    run.curves["kl"][rows] = run.pick(1e3, 1e8)
    run.curves["grad"][rows] *= run.pick(2e3, 1e6)
    run.curves["kl_old"][rows] = run.pick(1e2, 1e5)


def _nan(run: Draw) -> None:
    begin = int(run.num_rows * run.rng.uniform(0.3, 0.9))
    for name in ("loss", "grad", "kl", "kl_old"):
        run.curves[name][begin:] = np.inf


def _frozen(run: Draw) -> None:
    run.flat()
    run.scale("grad", "kl", "kl_old", "clip", by=0.0)
    run.curves["entropy"][:] = run.curves["entropy"][0]


SICK: Final[Mapping[str, tuple[Change, str]]] = {
    "entropy collapses, reward flat": (
        lambda run: (run.scale("entropy", by=np.exp(-run.rng.uniform(3.5, 6) * run.ramp(0.1, 1))), run.flat()), "entropy_collapse",
    ),
    "entropy collapses while reward rises": (_collapses_in_spite, "entropy_collapse"),
    "entropy explodes": (_entropy_explodes, "entropy_explosion"),
    "reward falls": (
        lambda run: (run.reward(-run.rng.uniform(0.6, 1.2) * run.at), run.curves.pop("heldout")), "falling_reward",
    ),
    "reward rises and falls": (
        lambda run: (run.reward(run.ramp(0.3) - 1.3 * run.onset(0.4, 0.6)), run.curves.pop("heldout")), "falling_reward",
    ),
    "reward flat": (lambda run: (run.flat(), run.set(kl=0.002 * run.at * run.times(0.1))), "flat_reward"),
    "held-out reward falls": (_overfits, "reward_hacking"),
    "KL explodes": (
        lambda run: (
            run.set(kl=0.02 * run.pick(200, 5_000) ** run.onset() * run.times(0.2)), run.reward(0.2 * run.at - 0.6 * run.onset()),
        ),
        "diverging",
    ),
    "gradients explode": (
        lambda run: (
            run.scale("grad", by=run.pick(100, 1e4) ** run.onset(0.3, 0.6)), run.reward(0.2 * run.at - 0.6 * run.onset(0.3, 0.6)),
        ),
        "diverging",
    ),
    "another reference": (lambda run: run.set(kl=run.pick(0.3, 3) * (1 + 0.2 * run.at) * run.times(0.1)), "kl_at_step_zero"),
    "ratio is not 1": (lambda run: run.set(ratio=run.rng.choice([0.7, 1.3, 1.6]) + run.noise(0.02)), "ratio_not_one"),
    "single extreme rows": (_extreme, "extreme_rows"),
    "NaN": (_nan, "nan_steps"),
    "frozen policy": (_frozen, "no_gradient"),
    "silent groups": (lambda run: (run.flat(), run.set(silent=run.share(0.3 + 0.68 * run.ramp(0.6)))), "silent_groups"),
    "much is clipped": (
        lambda run: run.set(clip=run.share(0.05 + run.rng.uniform(0.35, 0.6) * run.ramp(0.3))), "high_clip_fraction",
    ),
    "answers are cut": (lambda run: run.set(cut=run.share(0.05 + 0.95 * run.ramp(0.1, 0.5))), "truncated_answers"),
    "length runs away": (
        lambda run: (run.flat(), run.scale("length", by=run.pick(4, 20) ** (run.at * run.rng.choice([-1, 1])))), "answer_length",
    ),
    "format is lost": (lambda run: run.set(format=run.share(0.95 - run.rng.uniform(0.4, 0.9) * run.onset())), "lost_format"),
    "KL coefficient runs away": (
        lambda run: run.set(kl_coefficient=1e-3 * run.pick(50, 1e4) ** run.ramp(0.3, 1) * run.times(0.02)), "saturated_controller",
    ),
}  # fmt: skip
"""Fault -> how it is made, and the finding that names it."""

_COLUMNS: Final[Mapping[str, str]] = {
    "plain": "reward=reward reward_std=reward_std entropy=entropy kl=kl kl_old=approx_kl clip=clip_fraction grad=grad_norm loss=loss"
    " rate=lr ratio=ratio_mean silent=silent_groups heldout=heldout_reward kl_coefficient=kl_coef",
    "TRL": "reward=reward reward_std=reward_std entropy=entropy kl=kl clip=clip_ratio/region_mean loss=loss grad=grad_norm"
    " rate=learning_rate silent=frac_reward_zero_std cut=completions/clipped_ratio length=completions/mean_length"
    " format=rewards/format_reward/mean"
    " heldout=eval_reward",
    "verl": "reward=critic/score/mean entropy=actor/entropy kl=actor/kl_loss kl_old=actor/ppo_kl rate=actor/lr clip=actor/pg_clipfrac"
    " grad=actor/grad_norm loss=actor/pg_loss cut=response_length/clip_ratio length=response_length/mean"
    " heldout=val-core/maths/acc/mean@8 kl_coefficient=actor/kl_coef",
    "SB3": "reward=rollout/ep_rew_mean entropy=train/entropy_loss kl_old=train/approx_kl clip=train/clip_fraction loss=train/loss"
    " rate=train/learning_rate heldout=eval/mean_reward",
}
_SHOWN_BY: Final = {
    "KL explodes": "kl",
    "another reference": "kl",
    "gradients explode": "grad",
    "ratio is not 1": "ratio",
    "silent groups": "silent",
    "answers are cut": "cut",
    "longer answers": "cut",
    "length runs away": "length",
    "format is lost": "format",
    "KL coefficient runs away": "kl_coefficient",
}
"""Quantities that a history needs as columns, or the collapse is invisible."""


def columns_of(dialect: str) -> dict[str, str]:
    """Return the columns of a dialect by quantity."""
    return dict(pair.split("=") for pair in _COLUMNS[dialect].split())


def dialects_of(kind: str) -> list[str]:
    """Return the dialects that log what a kind shows."""
    return [dialect for dialect in DIALECTS if _SHOWN_BY.get(kind, "reward") in columns_of(dialect)]


def draw(kind: str, seed: int, number: int, *, num_rows: int = 0) -> Draw:
    rng = np.random.default_rng([seed, number, *kind.encode()])
    of = dialects_of(kind)
    rows = num_rows or int(np.exp(rng.uniform(math.log(40), math.log(1_000))))
    run = Draw(rng, rows, of[number % len(of)])
    (HEALTHY[kind] if kind in HEALTHY else SICK[kind][0])(run)
    return run


def write(run: Draw, folder: Path) -> Path:
    """Write a run in its dialect: CSV, JSON lines, a console's lines, or progress.csv."""
    columns = {name: column for name, column in columns_of(run.dialect).items() if name in run.curves}
    curves = {
        column: -run.curves[name] if (run.dialect, name) == ("SB3", "entropy") else run.curves[name] for name, column in columns.items()
    }
    rows: list[dict[str, Any]] = []
    for at in range(run.num_rows):
        row = {column: float(cells[at]) for column, cells in curves.items() if not np.isnan(cells[at])}
        rows.append({column: math.nan if math.isinf(cell) else float(f"{cell:.6g}") for column, cell in row.items()})
    step = {"plain": "step", "TRL": "step", "verl": "training/global_step", "SB3": "time/total_timesteps"}[run.dialect]
    rows = [{step: (at + 1) * (2_048 if run.dialect == "SB3" else 1), **row} for at, row in enumerate(rows)]
    if run.dialect == "TRL":
        path = folder / "log.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif run.dialect == "verl":
        path = folder / "console.log"
        lines = (" - ".join(f"{name}:{cell}" for name, cell in row.items() if name != step) for row in rows)
        path.write_text(
            "".join(f"(TaskRunner pid=7) step:{at} - timing_s/step:{30 + at % 7} - {line}\n" for at, line in enumerate(lines, 1))
        )
    else:
        path = folder / "progress.csv"
        names = [step, *curves]
        path.write_text("\n".join([",".join(names), *(",".join(str(row.get(name, "")) for name in names) for row in rows)]))
    return path


def judged(run: Draw) -> tuple[str, ...]:
    """Return the findings of a run, by way of its file."""
    from grpo.diagnosis.diagnose import diagnose
    from grpo.diagnosis.history import read_tables

    with tempfile.TemporaryDirectory() as folder:
        return diagnose(read_tables([write(run, Path(folder))])).names


@dataclass
class Row:
    kind: str
    finding: str
    """True name of the finding; "" for a healthy kind."""
    num_rows: list[int] = field(default_factory=list)
    is_found: list[bool] = field(default_factory=list)
    is_named: list[bool] = field(default_factory=list)

    def share(self, least: int, most: int = 10_000, *, named: bool = False) -> float:
        """Return the fraction of draws with so many rows in which anything was found, or the true name."""
        hits = [hit for rows, hit in zip(self.num_rows, self.is_named if named else self.is_found, strict=True) if least <= rows < most]
        return sum(hits) / max(1, len(hits))


def measure(seed: int, num_draws: int = NUM_DRAWS) -> list[Row]:
    rows = [Row(kind, SICK[kind][1] if kind in SICK else "") for kind in (*HEALTHY, *SICK)]
    for row in rows:
        for number in range(num_draws):
            run = draw(row.kind, seed, number)
            found = judged(run)
            row.num_rows.append(run.num_rows)
            row.is_found.append(bool(found))
            row.is_named.append(row.finding in found)
    return rows


def rows_needed(row: Row) -> str:
    """Return from how many rows on 95 % of the draws are found."""
    return str(next((least for least in (40, 60, 100, 150, 200, 300, 500) if row.share(least) >= 0.95), "more than 500"))


def table(rows: list[Row]) -> str:
    lines = [
        "kind of run | finding | rows needed | found, 40 to 199 rows | found, 200 and more | by its name",
        "--- | --- | --- | --- | --- | ---",
    ]
    for row in rows:
        if row.finding:
            shares = f"{row.share(40, 200):.0%} | {row.share(200):.0%} | {row.share(200, named=True):.0%}"
            lines.append(f"{row.kind} | {row.finding} | {rows_needed(row)} | {shares}")
    lines += ["", "healthy run | false alarms, 40 to 199 rows | false alarms, 200 and more", "--- | --- | ---"]
    lines += [f"{row.kind} | {row.share(40, 200):.1%} | {row.share(200):.1%}" for row in rows if not row.finding]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    given = [int(word) for word in sys.argv[1:]]
    print(table(measure(*(given or [REPORTING]))))
