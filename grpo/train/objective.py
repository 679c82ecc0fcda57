"""Clipped surrogate, exact entropy and exact KL, each term kept apart, with each term's gradient in logits.

Legend: B states, A legal moves (padded), M moves of a state in the surrogate (the group; padded with weight 0). For a
language model a state is a place in an answer, its moves are the tokens of the vocabulary, and M = 1.
All terms share the temperature of the rollout, because temperature belongs to the policy that is trained.

Every quantity is one number a state, [B]; means are taken by the caller over all states of a minibatch, however many pieces it is cut
into.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.policy.distribution import MoveDistribution
from grpo.settings.grpo import GrpoConfig
from grpo.settings.metrics import TERM_PAIRS, TERM_PRODUCTS, TERMS
from grpo.train.controller import Knobs


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Moves:
    """The moves of each state that the surrogate sums over."""

    columns: Tensor
    """[B, M] column of each move."""
    weights: Tensor
    """[B, M] its weight in the state's surrogate: 1/G, or 1 where a trajectory has one move from the state; 0 on padding."""
    old_log_probs: Tensor
    """[B, M] the sampler's own log-probability of each move, at its temperature."""
    advantages: Tensor
    """[B, M]."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Objective:
    """The loss of each state and its parts, [B] each; minimise the mean of `loss`."""

    loss: Tensor
    raw: Mapping[str, Tensor]
    """Term -> its value without coefficient: `policy` the clipped surrogate, to be raised; `entropy` in nats at the rollout's temperature,
    to be raised; `reference_kl` and `recovery_kl` in nats, to be lowered."""
    weighted: Mapping[str, Tensor]
    """Term -> what it adds to the loss."""
    ratios: Tensor
    """[B, M] probability of each move, new over old; 1 on padding."""
    is_clipped_low: Tensor
    """[B, M] where the lower clip removed the gradient."""
    is_clipped_high: Tensor
    """[B, M] where the upper clip did."""
    kl_reference: Tensor
    """KL(policy || reference)."""
    kl_from_reference: Tensor
    """KL(reference || policy)."""
    kl_old: Tensor | None
    """KL(old || policy); None where the whole old distribution is not known."""
    shift: Tensor
    """[B, A] the policy's probabilities less the reference's, without a gradient; 0 where there is no reference."""


def clipped_surrogate(ratios_BM: Tensor, advantages_BM: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Return min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), shape [B, M] (PPO, arXiv 1707.06347).

    Two bounds (DAPO, arXiv 2503.14476): with `clip_high` wider, a rare move may grow faster than a common one may shrink.
    """
    clipped = ratios_BM.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratios_BM * advantages_BM, clipped * advantages_BM)


def is_clipped(ratios_BM: Tensor, advantages_BM: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return where the lower and where the upper clip removes the gradient, [B, M]: the ratio is past the bound it is pushed to."""
    return (ratios_BM < 1 - clip_low) & (advantages_BM < 0), (ratios_BM > 1 + clip_high) & (advantages_BM > 0)


def grpo_objective(
    *,
    new: MoveDistribution,
    old: MoveDistribution | None,
    reference: MoveDistribution | None,
    moves: Moves,
    config: GrpoConfig,
    knobs: Knobs,
) -> Objective:
    """Return loss = -surrogate - entropy_coefficient * H + kl_coefficient * reference KL + recovery_coefficient * KL(reference || new).

    Args:
        new: the policy being trained; the only part with a gradient.
        old: what was sampled from, where that is known whole; ratios need only the log-probabilities in `moves`.
        reference: the frozen healthy policy; without it, divergences are given as 0, and both their coefficients must be.
        moves: what the surrogate sums over.
        config: clip bounds.
        knobs: coefficients of this step, in win probability per nat.
    """
    shapes = {tuple(tensor.shape) for tensor in (moves.columns, moves.weights, moves.old_log_probs, moves.advantages)}
    if len(shapes) != 1:
        raise ValueError(f"columns, weights, old log-probabilities and advantages must have one shape, not {sorted(shapes)}")
    is_real = moves.weights > 0
    ratios = torch.where(is_real, new.log_prob(moves.columns) - moves.old_log_probs, 0.0).exp()
    bounds = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    low, high = is_clipped(ratios.detach(), moves.advantages, **bounds)
    entropy = new.entropy()
    if reference is None:
        if knobs.kl_coefficient or knobs.recovery_coefficient:
            raise ValueError("a divergence is in the loss, so that its reference is needed")
        kl_reference = kl_from_reference = torch.zeros_like(entropy)
        shift = torch.zeros_like(new.probs)
    else:
        kl_reference, kl_from_reference = new.kl_to(reference), reference.kl_to(new)
        shift = new.probs.detach() - reference.probs
    raw = {
        "policy": (moves.weights * clipped_surrogate(ratios, moves.advantages, **bounds)).sum(1),
        "entropy": entropy,
        "reference_kl": kl_reference,
        "recovery_kl": kl_from_reference,
    }
    # A term whose coefficient is 0 is no part of the loss: 0 times an infinite divergence would be NaN.
    weighted = {term: factor * raw[term] if factor else torch.zeros_like(raw[term]) for term, factor in _factors(knobs).items()}
    return Objective(
        loss=torch.stack(list(weighted.values())).sum(0),
        raw=raw,
        weighted=weighted,
        ratios=ratios,
        is_clipped_low=low & is_real,
        is_clipped_high=high & is_real,
        kl_reference=kl_reference,
        kl_from_reference=kl_from_reference,
        kl_old=None if old is None else old.kl_to(new.detach()),
        shift=shift,
    )


def _factors(knobs: Knobs) -> dict[str, float]:
    """Return the factor with which each term's raw value enters the loss."""
    return {
        "policy": -1.0,
        "entropy": -knobs.entropy_coefficient,
        "reference_kl": knobs.kl_coefficient,
        "recovery_kl": knobs.recovery_coefficient,
    }


@torch.no_grad()
def logit_descents(
    *,
    new: MoveDistribution,
    reference: MoveDistribution | None,
    moves: Moves,
    objective: Objective,
    temperature: float,
    knobs: Knobs,
) -> dict[str, Tensor]:
    """Return for each weighted term minus its gradient in the logits before the temperature, [B, A], in closed form.

    With p the policy, q the reference, u 1 where the clip lets the gradient through, and e_m the unit vector of a move:
    policy sum_m w_m r_m A_m u_m (e_m - p) / T; entropy -p (ln p + H) / T; KL(p || q) p (ln(p/q) - KL) / T; KL(q || p) (p - q) / T.
    """
    probs, log_probs = new.probs, new.log_probs
    is_open = ~(objective.is_clipped_low | objective.is_clipped_high)
    flow_BM = moves.weights * objective.ratios * moves.advantages * is_open
    policy = log_prob_ascent(probs, moves.columns, flow_BM)
    entropy = -probs * (log_probs + new.entropy()[:, None])
    if reference is None:
        to_reference = from_reference = torch.zeros_like(probs)
    else:
        to_reference = probs * (log_probs - reference.log_probs - objective.kl_reference[:, None])
        from_reference = probs - reference.probs
    gradients = {
        "policy": policy,
        "entropy": entropy,
        "reference_kl": to_reference,
        "recovery_kl": from_reference,
    }
    # The factor in the loss is that of the value; descent goes against the loss's gradient.
    return {
        term: gradients[term] * (-factor / temperature) if factor else torch.zeros_like(probs) for term, factor in _factors(knobs).items()
    }


def log_prob_ascent(probs_BA: Tensor, columns_BM: Tensor, flow_BM: Tensor) -> Tensor:
    """Return sum_m flow_m (e_m - p), [B, A]: the gradient of sum_m flow_m ln p_m in the logits, at T = 1."""
    return torch.zeros_like(probs_BA).scatter_add_(1, columns_BM, flow_BM) - flow_BM.sum(1, keepdim=True) * probs_BA


@torch.no_grad()
def exact_policy_ascent(old: MoveDistribution, values_BA: Tensor, *, temperature: float) -> Tensor:
    """Return the gradient in logits of V = sum p Q, [B, A]: p (Q - V) / T, what the policy term's descent is an estimate of."""
    value = old.expectation(values_BA)
    return old.probs * (values_BA - value[:, None]) / temperature


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
    cosines = {}
    for one, other in TERM_PAIRS:
        size = norms[one] * norms[other]
        cosines[one, other] = products[one, other] / size if size else 0.0
    return norms, fractions, cosines
