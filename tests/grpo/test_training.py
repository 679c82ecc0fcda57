"""The GRPO loop: it trains the policy that it samples, repeats exactly, survives what is not finite, and climbs where it should."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
from doubles import CPU, TINY, fake_arrays, some_boards
from torch import Tensor, nn

from grpo import training
from grpo.boards import BoardArrays
from grpo.checkpoints import load_checkpoint, save_checkpoint, weights_hash
from grpo.config import GrpoConfig
from grpo.metrics import Record
from grpo.objective import Objective, grpo_objective
from grpo.phases import PHASES
from grpo.policy import MoveDistribution, NetworkPolicy, Policy, PositionBatch, new_policy
from grpo.rollouts import DatasetStates, Rollout, States, sample_groups
from grpo.training import GrpoTrainer, InvariantError, NonFiniteError, assert_on_policy, rollout_metrics

torch.set_num_threads(1)

BOARDS = some_boards(48)
ARRAYS = fake_arrays(BOARDS)
CONFIG = GrpoConfig(states_per_step=16, num_minibatches=2, group_size=8)

Sampler = Callable[..., Rollout]


def sharpened(policy: NetworkPolicy, factor: float) -> NetworkPolicy:
    """Return the policy with all logits of plain moves multiplied by a factor."""
    with torch.no_grad():
        for parameter in policy.network.from_head.parameters():
            parameter.mul_(factor)
    return policy


def lively_policy(seed: int = 1) -> NetworkPolicy:
    """Return a policy whose every layer counts, unlike a fresh one's, with an entropy of about 2.3."""
    policy = new_policy(TINY, seed=seed, device=CPU)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=rng))
    return sharpened(policy, 3)


def copied(policy: NetworkPolicy) -> NetworkPolicy:
    """Return another policy with the same weights."""
    twin = new_policy(TINY, seed=0, device=CPU)
    twin.network.load_state_dict(policy.network.state_dict())
    return twin


def trainer_of(
    config: GrpoConfig = CONFIG,
    *,
    policy: NetworkPolicy | None = None,
    reference: Policy | None = None,
    arrays: BoardArrays = ARRAYS,
    seed: int = 0,
) -> GrpoTrainer:
    """Return a trainer whose reference is the lively policy, and whose policy is a copy of it if none is given."""
    states = DatasetStates(arrays, states_per_step=config.states_per_step, seed=seed)
    return GrpoTrainer(policy or lively_policy(), reference or lively_policy(), states, config, seed=seed)


def steps(trainer: GrpoTrainer, count: int) -> list[Record]:
    """Return the records of some steps, with the stop rule told of each as the pipeline does."""
    records = []
    for _ in range(count):
        records.append(trainer.step())
        trainer.entropy_stop.observe(records[-1].metrics["grpo/entropy"])
    return records


def with_values(values: np.ndarray[Any, np.dtype[np.float32]], arrays: BoardArrays = ARRAYS) -> BoardArrays:
    """Return the boards with other values."""
    return replace(arrays, values=np.where(arrays.is_legal, values, 0).astype(np.float32))


def state_of(trainer: GrpoTrainer) -> list[Any]:
    """Return all numbers that an optimiser step could change, as plain data."""
    state = trainer.state({})
    tensors = {f"{index}.{name}": tensor for index, values in state.optimiser["state"].items() for name, tensor in values.items()}
    settings = json.loads(json.dumps(state.optimiser["param_groups"]))
    return [weights_hash(trainer.policy), {name: tensors[name].tolist() for name in sorted(tensors)}, settings]


# It trains the policy that it samples.


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
@pytest.mark.parametrize(("num_minibatches", "num_inner_epochs"), [(1, 1), (2, 1), (8, 2), (16, 1)])
def test_a_healthy_run_is_on_policy_at_every_temperature_and_split(
    temperature: float, num_minibatches: int, num_inner_epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []

    def check(objective: Objective) -> None:
        checked.append((objective.ratios - 1).abs().max().item())
        assert_on_policy(objective)

    monkeypatch.setattr(training, "assert_on_policy", check)
    config = CONFIG.model_copy(
        update={"temperature": temperature, "num_minibatches": num_minibatches, "num_inner_epochs": num_inner_epochs, "learning_rate": 5e-3}
    )
    records = steps(trainer_of(config), 4)
    assert len(checked) == 4, "once a rollout"
    assert max(checked) < 1e-4, "a tenth of what is allowed"
    if num_minibatches * num_inner_epochs > 1:
        assert all(abs(record.metrics["grpo/ratio_max"] - 1) > 1e-3 for record in records), "later inner steps are off-policy"


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_at_the_first_step_nothing_is_clipped_and_both_divergences_are_zero(temperature: float) -> None:
    config = CONFIG.model_copy(update={"temperature": temperature, "num_minibatches": 1, "kl_coefficient": 0.1})
    metrics = trainer_of(config).step().metrics
    assert metrics["grpo/clip_fraction"] == 0
    for name in ("grpo/kl_old", "grpo/kl_reference", "grpo/kl_term"):
        assert abs(metrics[name]) < 1e-7
    for name in ("grpo/ratio_min", "grpo/ratio_max"):
        assert metrics[name] == pytest.approx(1, abs=1e-6)


def at_another_temperature(factor: float) -> Sampler:
    """Return a sampler that draws and records at a temperature which it does not own up to."""

    def sample(policy: Policy, states: States, *, group_size: int, temperature: float, rng: torch.Generator) -> Rollout:
        rollout = sample_groups(policy, states, group_size=group_size, temperature=temperature * factor, rng=rng)
        return replace(rollout, temperature=temperature)

    return sample


def then(change: Callable[[Rollout, Policy], Rollout]) -> Sampler:
    """Return the sampler followed by a fault."""

    def sample(policy: Policy, states: States, *, group_size: int, temperature: float, rng: torch.Generator) -> Rollout:
        return change(sample_groups(policy, states, group_size=group_size, temperature=temperature, rng=rng), policy)

    return sample


def weights_moved(rollout: Rollout, policy: Policy) -> Rollout:
    """Take a small step between sampling and learning."""
    assert isinstance(policy, NetworkPolicy)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(1e-3)
    return rollout


def weights_spoilt(rollout: Rollout, policy: Policy) -> Rollout:
    """Put one NaN among the weights."""
    assert isinstance(policy, NetworkPolicy)
    with torch.no_grad():
        next(policy.network.norm.parameters())[0] = math.nan
    return rollout


def one_nan(rollout: Rollout, policy: Policy) -> Rollout:
    """Lose one recorded number of each group."""
    old = rollout.old_log_probs.clone()
    old[:, -1] = math.nan
    return replace(rollout, old_log_probs=old)


def without_last_move(old: MoveDistribution) -> MoveDistribution:
    """Return what a sampler would have recorded that thinks the last legal move of each board illegal."""
    last = old.num_legal() - 1
    is_legal = old.is_legal.clone()
    is_legal[torch.arange(len(last)), last] = False
    return MoveDistribution.from_logits(old.log_probs, is_legal, temperature=1.0)


def resampled(rollout: Rollout, old: MoveDistribution) -> Rollout:
    """Return the rollout as a sampler with another distribution would have made it."""
    columns = old.sample(rollout.columns.shape[1], torch.Generator().manual_seed(0))
    rewards = rollout.states.values.gather(1, columns)
    return replace(rollout, columns=columns, old_log_probs=old.log_prob(columns), old=old, rewards=rewards)


FAULTS: dict[str, Sampler] = {
    "sampled at T = 1.3, learned at T = 1": at_another_temperature(1.3),
    "sampled at T = 0.7, learned at T = 1": at_another_temperature(0.7),
    "sampled at T = 1.02, learned at T = 1": at_another_temperature(1.02),
    "weights moved": then(weights_moved),
    "weights with a NaN": then(weights_spoilt),
    "recorded NaN": then(one_nan),
    "moves shuffled within their groups": then(lambda rollout, _: replace(rollout, columns=rollout.columns.flip(1))),
    "moves of the next state": then(
        lambda rollout, _: replace(rollout, columns=torch.minimum(rollout.columns.roll(1, 0), rollout.old.num_legal()[:, None] - 1))
    ),
    "log-probabilities of the next state": then(
        lambda rollout, _: replace(rollout, old_log_probs=rollout.old_log_probs.roll(1, 0)),
    ),
    "distribution of the next state": then(
        lambda rollout, _: replace(rollout, old=MoveDistribution(log_probs=rollout.old.log_probs.roll(1, 0), is_legal=rollout.old.is_legal))
    ),
    "boards of the next state": then(
        lambda rollout, _: replace(rollout, states=replace(rollout.states, positions=rolled(rollout.states.positions)))
    ),
    "a legal move masked out": then(lambda rollout, _: resampled(rollout, without_last_move(rollout.old))),
    "log-probabilities in bfloat16": then(lambda rollout, _: replace(rollout, old_log_probs=rollout.old_log_probs.bfloat16().float())),
}


def rolled(positions: PositionBatch) -> PositionBatch:
    """Return the moves of each board beside the pieces of the next."""
    return replace(positions, encodings=positions.encodings.roll(1, 0))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("num_minibatches", [1, 4])
def test_a_sampler_that_records_another_policy_is_caught_before_the_first_update(
    fault: str, num_minibatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(CONFIG.model_copy(update={"num_minibatches": num_minibatches}))
    before = state_of(trainer)
    monkeypatch.setattr(training, "sample_groups", FAULTS[fault])
    with pytest.raises(InvariantError, match="before the first update the policy does not score as it sampled"):
        trainer.step()
    if not fault.startswith("weights"):
        assert state_of(trainer) == before


def test_a_sampler_that_runs_in_half_precision_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(policy: Policy, states: States, *, group_size: int, temperature: float, rng: torch.Generator) -> Rollout:
        with torch.autocast("cpu", torch.bfloat16):
            return sample_groups(policy, states, group_size=group_size, temperature=temperature, rng=rng)

    monkeypatch.setattr(training, "sample_groups", sample)
    with pytest.raises(InvariantError):
        trainer_of().step()


def test_a_mask_that_learning_has_and_sampling_had_not_is_caught() -> None:
    class Forgetful(NetworkPolicy):
        """Knows one legal move less whenever a gradient is wanted."""

        def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
            whole = super().distribution(positions, temperature=temperature)
            return without_last_move(whole) if torch.is_grad_enabled() else whole

    with pytest.raises(InvariantError):
        trainer_of(policy=Forgetful(lively_policy().network, CPU)).step()


def test_padding_that_counts_as_a_move_in_sampling_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(policy: Policy, states: States, *, group_size: int, temperature: float, rng: torch.Generator) -> Rollout:
        rollout = sample_groups(policy, states, group_size=group_size, temperature=temperature, rng=rng)
        old = MoveDistribution.from_logits(rollout.old.log_probs, torch.ones_like(rollout.old.is_legal), temperature=1.0)
        return replace(rollout, old=old, old_log_probs=old.log_prob(rollout.columns))

    monkeypatch.setattr(training, "sample_groups", sample)
    with pytest.raises(InvariantError):
        trainer_of().step()


def one_wrong_state(rollout: Rollout, policy: Policy) -> Rollout:
    """Spoil what was recorded of one state."""
    old = rollout.old_log_probs.clone()
    old[3] += 0.2
    return replace(rollout, old_log_probs=old)


def test_one_wrong_state_among_sixteen_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "sample_groups", then(one_wrong_state))
    with pytest.raises(InvariantError):
        trainer_of(CONFIG.model_copy(update={"num_minibatches": 1})).step()


def test_one_wrong_state_is_caught_as_soon_as_it_falls_into_the_first_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "sample_groups", then(one_wrong_state))
    with pytest.raises(InvariantError):
        steps(trainer_of(CONFIG.model_copy(update={"num_minibatches": 4})), 30)


class _WithDropout(nn.Module):
    """The network with a dropout layer over its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.dropout = nn.Dropout(0.1)

    def forward(self, encodings: Tensor, action_ids: Tensor) -> Tensor:
        logits: Tensor = self.dropout(self.network(encodings, action_ids))
        return logits


def test_a_dropout_layer_that_is_still_at_work_is_caught_and_one_at_rest_is_not() -> None:
    def policy_with_dropout() -> NetworkPolicy:
        policy = lively_policy()
        policy.network = _WithDropout(policy.network).eval()  # type: ignore[assignment]
        return policy

    assert trainer_of(policy=policy_with_dropout()).step().step == 1
    policy = policy_with_dropout()
    policy.network.dropout.train()  # type: ignore[union-attr]
    with pytest.raises(InvariantError):
        trainer_of(policy=policy).step()


def test_noise_in_scoring_is_caught_and_no_noise_is_not() -> None:
    class Noisy(NetworkPolicy):
        """Adds noise to each logit, another one each time."""

        scale = 0.0

        def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
            exact = super().distribution(positions, temperature=temperature)
            noise = self.scale * torch.randn(exact.log_probs.shape, generator=self.rng)
            return MoveDistribution.from_logits(exact.log_probs + noise, exact.is_legal, temperature=1.0)

        rng = torch.Generator().manual_seed(0)

    policy = Noisy(lively_policy().network, CPU)
    trainer_of(policy=policy).step()
    policy.scale = 0.01
    with pytest.raises(InvariantError):
        trainer_of(policy=policy).step()


def test_a_network_in_training_mode_is_refused() -> None:
    trainer = trainer_of()
    trainer.policy.network.train()
    before = state_of(trainer)
    with pytest.raises(RuntimeError, match="training mode"):
        trainer.step()
    assert state_of(trainer) == before


def test_the_message_gives_the_numbers_of_the_worked_example() -> None:
    # Field notes: logits [2, 1, 0] sampled at T = 1.3 and scored at T = 1: ratios 1.116, 0.888, 0.703.
    logits, is_legal = torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool)
    old = MoveDistribution.from_logits(logits, is_legal, temperature=1.3)
    new = MoveDistribution.from_logits(logits, is_legal, temperature=1.0)
    columns = torch.tensor([[0, 1, 2]])
    objective = grpo_objective(
        new=new,
        old=old,
        reference=new,
        columns_BG=columns,
        old_log_probs_BG=old.log_prob(columns),
        advantages_BG=torch.tensor([[0.5, 0.0, -0.5]]),
        config=CONFIG,
    )
    with pytest.raises(InvariantError, match=r"largest \|log ratio\| 0\.351, KL\(old\) 0\.0127, clip fraction 0\.333"):
        assert_on_policy(objective)
    assert_on_policy(replace(objective, ratios=torch.ones(1, 3), kl_old=torch.tensor(0.0), clip_fraction=torch.tensor(0.0)))


@pytest.mark.parametrize("name", ["ratios", "kl_old", "clip_fraction"])
@pytest.mark.parametrize("value", [math.nan, 2.0])
def test_each_of_the_three_conditions_counts_by_itself(name: str, value: float) -> None:
    rollout = sample_groups(lively_policy(), states_of(ARRAYS), group_size=4, temperature=1.0, rng=torch.Generator().manual_seed(0))
    healthy = grpo_objective(
        new=rollout.old,
        old=rollout.old,
        reference=rollout.old,
        columns_BG=rollout.columns,
        old_log_probs_BG=rollout.old_log_probs,
        advantages_BG=torch.zeros_like(rollout.rewards),
        config=CONFIG,
    )
    assert_on_policy(healthy)
    with pytest.raises(InvariantError):
        assert_on_policy(replace(healthy, **{name: torch.full_like(getattr(healthy, name), value)}))


def test_the_loss_is_taken_at_the_temperature_that_the_rollout_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def hotter(policy: Policy, states: States, *, group_size: int, temperature: float, rng: torch.Generator) -> Rollout:
        return sample_groups(policy, states, group_size=group_size, temperature=2 * temperature, rng=rng)

    asked: list[float] = []

    class Listening(NetworkPolicy):
        """Remembers the temperatures that it was asked for."""

        def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
            asked.append(temperature)
            return super().distribution(positions, temperature=temperature)

    policy, reference = (Listening(lively_policy().network, CPU) for _ in range(2))
    monkeypatch.setattr(training, "sample_groups", hotter)
    trainer_of(policy=policy, reference=reference).step()
    assert asked == [2.0] * 5, "one rollout; policy and reference in two minibatches"


# What is measured.


def states_of(arrays: BoardArrays) -> States:
    """Return all boards as states."""
    return DatasetStates(arrays, states_per_step=len(arrays), seed=0).states(0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_entropy_that_is_reported_and_watched_is_the_one_at_temperature_one(temperature: float) -> None:
    policy, states = lively_policy(), states_of(ARRAYS)
    rollout = sample_groups(policy, states, group_size=4, temperature=temperature, rng=torch.Generator().manual_seed(0))
    metrics = rollout_metrics(rollout, torch.zeros_like(rollout.rewards))
    at_one = policy.distribution(states.positions, temperature=1.0).detach()
    exact = at_one.entropy()
    assert metrics["grpo/entropy"] == pytest.approx(exact.mean().item(), abs=1e-5)
    assert metrics["grpo/effective_moves"] == pytest.approx(math.exp(exact.mean().item()), rel=1e-5)
    assert metrics["grpo/normalised_entropy"] == pytest.approx((exact / at_one.num_legal().log()).mean().item(), abs=1e-5)
    for index, phase in enumerate(PHASES):
        assert metrics[f"grpo/entropy/{phase}"] == pytest.approx(exact[states.phases == index].mean().item(), abs=1e-5)
    regret = (states.values.max(1).values - (at_one.probs * states.values).sum(1)).mean().item()
    assert metrics["grpo/regret"] == pytest.approx(regret, abs=1e-6)
    assert abs(rollout.old.entropy().mean().item() - exact.mean().item()) > 0.1 or temperature == 1.0


def test_a_phase_without_a_board_has_no_entropy() -> None:
    arrays = fake_arrays([board for board, phase in zip(BOARDS, ARRAYS.phases, strict=True) if phase != 2])
    metrics = trainer_of(arrays=arrays).step().metrics
    assert "grpo/entropy/opening" in metrics
    assert "grpo/entropy/endgame" not in metrics


def test_what_is_measured_of_a_rollout_worked_by_hand() -> None:
    # Two boards, of two and three moves, with groups of four.
    is_legal = torch.tensor([[True, True, False], [True, True, True]])
    old = MoveDistribution(
        log_probs=torch.tensor([[0.75, 0.25, 1.0], [0.5, 0.25, 0.25]]).log() * is_legal,
        is_legal=is_legal,
    )
    states = States(
        positions=PositionBatch(
            encodings=torch.zeros(2, 71, dtype=torch.uint8), action_ids=torch.zeros(2, 3, dtype=torch.int64), is_legal=is_legal
        ),
        values=torch.tensor([[0.2, 0.6, 0.0], [0.1, 0.1, 0.9]]),
        phases=torch.tensor([0, 2]),
    )
    columns = torch.tensor([[0, 0, 0, 1], [0, 1, 0, 1]])
    rollout = Rollout(
        states=states,
        columns=columns,
        old_log_probs=old.log_prob(columns),
        old=old,
        rewards=states.values.gather(1, columns),
        temperature=1.0,
    )
    advantages = torch.tensor([[-0.1, -0.1, -0.1, 0.3], [0.0, 0.0, 0.0, 0.0]])
    metrics = rollout_metrics(rollout, advantages)
    first, second = 0.75 * math.log(4 / 3) + 0.25 * math.log(4), 1.5 * math.log(2)
    expected = {
        "grpo/entropy": (first + second) / 2,
        "grpo/entropy/opening": first,
        "grpo/entropy/endgame": second,
        "grpo/normalised_entropy": (first / math.log(2) + second / math.log(3)) / 2,
        "grpo/effective_moves": math.exp((first + second) / 2),
        "grpo/reward_mean": (0.2 * 3 + 0.6 + 0.1 * 4) / 8,
        "grpo/reward_std": math.sqrt((3 * 0.0**2 + 0.4**2 + 4 * 0.1**2) / 7),  # Mean 0.2.
        "grpo/regret": ((0.6 - 0.3) + (0.9 - 0.3)) / 2,
        "grpo/advantage_std": math.sqrt((3 * 0.01 + 0.09) / 7),
        "grpo/silent_groups": 0.5,
        "grpo/agreement": (3 / 4 + 2 / 4) / 2,
    }
    assert metrics == pytest.approx(expected, abs=1e-6)


def test_the_terms_of_the_loss_add_up_to_it() -> None:
    config = CONFIG.model_copy(update={"kl_coefficient": 0.2, "num_inner_epochs": 2, "learning_rate": 5e-3})
    for record in steps(trainer_of(config, reference=lively_policy(seed=9)), 3):
        metrics = record.metrics
        assert metrics["grpo/kl_term"] == pytest.approx(0.2 * metrics["grpo/kl_reference"])
        assert metrics["grpo/kl_reference"] > 0.01
        assert metrics["grpo/loss"] == pytest.approx(
            -metrics["grpo/surrogate"] - metrics["grpo/entropy_term"] + metrics["grpo/kl_term"], abs=1e-6
        )


def test_a_position_with_one_legal_move_changes_no_weight_and_makes_nothing_nan() -> None:
    # King h1, rook on the second rank, and its mirror image by files: g1 (b1) is the only move.
    forced = [chess.Board("7k/8/8/8/8/8/r7/7K w - - 0 1"), chess.Board("k7/8/8/8/8/8/7r/K7 w - - 0 1")]
    assert [board.legal_moves.count() for board in forced] == [1, 1]
    alone = trainer_of(GrpoConfig(states_per_step=2, num_minibatches=1, entropy_coefficient=0.1), arrays=fake_arrays(forced))
    before = weights_hash(alone.policy)
    metrics = alone.step().metrics
    assert weights_hash(alone.policy) == before
    assert [name for name, value in metrics.items() if not math.isfinite(value)] == []


# It repeats exactly.


def test_equal_seeds_give_equal_records_and_weights_and_another_seed_gives_others() -> None:
    one, same, other = trainer_of(seed=0), trainer_of(seed=0), trainer_of(seed=1)
    records, same_records, other_records = (steps(trainer, 4) for trainer in (one, same, other))
    assert records == same_records
    assert weights_hash(one.policy) == weights_hash(same.policy)
    assert all(record != another for record, another in zip(records, other_records, strict=True))
    assert weights_hash(one.policy) != weights_hash(other.policy)


def test_the_state_of_the_global_generators_has_no_effect() -> None:
    torch.manual_seed(0)
    one = steps(trainer_of(), 2)
    torch.manual_seed(99)
    assert steps(trainer_of(), 2) == one


@pytest.mark.parametrize("cut", [0, 1, 4, 7])
@pytest.mark.parametrize("num_inner_epochs", [1, 2])
def test_saved_and_gone_on_in_a_new_trainer_it_ends_bit_for_bit_as_if_never_stopped(
    cut: int, num_inner_epochs: int, tmp_path: Path
) -> None:
    # 48 boards, 16 a step: an epoch is three steps, so that every cut but the first falls into its midst or behind it.
    config = CONFIG.model_copy(update={"num_inner_epochs": num_inner_epochs, "kl_coefficient": 0.01, "critical_window": 5})
    whole = trainer_of(config)
    whole_records = steps(whole, 8)
    first = trainer_of(config)
    records = steps(first, cut)
    folder = save_checkpoint(tmp_path, first.policy, TINY, first.state({"from": "here"}))
    steps(first, 1)  # What is done after saving is not in the checkpoint.
    policy, _, state = load_checkpoint(folder, CPU)
    second = trainer_of(config, policy=policy)
    second.restore(state)
    assert second.num_steps_done == cut
    assert records + steps(second, 8 - cut) == whole_records
    assert state_of(second) == state_of(whole)
    assert second.entropy_stop.state() == whole.entropy_stop.state()


def test_without_the_optimisers_state_a_resumed_run_would_end_elsewhere() -> None:
    # What the test above would not see if the state had no effect.
    whole, first = trainer_of(), trainer_of()
    steps(whole, 4)
    steps(first, 2)
    second = trainer_of(policy=first.policy)
    second.num_steps_done = 2
    steps(second, 2)
    assert weights_hash(second.policy) != weights_hash(whole.policy)


def test_the_critical_stop_of_a_resumed_run_fires_at_the_step_of_the_uninterrupted_one(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"critical_entropy": 100.0, "critical_window": 5})
    first = trainer_of(config)
    assert [first.entropy_stop.observe(first.step().metrics["grpo/entropy"]) for _ in range(3)] == [False] * 3
    folder = save_checkpoint(tmp_path, first.policy, TINY, first.state({}))
    policy, _, state = load_checkpoint(folder, CPU)
    second = trainer_of(config, policy=policy)
    second.restore(state)
    assert [second.entropy_stop.observe(second.step().metrics["grpo/entropy"]) for _ in range(2)] == [False, True]


def test_a_resumed_run_uses_the_learning_rate_of_its_own_settings(tmp_path: Path) -> None:
    first = trainer_of()
    steps(first, 1)
    folder = save_checkpoint(tmp_path, first.policy, TINY, first.state({}))
    policy, _, state = load_checkpoint(folder, CPU)
    second = trainer_of(CONFIG.model_copy(update={"learning_rate": 1e-30}), policy=policy)
    second.restore(state)
    steps(second, 1)
    assert weights_hash(second.policy) == weights_hash(first.policy), "a step this small rounds to nothing"


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_the_order_of_the_rows_in_a_rollout_decides_nothing_but_rounding(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIG.model_copy(update={"num_minibatches": 1})
    straight, shuffled = trainer_of(config), trainer_of(config)
    straight.step()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
    monkeypatch.setattr(training, "sample_groups", then(lambda rollout, _: rollout.take(order)))
    shuffled.step()
    for one, other in zip(straight.policy.network.parameters(), shuffled.policy.network.parameters(), strict=True):
        # Adam's first step is the sign of the gradient, which rounding may turn where the gradient is nearly 0.
        assert ((one - other).abs() > 1e-5).float().mean() < 0.02


def test_each_inner_epoch_takes_every_state_once_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[list[int]] = []
    original = Rollout.take

    def listening(rollout: Rollout, rows: Tensor) -> Rollout:
        taken.append(rows.tolist())
        return original(rollout, rows)

    monkeypatch.setattr(Rollout, "take", listening)
    steps(trainer_of(CONFIG.model_copy(update={"num_minibatches": 4, "num_inner_epochs": 2})), 2)
    assert [len(rows) for rows in taken] == [4] * 16
    epochs = [[row for rows in taken[start : start + 4] for row in rows] for start in range(0, 16, 4)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(16))] * 4
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_same_states_get_other_moves_at_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []

    def listen(rollout: Rollout, policy: Policy) -> Rollout:
        order = torch.argsort(rollout.states.values[:, 0])
        drawn.append(rollout.columns[order])
        return rollout

    monkeypatch.setattr(training, "sample_groups", then(listen))
    config = CONFIG.model_copy(update={"states_per_step": 48, "learning_rate": 1e-30})
    steps(trainer_of(config), 2)
    assert (drawn[0] == drawn[1]).float().mean() < 0.5


# What is not finite.


def nan_values() -> BoardArrays:
    """Return the boards with values that are all NaN."""
    return with_values(np.full_like(ARRAYS.values, np.nan))


class _SometimesNan:
    """The dataset's states, with NaN for values at some steps."""

    def __init__(self, bad_steps: set[int], config: GrpoConfig) -> None:
        self._good = DatasetStates(ARRAYS, states_per_step=config.states_per_step, seed=0)
        self._bad_steps = bad_steps

    def states(self, step: int) -> States:
        states = self._good.states(step)
        return replace(states, values=states.values * math.nan) if step in self._bad_steps else states


def trainer_with_nan_at(*bad_steps: int, config: GrpoConfig, policy: NetworkPolicy | None = None) -> GrpoTrainer:
    """Return a trainer that meets NaN values at these steps."""
    return GrpoTrainer(policy or lively_policy(), lively_policy(), _SometimesNan(set(bad_steps), config), config, seed=0)


@pytest.mark.parametrize("bad_step", [0, 2])
@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_a_step_that_is_not_finite_is_left_out_and_counted_and_leaves_every_bit_as_it_was(bad_step: int, num_minibatches: int) -> None:
    config = CONFIG.model_copy(update={"num_minibatches": num_minibatches})
    trainer = trainer_with_nan_at(bad_step, config=config)
    records = steps(trainer, bad_step)
    assert all(record.metrics["grpo/skipped"] == 0 for record in records)
    before = state_of(trainer)
    record = trainer.step()
    assert record.metrics["grpo/skipped"] == num_minibatches
    assert "grpo/loss" not in record.metrics, "there was no optimiser step to speak of"
    assert state_of(trainer) == before
    assert trainer.num_steps_done == record.step == bad_step + 1
    assert steps(trainer, 1)[0].metrics["grpo/skipped"] == 0
    assert state_of(trainer) != before


def test_a_finite_loss_with_a_gradient_that_is_not_is_left_out_too() -> None:
    trainer = trainer_of(CONFIG.model_copy(update={"max_skipped_steps": 99}))
    steps(trainer, 1)
    before = state_of(trainer)
    handle = trainer.policy.network.to_head.weight.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    assert trainer.step().metrics["grpo/skipped"] == 2
    assert state_of(trainer) == before
    handle.remove()
    assert trainer.step().metrics["grpo/skipped"] == 0


def test_one_bad_minibatch_of_two_costs_only_itself() -> None:
    # One board of the 48 has values that are not finite.
    values = ARRAYS.values.copy()
    values[0] = np.nan
    config = CONFIG.model_copy(update={"states_per_step": 48, "num_minibatches": 8})
    trainer = trainer_of(config, arrays=with_values(values))
    before = weights_hash(trainer.policy)
    record = trainer.step()
    assert record.metrics["grpo/skipped"] == 1
    assert math.isfinite(record.metrics["grpo/loss"])
    assert weights_hash(trainer.policy) != before


def test_after_so_many_bad_steps_in_a_row_it_stops_with_the_weights_before_them() -> None:
    config = CONFIG.model_copy(update={"num_minibatches": 1, "max_skipped_steps": 3})
    trainer = trainer_with_nan_at(1, 2, 3, 4, config=config)
    steps(trainer, 1)
    before = state_of(trainer)
    steps(trainer, 2)
    with pytest.raises(NonFiniteError, match="step 3: loss or gradient not finite 3 times in a row"):
        trainer.step()
    assert state_of(trainer) == before


def test_the_minibatches_of_a_rollout_count_one_by_one() -> None:
    config = CONFIG.model_copy(update={"num_minibatches": 4, "max_skipped_steps": 3})
    with pytest.raises(NonFiniteError, match="3 times in a row"):
        trainer_with_nan_at(0, config=config).step()
    assert trainer_with_nan_at(0, config=config.model_copy(update={"max_skipped_steps": 5})).step().metrics["grpo/skipped"] == 4


def test_one_bad_step_is_enough_when_one_is_the_limit_even_if_it_is_the_very_first() -> None:
    trainer = trainer_with_nan_at(0, config=CONFIG.model_copy(update={"max_skipped_steps": 1}))
    before = state_of(trainer)
    with pytest.raises(NonFiniteError, match="step 0: loss or gradient not finite 1 times in a row"):
        trainer.step()
    assert state_of(trainer) == before


def test_a_good_step_in_between_begins_the_count_anew() -> None:
    config = CONFIG.model_copy(update={"num_minibatches": 1, "max_skipped_steps": 2})
    trainer = trainer_with_nan_at(0, 2, 4, 6, config=config)
    assert [record.metrics["grpo/skipped"] for record in steps(trainer, 8)] == [1, 0] * 4


def test_the_count_of_bad_steps_goes_on_in_a_resumed_run(tmp_path: Path) -> None:
    # Otherwise a run that is resumed often enough skips for ever, and resumed is not as if never stopped.
    config = CONFIG.model_copy(update={"num_minibatches": 1, "max_skipped_steps": 3})
    first = trainer_with_nan_at(1, 2, 3, config=config)
    steps(first, 3)
    folder = save_checkpoint(tmp_path, first.policy, TINY, first.state({}))
    policy, _, state = load_checkpoint(folder, CPU)
    second = trainer_with_nan_at(1, 2, 3, config=config, policy=policy)
    second.restore(state)
    with pytest.raises(NonFiniteError):
        second.step()


def test_weights_that_are_not_finite_end_training_with_an_error_of_its_own() -> None:
    policy = lively_policy()
    with torch.no_grad():
        policy.network.norm.weight[0] = math.nan
    with pytest.raises((NonFiniteError, InvariantError)):
        trainer_of(policy=policy).step()


# It climbs where it should, and nowhere else.


@pytest.mark.parametrize("reward", [0.0, 0.5, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("group_size", [2, 7, 16])
def test_constant_rewards_move_no_weight(reward: float, group_size: int) -> None:
    config = CONFIG.model_copy(update={"entropy_coefficient": 0.0, "group_size": group_size})
    trainer = trainer_of(config, arrays=with_values(np.full_like(ARRAYS.values, reward)))
    before = weights_hash(trainer.policy)
    record = trainer.step()
    assert record.metrics["grpo/silent_groups"] == 1
    assert record.metrics["grpo/gradient_norm"] == 0
    assert weights_hash(trainer.policy) == before


def test_rewards_that_differ_do_move_the_weights() -> None:
    trainer = trainer_of(CONFIG.model_copy(update={"entropy_coefficient": 0.0}))
    before = weights_hash(trainer.policy)
    assert trainer.step().metrics["grpo/gradient_norm"] > 0
    assert weights_hash(trainer.policy) != before


@pytest.mark.parametrize("num_frozen", [0, 1, 2])
def test_frozen_parts_stay_as_they_were_and_all_others_move(num_frozen: int) -> None:
    config = TINY.model_copy(update={"num_blocks": 2})
    policy = new_policy(config, seed=0, device=CPU)
    policy.network.freeze(num_frozen)
    before = {name: parameter.clone() for name, parameter in policy.network.named_parameters()}
    with_promotions = fake_arrays([*BOARDS[:15], chess.Board("8/P6k/8/8/8/8/8/K7 w - - 0 1")])
    steps(trainer_of(policy=policy, reference=new_policy(config, seed=0, device=CPU), arrays=with_promotions), 3)
    frozen = ["piece_embedding.", "square_embedding", "side_projection.", *(f"blocks.{index}." for index in range(num_frozen))]
    for name, parameter in policy.network.named_parameters():
        is_frozen = bool(num_frozen) and name.startswith(tuple(frozen))
        assert torch.equal(parameter, before[name]) is is_frozen, name


def test_frozen_parts_do_not_stop_a_run_from_going_on_bit_for_bit(tmp_path: Path) -> None:
    def frozen(policy: NetworkPolicy) -> NetworkPolicy:
        policy.network.freeze(1)
        return policy

    whole, first = trainer_of(policy=frozen(lively_policy())), trainer_of(policy=frozen(lively_policy()))
    records = steps(whole, 4)
    assert steps(first, 2) == records[:2]
    folder = save_checkpoint(tmp_path, first.policy, TINY, first.state({}))
    policy, _, state = load_checkpoint(folder, CPU)
    second = trainer_of(policy=frozen(policy))
    second.restore(state)
    assert steps(second, 2) == records[2:]
    assert weights_hash(second.policy) == weights_hash(whole.policy)


FEW = fake_arrays(some_boards(4, seed=3))
FEW_VALUES, FEW_LEGAL = torch.from_numpy(FEW.values), torch.from_numpy(FEW.is_legal)


def few(config: dict[str, Any], policy: NetworkPolicy) -> GrpoTrainer:
    """Return a trainer that sees the same four boards at each step."""
    settings = GrpoConfig(**{"states_per_step": 4, "num_minibatches": 1, "learning_rate": 3e-3, **config})
    return trainer_of(settings, policy=policy, reference=new_policy(TINY, seed=0, device=CPU), arrays=FEW)


def few_now(policy: NetworkPolicy) -> MoveDistribution:
    """Return the policy on the four boards."""
    return policy.distribution(PositionBatch.from_arrays(FEW), temperature=1.0).detach()


def test_it_raises_the_expected_value_up_to_the_best_moves() -> None:
    policy = new_policy(TINY, seed=0, device=CPU)
    before = few_now(policy).expectation(FEW_VALUES)
    steps(few({"group_size": 16, "entropy_coefficient": 0.0}, policy), 100)
    after = few_now(policy).expectation(FEW_VALUES)
    assert (after > before + 0.2).all()
    assert (FEW_VALUES.max(1).values - after).mean() < 0.1, f"{before} -> {after}"


def test_with_the_sign_of_the_values_turned_it_goes_the_other_way() -> None:
    policy = new_policy(TINY, seed=0, device=CPU)
    before = few_now(policy).expectation(FEW_VALUES)
    config = GrpoConfig(states_per_step=4, num_minibatches=1, learning_rate=3e-3, entropy_coefficient=0.0)
    steps(trainer_of(config, policy=policy, arrays=with_values(1 - FEW.values, FEW)), 60)
    assert (few_now(policy).expectation(FEW_VALUES) < before - 0.2).all()


@pytest.mark.parametrize("begins", ["flat", "sharp"])
def test_with_large_groups_it_ends_near_the_exact_optimum_of_value_plus_entropy(begins: str) -> None:
    # Maximise sum p Q + alpha H(p): p = softmax(Q / alpha). The group's mean as baseline makes it (1 - 1/64) Q: within the tolerance.
    alpha = 0.25
    policy = new_policy(TINY, seed=0, device=CPU)
    if begins == "sharp":
        sharpened(policy, 12)
    optimum = MoveDistribution.from_logits(FEW_VALUES, FEW_LEGAL, temperature=alpha)
    start = few_now(policy)
    gap = (optimum.entropy() - start.entropy()).mean().item()
    assert gap > 0.3 if begins == "sharp" else gap < -0.2
    trainer = few({"group_size": 64, "entropy_coefficient": alpha, "learning_rate": 1e-2}, policy)
    steps(trainer, 200)
    # The last steps' average, since each single one still sways with its sample.
    probs, entropies = [], []
    for _ in range(50):
        steps(trainer, 1)
        now = few_now(policy)
        probs.append(now.probs)
        entropies.append(now.entropy())
    distance = (torch.stack(probs).mean(0) - optimum.probs).abs().sum(1) / 2
    at_start = (start.probs - optimum.probs).abs().sum(1) / 2
    assert distance.max() < 0.08, f"total variation {distance} from {at_start}"
    assert at_start.min() > 0.15
    assert (torch.stack(entropies).mean(0) - optimum.entropy()).abs().max() < 0.06


def test_a_divergence_coefficient_holds_the_policy_near_its_reference() -> None:
    held, free = (new_policy(TINY, seed=0, device=CPU) for _ in range(2))
    start = few_now(held)
    for policy, coefficient in ((held, 1.0), (free, 0.0)):
        steps(few({"group_size": 16, "entropy_coefficient": 0.0, "kl_coefficient": coefficient}, policy), 60)
    assert few_now(held).kl_to(start).mean() < 0.1 < 0.5 < few_now(free).kl_to(start).mean()


# The critical stop.


def test_a_collapse_is_noticed_as_soon_as_the_window_is_full_of_it() -> None:
    config = CONFIG.model_copy(update={"critical_entropy": 0.2, "critical_window": 3})
    policy = lively_policy()
    trainer = trainer_of(config, policy=policy)
    stops = [trainer.entropy_stop.observe(trainer.step().metrics["grpo/entropy"]) for _ in range(3)]
    sharpened(policy, 1_000)
    entropies = []
    for _ in range(5):
        entropies.append(trainer.step().metrics["grpo/entropy"])
        stops.append(trainer.entropy_stop.observe(entropies[-1]))
    assert max(entropies) < 0.2
    assert stops == [False] * 5 + [True] * 3


def test_a_raised_temperature_does_not_hide_a_collapse() -> None:
    policy = sharpened(lively_policy(), 10)
    stopped = []
    for temperature in (1.0, 20.0):
        config = CONFIG.model_copy(
            update={"temperature": temperature, "critical_entropy": 0.5, "critical_window": 1, "learning_rate": 1e-9}
        )
        trainer = trainer_of(config, policy=copied(policy))
        stopped.append(trainer.entropy_stop.observe(trainer.step().metrics["grpo/entropy"]))
    assert stopped == [True, True]
    hot = policy.distribution(PositionBatch.from_arrays(ARRAYS), temperature=20.0).entropy().mean()
    assert hot > 2.5, "at the temperature of the rollout all looks well"
