"""The loss of a language model's answers: the objective of every policy (`grpo.train.objective`), a token of an answer being a state.

Legend: R answers of a minibatch, T tokens of the longest answer, K tokens of all answers of a piece.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.language.learn.logprobs import pieces
from grpo.language.learn.rollouts import LanguageRollout
from grpo.language.model.policy import LanguagePolicy, token_distribution
from grpo.settings.grpo import GrpoConfig
from grpo.train.controller import Knobs
from grpo.train.objective import Moves, grpo_objective


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch:
    """What was measured of a minibatch, whose gradient is in the parameters."""

    loss: float
    """Points; NaN or infinite where it is so in any piece, and then the gradient is not whole."""
    measures: Mapping[str, float]
    """`language/kl_term`, `language/clip_fraction`, `language/ratio_min` and `language/ratio_max`."""
    kl_old: float
    """Nats an answer: an estimate of KL(old || policy), the mean over answers of the sum along tokens of r - 1 - ln r, r being the ratio of
    their probabilities (http://joschu.net/blog/kl-approx.html, k3), which is never negative."""


def backward(
    policy: LanguagePolicy, reference: LanguagePolicy, rollout: LanguageRollout, rows: Tensor, *, config: GrpoConfig, knobs: Knobs
) -> Minibatch:
    """Add the gradient of a minibatch's loss to the parameters', and return what was measured.

    All tokens of the minibatch weigh alike (DAPO, arXiv 2503.14476).

    Args:
        policy: what is trained.
        reference: the frozen policy of the KL terms.
        rollout: the answers.
        rows: which of them make the minibatch, [R]; none may be left out of training.
        config: clip bounds, and the direction of the KL to the reference.
        knobs: temperature and coefficients.
    """
    rows = rows.to(policy.device)
    is_token = rollout.batch.is_token[rows].float()
    fractions = is_token / is_token.sum()
    loss = kl_term = clipped = kl_old = 0.0
    low, high = math.inf, -math.inf
    for places in pieces(torch.arange(len(rows), device=policy.device), rollout.batch, policy):
        piece = rollout.batch.select_rows(rows[places])
        mask = piece.is_token
        new = token_distribution(piece.logits(policy), temperature=knobs.temperature)
        with torch.no_grad():
            before = token_distribution(piece.logits(reference), temperature=knobs.temperature)
        advantages = rollout.advantages.to(policy.device)[rows[places], None].expand_as(mask)[mask][:, None]
        moves = Moves(
            columns=piece.tokens[:, None],
            weights=torch.ones_like(advantages),
            old_log_probs=rollout.sampled[rows[places]][mask][:, None],
            advantages=advantages,
        )
        objective = grpo_objective(new=new, old=None, reference=before, moves=moves, config=config, knobs=knobs)
        weights = fractions[places][mask]
        value = (objective.loss * weights).sum()
        loss += value.item()
        if not math.isfinite(loss):
            break
        value.backward()  # type: ignore[no-untyped-call]
        ratios = objective.ratios.detach()
        kl_term += (objective.weighted["reference_kl"].detach() * weights).sum().item()
        clipped += float((objective.is_clipped_low | objective.is_clipped_high).sum())
        kl_old += (ratios - 1 - ratios.log()).sum().item()
        low, high = min(low, ratios.min().item()), max(high, ratios.max().item())
    measures = {
        "language/kl_term": kl_term,
        "language/clip_fraction": clipped / int(rollout.batch.is_token[rows].sum()),
        "language/ratio_min": low,
        "language/ratio_max": high,
    }
    return Minibatch(loss=loss, measures=measures, kl_old=kl_old / len(rows))
