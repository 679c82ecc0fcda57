"""Fine-tune the policy by GRPO, with checkpoints measured on held-out boards, until the steps are done or the trainer ends it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from grpo.board.encoding import decode, position_key
from grpo.dataset.table import BoardArrays, Split, board_arrays
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.evaluation.regret import heldout_metrics
from grpo.learning.checkpoints import NETWORK_FORMAT, load_checkpoint, load_policy
from grpo.learning.self_play import MixedStates, SelfPlay, state_counts
from grpo.learning.states import DatasetStates, LiveValues, StateSource
from grpo.learning.trainer import GrpoTrainer
from grpo.policy.network import PolicyNetwork
from grpo.settings.tree import Settings
from steps.bodies.training_loop import TrainingLoop
from steps.step_io.dataset import read_boards
from steps.step_io.names import FINDINGS, LEARNABILITY, REPORT
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work

SPEC: Final = StepSpec(
    name="finetune",
    body=__name__,
    reads="finetune",
    inputs=("boards", "pretrained", "checkpoint", "engine", "device"),
    shown=("heldout/regret_best", "heldout/regret_sampled", "heldout/entropy"),
    axis="step",
    published=(REPORT, LEARNABILITY, FINDINGS),
    resumes=True,
)


def finetune_policy(
    settings: Settings,
    *,
    boards: Path,
    pretrained: Path,
    checkpoint: Path | None,
    facts: Mapping[str, Any],
    engine_path: str,
    num_processes: int,
    device: torch.device,
    work: Work,
    on_assessed: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Write checkpoints, history, and why training ended; after a kill, resume.

    Args:
        settings: the run's.
        boards: folder of the joined dataset.
        pretrained: folder of the pretrained policy: the frozen reference, and the start unless there is a checkpoint.
        checkpoint: to resume from, for as many steps again as the settings say, with its optimiser state.
        facts: written into each checkpoint: where it comes from.
        engine_path: what values states that no dataset has; asked for only where the settings need it.
        num_processes: how many of it.
        device: to train on.
        work: the folder to fill, the folder in which to keep what a kill must not take, and the sinks.
        on_assessed: called with what was found before the first update.
    """
    config = settings.grpo
    table = read_boards(boards)
    train = board_arrays(table, split=Split.TRAIN)
    heldout = board_arrays(table, split=Split.HELDOUT, strong=True)
    reference, _ = load_policy(pretrained, device)
    if checkpoint is None:
        (policy, policy_config), origin = load_policy(pretrained, device), None
    else:
        policy, policy_config, origin = load_checkpoint(checkpoint, device, NETWORK_FORMAT)
    assert isinstance(policy.network, PolicyNetwork)
    if settings.policy.freezes_embeddings:
        policy.network.freeze_embeddings()
    first = 0 if origin is None else origin.step
    # The engine starts when it is first asked, and is asked only of states that no dataset has.
    with EnginePool(engine_path, num_processes=num_processes, options=engine_options(settings.values)) as pool:
        values = LiveValues(pool, settings.values)
        trainer = GrpoTrainer(
            policy,
            reference,
            _states(settings, train, heldout, values, first=first, say=work.say),
            config,
            seed=settings.seed,
            first_step=first,
            values=values,
        )
        if origin is not None:
            trainer.begin_from(origin)
        TrainingLoop(
            trainer,
            policy_config,
            NETWORK_FORMAT,
            config,
            first=first,
            heldout=lambda: heldout_metrics(trainer.evaluation_policy, heldout),
            facts=facts,
            work=work,
            on_assessed=on_assessed,
        ).run()


def _states(
    settings: Settings, train: BoardArrays, heldout: BoardArrays, values: LiveValues, *, first: int, say: Callable[[str], None]
) -> StateSource:
    config = settings.grpo
    num_dataset, num_own = state_counts(config.states_per_step, config.self_play.fraction)
    dataset = DatasetStates(train, states_per_step=num_dataset, seed=settings.seed, mirrors_boards=config.mirrors_boards)
    if not num_own:
        return dataset
    # Held-out positions are never learnt from, wherever they come from.
    heldout_keys = frozenset(position_key(decode(row)) for row in heldout.encodings)
    own = SelfPlay(
        values,
        config.self_play,
        states_per_step=num_own,
        first_step=first,
        seed=settings.seed,
        mirrors_boards=config.mirrors_boards,
        exclude=heldout_keys,
        say=say,
    )
    return MixedStates(dataset, own)
