"""What is measured of a rollout and of each optimiser step on it: per state, then over all states.

Legend: B states, A legal moves (padded), M moves of a state that are in the surrogate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo.board.phases import PHASES
from grpo.policy.distribution import MoveDistribution
from grpo.settings.metrics import TERM_PRODUCTS, TERMS
from grpo.train.objective import Objective, budget, exact_policy_ascent, log_prob_ascent
from grpo.train.rollouts import Rollout

_AT_END = 1e-6
_ZERO_SPREAD = 1e-6


def at_temperature_one(old: MoveDistribution, temperature: float) -> MoveDistribution:
    """Return the distribution that was sampled, brought back to T = 1 by raising it to the power T."""
    return MoveDistribution.from_logits(old.log_probs * temperature, old.is_legal, temperature=1.0)


def normalised_entropy(distribution: MoveDistribution) -> Tensor:
    """Return H / ln(legal moves), [B]; 0 where there is no choice."""
    return distribution.entropy() / distribution.num_legal().clamp(min=2).to(distribution.log_probs.dtype).log()


@torch.no_grad()
def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Return the metrics of a rollout. Entropies and regret are those at T = 1."""
    moves, old = rollout.moves, rollout.old
    one = at_temperature_one(old, rollout.temperature)
    values = rollout.states.values.masked_fill(~old.is_legal, 0)
    is_real = moves.weights > 0
    size = is_real.sum(1)
    # In float64, in which equal rewards have no spread and a unanimous group agrees wholly.
    weights = moves.weights.double()
    total_B1 = weights.sum(1, keepdim=True)
    fractions = weights / total_B1
    fractions_BA = torch.zeros_like(old.log_probs, dtype=torch.float64).scatter_add_(1, moves.columns, weights) / total_B1
    mean_B1 = (fractions * rollout.rewards).sum(1, keepdim=True)
    spread = (fractions * (rollout.rewards - mean_B1) ** 2).sum(1).sqrt()
    low = rollout.rewards.masked_fill(~is_real, math.inf).amin(1)
    high = rollout.rewards.masked_fill(~is_real, -math.inf).amax(1)
    exact = exact_policy_ascent(old, values, temperature=rollout.temperature)
    flow_BM = moves.weights * moves.advantages
    estimated = log_prob_ascent(old.probs, moves.columns, flow_BM) / rollout.temperature
    weight_squared = rollout.state_weights**2  # The loss's gradient has each state's times its weight.
    per_state = {
        "entropy": one.entropy(),
        "normalised": normalised_entropy(one),
        "log_num_legal": one.num_legal().to(old.log_probs.dtype).log(),
        "regret": values.amax(1) - one.expectation(values),
        "phase": rollout.states.phases,
        "weight": rollout.state_weights,
        "size": size,
        "is_group": size > 1,
        "spread": spread,
        "has_zero_variance": (high == low) | (spread < _ZERO_SPREAD),
        "agreement": fractions_BA.amax(1),
        "exact_exact": (exact * exact).sum(1) * weight_squared,
        "estimated_estimated": (estimated * estimated).sum(1) * weight_squared,
        "exact_estimated": (exact * estimated).sum(1) * weight_squared,
    }
    columns = {name: column.double().cpu() for name, column in per_state.items()}
    weight = (moves.weights * rollout.state_weights[:, None])[is_real]
    own = [rollout.rewards[is_real], moves.advantages[is_real], values.gather(1, moves.columns)[is_real], weight]
    flat = torch.stack(own, dim=1).double().cpu()
    return {
        **_state_metrics(columns),
        **_reward_metrics(*flat.unbind(1)),
        "grpo/states": float(len(rollout)),
        "grpo/states_dropped": float(rollout.num_dropped),
    }


def _state_metrics(columns: Mapping[str, Tensor]) -> dict[str, float]:
    entropy, normalised, phases, weight = (columns[name] for name in ("entropy", "normalised", "phase", "weight"))

    def mean(of: Tensor, rows: Tensor | slice = slice(None)) -> float:
        return ((of[rows] * weight[rows]).sum() / weight[rows].sum()).item()

    present = [(phase, phases == index) for index, phase in enumerate(PHASES) if (phases == index).any()]
    # Groups of one (later plies of trajectories) have zero variance by nature, and agree with themselves.
    groups = columns["is_group"] > 0
    norms = columns["exact_exact"].sum().sqrt(), columns["estimated_estimated"].sum().sqrt()
    product, size = columns["exact_estimated"].sum(), norms[0] * norms[1]
    return {
        "grpo/entropy": mean(entropy),
        "grpo/normalised_entropy": mean(normalised),
        **{f"grpo/entropy/{phase}": mean(entropy, rows) for phase, rows in present},
        "grpo/log_num_legal": mean(columns["log_num_legal"]),
        "grpo/regret": mean(columns["regret"]),
        "grpo/zero_variance_groups": columns["has_zero_variance"][groups].mean().item() if groups.any() else 0.0,
        "grpo/group_std_mean": columns["spread"][groups].mean().item() if groups.any() else 0.0,
        **{f"grpo/group_std/{phase}": columns["spread"][groups & rows].mean().item() for phase, rows in present if (groups & rows).any()},
        "grpo/agreement": columns["agreement"][groups].mean().item() if groups.any() else 1.0,
        "grpo/exact_cosine": (product / size).item() if size > 0 else 0.0,
    }


def _reward_metrics(rewards: Tensor, advantages: Tensor, values: Tensor, weights: Tensor) -> dict[str, float]:
    fractions = weights / weights.sum()
    mean = (fractions * rewards).sum()
    advantage_mean = (fractions * advantages).sum()
    order = rewards.argsort()
    # The first reward at which nine tenths of the weight have been passed.
    index = torch.searchsorted(fractions[order].cumsum(0), torch.tensor(0.9, dtype=fractions.dtype)).clamp(max=len(rewards) - 1)
    # Of the move's value: the reward of a trajectory is a difference of values, 0 for every best move.
    at_end = (values <= _AT_END) | (values >= 1 - _AT_END)
    return {
        "grpo/reward_mean": mean.item(),
        "grpo/reward_std": (fractions * (rewards - mean) ** 2).sum().sqrt().item(),
        "grpo/reward_p90": rewards[order][index].item(),
        "grpo/reward_at_end": (fractions * at_end).sum().item(),
        "grpo/advantage_std": (fractions * (advantages - advantage_mean) ** 2).sum().sqrt().item(),
    }


@dataclass(slots=True)
class InnerStep:
    """What one optimiser step measured: sums over the states of its pieces, then means."""

    total: float
    """Weight of all states of the minibatch."""
    device: torch.device
    is_finite: bool = True
    gradient_norm: float = math.nan
    ratio_min: float = math.inf
    ratio_max: float = -math.inf
    products: dict[tuple[str, str], float] = field(default_factory=dict)
    """Inner products of the terms' logit gradients, by pair: means over states."""
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _means: dict[str, float] = field(default_factory=dict)
    _extremes: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def add(self, piece: Rollout, objective: Objective, products: Mapping[tuple[str, str], Tensor]) -> None:
        """Take up one piece of the minibatch."""
        weight, fractions = piece.state_weights.double(), piece.moves.weights
        ratios, is_real = objective.ratios.double(), fractions > 0
        values = piece.states.values.masked_fill(~piece.old.is_legal, 0)
        assert objective.kl_old is not None, "a rollout of moves has its whole old distribution"
        per_state = {
            "loss": objective.loss,
            **{f"weighted/{term}": objective.weighted[term] for term in TERMS},
            "kl_reference": objective.kl_reference,
            "kl_from_reference": objective.kl_from_reference,
            "kl_old": objective.kl_old,
            "reward_gain": (objective.shift * values).sum(1),
            "clip_low": (fractions * objective.is_clipped_low).sum(1),
            "clip_high": (fractions * objective.is_clipped_high).sum(1),
            "ratio": (fractions * ratios).sum(1),
            "ratio_squared": (fractions * ratios**2).sum(1),
            # Once more times its weight: the loss's gradient has each state's times its weight, and these are products of two.
            **{f"product/{one}/{other}": value * weight for (one, other), value in products.items()},
        }
        for name, column in per_state.items():
            self._sums[name] = (
                self._sums.get(name, torch.zeros((), dtype=torch.float64, device=self.device)) + (column.double() * weight).sum()
            )
        real = ratios[is_real]
        self._extremes += [real.min(), real.max()]

    def finish(self) -> None:
        """Make means of the sums of all pieces."""
        self._means = dict(zip(self._sums, (torch.stack([*self._sums.values()]) / self.total).tolist(), strict=True))
        self.products = {pair: self._means[f"product/{pair[0]}/{pair[1]}"] for pair in TERM_PRODUCTS}
        extremes = torch.stack(self._extremes)
        self.ratio_min, self.ratio_max = extremes.min().item(), extremes.max().item()

    def mean(self, name: str) -> float:
        """Return the mean over all states."""
        return self._means[name]

    @property
    def kl_old(self) -> float:
        """Mean exact KL(old || policy)."""
        return self._means["kl_old"]

    @property
    def effective_sample_size(self) -> float:
        """(sum of ratios)^2 / (number * sum of squares), over the moves by their weights: 1 when all ratios are equal."""
        return self._means["ratio"] ** 2 / self._means["ratio_squared"] if self._means["ratio_squared"] else 0.0


def inner_metrics(steps: Sequence[InnerStep], refused: InnerStep | None = None) -> dict[str, float]:
    """Return one number a metric for the optimiser steps of a rollout: the mean, or the extreme, or the last.

    `refused` is what was measured where the trust region ended them: as far as the policy went from the one that was sampled.
    """
    looked_at = [*steps, *([] if refused is None else [refused])]

    def mean(name: str) -> float:
        return sum(step.mean(name) for step in steps) / len(steps)

    products = {pair: sum(step.products[pair] for step in steps) / len(steps) for pair in TERM_PRODUCTS}
    norms, fractions, cosines = budget(products)
    return {
        "grpo/loss": mean("loss"),
        **{f"grpo/weighted/{term}": mean(f"weighted/{term}") for term in TERMS},
        **{f"grpo/logit_gradient/{term}": norm for term, norm in norms.items()},
        **{f"grpo/logit_share/{term}": fraction for term, fraction in fractions.items()},
        **{f"grpo/logit_cosine/{one}_{other}": cosine for (one, other), cosine in cosines.items()},
        "grpo/kl_reference": steps[0].mean("kl_reference"),
        "grpo/kl_from_reference": steps[0].mean("kl_from_reference"),
        "grpo/reward_gain": steps[0].mean("reward_gain"),
        "grpo/kl_old_first": steps[0].kl_old,
        "grpo/kl_old": looked_at[-1].kl_old,
        "grpo/ratio_min": min(step.ratio_min for step in looked_at),
        "grpo/ratio_max": max(step.ratio_max for step in looked_at),
        "grpo/clip_fraction": mean("clip_low") + mean("clip_high"),
        "grpo/clip_low_fraction": mean("clip_low"),
        "grpo/clip_high_fraction": mean("clip_high"),
        "grpo/effective_sample_size": min(step.effective_sample_size for step in looked_at),
        "grpo/gradient_norm": sum(step.gradient_norm for step in steps) / len(steps),
    }
