"""The GRPO loop: it trains the policy that it samples, repeats exactly, survives what is not finite, and climbs where it should."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import doubles
import numpy as np
import pytest
import torch
from doubles import (
    CPU,
    TINY,
    NetworkTrainer,
    fake_arrays,
    largest_difference,
    lively_policy,
    sharpened,
    some_boards,
)
from doubles import trainer_of as any_trainer_of

from grpo.base.errors import NonFiniteError
from grpo.dataset.table import BoardArrays
from grpo.diagnosis.diagnose import NotLearnableError, look_before, refuse
from grpo.metrics.records import Record
from grpo.policy.checkpoints import load_checkpoint, save_checkpoint
from grpo.policy.distribution import MoveDistribution, MovePolicy, PositionBatch
from grpo.policy.files import IncompatibleError
from grpo.policy.policy import NetworkPolicy, new_policy, weights_hash
from grpo.settings.grpo import GrpoConfig
from grpo.settings.tree import PolicyConfig
from grpo.train import network_problem
from grpo.train import trainer as training
from grpo.train.control import CRITICAL_WINDOW, SKIPPED_CUT
from grpo.train.network_problem import NetworkProblem, Sampler
from grpo.train.objective import Batch, InvariantError, assert_on_policy
from grpo.train.states import DatasetStates, States

BOARDS = some_boards(48)
ARRAYS = fake_arrays(BOARDS)
CONFIG = GrpoConfig(
    states_per_step=16,
    num_minibatches=2,
    group_size=8,
    learning_rate_decay="constant",
    entropy_schedule="constant",
    entropy_coefficient=0.01,
    kl_coefficient=0.0,
)
TRAJECTORIES = {"num_own_moves": 2, "group_size": 3, "states_per_step": 8}
KINDS: list[dict[str, Any]] = [{}, TRAJECTORIES]


def trainer_of(config: GrpoConfig = CONFIG, arrays: BoardArrays = ARRAYS, **changes: Any) -> NetworkTrainer:
    return any_trainer_of(config, arrays, **changes)


def double_trainer(**changes: Any) -> NetworkTrainer:
    """Return a trainer in float64, where rounding hides nothing; its reference is another policy."""
    policy, reference = lively_policy(), lively_policy(seed=9)
    for one in (policy, reference):
        one.network.double()
    arrays = replace(ARRAYS, values=ARRAYS.values.astype(np.float64))
    return trainer_of(CONFIG, arrays, policy=policy, reference=reference, **changes)


def steps(trainer: NetworkTrainer, count: int) -> list[Record]:
    return [trainer.step() for _ in range(count)]


def state_of(trainer: NetworkTrainer) -> list[Any]:
    """Return all numbers that an optimizer step could change, as plain data."""
    moments = trainer.state({}).tensors_of("optimizer.")
    weights = (weights_hash(trainer.policy), weights_hash(trainer.evaluation_policy))
    return [weights, {name: tensor.tolist() for name, tensor in sorted(moments.items())}]


def event_names(record: Record) -> list[str]:
    return [event.name for event in record.events]


# It trains the policy that it samples.


@pytest.fixture
def no_trust_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_KL_OLD", math.inf)


@pytest.mark.usefixtures("no_trust_region")
@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1.3, **TRAJECTORIES},
        {"temperature": 0.7, "num_minibatches": 1},
        {"temperature": 1.3, "precision": "bfloat16"},
    ],
)
def test_a_healthy_run_is_on_policy_at_every_temperature_split_and_precision(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_problem, "MAX_STATES_PER_FORWARD", 5)
    records = steps(trainer_of(learning_rate=5e-3, **changes), 2)
    num_minibatches = changes.get("num_minibatches", 2)
    assert [record.metrics["grpo/optimizer_steps"] for record in records] == [num_minibatches] * 2
    is_off = [abs(record.metrics["grpo/ratio_max"] - 1) > 1e-3 for record in records]
    assert is_off == [num_minibatches > 1] * 2, "the second inner step is off-policy"


def test_a_rollout_is_sampled_at_the_temperature_of_its_step_and_not_at_that_of_the_settings() -> None:
    trainer = trainer_of(temperature=1.3)
    states = trainer.problem.states(trainer.policy, 0)
    rollout = trainer.problem.rollout(trainer.policy, states, replace(trainer.control.knobs(0), temperature=0.7), 0)
    assert rollout.temperature == 0.7
    with torch.no_grad():
        expected = trainer.policy.distribution(states.positions, temperature=0.7)
    assert torch.allclose(rollout.old.log_probs, expected.log_probs, atol=1e-5)


Fault = Callable[[Batch[States], MovePolicy], Batch[States]]


def sampler_with(monkeypatch: pytest.MonkeyPatch, fault: Fault, *, factor: float = 1.0) -> None:
    """Make all rollouts faulty: sampled at a temperature that they do not own up to, then changed."""

    def faulty(original: Any, sampler: Sampler, *rest: Any) -> Batch[States]:
        made = original(replace(sampler, temperature=sampler.temperature * factor), *rest)
        return fault(replace(made, temperature=sampler.temperature), sampler.policy)

    for name in ("sampled_groups", "sampled_trajectories"):
        monkeypatch.setattr(network_problem, name, partial(faulty, getattr(network_problem, name)))


def weights_moved(rollout: Batch[States], policy: MovePolicy) -> Batch[States]:
    """Take a small step between sampling and learning."""
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(1e-3)
    return rollout


FAULTS: dict[str, tuple[Fault, float]] = {
    "sampled at T = 1.02, learned at T = 1": (lambda made, _: made, 1.02),
    "weights moved": (weights_moved, 1.0),
    "moves shuffled within their groups": (lambda made, _: replace(made, columns=made.columns.flip(1)), 1.0),
    "log-probabilities of the next state": (lambda made, _: replace(made, old_log_probs=made.old_log_probs.roll(1, 0)), 1.0),
    "log-probabilities in bfloat16": (lambda made, _: replace(made, old_log_probs=made.old_log_probs.bfloat16().float()), 1.0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sampler_that_records_another_policy_is_caught_before_the_first_update(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(num_minibatches=4)
    before = state_of(trainer)
    change, factor = FAULTS[fault]
    sampler_with(monkeypatch, change, factor=factor)
    with pytest.raises(InvariantError, match=r"before the first update, scored and sampled probabilities differ|of a rollout: off by"):
        trainer.step()
    if fault != "weights moved":
        assert state_of(trainer) == before


MIXED: dict[str, Fault] = {
    "rewards": lambda made, _: replace(made, rewards=made.rewards.roll(1, 0)),
    "advantages": lambda made, _: replace(made, advantages=made.advantages.roll(1, 0)),
    "values": lambda made, _: replace(made, states=replace(made.states, values=made.states.values.roll(1, 0))),
    "entropy below 0": lambda made, _: replace(made, old=replace(made.old, log_probs=made.old.log_probs + 9.0)),
    "entropy above ln(legal moves)": lambda made, _: replace(
        made, old=replace(made.old, log_probs=0.3 - made.old.num_legal().log()[:, None].expand_as(made.old.log_probs))
    ),
    "one advantage": lambda made, _: replace(made, advantages=made.advantages + torch.eye(*made.advantages.shape) * 1e-3),
}


@pytest.mark.parametrize(("what", "kind"), [(what, {}) for what in MIXED] + [("rewards", TRAJECTORIES), ("one advantage", TRAJECTORIES)])
def test_groups_whose_index_is_swapped_are_caught_although_every_ratio_is_one(
    what: str, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(**kind)
    before = state_of(trainer)
    sampler_with(monkeypatch, MIXED[what])
    with pytest.raises(InvariantError, match=r"of a rollout: off by .*mixed up"):
        trainer.step()
    assert state_of(trainer) == before


@pytest.mark.parametrize("name", ["ratios", "kl_old", "clipped"])
@pytest.mark.parametrize("value", [math.nan, 0.5])
def test_each_of_the_three_conditions_counts_by_itself(name: str, value: float) -> None:
    healthy: dict[str, Any] = {"ratios": (1.0, 1.0), "kl_old": 0.0, "clipped": 0.0}
    spoilt = {**healthy, name: (value, 1.0) if name == "ratios" else value}
    assert_on_policy(SimpleNamespace(**healthy), max_log_ratio=0.05)
    with pytest.raises(InvariantError):
        assert_on_policy(SimpleNamespace(**spoilt), max_log_ratio=0.05)


def test_the_divergence_from_the_reference_is_watched_where_it_is_in_no_loss() -> None:
    assert trainer_of(reference=lively_policy(seed=9)).step().metrics["grpo/kl_reference"] > 0.1


def test_a_step_returns_why_training_stops_with_the_event() -> None:
    records = steps(trainer_of(critical_entropy=9.0, recovery="stop"), CRITICAL_WINDOW)
    assert [record.stop for record in records[:-1]] == [""] * (CRITICAL_WINDOW - 1)
    assert (event_names(records[-1]), records[-1].events[-1].message) == (["entropy_critical"], records[-1].stop)
    assert "critical below grpo.critical_entropy = 9" in records[-1].stop


# It repeats exactly.


def test_another_seed_gives_another_run() -> None:
    assert trainer_of(seed=0).step() != trainer_of(seed=1).step()


def resumed(first: NetworkTrainer, folder: Path, make: Callable[[NetworkPolicy], NetworkTrainer]) -> NetworkTrainer:
    """Return a trainer of new objects that goes on where the first one stands."""
    saved = save_checkpoint(folder, first.evaluation_policy, first.state({"from": "here"}))
    policy, state = load_checkpoint(saved, CPU, NetworkPolicy)
    second = make(policy)
    second.resume(policy, state)
    return second


GOES_ON: list[dict[str, Any]] = [
    {"entropy_schedule": "target", "entropy_coefficient": 0.015, "kl_coefficient": 0.01, "kl_target": 0.3},
    {"num_steps": 6, "learning_rate_decay": "cosine", **TRAJECTORIES},
]


@pytest.mark.parametrize("changes", GOES_ON)
def test_saved_and_gone_on_in_a_new_trainer_it_ends_bit_for_bit_as_if_never_stopped(changes: dict[str, Any], tmp_path: Path) -> None:
    def make(policy: NetworkPolicy | None = None) -> NetworkTrainer:
        return trainer_of(policy=policy, reference=lively_policy(seed=9), **changes)

    whole, first = make(), make()
    whole_records, records = steps(whole, 3), steps(first, 2)
    second = resumed(first, tmp_path, make)
    assert second.num_steps_done == 2
    assert records + steps(second, 1) == whole_records
    assert state_of(second) == state_of(whole)
    assert second.state({}).control == whole.state({}).control
    assert weights_hash(second.evaluation_policy) == weights_hash(whole.evaluation_policy)


def test_another_reference_is_refused_with_its_hash(tmp_path: Path) -> None:
    first = trainer_of()
    steps(first, 1)
    with pytest.raises(IncompatibleError, match=r"trained against reference [0-9a-f]{12}, this run's is [0-9a-f]{12}"):
        resumed(first, tmp_path, lambda policy: trainer_of(policy=policy, reference=lively_policy(seed=9)))


def test_a_new_run_from_a_checkpoint_begins_at_what_was_judged_with_its_optimizer_and_everything_else_anew(tmp_path: Path) -> None:
    changes = {"num_steps": 6, "learning_rate_decay": "cosine", "learning_rate": 1e-3}
    first = trainer_of(**changes)
    steps(first, 3)
    saved = save_checkpoint(tmp_path, first.evaluation_policy, first.state({}))
    policy, state = load_checkpoint(saved, CPU, NetworkPolicy)
    second = trainer_of(first_step=3, **changes)
    second.begin_from(policy, state)
    assert weights_hash(second.policy) == weights_hash(second.evaluation_policy) == weights_hash(first.evaluation_policy)
    assert state_of(second)[1] == state_of(first)[1]
    record = second.step()
    assert record.step == 4
    assert record.metrics["control/learning_rate"] == pytest.approx(1e-3)
    # The average warms up anew: after one step it keeps a tenth.
    expected = policy.copied()
    for mean, weights in zip(expected.network.parameters(), second.policy.network.parameters(), strict=True):
        mean.data.lerp_(weights.data, 0.9)
    assert largest_difference(expected, second.evaluation_policy) < 1e-6


def test_what_is_judged_is_the_average_of_the_policies_after_each_step_and_training_does_not_follow_it() -> None:
    changes = {"learning_rate": 1e-2, "num_minibatches": 1}
    plain, averaged = trainer_of(weight_averaging=0.0, **changes), trainer_of(weight_averaging=0.15, **changes)
    assert plain.evaluation_policy is plain.policy
    expected = averaged.policy.copied()
    for kept in (1 / 10, 0.15, 0.15):  # 1 / 10; 2 / 11 and 3 / 12 are more than the setting.
        assert plain.step().metrics == averaged.step().metrics
        for mean, weights in zip(expected.network.parameters(), averaged.policy.network.parameters(), strict=True):
            mean.data.lerp_(weights.data, 1 - kept)
        assert largest_difference(expected, averaged.evaluation_policy) < 1e-6
    assert weights_hash(plain.policy) == weights_hash(averaged.policy)
    assert largest_difference(averaged.evaluation_policy, averaged.policy) > 1e-4


class Unwatched(NetworkProblem):
    """The problem without its probes."""

    def rollout_metrics(self, rollout: Batch[States]) -> dict[str, float]:
        return {}

    def probe(self, *_: Any) -> dict[str, torch.Tensor]:
        return {}

    def step_metrics(self, *_: Any) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("changes", [{"learning_rate": 0.1, "num_minibatches": 4}, {"critical_entropy": 9.0}])
def test_without_its_probes_a_trainer_makes_equal_weights_decisions_and_events(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"entropy_schedule": "target", "entropy_coefficient": 0.015, "kl_coefficient": 0.01, "kl_target": 0.3, **changes}
    watched = trainer_of(reference=lively_policy(seed=9), **changes)
    monkeypatch.setattr(doubles, "NetworkProblem", Unwatched)
    unwatched = trainer_of(reference=lively_policy(seed=9), **changes)
    records, bare = steps(watched, CRITICAL_WINDOW + 1), steps(unwatched, CRITICAL_WINDOW + 1)
    assert state_of(unwatched) == state_of(watched)
    assert unwatched.state({}).control == watched.state({}).control
    assert [record.events for record in bare] == [record.events for record in records]
    assert any(record.events for record in records)
    controlled = {name for record in bare for name in record.metrics}
    assert {name.split("/")[0] for name in controlled - {"grpo/skipped", "grpo/optimizer_steps"}} == {"control"}
    assert all({**record.metrics, **other.metrics} == record.metrics for record, other in zip(records, bare, strict=True))


def test_what_is_looked_at_before_the_first_step_changes_nothing() -> None:
    looked, plain = trainer_of(), trainer_of()
    before = state_of(looked)
    looked.preflight()
    assert state_of(looked) == before
    assert steps(looked, 2) == steps(plain, 2)
    assert state_of(looked) == state_of(plain)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"arrays": replace(ARRAYS, values=np.where(ARRAYS.is_legal, 0.5, 0).astype(np.float32))}, "silent_groups"),
        ({"policy": sharpened(lively_policy(), 300)}, "(?s)kl_at_step_zero: .*entropy_collapse: "),
    ],
)
def test_where_nothing_can_be_learned_it_is_refused_before_the_first_step(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(NotLearnableError, match=found):
        refuse(look_before(trainer_of(**changes).preflight(), step=1, limits={"critical_entropy": 0.2}))


# Pieces and order.


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_that_a_minibatch_is_cut_into_decide_nothing(kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {**kind, "kl_coefficient": 0.1, "learning_rate": 5e-3, "entropy_schedule": "target", "entropy_coefficient": 0.015}
    whole, cut = double_trainer(**changes), double_trainer(**changes)
    in_one = steps(whole, 2)
    monkeypatch.setattr(network_problem, "MAX_STATES_PER_FORWARD", 3)
    for one, other in zip(in_one, steps(cut, 2), strict=True):
        assert dict(other.metrics) == pytest.approx(dict(one.metrics), rel=1e-7, abs=1e-9)
        assert other.events == one.events
    assert largest_difference(whole.policy, cut.policy) < 1e-10


def test_each_rollout_takes_every_state_once_in_an_order_of_its_own() -> None:
    trainer = trainer_of(num_minibatches=4)
    first, second = ([rows.tolist() for rows in trainer._minibatches(torch.arange(18))] for trainer.num_steps_done in (0, 1))
    for minibatches in (first, second):
        assert [len(rows) for rows in minibatches] == [5, 5, 4, 4]
        assert sorted(row for rows in minibatches for row in rows) == [*range(18)]
    assert first != second


# Trust region and learning rate.


@pytest.mark.parametrize(("of_reached", "is_ended"), [(1.1, False), (0.9, True)])
def test_the_trust_region_ends_the_optimizer_steps_of_a_rollout_at_its_bound(
    of_reached: float, is_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = double_trainer(learning_rate=1e-3).step().metrics["grpo/kl_old"]
    monkeypatch.setattr(training, "MAX_KL_OLD", of_reached * reached)
    record = double_trainer(learning_rate=1e-3).step()
    assert record.metrics["grpo/optimizer_steps"] == 2 - is_ended
    assert record.metrics["grpo/kl_old"] == reached, "what ended the steps is told, though it was not taken"
    assert event_names(record) == ["trust_region"] * is_ended


def test_the_learning_rates_schedule_reaches_the_optimizer() -> None:
    trainer = trainer_of(learning_rate=1e-3, num_steps=4, learning_rate_decay="cosine")
    told = [record.metrics["control/learning_rate"] for record in steps(trainer, 2)]
    assert trainer._optimizer.param_groups[0]["lr"] == told[1] < told[0] == 1e-3


def test_at_a_learning_rate_that_rounds_away_the_policy_that_is_judged_stays_its_start_to_the_last_bit() -> None:
    # `steps/selection` shows that such a candidate draws every pair, so it is promoted by no seed.
    trainer = trainer_of(learning_rate=1e-30)
    steps(trainer, 4)
    assert weights_hash(trainer.policy) == weights_hash(trainer.evaluation_policy) == weights_hash(lively_policy())


def test_the_gradient_is_scaled_down_to_its_largest_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    # Adam does not see a constant factor, but the ratio between two steps' gradients: with the limit they have the same length.
    monkeypatch.setattr(training, "MAX_GRADIENT_NORM", 1e-9)
    trainer = trainer_of(num_minibatches=1)
    assert trainer.step().metrics["grpo/gradient_norm"] > 1e-4, "as measured before"
    moments = [moment.sum().item() for name, moment in trainer.state({}).tensors_of("optimizer.").items() if name.endswith("exp_avg_sq")]
    assert math.sqrt(sum(moments) / (1 - 0.999)) == pytest.approx(1e-9, rel=1e-3)


# What is not finite.


class _SometimesNan(DatasetStates):
    bad_steps: frozenset[int]

    def states(self, step: int) -> States:
        states = super().states(step)
        return replace(states, values=states.values * math.nan) if step in self.bad_steps else states


def trainer_with_nan_at(*bad_steps: int, **changes: Any) -> NetworkTrainer:
    config = GrpoConfig(**{**CONFIG.model_dump(), **changes})
    states = _SometimesNan(ARRAYS, states_per_step=config.states_per_step, seed=0)
    states.bad_steps = frozenset(bad_steps)
    return trainer_of(config, dataset=states)


@pytest.mark.parametrize(("bad_step", "num_minibatches"), [(0, 2), (2, 1)])
def test_a_loss_that_is_not_finite_is_left_out_and_counted_and_leaves_every_bit_as_it_was(bad_step: int, num_minibatches: int) -> None:
    trainer = trainer_with_nan_at(bad_step, num_minibatches=num_minibatches, learning_rate=1e-3)
    records = steps(trainer, bad_step)
    assert all(record.metrics["grpo/skipped"] == 0 for record in records)
    before = state_of(trainer)
    record = trainer.step()
    assert record.metrics["grpo/skipped"] == num_minibatches
    assert event_names(record).count("step_skipped") == num_minibatches
    assert f"step {bad_step + 1}: the loss is not finite" in record.events[0].message
    assert record.metrics["grpo/optimizer_steps"] == 0
    assert "grpo/loss" not in record.metrics, "there was no optimizer step to speak of"
    assert state_of(trainer) == before
    assert trainer.num_steps_done == record.step == bad_step + 1
    after = trainer.step()
    assert after.metrics["grpo/skipped"] == 0
    assert after.metrics["control/learning_rate"] == pytest.approx(1e-3 * SKIPPED_CUT**num_minibatches)
    assert state_of(trainer) != before


def test_a_finite_step_between_those_that_are_not_lets_training_go_on() -> None:
    assert [record.metrics["grpo/skipped"] for record in steps(trainer_with_nan_at(0, 2, 4, 6, num_minibatches=1), 8)] == [1, 0] * 4
    trainer = trainer_with_nan_at(0, 1, 2, num_minibatches=1)
    steps(trainer, 2)
    with pytest.raises(NonFiniteError, match="3 times in a row"):
        trainer.step()


def test_a_finite_loss_with_a_gradient_that_is_not_is_left_out_too() -> None:
    trainer = trainer_of()
    steps(trainer, 1)
    before = state_of(trainer)
    hidden = trainer.policy.network.moves.scorer.hidden
    handle = hidden.weight.register_hook(lambda gradient: gradient * math.inf)
    record = trainer.step()
    assert record.metrics["grpo/skipped"] == 2
    assert "the gradient is not finite" in record.events[0].message
    assert state_of(trainer) == before
    handle.remove()
    assert trainer.step().metrics["grpo/skipped"] == 0


def test_logits_that_are_not_finite_are_left_out_too_and_stop_training_in_the_end() -> None:
    trainer = trainer_of(learning_rate=1e-3)
    steps(trainer, 1)
    weight = trainer.policy.network.moves.scorer.hidden.bias
    good = weight.detach().clone()
    with torch.no_grad():
        weight[0] = math.nan
    before = state_of(trainer)
    for number in range(2):
        record = trainer.step()
        assert event_names(record) == ["step_skipped"]
        assert "the policy's probabilities are NaN or infinite" in record.events[0].message
        assert record.metrics["grpo/skipped"] == 1
        assert record.metrics["control/learning_rate"] == pytest.approx(1e-3 * SKIPPED_CUT**number)
        assert state_of(trainer) == before
    with pytest.raises(NonFiniteError, match="3 times in a row; the weights are those after the last finite optimizer step"):
        trainer.step()
    with torch.no_grad():
        weight.copy_(good)
    assert trainer.step().metrics["grpo/skipped"] == 0


# It climbs where it should, and nowhere else.


FEW_BOARDS = [board for board in some_boards(60, seed=3) if board.clean_castling_rights()][:4]  # They have no mirror images.
FEW = fake_arrays(FEW_BOARDS)
FEW_VALUES, FEW_LEGAL = torch.from_numpy(FEW.values), torch.from_numpy(FEW.is_legal)


def few(policy: NetworkPolicy, **changes: Any) -> NetworkTrainer:
    """Return a trainer that sees the same four boards at each step, without regularizers if none are given."""
    settings = {
        "states_per_step": 4,
        "num_minibatches": 1,
        "learning_rate": 1e-2,
        "entropy_schedule": "constant",
        "entropy_coefficient": 0.0,
        "kl_coefficient": 0.0,
        "critical_entropy": 0.0,
        **changes,
    }
    return any_trainer_of(GrpoConfig(**settings), FEW, policy=policy, reference=new_policy(TINY, seed=0, device=CPU))


@torch.no_grad()
def few_now(policy: NetworkPolicy) -> MoveDistribution:
    return policy.distribution(PositionBatch.from_arrays(FEW), temperature=1.0)


def test_by_trajectories_it_raises_the_expected_value() -> None:
    policy = new_policy(TINY, seed=0, device=CPU)
    before = few_now(policy).expectation(FEW_VALUES)
    steps(few(policy, group_size=6, num_own_moves=2, learning_rate=2e-2), 16)
    after = few_now(policy).expectation(FEW_VALUES)
    assert (after > before + 0.05).all(), f"{before} -> {after}"
    assert after.mean() > before.mean() + 0.15


def test_it_ends_near_the_optimum_of_value_plus_entropy() -> None:
    # Maximize sum p Q + alpha H(p): p = softmax(Q / alpha). Large groups are nearly the exact estimator.
    alpha = 0.25
    policy = new_policy(PolicyConfig(width=64, hidden_width=32), seed=0, device=CPU)  # Wide enough to hold the optimum.
    optimum = MoveDistribution.from_logits(FEW_VALUES, FEW_LEGAL, temperature=alpha)
    start = few_now(policy)
    settings = {"group_size": 1_024, "entropy_coefficient": alpha, "learning_rate_decay": "cosine"}
    steps(few(policy, learning_rate=2e-2, num_steps=50, **settings), 50)
    distance = (few_now(policy).probs - optimum.probs).abs().sum(1) / 2
    assert distance.max() < 0.05, f"total variation {distance}"
    assert ((start.probs - optimum.probs).abs().sum(1) / 2).min() > 0.15
