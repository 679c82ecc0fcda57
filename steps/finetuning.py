"""Fine-tune the policy by GRPO, with checkpoints measured on held-out boards, until the steps are done or entropy is critical."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from grpo.boards import Split, board_arrays
from grpo.checkpoints import load_checkpoint, load_policy, save_checkpoint, weights_hash
from grpo.config import Settings
from grpo.content import write_json
from grpo.metrics import Record
from grpo.regret import heldout_metrics
from grpo.rollouts import DatasetStates
from grpo.training import GrpoTrainer
from steps.boards import read_boards
from steps.work import Work

REPORT: Final = "report.json"
CHECKPOINTS: Final = "checkpoints"

BUDGET_SPENT: Final = "budget_spent"
ENTROPY_CRITICAL: Final = "entropy_critical"


def finetune_policy(
    settings: Settings,
    *,
    boards: Path,
    pretrained: Path,
    checkpoint: Path | None,
    facts: Mapping[str, Any],
    device: torch.device,
    work: Work,
) -> None:
    """Write checkpoints, history, and why training ended.

    Args:
        settings: the run's.
        boards: folder of the joined dataset.
        pretrained: folder of the pretrained policy: the frozen reference, and the start unless there is a checkpoint.
        checkpoint: where to go on from, for as many steps again as the settings say; its optimiser state is taken up.
        facts: written into each checkpoint: where it comes from.
        device: to train on.
        work: the folder to fill, and the sinks.
    """
    config = settings.grpo
    table = read_boards(boards)
    train = board_arrays(table, split=Split.TRAIN)
    heldout = board_arrays(table, split=Split.HELDOUT, strong=True)
    reference, _ = load_policy(pretrained, device)
    if checkpoint is None:
        (policy, policy_config), state = load_policy(pretrained, device), None
    else:
        policy, policy_config, state = load_checkpoint(checkpoint, device)
    policy.network.freeze(settings.policy.num_frozen_blocks)
    states = DatasetStates(train, states_per_step=config.states_per_step, seed=settings.seed)
    trainer = GrpoTrainer(policy, reference, states, config, seed=settings.seed)
    if state is not None:
        trainer.restore(state)
    first = trainer.num_steps_done
    work.record(Record(first, heldout_metrics(policy, heldout)))
    reason = BUDGET_SPENT
    while reason == BUDGET_SPENT and trainer.num_steps_done < first + config.num_steps:
        record = trainer.step()
        if trainer.entropy_stop.observe(record.metrics["grpo/entropy"]):
            reason = ENTROPY_CRITICAL
        is_last = reason == ENTROPY_CRITICAL or record.step == first + config.num_steps
        if is_last or (record.step - first) % config.steps_per_checkpoint == 0:
            record = Record(record.step, {**record.metrics, **heldout_metrics(policy, heldout)})
            save_checkpoint(work.folder / CHECKPOINTS, policy, policy_config, trainer.state(facts))
        work.record(record)
        work.progress(record.step - first, config.num_steps, "steps")
    write_json(
        work.folder / REPORT,
        {
            "reason": reason,
            "first_step": first,
            "last_step": trainer.num_steps_done,
            "mean_entropy_at_end": trainer.entropy_stop.mean(),
            "weights": weights_hash(policy),
        },
    )
