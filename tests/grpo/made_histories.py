"""Histories of GRPO runs, made by our own trainer: healthy ones, and every past failure on purpose, its guard being off.

python tests/grpo/made_histories.py LAB OUT [--only NAME ...]     # boards and a pretrained policy are made in LAB once
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parent))

import pyarrow.parquet as pq
import torch
from doubles import CPU
from torch import Tensor, nn

from grpo import training
from grpo.boards import BoardArrays, Split, board_arrays
from grpo.checkpoints import load_policy, save_policy
from grpo.config import Settings, read_settings
from grpo.control import Action
from grpo.encoding import decode, position_key
from grpo.engine import EnginePool
from grpo.errors import NonFiniteError
from grpo.grpo_config import GrpoConfig
from grpo.imitation import imitate
from grpo.metrics import Record
from grpo.objective import Moves, Objective, grpo_objective, logit_descents
from grpo.own_games import MixedStates, OwnGames, split_of
from grpo.policy import MoveDistribution, NetworkPolicy, Policy, new_policy
from grpo.regret import heldout_metrics
from grpo.rollouts import Roller, Rollout
from grpo.states import DatasetStates, LiveValues, States, StateSource
from grpo.training import GrpoTrainer
from grpo.values import engine_options

Change = Callable[[States, int], States]
"""What a fault makes of the states of a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One kind of run."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of `[grpo]`, laid over the size that all runs have."""
    fault: Callable[[GrpoTrainer], Any] | None = None
    """A context in which the run goes on with its guard off."""
    states: Change | None = None
    network: str = "small"
    """Which of the lab's policies."""
    num_steps: int = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """What all runs have in common."""

    train: BoardArrays
    heldout: BoardArrays
    pretrained: Mapping[str, Path]
    """By name of its network."""
    engine: str
    """Where Stockfish is."""


class _Changed:
    """A source of states that changes what another gives."""

    def __init__(self, source: StateSource, change: Change) -> None:
        self._source, self._change = source, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def states(self, step: int, policy: Policy) -> States:
        """Return the changed states of a step."""
        return self._change(self._source.states(step, policy), step)


# --- faults ---------------------------------------------------------------------------------------------------------------------------


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

    def forward(self, encodings: Tensor, action_ids: Tensor) -> Tensor:
        logits: Tensor = self.dropout(self.network(encodings, action_ids))
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
        weighted = {**honest.weighted, "entropy": coefficient * mean_log_prob, "anchor_kl": coefficient * k1}
        raw = {**honest.raw, "entropy": -mean_log_prob, "anchor_kl": k1}
        return replace(honest, raw=raw, weighted=weighted, loss=torch.stack(list(weighted.values())).sum(0))

    def descents(*, new: MoveDistribution, moves: Moves, temperature: float, **rest: Any) -> dict[str, Tensor]:
        drawn = torch.zeros_like(new.probs).scatter_add_(1, moves.columns, moves.weights)
        push = coefficient * (drawn - new.probs).detach() / temperature
        return {**logit_descents(new=new, moves=moves, temperature=temperature, **rest), "entropy": -push, "anchor_kl": push}

    with mock.patch.object(training, "grpo_objective", loss_budget), mock.patch.object(training, "logit_descents", descents):
        yield


def nearly_constant(states: States, step: int) -> States:  # noqa: ARG001
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


def worth_the_same(states: States, step: int) -> States:  # noqa: ARG001
    """Make all moves of nearly every board worth the same: rewards that know only won and lost."""
    return replace(states, values=(states.values > 0.9).float() * (states.values.amax(1, keepdim=True) > 0.995))


def sometimes_nan(states: States, step: int) -> States:
    """Lose the values of every fifth step."""
    return replace(states, values=states.values * math.nan) if step % 5 == 2 else states


NETWORKS: Final = {"small": "test", "large": "smoke"}
"""Name -> preset whose network it is."""
CONSTANT: Final = {"entropy_schedule": "constant", "learning_rate_decay": "constant", "own_games": {"share": 0.0}}
ONE_STEP: Final = {"num_minibatches": 1}
NEVER: Final = {"critical_entropy": 0.0, "alarms": {"max_silent_windows": 1_000_000}, "max_skipped_steps": 1_000_000}
COLLAPSING: Final = {**CONSTANT, **NEVER, "entropy_coefficient": 0.0, "learning_rate": 1e-2, "weight_averaging": 0.0}

HEALTHY: Final[Mapping[str, Case]] = {
    "smoke": Case(network="large"),
    "smoke-no-games": Case(settings={"own_games": {"share": 0.0}}),
    "default-like": Case(network="large", settings={"num_steps": 90, "steps_per_checkpoint": 30, "own_games": {"share": 0.0}}, num_steps=90),
    "exact": Case(settings={"estimator": "exact", "own_games": {"share": 0.0}}),
    "one-step": Case(settings={**CONSTANT, **ONE_STEP}),
    "by-std": Case(settings={**CONSTANT, "divide_by_std": True, "learning_rate": 2.5e-4}),
    "anchored": Case(settings={"kl_coefficient": 0.003, "own_games": {"share": 0.0}}),
    "hot": Case(settings={"temperature": 1.3, "own_games": {"share": 0.0}}),
    "clean-like": Case(
        settings={
            **CONSTANT, **ONE_STEP, "group_size": 16, "temperature": 1.3, "learning_rate": 1e-4, "entropy_coefficient": 0.0,
            "kl_coefficient": 0.00025, "critical_entropy": 0.0, "clip_high": 0.2, "max_kl_old": 0.0, "reflects": False, "weight_averaging": 0.0,
        }
    ),
    "test": Case(settings={"own_games": {"share": 0.0}, "states_per_step": 64, "group_size": 8, "critical_entropy": 0.01}, num_steps=6),
}  # fmt: skip

FAILED: Final[Mapping[str, Case]] = {
    "temperature": Case(settings={**CONSTANT, **ONE_STEP}, fault=sampled_hotter),
    "temperature-two-updates": Case(fault=sampled_hotter, settings={"own_games": {"share": 0.0}}),
    "temperature-cool": Case(settings={**CONSTANT, **ONE_STEP}, fault=sampled_cooler),
    "dropout": Case(settings={**CONSTANT, **ONE_STEP, "weight_averaging": 0.0, "max_kl_old": 0.0}, fault=dropping_out),
    "k1-and-bonus": Case(settings={**CONSTANT, "entropy_coefficient": 0.1, "kl_coefficient": 0.1}, fault=k1_in_the_loss),
    "std-of-constant": Case(settings={**CONSTANT, "divide_by_std": True, "std_floor": 1e-9}, states=nearly_constant),
    "failure-as-zero": Case(settings={"own_games": {"share": 0.0}}, states=failed_as_zero(0.2)),
    "failed-boards-as-zero": Case(settings={"own_games": {"share": 0.0}}, states=failed_boards_as_zero(0.3)),
    "swapped-moves": Case(settings={**CONSTANT, **ONE_STEP, "max_kl_old": 0.0}, fault=moves_of_the_next_state),
    "swapped-advantages": Case(settings={"own_games": {"share": 0.0}}, fault=advantages_of_the_next_state),
    "collapse": Case(settings=COLLAPSING, num_steps=90),
    "collapse-by-std": Case(settings={**COLLAPSING, "learning_rate": 3e-3, "divide_by_std": True}, num_steps=90),
    "silent": Case(settings={**NEVER, "own_games": {"share": 0.0}}, states=worth_the_same),
    "saturated": Case(
        settings={
            "own_games": {"share": 0.0}, "entropy_coefficient": 0.0055,
            "entropy_target": {"share": 0.95, "min_coefficient": 0.005, "max_coefficient": 0.006},
        }
    ),
    "saturated-kl": Case(
        settings={
            **CONSTANT, "kl_coefficient": 2e-4, "kl_schedule": "target",
            "kl_target": {"nats": 0.001, "min_coefficient": 1e-4, "max_coefficient": 2.01e-4},
        }
    ),
    "nan": Case(settings={"own_games": {"share": 0.0}, "max_skipped_steps": 1_000_000, "skipped_learning_rate_factor": 1.0}, states=sometimes_nan),
    "stale": Case(
        settings={**CONSTANT, "learning_rate": 3e-3, "num_minibatches": 4, "num_inner_epochs": 8, "max_kl_old": 0.0, "critical_entropy": 0.0}
    ),
    "strong-anchor": Case(settings={**CONSTANT, "kl_coefficient": 1_000.0}),
    "strong-entropy": Case(settings={**CONSTANT, "entropy_coefficient": 1_000.0}),
    "no-learning": Case(settings={**CONSTANT, "learning_rate": 1e-8, "steps_per_checkpoint": 40}, num_steps=120),
}  # fmt: skip
SEEDS: Final = (0, 1, 2)


def settings_of(case: Case, *, seed: int) -> Settings:
    """Return the settings of a run."""
    base = read_settings(f'preset = "{NETWORKS[case.network]}"\nseed = {seed}')
    given = {"states_per_step": 128, "steps_per_checkpoint": 20, "group_size": 16, "num_steps": case.num_steps, **case.settings}
    given = {"critical_entropy": 0.2, **given}
    nested = {name: {**value.model_dump(), **given[name]} for name, value in base.grpo if name in given and isinstance(given[name], dict)}
    grpo = GrpoConfig(**{**base.grpo.model_dump(), **given, **nested})
    return base.model_copy(update={"grpo": grpo})


def history_of(lab: Lab, case: Case, *, seed: int) -> list[Record]:
    """Return the records that the training loop would keep of this run, the held-out measurements included."""
    settings = settings_of(case, seed=seed)
    config = settings.grpo
    policy, reference = (load_policy(lab.pretrained[case.network], CPU)[0] for _ in range(2))
    with ExitStack() as stack:
        num_dataset, num_own = split_of(config.states_per_step, config.own_games.share)
        states: StateSource = DatasetStates(lab.train, states_per_step=num_dataset, seed=seed, reflects=config.reflects)
        if num_own:
            pool = stack.enter_context(EnginePool(lab.engine, num_processes=1, options=engine_options(settings.values)))
            judged = frozenset(position_key(decode(row)) for row in lab.heldout.encodings)
            own = OwnGames(
                LiveValues(pool, settings.values), config.own_games, states_per_step=num_own, first_step=0, seed=seed,
                reflects=config.reflects, exclude=judged,
            )  # fmt: skip
            states = MixedStates(states, own)
        if case.states is not None:
            states = _Changed(states, case.states)  # type: ignore[assignment]
        trainer = GrpoTrainer(policy, reference, states, config, seed=seed)
        records = [Record(0, heldout_metrics(trainer.judged, lab.heldout))]
        if case.fault is not None:
            stack.enter_context(case.fault(trainer))
        while len(records) <= config.num_steps:
            try:
                record = trainer.step()
            except NonFiniteError:
                break
            is_over = trainer.outcome.action == Action.STOP or record.step == config.num_steps
            if is_over or record.step % config.steps_per_checkpoint == 0:
                record = replace(record, metrics={**record.metrics, **heldout_metrics(trainer.judged, lab.heldout)})
            records.append(record)
            if is_over:
                break
    return records


def write_history(path: Path, records: Sequence[Record]) -> None:
    """Write one line a record."""
    lines = [
        json.dumps({"step": r.step, "metrics": dict(r.metrics), "events": [[event.name, event.message] for event in r.events]})
        for r in records
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def lab_in(folder: Path, engine: str, num_train: int = 3_000, num_heldout: int = 200) -> Lab:
    """Return the lab in a folder with a dataset of boards; its policies are pretrained there once."""
    table = pq.read_table(folder / "boards" / "boards.parquet")
    train = board_arrays(table, split=Split.TRAIN)
    heldout = board_arrays(table, split=Split.HELDOUT, strong=True)
    policies = {name: folder / f"pretrained-{name}" for name in NETWORKS}
    for name, pretrained in policies.items():
        if not pretrained.exists():
            settings = read_settings(f'preset = "{NETWORKS[name]}"\npretrain.max_steps = 600\npretrain.batch_size = 128')
            validation = _first(board_arrays(table, split=Split.VALIDATION), 200)
            policy = new_policy(settings.policy, seed=0, device=CPU)
            for outcome in imitate(policy, train, validation, settings.pretrain, seed=0):
                pass
            pretrained.mkdir(parents=True)
            save_policy(pretrained, policy, settings.policy)
            print(name, outcome, flush=True)
    return Lab(train=_first(train, num_train), heldout=_first(heldout, num_heldout), pretrained=policies, engine=engine)


def _first(arrays: BoardArrays, count: int) -> BoardArrays:
    return BoardArrays(**{name: getattr(arrays, name)[:count] for name in BoardArrays.__slots__})


def main() -> None:
    """Write what the command line asks for, each history as soon as it is made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*SEEDS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    lab = lab_in(given.lab, "/usr/games/stockfish")
    for seed in given.seeds:
        for folder, cases in (("healthy", HEALTHY), ("failed", FAILED)):
            for name, case in cases.items():
                path = given.out / folder / f"{name}-{seed}.jsonl"
                if (given.only and name not in given.only) or path.exists():
                    continue
                records = history_of(lab, case, seed=seed)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_history(path, records)
                print(path, len(records), flush=True)


if __name__ == "__main__":
    main()
