"""Histories of GRPO runs, made by our own trainer: healthy ones, and every past failure on purpose, its guard being off."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import torch
from doubles import CPU
from torch import Tensor, nn

from grpo.base.errors import NonFiniteError
from grpo.board.encoding import decode, position_key
from grpo.control.controller import Action
from grpo.dataset.table import BoardArrays, Split, board_arrays
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.evaluation.regret import heldout_metrics
from grpo.learning import trainer as training
from grpo.learning.checkpoints import load_policy, save_policy
from grpo.learning.imitation import imitate
from grpo.learning.objective import Moves, Objective, grpo_objective, logit_descents
from grpo.learning.rollouts import Roller, Rollout
from grpo.learning.self_play import MixedStates, SelfPlay, state_counts
from grpo.learning.states import DatasetStates, LiveValues, States, StateSource
from grpo.learning.trainer import GrpoTrainer
from grpo.metrics.table import Record
from grpo.policy.distribution import MoveDistribution, NetworkPolicy, Policy, new_policy
from grpo.settings.grpo import GrpoConfig
from grpo.settings.tree import Settings, read_settings
from steps.cli import main as console
from steps.runtime.machine import Machine
from steps.step_io.names import BOARDS

Change = Callable[[States, int], States]
"""What a fault makes of the states of a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One kind of run."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of `[grpo]`, laid over the preset's and the size that all runs have."""
    fault: Callable[[GrpoTrainer], Any] | None = None
    """A context in which the run goes on with its guard off."""
    states: Change | None = None
    """A fault in what states come with."""
    network: str = "small"
    """Which of the lab's policies."""
    num_steps: int = 60
    shows: str = "healthy"
    """What the diagnosis must call it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """What all runs have in common."""

    train: BoardArrays
    heldout: BoardArrays
    policy: Callable[[str], NetworkPolicy]
    """Gives the pretrained policy of a network."""
    engine: str = ""
    """Where Stockfish is, for own games."""


class _Changed:
    """A source of states that changes what another gives."""

    def __init__(self, source: StateSource, change: Change) -> None:
        self._source, self._change = source, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def states(self, step: int, policy: Policy) -> States:
        """Return the changed states of a step."""
        return self._change(self._source.states(step, policy), step)


@contextmanager
def unguarded(*_: Any) -> Iterator[None]:
    """Switch off what would refuse the first update."""
    with mock.patch.object(training, "assert_on_policy"), mock.patch.object(training, "assert_rollout"):
        yield


@contextmanager
def _sampler(fault: Callable[[Rollout], Rollout], factor: float = 1.0) -> Iterator[None]:
    original = Roller.rollout

    def rollout(self: Roller, policy: Policy, *args: Any, temperature: float, **rest: Any) -> Rollout:
        made = original(self, policy, *args, temperature=temperature * factor, **rest)
        return fault(replace(made, temperature=temperature))

    with unguarded(), mock.patch.object(Roller, "rollout", rollout):
        yield


def sampled_hotter(_: GrpoTrainer) -> Any:
    """Sample at T = 1.3 and score at T = 1 (run feb05_clean_run)."""
    return _sampler(lambda rollout: rollout, 1.3)


def sampled_cooler(_: GrpoTrainer) -> Any:
    """Sample at T = 0.7 and score at T = 1."""
    return _sampler(lambda rollout: rollout, 0.7)


def moves_of_the_next_state(_: GrpoTrainer) -> Any:
    """Swap the index of the group: each state has the moves of its neighbour."""

    def fault(rollout: Rollout) -> Rollout:
        columns = torch.minimum(rollout.moves.columns.roll(1, 0), rollout.old.num_legal()[:, None] - 1)
        return replace(rollout, moves=replace(rollout.moves, columns=columns))

    return _sampler(fault)


def advantages_of_the_next_state(_: GrpoTrainer) -> Any:
    """Swap the index of the group: each state learns from its neighbour's advantages, with every ratio 1."""

    def fault(rollout: Rollout) -> Rollout:
        return replace(rollout, moves=replace(rollout.moves, advantages=rollout.moves.advantages.roll(1, 0)))

    return _sampler(fault)


class _WithDropout(nn.Module):
    """The network with a dropout layer over its logits."""

    def __init__(self, network: nn.Module, probability: float) -> None:
        super().__init__()
        self.network = network
        self.dropout = nn.Dropout(probability)

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.dropout(self.network(*inputs))
        return logits


@contextmanager
def dropping_out(trainer: GrpoTrainer) -> Iterator[None]:
    """Let a dropout layer of 0.1 work in sampling and in the loss."""
    network = _WithDropout(trainer.policy.network, 0.1)
    network.eval()
    network.dropout.train()
    torch.manual_seed(0)
    with unguarded(), mock.patch.object(trainer.policy, "_forward", network):
        yield


@contextmanager
def k1_in_the_loss(_: GrpoTrainer) -> Iterator[None]:
    """Put k1 into the loss, with an equal bonus on mean log-probability (run feb04_loss_budget)."""
    coefficient = 0.1

    def loss_budget(*, new: MoveDistribution, moves: Moves, **rest: Any) -> Objective:
        honest = grpo_objective(new=new, moves=moves, **rest)
        mean_log_prob = (moves.weights * new.log_prob(moves.columns)).sum(1)
        k1 = (moves.weights * moves.old_log_probs).sum(1) - mean_log_prob
        weighted = {**honest.weighted, "entropy": coefficient * mean_log_prob, "reference_kl": coefficient * k1}
        raw = {**honest.raw, "entropy": -mean_log_prob, "reference_kl": k1}
        return replace(honest, raw=raw, weighted=weighted, loss=torch.stack(list(weighted.values())).sum(0))

    def descents(*, new: MoveDistribution, moves: Moves, temperature: float, **rest: Any) -> dict[str, Tensor]:
        drawn = torch.zeros_like(new.probs).scatter_add_(1, moves.columns, moves.weights)
        push = coefficient * (drawn - new.probs).detach() / temperature
        return {**logit_descents(new=new, moves=moves, temperature=temperature, **rest), "entropy": -push, "reference_kl": push}

    with mock.patch.object(training, "grpo_objective", loss_budget), mock.patch.object(training, "logit_descents", descents):
        yield


def nearly_constant(states: States, step: int) -> States:
    """Leave one ten-thousandth of what tells moves apart."""
    return replace(states, values=0.5 + 1e-4 * (states.values - 0.5))


def failed_as_zero(share: float) -> Change:
    """Return the change by which a failed search of a move is the value 0."""

    def change(states: States, step: int) -> States:
        rng = torch.Generator().manual_seed(step)
        return replace(states, values=states.values.masked_fill(torch.rand(states.values.shape, generator=rng) < share, 0.0))

    return change


def failed_boards_as_zero(share: float) -> Change:
    """Return the change by which a board on which the engine failed has the value 0 for every move."""

    def change(states: States, step: int) -> States:
        rng = torch.Generator().manual_seed(step)
        failed = torch.rand(len(states), 1, generator=rng) < share
        return replace(states, values=states.values.masked_fill(failed, 0.0))

    return change


def worth_the_same(states: States, step: int) -> States:
    """Make all moves of nearly every board worth the same: rewards that know only won and lost."""
    return replace(states, values=(states.values > 0.9).float() * (states.values.amax(1, keepdim=True) > 0.995))


def sometimes_nan(states: States, step: int) -> States:
    """Lose the values of every fifth step."""
    return replace(states, values=states.values * math.nan) if step % 5 == 2 else states


NETWORKS: Final = {"small": "test", "large": "smoke"}
"""Name -> preset whose network it is."""
SIZE: Final[Mapping[str, Any]] = {"states_per_step": 128, "steps_per_checkpoint": 20, "group_size": 16, "critical_entropy": 0.2}
GIVEN: Final[Mapping[str, Any]] = {"self_play": {"fraction": 0.0}}
"""Boards of the dataset alone; all else as by default."""
CONSTANT: Final = {**GIVEN, "entropy_schedule": "constant", "learning_rate_decay": "constant"}
ONE_STEP: Final = {"num_minibatches": 1}
NEVER: Final = {"critical_entropy": 0.0, "alarms": {"max_silent_windows": 1_000_000}, "max_skipped_steps": 1_000_000}
"""Nothing stops the run."""
COLLAPSING: Final = {
    **CONSTANT,
    **NEVER,
    "entropy_coefficient": 0.0,
    "kl_coefficient": 0.0,  # The default's pull to the imitated policy keeps 1.6 nats at any learning rate.
    "learning_rate": 1e-2,
    "weight_averaging": 0.0,
}
CLEAN: Final = {
    **CONSTANT,
    **ONE_STEP,
    "temperature": 1.3,
    "learning_rate": 1e-4,
    "entropy_coefficient": 0.0,
    "kl_coefficient": 0.00025,
    "critical_entropy": 0.0,
    "clip_high": 0.2,
    "max_kl_old": 0.0,
    "mirrors_boards": False,
    "weight_averaging": 0.0,
}
"""Preset `clean`, with groups of one step and a learning rate that shows something in few of them."""
STALE: Final = {"learning_rate": 3e-3, "num_minibatches": 4, "num_inner_epochs": 8, "max_kl_old": 0.0, "critical_entropy": 0.0}
OUT_OF_REACH: Final = {"fraction": 0.95, "min_coefficient": 0.005, "max_coefficient": 0.006}
FAR_TOO_NEAR: Final = {"nats": 0.001, "min_coefficient": 1e-4, "max_coefficient": 2.01e-4}

HEALTHY: Final[Mapping[str, Case]] = {
    "smoke": Case(network="large"),
    "smoke-no-games": Case(settings=GIVEN),
    "default-like": Case(network="large", settings={**GIVEN, "steps_per_checkpoint": 30}, num_steps=90),
    "exact": Case(settings={**GIVEN, "estimator": "exact"}),
    "one-step": Case(settings={**CONSTANT, **ONE_STEP}),
    "by-std": Case(settings={**CONSTANT, "divide_by_std": True, "learning_rate": 2.5e-4}),
    "anchored": Case(settings={**GIVEN, "kl_coefficient": 0.003}),
    "hot": Case(settings={**GIVEN, "temperature": 1.3}),
    "clean-like": Case(settings=CLEAN),
    "test": Case(settings={**GIVEN, "states_per_step": 64, "group_size": 8, "critical_entropy": 0.01}, num_steps=6),
}

FAILED: Final[Mapping[str, Case]] = {
    "temperature": Case(settings={**CONSTANT, **ONE_STEP}, fault=sampled_hotter, shows="temperature_mismatch"),
    "temperature-two-updates": Case(settings=GIVEN, fault=sampled_hotter, shows="temperature_mismatch"),
    "temperature-cool": Case(settings={**CONSTANT, **ONE_STEP}, fault=sampled_cooler, shows="temperature_mismatch"),
    "dropout": Case(
        settings={**CONSTANT, **ONE_STEP, "weight_averaging": 0.0, "max_kl_old": 0.0}, fault=dropping_out, shows="temperature_mismatch"
    ),
    "k1-and-bonus": Case(
        settings={**CONSTANT, "entropy_coefficient": 0.1, "kl_coefficient": 0.1}, fault=k1_in_the_loss, shows="cancelling_terms"
    ),
    "std-of-constant": Case(
        settings={**CONSTANT, "divide_by_std": True, "std_floor": 1e-9}, states=nearly_constant, shows="exploding_advantages"
    ),
    "failure-as-zero": Case(settings=GIVEN, states=failed_as_zero(0.2), shows="failed_values"),
    "failed-boards-as-zero": Case(settings=GIVEN, states=failed_boards_as_zero(0.3), shows="failed_values"),
    "swapped-moves": Case(settings={**CONSTANT, **ONE_STEP, "max_kl_old": 0.0}, fault=moves_of_the_next_state, shows="wrong_gradient"),
    "swapped-advantages": Case(settings=GIVEN, fault=advantages_of_the_next_state, shows="wrong_gradient"),
    "collapse": Case(settings=COLLAPSING, num_steps=90, shows="entropy_collapse"),
    "collapse-by-std": Case(settings={**COLLAPSING, "learning_rate": 3e-3, "divide_by_std": True}, num_steps=90, shows="entropy_collapse"),
    "silent": Case(settings={**GIVEN, **NEVER}, states=worth_the_same, shows="silent_groups"),
    "saturated": Case(settings={**GIVEN, "entropy_coefficient": 0.0055, "entropy_target": OUT_OF_REACH}, shows="saturated_controller"),
    "saturated-kl": Case(
        settings={**CONSTANT, "kl_coefficient": 2e-4, "kl_schedule": "target", "kl_target": FAR_TOO_NEAR}, shows="saturated_controller"
    ),
    "nan": Case(settings={**GIVEN, **NEVER, "skipped_learning_rate_factor": 1.0}, states=sometimes_nan, shows="nan_steps"),
    "stale": Case(settings={**CONSTANT, **STALE}, shows="stale_policy"),
    "strong-anchor": Case(settings={**CONSTANT, "kl_coefficient": 1_000.0}, shows="loss_budget"),
    "strong-entropy": Case(settings={**CONSTANT, "entropy_coefficient": 1_000.0}, shows="loss_budget"),
    "no-learning": Case(settings={**CONSTANT, "learning_rate": 1e-8, "steps_per_checkpoint": 40}, num_steps=120, shows="flat_reward"),
}
SEEDS: Final = (0, 1, 2)


def settings_of(case: Case, *, seed: int, **size: Any) -> Settings:
    """Return the settings of a run; `size` is laid over all."""
    base = read_settings(f'preset = "{NETWORKS[case.network]}"\nseed = {seed}')
    given = {**SIZE, "num_steps": case.num_steps, **case.settings, **size}
    nested = {name: {**value.model_dump(), **given[name]} for name, value in base.grpo if isinstance(given.get(name), dict)}
    return base.model_copy(update={"grpo": GrpoConfig(**{**base.grpo.model_dump(), **given, **nested})})


def history_of(lab: Lab, case: Case, *, seed: int, **size: Any) -> list[Record]:
    """Return the records that the training loop would keep of this run, the held-out measurements included."""
    settings = settings_of(case, seed=seed, **size)
    config = settings.grpo
    with ExitStack() as stack:
        states = _states(lab, settings, stack)
        if case.states is not None:
            states = _Changed(states, case.states)  # type: ignore[assignment]
        trainer = GrpoTrainer(lab.policy(case.network), lab.policy(case.network), states, config, seed=seed)
        records = [Record(0, heldout_metrics(trainer.evaluation_policy, lab.heldout))]
        if case.fault is not None:
            stack.enter_context(case.fault(trainer))
        is_over = False
        while not is_over:
            try:
                record = trainer.step()
            except NonFiniteError:
                break
            is_over = trainer.outcome.action == Action.STOP or record.step == config.num_steps
            if is_over or record.step % config.steps_per_checkpoint == 0:
                record = replace(record, metrics={**record.metrics, **heldout_metrics(trainer.evaluation_policy, lab.heldout)})
            records.append(record)
    return records


def _states(lab: Lab, settings: Settings, stack: ExitStack) -> StateSource:
    config = settings.grpo
    num_dataset, num_own = state_counts(config.states_per_step, config.self_play.fraction)
    dataset = DatasetStates(lab.train, states_per_step=num_dataset, seed=settings.seed, mirrors_boards=config.mirrors_boards)
    if not num_own:
        return dataset
    pool = stack.enter_context(EnginePool(lab.engine, num_processes=1, options=engine_options(settings.values)))
    judged = frozenset(position_key(decode(row)) for row in lab.heldout.encodings)
    own = SelfPlay(
        LiveValues(pool, settings.values),
        config.self_play,
        states_per_step=num_own,
        first_step=0,
        seed=settings.seed,
        mirrors_boards=config.mirrors_boards,
        exclude=judged,
    )
    return MixedStates(dataset, own)


def noisy(records: Sequence[Record], column: str, *, seed: int) -> list[Record]:
    """Return the records with noise of 5 % on one metric: each value is multiplied by 1 plus a normal number of that deviation."""
    rng = np.random.default_rng(seed)
    factors = 1 + 0.05 * rng.standard_normal(len(records))
    return [
        replace(record, metrics={**record.metrics, column: record.metrics[column] * factor}) if column in record.metrics else record
        for record, factor in zip(records, factors.tolist(), strict=True)
    ]


def lab_in(folder: Path, *, num_train: int = 3_000, num_heldout: int = 200) -> Lab:
    """Return the lab in a folder; boards (those of preset `smoke`) are valued, and policies pretrained, if they are not there yet."""
    boards = folder / "boards"
    if not boards.exists():
        assert console.main(["boards", "build", str(boards), "--config", "smoke"]) == 0
    table = pq.read_table(boards / BOARDS)
    train, validation = (board_arrays(table, split=split) for split in (Split.TRAIN, Split.VALIDATION))
    for name, preset in NETWORKS.items():
        pretrained = folder / f"pretrained-{name}"
        if not pretrained.exists():
            settings = read_settings(f'preset = "{preset}"\npretrain.max_steps = 600\npretrain.batch_size = 128')
            policy = new_policy(settings.policy, seed=0, device=CPU)
            for _ in imitate(policy, train, _first(validation, 200), settings.pretrain, seed=0):
                pass
            pretrained.mkdir(parents=True)
            save_policy(pretrained, policy, settings.policy)
    return Lab(
        train=_first(train, num_train),
        heldout=_first(board_arrays(table, split=Split.HELDOUT, strong=True), num_heldout),
        policy=lambda name: load_policy(folder / f"pretrained-{name}", CPU)[0],
        engine=Machine.here().stockfish,
    )


def _first(arrays: BoardArrays, count: int) -> BoardArrays:
    return BoardArrays(**{name: getattr(arrays, name)[:count] for name in (field.name for field in fields(BoardArrays))})
