"""What is measured of rollouts and of optimiser steps: two states worked by hand.

Legend: B states, A legal moves (padded), M moves of a state that are in the surrogate.
"""

import math
from dataclasses import replace

import pytest
import torch
from doubles import sampled_moves
from torch import Tensor

from grpo.policy.distribution import MoveDistribution, PositionBatch
from grpo.settings.grpo import GrpoConfig
from grpo.settings.metrics import METRICS
from grpo.train.batch import Batch, States, select_rows
from grpo.train.control import Knobs
from grpo.train.objective import grpo_objective
from grpo.train.probes import Measured, inner_metrics, rollout_metrics

KNOBS = Knobs(temperature=1.0, entropy_coefficient=0.3, kl_coefficient=0.7, recovery_coefficient=0.5, learning_rate=1.0)
# The two states: p = (3/4, 1/4), and three equal moves.
ENTROPY_0 = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
ENTROPY_1 = math.log(3)
VALUES = torch.tensor([[0.8, 0.4, 0.0], [1.0, 0.0, 0.5]], dtype=torch.float64)
PROBS = torch.tensor([[0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
# The policy after a step: the ratios are .8 and 1.6, and .6, .9 and 1.5.
NEW = torch.tensor([[0.6, 0.4, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)


def written(probs_BA: Tensor) -> MoveDistribution:
    """Return the distribution with these probabilities, 0 being padding."""
    is_legal = probs_BA > 0
    return MoveDistribution(log_probs=torch.where(is_legal, probs_BA, 1.0).log(), is_legal=is_legal)


def sampled() -> Batch[States]:
    """Return groups of four: three of the first state's first move and one of its second; all four of the second state's last."""
    old = written(PROBS)
    positions = PositionBatch(
        encodings=torch.zeros(2, 71, dtype=torch.uint8),
        action_ids=torch.zeros(2, 3, dtype=torch.int64),
        is_legal=old.is_legal,
        repeats=torch.zeros_like(old.is_legal),
    )
    states = States(positions=positions, values=VALUES, phases=torch.tensor([0, 2]))
    return replace(sampled_moves(old, torch.tensor([[0, 0, 1, 0], [2, 2, 2, 2]]), VALUES), states=states, num_dropped=3)


def test_the_metrics_of_sampled_groups_worked_by_hand() -> None:
    normalised = ENTROPY_0 / math.log(2)
    # Rewards .8 .8 .4 .8 and .5 .5 .5 .5; advantages .1 .1 -.3 .1 and 0.
    deviations = (3 * 0.2**2 + 0.2**2 + 4 * 0.1**2) / 8
    assert rollout_metrics(sampled()) == pytest.approx(
        {
            "grpo/entropy": (ENTROPY_0 + ENTROPY_1) / 2,
            "grpo/entropy/opening": ENTROPY_0,
            "grpo/entropy/endgame": ENTROPY_1,
            "grpo/normalised_entropy": (normalised + 1) / 2,
            "grpo/log_num_legal": (math.log(2) + math.log(3)) / 2,
            "grpo/regret": (0.1 + 0.5) / 2,
            "grpo/zero_variance_groups": 0.5,
            "grpo/agreement": (0.75 + 1) / 2,
            "grpo/reward_mean": 0.6,
            "grpo/reward_std": math.sqrt(deviations),
            "grpo/states_dropped": 3.0,
        },
        abs=1e-7,
    )


def pieces_of(pieces: list[list[int]], new: Tensor = NEW) -> Measured:
    """Return what is measured of a minibatch that is cut so."""
    step, config = Measured(total=2.0, num_rows=2.0), GrpoConfig(clip_low=0.2, clip_high=0.28)
    for rows in pieces:
        piece = select_rows(sampled(), torch.tensor(rows))
        width = piece.states.values.shape[1]
        now, reference = written(new[rows][:, :width]), written(REFERENCE[rows][:, :width])
        step.add(piece, grpo_objective(now, reference, piece, config, KNOBS), now, reference, KNOBS)
    step.gradient_norm = 2.0
    return step


def test_the_metrics_of_several_steps_are_their_mean_their_extreme_or_the_last() -> None:
    # The ratios of the second step: .8 .8 1.6 .8, and 1.5; nothing is clipped, for 1.6 is pushed down and 1.5 has no advantage.
    first, second = pieces_of([[0, 1]], PROBS), pieces_of([[0, 1]])
    assert (second.mean("clip_low"), second.mean("clip_high")) == (0, 0)
    # 0.1 * 0.8 - 0.1 * 0.4, and -0.05 * 1.0.
    assert second.mean("reward_gain") == pytest.approx((0.04 - 0.05) / 2)
    metrics = inner_metrics("grpo", [first, second])
    assert inner_metrics("grpo", [first, pieces_of([[1], [0]])]) == pytest.approx(metrics, rel=1e-12, abs=1e-14), "in pieces"
    assert metrics["grpo/loss"] == pytest.approx((first.mean("loss") + second.mean("loss")) / 2)
    # Of the policy that was sampled: the later steps may not know the reference.
    assert metrics["grpo/kl_reference"] == first.mean("raw/reference_kl") > 0.01
    assert metrics["grpo/kl_old"] == second.kl_old > 0.01
    assert (metrics["grpo/ratio_min"], metrics["grpo/ratio_max"]) == pytest.approx((0.8, 1.6))
    assert metrics.keys() <= METRICS.keys()
