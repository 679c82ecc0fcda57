"""The table of every metric: name, unit, which way is better, meaning. `docs/metrics.md` is printed from it.

A metric exists when it is in this table: `Record` refuses any other name, so that a typo cannot start a second series.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from grpo.phases import PHASES


class Better(StrEnum):
    """Which way a metric should go."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One row of the table."""

    name: str
    unit: str
    better: Better
    meaning: str


def _by_phase(name: str, unit: str, better: Better, meaning: str) -> list[MetricSpec]:
    return [MetricSpec(f"{name}/{phase}", unit, better, f"{meaning} {phase.capitalize()} boards only.") for phase in PHASES]


_SPECS: Final = [
    MetricSpec("boards/games", "games", Better.NEITHER, "Games that the source gave."),
    MetricSpec("boards/rejected_games", "games", Better.LOWER, "Games left out; the reasons are in the step's report."),
    MetricSpec("boards/duplicates", "boards", Better.NEITHER, "Boards left out because they (or their mirror) were there already."),
    MetricSpec("boards/dropped", "boards", Better.LOWER, "Boards left out because the engine failed on them three times."),
    MetricSpec("boards/left_out", "boards", Better.NEITHER, "Positions of usable games left out by a filter, as judged ones, or dropped."),
    MetricSpec("boards/missing", "boards", Better.LOWER, "Boards that were asked for and not found, where the settings accept that."),
    MetricSpec("boards/rows", "boards", Better.NEITHER, "Boards in the dataset."),
    MetricSpec("boards/endgame_signatures", "kinds", Better.HIGHER, "Different material on the endgame boards, such as KRPP-KRP."),
    *_by_phase("boards/natural", "positions", Better.NEITHER, "Positions met in the source, before balancing."),
    *_by_phase("boards/kept", "boards", Better.NEITHER, "Boards in the dataset, after balancing."),
    MetricSpec("cache/hits", "searches", Better.HIGHER, "Positions whose engine answer was on disk already."),
    MetricSpec("cache/misses", "searches", Better.NEITHER, "Positions that had to be searched."),
    MetricSpec("cache/stored", "searches", Better.NEITHER, "Engine answers written to disk; failed searches never are."),
    MetricSpec("cache/damaged", "searches", Better.LOWER, "Stored answers (or files of them) that were not as written, and made anew."),
    MetricSpec("checks/failed", "expectations", Better.LOWER, "Expectations about the dataset that do not hold."),
    MetricSpec("imitation/train_loss", "nats", Better.LOWER, "Mean cross-entropy of the move played, since the last look."),
    MetricSpec("imitation/validation_loss", "nats", Better.LOWER, "Mean cross-entropy of the move played, on boards of other games."),
    MetricSpec("imitation/top1", "fraction of boards", Better.HIGHER, "How often the likeliest move is the one played."),
    MetricSpec("imitation/top5", "fraction of boards", Better.HIGHER, "How often the move played is among the five likeliest."),
    MetricSpec("imitation/entropy", "nats", Better.NEITHER, "Mean exact entropy of the policy at T = 1."),
    MetricSpec("imitation/perplexity", "moves", Better.LOWER, "exp(validation loss): among how many equal moves it seems to guess."),
    MetricSpec("imitation/learning_rate", "1", Better.NEITHER, "Of the optimiser."),
    MetricSpec("grpo/loss", "win probability", Better.NEITHER, "What is minimised; its level says little, its parts below do."),
    MetricSpec("grpo/surrogate", "win probability", Better.NEITHER, "Mean clipped ratio times advantage, raw."),
    MetricSpec("grpo/entropy_term", "win probability", Better.NEITHER, "Entropy times its coefficient, as it stands in the loss."),
    MetricSpec("grpo/kl_term", "win probability", Better.NEITHER, "KL to the reference times its coefficient, as it stands in the loss."),
    MetricSpec(
        "grpo/entropy", "nats", Better.NEITHER, "Mean exact entropy at T = 1 of the policy that was sampled; at most ln(legal moves)."
    ),
    *_by_phase("grpo/entropy", "nats", Better.NEITHER, "Mean exact entropy at T = 1."),
    MetricSpec("grpo/normalised_entropy", "fraction", Better.NEITHER, "Mean of entropy / ln(legal moves) at T = 1."),
    MetricSpec("grpo/effective_moves", "moves", Better.NEITHER, "exp(mean entropy at T = 1)."),
    MetricSpec("grpo/kl_reference", "nats", Better.NEITHER, "Mean exact KL from policy to pretrained at the rollout's temperature."),
    MetricSpec("grpo/kl_old", "nats", Better.NEITHER, "Mean exact KL from sampled to trained policy at the last inner step."),
    MetricSpec("grpo/ratio_min", "1", Better.NEITHER, "Smallest probability ratio of the step."),
    MetricSpec("grpo/ratio_max", "1", Better.NEITHER, "Largest probability ratio of the step."),
    MetricSpec("grpo/clip_fraction", "fraction of moves", Better.NEITHER, "Sampled moves that the clip took out of the gradient."),
    MetricSpec("grpo/reward_mean", "win probability", Better.HIGHER, "Mean over sampled moves, on training boards."),
    MetricSpec("grpo/reward_std", "win probability", Better.NEITHER, "Over all sampled moves of the step."),
    MetricSpec(
        "grpo/regret",
        "win probability",
        Better.LOWER,
        "Mean best value less the policy's expected value, on training boards, reward's search.",
    ),
    MetricSpec("grpo/advantage_std", "win probability", Better.NEITHER, "Over all sampled moves of the step."),
    MetricSpec("grpo/silent_groups", "fraction of groups", Better.LOWER, "Groups whose rewards are all equal, so that they teach nothing."),
    MetricSpec("grpo/agreement", "fraction of moves", Better.NEITHER, "Mean share of a group that is its commonest move."),
    MetricSpec("grpo/gradient_norm", "1", Better.NEITHER, "Euclidean norm before clipping, mean over the step."),
    MetricSpec("grpo/skipped", "steps", Better.LOWER, "Optimiser steps of this rollout left out because a number was not finite."),
    MetricSpec(
        "heldout/regret_sampled",
        "win probability",
        Better.LOWER,
        "Best value less expected value at T = 1, held-out boards, stronger search.",
    ),
    MetricSpec(
        "heldout/regret_best",
        "win probability",
        Better.LOWER,
        "Best value less value of the likeliest move, held-out boards, stronger search.",
    ),
    MetricSpec("heldout/regret_best_stderr", "win probability", Better.NEITHER, "Standard error of `heldout/regret_best`."),
    *_by_phase("heldout/regret_best", "win probability", Better.LOWER, "Best value less value of the likeliest move, stronger search."),
    MetricSpec("heldout/entropy", "nats", Better.NEITHER, "Mean exact entropy at T = 1 on held-out boards."),
    MetricSpec(
        "baseline/score_random", "score", Better.HIGHER, "Pretrained policy, best move, against a random mover; a win is 1, a draw 0.5."
    ),
    MetricSpec(
        "baseline/score_engine",
        "score",
        Better.HIGHER,
        "Pretrained policy, best move, against Stockfish; the MLflow step is the node limit.",
    ),
    MetricSpec("selection/score_best", "score", Better.HIGHER, "Confirmation: candidate against pretrained policy, best moves."),
    MetricSpec("selection/score_best_low", "score", Better.HIGHER, "Lower end of its 95 % interval."),
    MetricSpec("selection/score_best_high", "score", Better.HIGHER, "Upper end of its 95 % interval."),
    MetricSpec("selection/score_sampled", "score", Better.HIGHER, "The same with sampled moves, T = 1."),
    MetricSpec("selection/score_sampled_low", "score", Better.HIGHER, "Lower end of its 95 % interval."),
    MetricSpec("selection/score_sampled_high", "score", Better.HIGHER, "Upper end of its 95 % interval."),
    MetricSpec("work/items_per_second", "1/s", Better.HIGHER, "Speed of the step's main work: boards, states or games."),
    MetricSpec("work/seconds", "s", Better.LOWER, "Wall time of the step."),
]

METRICS: Final[Mapping[str, MetricSpec]] = {spec.name: spec for spec in _SPECS}
assert len(METRICS) == len(_SPECS), "two metrics have one name"


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured at one step of some work: plain numbers under declared names."""

    step: int
    metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        """Refuse names that the table does not have."""
        unknown = self.metrics.keys() - METRICS.keys()
        if unknown:
            raise ValueError(f"metrics that are not declared in grpo/metrics.py: {', '.join(sorted(unknown))}")


def metrics_page() -> str:
    """Return `docs/metrics.md`."""
    rows = "\n".join(f"| `{s.name}` | {s.unit} | {s.better} | {s.meaning} |" for s in _SPECS)
    return (
        "# Metrics\n\nPrinted from `grpo/metrics.py` by `python -m grpo.metrics > docs/metrics.md`; a test holds them together.\n\n"
        f"| name | unit | better | meaning |\n| --- | --- | --- | --- |\n{rows}\n"
    )


if __name__ == "__main__":
    print(metrics_page(), end="")
