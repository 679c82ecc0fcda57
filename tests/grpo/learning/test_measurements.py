"""What is measured of rollouts and of optimiser steps: two or three states worked by hand, and what must make no difference.

Legend: B states, A legal moves (padded), M moves of a state that are in the surrogate.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from grpo.board.phases import PHASES
from grpo.control.controller import Knobs
from grpo.learning.advantages import exact_advantages, group_advantages
from grpo.learning.measurements import InnerStep, inner_metrics, rollout_facts
from grpo.learning.objective import Moves, budget, gradient_products, grpo_objective, logit_descents
from grpo.learning.rollouts import Rollout
from grpo.learning.states import States
from grpo.metrics.table import METRICS, TERM_PAIRS, TERM_PRODUCTS, TERMS
from grpo.policy.distribution import MoveDistribution, PositionBatch
from grpo.settings.grpo import GrpoConfig

CPU = torch.device("cpu")
CONFIG = GrpoConfig(clip_low=0.2, clip_high=0.28)
KNOBS = Knobs(temperature=1.0, entropy_coefficient=0.3, kl_coefficient=0.7, recovery_coefficient=0.5, learning_rate=1.0)
# The two states worked by hand: p = (3/4, 1/4), and three equal moves.
ENTROPY_0 = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
ENTROPY_1 = math.log(3)
LEGAL = torch.tensor([[True, True, False], [True, True, True]])
VALUES = torch.tensor([[0.8, 0.4, 0.0], [1.0, 0.0, 0.5]], dtype=torch.float64)
PROBS = torch.tensor([[0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)


def written(probs_BA: Tensor) -> MoveDistribution:
    """Return the distribution with these probabilities, 0 being padding."""
    is_legal = probs_BA > 0
    return MoveDistribution(log_probs=torch.where(is_legal, probs_BA, 1.0).log(), is_legal=is_legal)


def rollout_of(
    moves: Moves,
    rewards: Tensor,
    *,
    old: MoveDistribution | None = None,
    values: Tensor = VALUES,
    phases: tuple[int, ...] = (0, 2),
    state_weights: tuple[float, ...] | None = None,
    temperature: float = 1.0,
) -> Rollout:
    """Return a rollout of written states."""
    sampled_from = written(PROBS) if old is None else old
    count = len(rewards)
    return Rollout(
        states=States(
            positions=PositionBatch(
                encodings=torch.zeros(count, 71, dtype=torch.uint8),
                action_ids=torch.zeros(sampled_from.is_legal.shape, dtype=torch.int64),
                is_legal=sampled_from.is_legal,
                repeats=torch.zeros_like(sampled_from.is_legal),
            ),
            values=values,
            phases=torch.tensor(phases),
        ),
        indices=torch.arange(count),
        state_weights=torch.tensor(state_weights or (1.0,) * count),
        moves=moves,
        rewards=rewards,
        old=sampled_from,
        temperature=temperature,
        num_dropped=3,
        num_forced=5,
    )


def groups(columns: list[list[int]], old: MoveDistribution | None = None, values: Tensor = VALUES) -> tuple[Moves, Tensor]:
    """Return groups of these moves, and their rewards."""
    taken = torch.tensor(columns)
    rewards = values.gather(1, taken)
    weights = torch.full_like(rewards, 1 / taken.shape[1])
    log_probs = (written(PROBS) if old is None else old).log_prob(taken)
    return Moves(columns=taken, weights=weights, old_log_probs=log_probs, advantages=group_advantages(rewards, CONFIG)), rewards


def sampled() -> Rollout:
    """Return groups of four: three of the first state's first move and one of its second; all four of the second state's last."""
    moves, rewards = groups([[0, 0, 1, 0], [2, 2, 2, 2]])
    return rollout_of(moves, rewards)


def exact(old: MoveDistribution | None = None, *, temperature: float = 1.0) -> Rollout:
    """Return all legal moves of both states, by their probabilities."""
    of = written(PROBS) if old is None else old
    moves = Moves(
        columns=torch.arange(3).expand(2, -1),
        weights=of.probs,
        old_log_probs=of.log_probs,
        advantages=exact_advantages(of.probs, VALUES, CONFIG),
    )
    return rollout_of(moves, VALUES, old=of, temperature=temperature)


def trajectory_like() -> Rollout:
    """Return a first state with two moves, which counts twice, and a later state with one move; rewards are regrets."""
    moves = Moves(
        columns=torch.tensor([[0, 1], [2, 0]]),
        weights=torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64),
        old_log_probs=torch.tensor([[0.75, 0.25], [1 / 3, 1.0]], dtype=torch.float64).log(),
        advantages=torch.tensor([[0.2, -0.2], [0.1, 0.0]], dtype=torch.float64),
    )
    return rollout_of(moves, torch.tensor([[0.0, -0.4], [-0.5, 0.0]], dtype=torch.float64), state_weights=(2.0, 1.0))


# Distributions.


# Rollouts.


def test_the_facts_of_sampled_groups_worked_by_hand() -> None:
    facts = rollout_facts(sampled())
    normalised = ENTROPY_0 / math.log(2)
    entropy = (ENTROPY_0 + ENTROPY_1) / 2
    # Rewards .8 .8 .4 .8 and .5 .5 .5 .5; advantages .1 .1 -.3 .1 and 0.
    deviations = (3 * 0.2**2 + 0.2**2 + 4 * 0.1**2) / 8
    # p (Q - V) is (.075, -.075) and (1/6, -1/6, 0); what was sampled comes to (.075, -.075) and 0.
    squared, estimated = 2 * 0.075**2 + 2 / 36, 2 * 0.075**2
    assert facts.metrics == pytest.approx(
        {
            "grpo/entropy": entropy,
            "grpo/entropy/opening": ENTROPY_0,
            "grpo/entropy/endgame": ENTROPY_1,
            "grpo/normalised_entropy": (normalised + 1) / 2,
            "grpo/normalised_entropy/opening": normalised,
            "grpo/normalised_entropy/endgame": 1.0,
            "grpo/effective_moves": math.exp(entropy),
            "grpo/effective_moves/opening": math.exp(ENTROPY_0),
            "grpo/effective_moves/endgame": 3.0,
            "grpo/log_num_legal": (math.log(2) + math.log(3)) / 2,
            "grpo/regret": (0.1 + 0.5) / 2,
            "grpo/zero_variance_groups": 0.5,
            "grpo/group_std_min": 0.0,
            "grpo/group_std_mean": 0.03**0.5 / 2,
            "grpo/group_std/opening": 0.03**0.5,
            "grpo/group_std/endgame": 0.0,
            "grpo/agreement": (0.75 + 1) / 2,
            "grpo/agreement_max": 1.0,
            "grpo/exact_cosine": 2 * 0.075**2 / math.sqrt(squared * estimated),
            "grpo/exact_ratio": math.sqrt(squared / estimated),
            "grpo/reward_mean": 0.6,
            "grpo/reward_std": math.sqrt(deviations),
            "grpo/reward_p90": 0.8,
            "grpo/reward_best": 0.8,
            "grpo/reward_at_end": 0.0,
            "grpo/advantage_mean": 0.0,
            "grpo/advantage_std": math.sqrt((3 * 0.01 + 0.09) / 8),
            "grpo/advantage_max": 0.3,
            "grpo/states": 2.0,
            "grpo/states_dropped": 3.0,
            "grpo/states_forced": 5.0,
        },
        abs=1e-7,
    )
    assert PHASES[0] == "opening"
    assert PHASES[2] == "endgame"
    assert facts.metrics["grpo/group_std_min"] == 0, "equal rewards have no spread, not even of rounding"
    assert facts.metrics["grpo/agreement_max"] == 1
    assert facts.num_transitions == 8
    assert facts.metrics.keys() <= METRICS.keys()


def test_the_facts_of_all_legal_moves_worked_by_hand() -> None:
    facts = rollout_facts(exact())
    # Weighed by probability: rewards .8 .4 and 1 0 .5; means .7 and .5.
    mean = (0.75 * 0.8 + 0.25 * 0.4 + 0.5) / 2
    variance = (0.75 * (0.8 - mean) ** 2 + 0.25 * (0.4 - mean) ** 2 + (1 - mean) ** 2 / 3 + mean**2 / 3 + (0.5 - mean) ** 2 / 3) / 2
    expected = {
        "grpo/exact_cosine": 1.0,
        "grpo/exact_ratio": 1.0,
        "grpo/zero_variance_groups": 0.0,
        "grpo/group_std_min": 0.03**0.5,
        "grpo/group_std_mean": (0.03**0.5 + (1 / 6) ** 0.5) / 2,
        # What groups of growing size would come to: the probability of the likeliest move.
        "grpo/agreement": (0.75 + 1 / 3) / 2,
        "grpo/agreement_max": 0.75,
        "grpo/reward_mean": mean,
        "grpo/reward_std": math.sqrt(variance),
        # In rising order: 0 (1/6), .4 (1/8), .5 (1/6), .8 (3/8), 1 (1/6): five sixths are passed by .8, nine tenths by 1.
        "grpo/reward_p90": 1.0,
        "grpo/reward_best": 1.0,
        "grpo/reward_at_end": 1 / 3,
        "grpo/advantage_mean": 0.0,
        "grpo/advantage_std": math.sqrt((0.03 + 1 / 6) / 2),
        "grpo/advantage_max": 0.5,
        "grpo/regret": 0.3,
    }
    assert {name: facts.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-7)
    assert facts.num_transitions == 5


def test_the_facts_of_trajectories_worked_by_hand_with_their_first_states_counted_once_for_each() -> None:
    facts = rollout_facts(trajectory_like())
    expected = {
        "grpo/entropy": (2 * ENTROPY_0 + ENTROPY_1) / 3,
        "grpo/normalised_entropy": (2 * ENTROPY_0 / math.log(2) + 1) / 3,
        "grpo/entropy/opening": ENTROPY_0,
        "grpo/regret": (2 * 0.1 + 0.5) / 3,
        "grpo/log_num_legal": (2 * math.log(2) + math.log(3)) / 3,
        # The move from the later state is no group: it has no spread, and agrees with nobody.
        "grpo/zero_variance_groups": 0.0,
        "grpo/group_std_min": 0.2,
        "grpo/group_std_mean": 0.2,
        "grpo/agreement": 0.5,
        "grpo/agreement_max": 0.5,
        # Rewards 0, -.4, -.5, each of one trajectory at one ply, count alike.
        "grpo/reward_mean": -0.3,
        "grpo/reward_std": math.sqrt((0.09 + 0.01 + 0.04) / 3),
        "grpo/reward_p90": 0.0,
        "grpo/reward_best": 0.0,
        # Of their values .8, .4 and .5 none is at an end, though a best move's reward is 0.
        "grpo/reward_at_end": 0.0,
        "grpo/advantage_mean": 0.1 / 3,
        "grpo/advantage_max": 0.2,
    }
    assert {name: facts.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-7)
    assert facts.num_transitions == 3
    assert facts.metrics["grpo/states"] == 2


def test_where_every_state_has_one_move_there_are_no_groups_to_speak_of() -> None:
    moves, rewards = groups([[0], [2]])
    metrics = rollout_facts(rollout_of(moves, rewards)).metrics
    names = ("zero_variance_groups", "group_std_min", "group_std_mean", "agreement", "agreement_max")
    assert [metrics[f"grpo/{name}"] for name in names] == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_padding_does_not_break_the_silence_of_a_group() -> None:
    moves, rewards = groups([[0, 0, 1], [2, 2, 2]])
    for value in (0.5, -0.5):
        padded = replace(moves, weights=torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64))
        equal = torch.full_like(rewards, value).masked_fill(padded.weights == 0, 0.0)
        metrics = rollout_facts(rollout_of(padded, equal)).metrics
        assert metrics["grpo/zero_variance_groups"] == metrics["grpo/agreement"] == 1
        assert metrics["grpo/group_std_mean"] < 1e-12


@pytest.mark.parametrize("temperature", [0.7, 1.3, 2.0])
def test_entropies_and_regret_are_those_at_temperature_one_and_gradients_those_of_the_rollouts_temperature(temperature: float) -> None:
    heated = MoveDistribution.from_logits(written(PROBS).log_probs, LEGAL, temperature=temperature)
    found, plain = rollout_facts(exact(heated, temperature=temperature)).metrics, rollout_facts(exact()).metrics
    for name, value in plain.items():
        if name.startswith(("grpo/entropy", "grpo/normalised", "grpo/effective", "grpo/regret", "grpo/log_num")):
            assert found[name] == pytest.approx(value, abs=1e-12)
    assert found["grpo/agreement_max"] == pytest.approx(heated.probs.max().item()), "moves are drawn at the rollout's"
    assert (found["grpo/exact_cosine"], found["grpo/exact_ratio"]) == pytest.approx((1, 1))


@pytest.mark.parametrize("rubbish", [1e4, -1e4])
def test_what_stands_on_padding_has_no_effect_on_the_facts(rubbish: float) -> None:
    plain = trajectory_like()
    is_padding = plain.moves.weights == 0
    spoilt = replace(
        plain,
        rewards=plain.rewards.masked_fill(is_padding, rubbish),
        moves=replace(
            plain.moves,
            advantages=plain.moves.advantages.masked_fill(is_padding, rubbish),
            old_log_probs=plain.moves.old_log_probs.masked_fill(is_padding, rubbish),
            columns=plain.moves.columns.masked_fill(is_padding, 1),
        ),
        states=replace(plain.states, values=plain.states.values.masked_fill(~LEGAL, rubbish)),
    )
    assert rollout_facts(spoilt).metrics == rollout_facts(plain).metrics


def test_a_phase_without_states_has_no_numbers() -> None:
    moves, rewards = groups([[0, 1], [2, 2]])
    metrics = rollout_facts(rollout_of(moves, rewards, phases=(1, 1))).metrics
    assert [name for name in metrics if name.startswith("grpo/entropy/")] == ["grpo/entropy/middlegame"]
    assert metrics["grpo/entropy/middlegame"] == metrics["grpo/entropy"]


# Optimiser steps.

# The policy of the hand-worked states after a step: the ratios are .8 and 1.6, and .6, .9 and 1.5.
NEW = torch.tensor([[0.6, 0.4, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)


def pieces_of(rollout: Rollout, pieces: list[list[int]], *, total: float, new: Tensor = NEW, knobs: Knobs = KNOBS) -> InnerStep:
    """Return what is measured of a minibatch that is cut so."""
    step = InnerStep(total=total, device=CPU)
    for rows in pieces:
        piece = rollout.select_rows(torch.tensor(rows))
        width = piece.old.is_legal.shape[1]
        now, reference = written(new[rows][:, :width]), written(REFERENCE[rows][:, :width])
        made = grpo_objective(new=now, old=piece.old, reference=reference, moves=piece.moves, config=CONFIG, knobs=knobs)
        descents = logit_descents(
            new=now, reference=reference, moves=piece.moves, objective=made, temperature=piece.temperature, config=CONFIG, knobs=knobs
        )
        step.add(piece, made, gradient_products(descents))
    step.finish()
    step.gradient_norm = 2.0
    return step


def divergence(one: Tensor, other: Tensor) -> list[float]:
    """Return sum p ln(p / q) of each row."""
    return [sum(p * math.log(p / q) for p, q in zip(*rows, strict=True) if p) for rows in zip(one.tolist(), other.tolist(), strict=True)]


def entropies(probs: Tensor) -> list[float]:
    """Return -sum p ln p of each row."""
    return [-sum(p * math.log(p) for p in row if p) for row in probs.tolist()]


def test_a_step_on_sampled_groups_worked_by_hand() -> None:
    step = pieces_of(sampled(), [[0, 1]], total=2.0)
    # State 0: ratios .8 .8 1.6 .8, advantages .1 .1 -.3 .1: nothing is clipped, for 1.6 is pushed down. State 1: 1.5, advantage 0.
    surrogate = (3 * 0.8 * 0.1 - 1.6 * 0.3) / 4
    assert step.mean("raw/policy") == pytest.approx(surrogate / 2)
    assert (step.mean("clip_low"), step.mean("clip_high")) == (0, 0)
    assert step.mean("raw/entropy") == pytest.approx(sum(entropies(NEW)) / 2)
    assert step.mean("kl_reference") == step.mean("raw/reference_kl") == pytest.approx(sum(divergence(NEW, REFERENCE)) / 2)
    # 0.1 * 0.8 - 0.1 * 0.4, and -0.05 * 1.0.
    assert step.mean("reward_gain") == pytest.approx((0.04 - 0.05) / 2)
    assert step.mean("kl_from_reference") == step.mean("raw/recovery_kl") == pytest.approx(sum(divergence(REFERENCE, NEW)) / 2)
    assert step.kl_old == step.mean("kl_old") == pytest.approx(sum(divergence(PROBS, NEW)) / 2)
    loss = -surrogate / 2 - 0.3 * step.mean("raw/entropy") + 0.7 * step.mean("kl_reference") + 0.5 * step.mean("kl_from_reference")
    assert step.mean("loss") == pytest.approx(loss)
    assert step.mean("weighted/policy") == pytest.approx(-surrogate / 2)
    assert step.mean("weighted/entropy") == pytest.approx(-0.3 * step.mean("raw/entropy"))
    assert (step.ratio_min, step.ratio_max) == pytest.approx((0.8, 1.6))
    # Eight ratios: .8 three times, 1.6, 1.5 four times.
    assert step.effective_sample_size == pytest.approx((2.4 + 1.6 + 6) ** 2 / (8 * (3 * 0.64 + 2.56 + 9)))
    assert step.is_finite


def test_a_step_on_all_legal_moves_worked_by_hand_and_what_it_clips_counts_by_probability() -> None:
    step = pieces_of(exact(), [[0, 1]], total=2.0)
    # State 1, values 1, 0, .5 and ratios .6, .9, 1.5: advantages .5, -.5, 0; none is past the bound it is pushed to.
    assert step.mean("clip_low") == step.mean("clip_high") == 0
    surrogate = 0.75 * 0.8 * 0.1 - 0.25 * 1.6 * 0.3 + (0.6 * 0.5 - 0.9 * 0.5) / 3
    assert step.mean("raw/policy") == pytest.approx(surrogate / 2)
    assert step.effective_sample_size == pytest.approx(1 / ((0.75 * 0.64 + 0.25 * 2.56 + (0.36 + 0.81 + 2.25) / 3) / 2))
    turned = pieces_of(exact(), [[0, 1]], total=2.0, new=torch.tensor([[0.97, 0.03, 0.0], [0.5, 0.2, 0.3]], dtype=torch.float64))
    # Ratios 1.29 and .12 with advantages .1 and -.3: both clipped. 1.5, .6, .9 with .5, -.5, 0: the first two.
    assert turned.mean("clip_high") == pytest.approx((0.75 + 1 / 3) / 2)
    assert turned.mean("clip_low") == pytest.approx((0.25 + 1 / 3) / 2)
    assert turned.mean("raw/policy") == pytest.approx((0.75 * 1.28 * 0.1 - 0.25 * 0.8 * 0.3 + (1.28 * 0.5 - 0.8 * 0.5) / 3) / 2)


def test_a_step_on_trajectories_counts_their_first_states_once_for_each() -> None:
    step = pieces_of(trajectory_like(), [[0, 1]], total=3.0)
    for name, per_state in (("raw/entropy", entropies(NEW)), ("kl_reference", divergence(NEW, REFERENCE))):
        assert step.mean(name) == pytest.approx((2 * per_state[0] + per_state[1]) / 3)
    # Ratios .8 and 1.6 of the first, 1.5 of the second, whose advantage of .1 is clipped at 1.28; three moves count alike.
    assert step.mean("raw/policy") == pytest.approx((0.8 * 0.2 - 1.6 * 0.2 + 1.28 * 0.1) / 3)
    assert step.mean("clip_high") == pytest.approx(1 / 3)
    assert step.effective_sample_size == pytest.approx((0.8 + 1.6 + 1.5) ** 2 / (3 * (0.64 + 2.56 + 2.25)))
    assert (step.ratio_min, step.ratio_max) == pytest.approx((0.8, 1.6)), "and the padding's ratio of 1 is none"


def test_padding_is_no_extreme_of_the_ratios() -> None:
    moves = Moves(
        columns=torch.tensor([[1, 0], [2, 0]]),
        weights=torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64),
        old_log_probs=torch.tensor([[0.25, 1.0], [1 / 3, 1.0]], dtype=torch.float64).log(),
        advantages=torch.zeros(2, 2, dtype=torch.float64),
    )
    rollout = rollout_of(moves, torch.zeros(2, 2, dtype=torch.float64))
    made = grpo_objective(new=written(NEW), old=rollout.old, reference=rollout.old, moves=moves, config=CONFIG, knobs=KNOBS)
    step = InnerStep(total=2.0, device=CPU)
    step.add(rollout, made, dict.fromkeys(TERM_PRODUCTS, torch.zeros(2)))
    step.finish()
    assert (step.ratio_min, step.ratio_max) == pytest.approx((1.5, 1.6)), "the padding's ratio of 1 is none"


@pytest.mark.parametrize("make", [sampled, exact, trajectory_like])
def test_a_minibatch_in_several_pieces_measures_as_in_one(make: object) -> None:
    rollout = make()  # type: ignore[operator]
    total = rollout.state_weights.sum().item()
    whole, parts, turned = (pieces_of(rollout, pieces, total=total) for pieces in ([[0, 1]], [[0], [1]], [[1], [0]]))
    for other in (parts, turned):
        assert inner_metrics([other]) == pytest.approx(inner_metrics([whole]), rel=1e-12, abs=1e-14)
        assert other.products == pytest.approx(whole.products, rel=1e-12, abs=1e-14)
        assert (other.ratio_min, other.ratio_max) == (whole.ratio_min, whole.ratio_max)


def test_the_products_of_a_step_are_means_over_states_so_that_norms_are_root_mean_squares() -> None:
    rollout = exact()
    now, reference = written(NEW), written(REFERENCE)
    made = grpo_objective(new=now, old=rollout.old, reference=reference, moves=rollout.moves, config=CONFIG, knobs=KNOBS)
    descents = logit_descents(
        new=now, reference=reference, moves=rollout.moves, objective=made, temperature=1.0, config=CONFIG, knobs=KNOBS
    )
    step = pieces_of(rollout, [[0, 1]], total=2.0)
    metrics = inner_metrics([step])
    norms = {term: descents[term].norm().item() / 2**0.5 for term in TERMS}
    for term in TERMS:
        assert metrics[f"grpo/logit_gradient/{term}"] == pytest.approx(norms[term])
        assert metrics[f"grpo/logit_share/{term}"] == pytest.approx(norms[term] / sum(norms.values()))
        assert norms[term] > 0.01
    for one, other in TERM_PAIRS:
        cosine = torch.cosine_similarity(descents[one].flatten(), descents[other].flatten(), dim=0).item()
        assert metrics[f"grpo/logit_cosine/{one}_{other}"] == pytest.approx(cosine)
    # The gap between policy and reference of the first state, .6 - .5 twice: KL(q || p) pulls with .5 times that.
    assert torch.allclose(descents["recovery_kl"][0], torch.tensor([-0.05, 0.05, 0.0], dtype=torch.float64))


def test_the_metrics_of_several_steps_are_their_mean_their_extreme_or_the_last() -> None:
    first, second = (pieces_of(exact(), [[0, 1]], total=2.0, new=new) for new in (PROBS, NEW))
    first.gradient_norm, second.gradient_norm = 1.0, 4.0
    metrics = inner_metrics([first, second])
    for name, key in (
        ("grpo/loss", "loss"),
        ("grpo/raw/policy", "raw/policy"),
        ("grpo/raw/entropy", "raw/entropy"),
        ("grpo/weighted/reference_kl", "weighted/reference_kl"),
    ):
        assert metrics[name] == pytest.approx((first.mean(key) + second.mean(key)) / 2)
    # Of the policy that was sampled: the later steps may not know the reference.
    assert metrics["grpo/kl_reference"] == metrics["grpo/raw/reference_kl"] == first.mean("kl_reference") > 0.01
    assert metrics["grpo/kl_from_reference"] == metrics["grpo/raw/recovery_kl"] == first.mean("kl_from_reference") > 0.01
    assert metrics["grpo/kl_old"] == second.kl_old > 0.01
    assert first.kl_old == pytest.approx(0, abs=1e-15)
    assert (metrics["grpo/ratio_min"], metrics["grpo/ratio_max"]) == pytest.approx((0.6, 1.6))
    assert metrics["grpo/effective_sample_size"] == second.effective_sample_size < 0.99
    assert metrics["grpo/gradient_norm"] == 2.5
    assert metrics["grpo/clip_fraction"] == metrics["grpo/clip_low_fraction"] + metrics["grpo/clip_high_fraction"]
    norms = [budget(step.products)[0]["entropy"] for step in (first, second)]
    assert metrics["grpo/logit_gradient/entropy"] == pytest.approx(math.sqrt((norms[0] ** 2 + norms[1] ** 2) / 2))
    assert metrics.keys() <= METRICS.keys()


def test_the_cosines_show_when_a_term_without_coefficient_is_there() -> None:
    knobs = replace(KNOBS, kl_coefficient=0.0, recovery_coefficient=0.0)
    metrics = inner_metrics([pieces_of(exact(), [[0, 1]], total=2.0, knobs=knobs)])
    for term in ("reference_kl", "recovery_kl"):
        assert metrics[f"grpo/logit_gradient/{term}"] == metrics[f"grpo/weighted/{term}"] == 0
        assert metrics[f"grpo/logit_cosine/entropy_{term}"] == 0
        assert metrics[f"grpo/raw/{term}"] > 0.001, "but its value is known"
