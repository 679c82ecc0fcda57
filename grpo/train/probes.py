"""Measurements of a rollout and of each optimiser step on it.

The trainer needs three of `Measured`: finiteness (a step with NaN is skipped), the ratios (1 on the first step) and KL(old || policy) (the
trust region). All other numbers only inform.

Legend: B states, A legal moves (padded), M moves of a state that are in the surrogate.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grpo.board.phases import PHASES
from grpo.policy.distribution import MoveDistribution
from grpo.settings.shared import TERM_PAIRS, TERM_PRODUCTS, TERMS
from grpo.train.batch import Batch, States
from grpo.train.control import Knobs
from grpo.train.objective import Terms, factors

_ZERO_SPREAD = 1e-6


@torch.no_grad()
def rollout_metrics(batch: Batch[States]) -> dict[str, float]:
    """Return the metrics of a network's rollout. Entropies and regret are those at T = 1."""
    assert batch.old is not None
    # To the power T, what was sampled is what it was at T = 1.
    one = MoveDistribution.from_logits(batch.old.log_probs * batch.temperature, batch.old.is_legal, temperature=1.0)
    values, is_real = batch.states.values, batch.weights > 0
    # In float64, in which equal rewards have no spread and a unanimous group agrees wholly.
    weights = batch.weights.double()
    total_B1 = weights.sum(1, keepdim=True)
    fractions = weights / total_B1
    fractions_BA = torch.zeros_like(one.log_probs, dtype=torch.float64).scatter_add_(1, batch.columns, weights) / total_B1
    mean_B1 = (fractions * batch.rewards).sum(1, keepdim=True)
    spread = (fractions * (batch.rewards - mean_B1) ** 2).sum(1).sqrt()
    low = batch.rewards.masked_fill(~is_real, math.inf).amin(1)
    high = batch.rewards.masked_fill(~is_real, -math.inf).amax(1)
    log_num_legal = one.num_legal().to(one.log_probs.dtype).log()
    of_states = {
        "entropy": one.entropy(),
        "normalised_entropy": one.entropy() / one.num_legal().clamp(min=2).to(one.log_probs.dtype).log(),
        "log_num_legal": log_num_legal,
        "regret": values.amax(1) - one.expectation(values),
    }
    of_groups = {
        "zero_variance_groups": (high == low) | (spread < _ZERO_SPREAD),
        "agreement": fractions_BA.amax(1),
    }
    columns = {name: column.double().cpu() for name, column in {**of_states, **of_groups}.items()}
    weight, phases = batch.state_weights.double().cpu(), batch.states.phases.cpu()
    # Groups of one (later plies of trajectories) have zero variance by nature, and agree with themselves.
    is_group = (is_real.sum(1) > 1).cpu()

    def mean(name: str, rows: Tensor | slice = slice(None)) -> float:
        return ((columns[name][rows] * weight[rows]).sum() / weight[rows].sum()).item()

    of_moves = (batch.weights * batch.state_weights[:, None])[is_real].double().cpu()
    of_moves /= of_moves.sum()
    rewards = batch.rewards[is_real].double().cpu()
    reward_mean = (of_moves * rewards).sum()
    return {
        **{f"grpo/{name}": mean(name) for name in of_states},
        **{f"grpo/entropy/{phase}": mean("entropy", phases == row) for row, phase in enumerate(PHASES) if (phases == row).any()},
        **{f"grpo/{name}": columns[name][is_group].mean().item() if is_group.any() else float(name == "agreement") for name in of_groups},
        "grpo/reward_mean": reward_mean.item(),
        "grpo/reward_std": (of_moves * (rewards - reward_mean) ** 2).sum().sqrt().item(),
        "grpo/states_dropped": float(batch.num_dropped),
    }


class Measured:
    """What one optimiser step measured: means over the states of all pieces of its minibatch."""

    def __init__(self, *, total: float, num_rows: float) -> None:
        """Begin.

        Args:
            total: weight of all states of the minibatch.
            num_rows: over what KL(old || policy) is a mean: the states; for a language model the answers.
        """
        self.is_finite = True
        self.gradient_norm = math.nan
        self._total, self._num_rows = total, num_rows
        self._sums: dict[str, Tensor] = {}
        self._extremes: list[Tensor] = []

    @torch.no_grad()
    def add(self, part: Batch[Any], terms: Terms, new: MoveDistribution, reference: MoveDistribution | None, knobs: Knobs) -> None:
        """Take up one piece of the minibatch."""
        weight, ratios = part.state_weights.double(), terms.ratios.double()
        of_states = {
            "loss": terms.loss,
            "kl_old": terms.kl_old,
            **{f"raw/{term}": terms.raw[term] for term in TERMS},
            **{f"weighted/{term}": terms.weighted[term] for term in TERMS},
            "clip_low": (part.weights * terms.is_clipped_low).sum(1),
            "clip_high": (part.weights * terms.is_clipped_high).sum(1),
        }
        if isinstance(part.states, States):
            gain = torch.zeros_like(new.probs) if reference is None else new.probs - reference.probs
            of_states["reward_gain"] = (gain * part.states.values).sum(1)
            # Once more times its weight: the loss's gradient has each state's times its weight, and these are products of two.
            products = gradient_products(logit_descents(part, terms, new, reference, knobs))
            of_states |= {f"product/{one}/{other}": value * weight for (one, other), value in products.items()}
        for name, column in of_states.items():
            so_far = self._sums.get(name, torch.zeros((), dtype=torch.float64, device=weight.device))
            self._sums[name] = so_far + (column.double() * weight).sum()
        real = ratios[part.weights > 0]
        self._extremes += [real.min(), real.max()]

    @cached_property
    def _means(self) -> dict[str, float]:
        return dict(zip(self._sums, (torch.stack([*self._sums.values()]) / self._total).tolist(), strict=True))

    def mean(self, name: str) -> float:
        """Return the mean over all states, after the last piece."""
        return self._means[name]

    @cached_property
    def ratios(self) -> tuple[float, float]:
        """Smallest and largest ratio."""
        extremes = torch.stack(self._extremes)
        return extremes.min().item(), extremes.max().item()

    @property
    def kl_old(self) -> float:
        """Mean KL(old || policy) of a row."""
        return self._means["kl_old"] * self._total / self._num_rows

    @property
    def clipped(self) -> float:
        """Fraction of the moves that either clip left without a gradient."""
        return self.mean("clip_low") + self.mean("clip_high")


def inner_metrics(name: str, steps: Sequence[Measured], refused: Measured | None = None) -> dict[str, float]:
    """Return one number a metric for the optimiser steps of a rollout: the mean, or the extreme, or the last.

    Args:
        name: group of the metrics, `grpo` or `language`.
        steps: those that were taken, at least one.
        refused: what was measured where the trust region ended them: as far as the policy went from the one that was sampled.
    """
    looked_at = [*steps, *([] if refused is None else [refused])]

    def mean(quantity: str) -> float:
        return sum(step.mean(quantity) for step in steps) / len(steps)

    of_every_kind = {
        f"{name}/loss": mean("loss"),
        f"{name}/clip_fraction": mean("clip_low") + mean("clip_high"),
        f"{name}/gradient_norm": sum(step.gradient_norm for step in steps) / len(steps),
        f"{name}/ratio_min": min(step.ratios[0] for step in looked_at),
        f"{name}/ratio_max": max(step.ratios[1] for step in looked_at),
    }
    if name == "language":
        return {**of_every_kind, "language/kl_term": mean("weighted/reference_kl")}
    norms, fractions, cosines = budget({(one, other): mean(f"product/{one}/{other}") for one, other in TERM_PRODUCTS})
    return {
        **of_every_kind,
        **{f"grpo/logit_gradient/{term}": norm for term, norm in norms.items()},
        **{f"grpo/logit_share/{term}": fraction for term, fraction in fractions.items()},
        **{f"grpo/logit_cosine/{one}_{other}": cosine for (one, other), cosine in cosines.items()},
        "grpo/kl_reference": steps[0].mean("raw/reference_kl"),
        "grpo/kl_from_reference": steps[0].mean("raw/recovery_kl"),
        "grpo/reward_gain": steps[0].mean("reward_gain"),
        "grpo/kl_old": looked_at[-1].kl_old,
        "grpo/clip_low_fraction": mean("clip_low"),
        "grpo/clip_high_fraction": mean("clip_high"),
    }


# The gradient budget: how much each term pulls, and which pull against each other.


@torch.no_grad()
def logit_descents(
    part: Batch[Any], terms: Terms, new: MoveDistribution, reference: MoveDistribution | None, knobs: Knobs
) -> dict[str, Tensor]:
    """Return for each weighted term minus its gradient in the logits before the temperature, [B, A], in closed form.

    With p the policy, q the reference, u 1 where the clip lets the gradient through, and e_m the unit vector of a move:
    policy sum_m w_m r_m A_m u_m (e_m - p) / T; entropy -p (ln p + H) / T; KL(p || q) p (ln(p/q) - KL) / T; KL(q || p) (p - q) / T.
    """
    probs, log_probs = new.probs, new.log_probs
    flow_BM = part.weights * terms.ratios * part.advantages * ~(terms.is_clipped_low | terms.is_clipped_high)
    gradients = {
        "policy": torch.zeros_like(probs).scatter_add_(1, part.columns, flow_BM) - flow_BM.sum(1, keepdim=True) * probs,
        "entropy": -probs * (log_probs + new.entropy()[:, None]),
    }
    if reference is not None:
        gradients["reference_kl"] = probs * (log_probs - reference.log_probs - terms.raw["reference_kl"][:, None])
        gradients["recovery_kl"] = probs - reference.probs
    # The factor in the loss is that of the value; descent goes against the loss's gradient.
    return {
        term: gradients[term] * (-factor / part.temperature) if factor else torch.zeros_like(probs)
        for term, factor in factors(knobs).items()
    }


def gradient_products(descents: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """Return the inner products of the terms' vectors a state, [B], by pair of terms, each with itself too."""
    return {(one, other): (descents[one] * descents[other]).flatten(1).sum(1) for one, other in TERM_PRODUCTS}


def budget(products: Mapping[tuple[str, str], float]) -> tuple[dict[str, float], dict[str, float], dict[tuple[str, str], float]]:
    """Return each term's norm, its fraction of the sum of norms, and each pair's cosine, from summed inner products.

    A cosine with a vector of length 0 is 0.
    """
    norms = {term: max(0.0, products[term, term]) ** 0.5 for term in TERMS}
    total = sum(norms.values())
    fractions = {term: norm / total if total else 0.0 for term, norm in norms.items()}
    sizes = {(one, other): norms[one] * norms[other] for one, other in TERM_PAIRS}
    return norms, fractions, {pair: products[pair] / size if size else 0.0 for pair, size in sizes.items()}
