"""Metrics of a rollout and its optimizer steps; training does not depend on them.

A group is the moves sampled from one state. The loss has four terms: policy (clipped surrogate), entropy, and two KLs with the reference.

Legend: B states, A legal moves (padded), M sampled moves of a state.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grpo.board.phases import PHASES
from grpo.metrics.shared import TERM_PAIRS, TERM_PRODUCTS, TERMS
from grpo.policy.distribution import MoveDistribution
from grpo.train.control import Knobs
from grpo.train.objective import Batch, Measured, Terms, factors
from grpo.train.states import States

_ZERO_SPREAD = 1e-6  # A smaller standard deviation of a group's rewards counts as 0.


@torch.no_grad()
def move_metrics(batch: Batch[States]) -> dict[str, float]:
    """Return a rollout's metrics. Entropies and regret (best value minus expected value) are at temperature 1."""
    sampled = batch.at_one()
    values, is_real = batch.states.values, batch.weights > 0
    # Float64: rounding in float32 would give equal rewards a spread above 0, and equal moves an agreement unequal to 1.
    weights = batch.weights.double()
    total_B1 = weights.sum(1, keepdim=True)
    fractions = weights / total_B1
    fractions_BA = torch.zeros_like(sampled.log_probs, dtype=torch.float64).scatter_add_(1, batch.columns, weights) / total_B1
    mean_B1 = (fractions * batch.rewards).sum(1, keepdim=True)
    spread = (fractions * (batch.rewards - mean_B1) ** 2).sum(1).sqrt()
    low = batch.rewards.masked_fill(~is_real, math.inf).amin(1)
    high = batch.rewards.masked_fill(~is_real, -math.inf).amax(1)
    state_columns = {
        "entropy": sampled.entropy(),
        "normalized_entropy": sampled.entropy() / sampled.num_legal().clamp(min=2).to(sampled.log_probs.dtype).log(),
        "log_num_legal": sampled.num_legal().to(sampled.log_probs.dtype).log(),
        "regret": values.amax(1) - sampled.expectation(values),
    }
    group_columns = {
        "zero_variance_groups": (high == low) | (spread < _ZERO_SPREAD),
        "agreement": fractions_BA.amax(1),  # The most frequent move's fraction of the group.
    }
    columns = {name: column.double().cpu() for name, column in {**state_columns, **group_columns}.items()}
    weight, phases = batch.state_weights.double().cpu(), batch.states.phases.cpu()
    # With `num_own_moves` above 1, later states have one sampled move, so they count in no group metric.
    is_group = (is_real.sum(1) > 1).cpu()

    def entropy(is_chosen: Tensor) -> float:
        return ((columns["entropy"][is_chosen] * weight[is_chosen]).sum() / weight[is_chosen].sum()).item()

    move_weights = (batch.weights * batch.state_weights[:, None])[is_real].double().cpu()
    move_weights /= move_weights.sum()
    rewards = batch.rewards[is_real].double().cpu()
    reward_mean = (move_weights * rewards).sum()
    return {
        **{f"grpo/{name}": batch.mean(column) for name, column in state_columns.items()},
        **{f"grpo/entropy/{phase}": entropy(phases == index) for index, phase in enumerate(PHASES) if (phases == index).any()},
        **{
            f"grpo/{name}": columns[name][is_group].mean().item() if is_group.any() else float(name == "agreement")
            for name in group_columns
        },
        "grpo/reward_mean": reward_mean.item(),
        "grpo/reward_std": (move_weights * (rewards - reward_mean) ** 2).sum().sqrt().item(),
        "grpo/states_dropped": float(batch.num_dropped),
    }


@torch.no_grad()
def columns(
    part: Batch[States], terms: Terms, new: MoveDistribution, reference: MoveDistribution | None, knobs: Knobs
) -> dict[str, Tensor]:
    """Return quantity -> values per state, [B], for `network_metrics`."""
    gain = torch.zeros_like(new.probs) if reference is None else new.probs - reference.probs
    products = gradient_products(logit_descents(part, terms, new, reference, knobs))
    # A product of two gradients has the state's weight squared: one factor is here, one in the weighted mean over states.
    weight = part.state_weights.double()
    return {
        "kl_from_reference": terms.raw["recovery_kl"],
        "reward_gain": (gain * part.states.values).sum(1),
        **{f"product/{one}/{other}": value * weight for (one, other), value in products.items()},
    }


def mean_over(steps: Sequence[Measured], column: str) -> float:
    return sum(step.mean(column) for step in steps) / len(steps)


def loss_metrics(name: str, taken: Sequence[Measured], refused: Measured | None) -> dict[str, float]:
    """Return means over the applied steps (`taken`), and extreme ratios, also of `refused`, whose KL was too large."""
    steps = [*taken, *([] if refused is None else [refused])]
    return {
        f"{name}/loss": mean_over(taken, "loss"),
        f"{name}/clip_fraction": mean_over(taken, "clip_low") + mean_over(taken, "clip_high"),
        f"{name}/gradient_norm": sum(step.gradient_norm for step in taken) / len(taken),
        f"{name}/ratio_min": min(step.ratios[0] for step in steps),
        f"{name}/ratio_max": max(step.ratios[1] for step in steps),
    }


def network_metrics(taken: Sequence[Measured], refused: Measured | None) -> dict[str, float]:
    norms, fractions, cosines = budget({(one, other): mean_over(taken, f"product/{one}/{other}") for one, other in TERM_PRODUCTS})
    return {
        **{f"grpo/logit_gradient/{term}": norm for term, norm in norms.items()},
        **{f"grpo/logit_share/{term}": fraction for term, fraction in fractions.items()},
        **{f"grpo/logit_cosine/{one}_{other}": cosine for (one, other), cosine in cosines.items()},
        # Only the first minibatch always measures the reference.
        "grpo/kl_reference": taken[0].kl_reference,
        "grpo/kl_from_reference": taken[0].mean("kl_from_reference"),
        "grpo/reward_gain": taken[0].mean("reward_gain"),
        "grpo/kl_old": (refused or taken[-1]).kl_old,
        "grpo/clip_low_fraction": mean_over(taken, "clip_low"),
        "grpo/clip_high_fraction": mean_over(taken, "clip_high"),
    }


@torch.no_grad()
def logit_descents(
    part: Batch[object], terms: Terms, new: MoveDistribution, reference: MoveDistribution | None, knobs: Knobs
) -> dict[str, Tensor]:
    """Return term -> minus the gradient of `terms.weighted` in the logits, [B, A]; docs/objective.md has the formulas."""
    probs, log_probs = new.probs, new.log_probs
    flow_BM = part.weights * terms.ratios * part.advantages * ~(terms.is_clipped_low | terms.is_clipped_high)
    gradients = {
        "policy": torch.zeros_like(probs).scatter_add_(1, part.columns, flow_BM) - flow_BM.sum(1, keepdim=True) * probs,
        "entropy": -probs * (log_probs + new.entropy()[:, None]),
    }
    if reference is not None:
        gradients["reference_kl"] = probs * (log_probs - reference.log_probs - terms.raw["reference_kl"][:, None])
        gradients["recovery_kl"] = probs - reference.probs
    return {
        term: gradients[term] * (-factor / part.temperature) if factor else torch.zeros_like(probs)
        for term, factor in factors(knobs).items()
    }


def gradient_products(descents: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """Return pair of terms -> inner product per state, [B]."""
    return {(one, other): (descents[one] * descents[other]).flatten(1).sum(1) for one, other in TERM_PRODUCTS}


def budget(products: Mapping[tuple[str, str], float]) -> tuple[dict[str, float], dict[str, float], dict[tuple[str, str], float]]:
    """Return each term's norm (root of mean square), its fraction of the norms' sum, and each pair's cosine (0 for a zero norm).

    `products`: pair in `TERM_PRODUCTS` -> mean inner product.
    """
    norms = {term: max(0.0, products[term, term]) ** 0.5 for term in TERMS}
    total = sum(norms.values())
    fractions = {term: norm / total if total else 0.0 for term, norm in norms.items()}
    sizes = {(one, other): norms[one] * norms[other] for one, other in TERM_PAIRS}
    return norms, fractions, {pair: products[pair] / size if size else 0.0 for pair, size in sizes.items()}
