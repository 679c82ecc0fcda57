"""Imitate the moves played until the validation loss stops falling."""

from pathlib import Path
from typing import Final

import torch

from grpo.base.files import write_json
from grpo.dataset.labels import label_arrays
from grpo.dataset.table import Split, board_arrays
from grpo.learning.checkpoints import save_policy, weights_hash
from grpo.learning.imitation import ImitationResult, imitate
from grpo.policy.distribution import new_policy
from grpo.settings.tree import Settings
from steps.step_io.dataset import read_boards, read_game_table
from steps.step_io.names import REPORT
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work

SPEC: Final = StepSpec(
    name="pretrain",
    body=__name__,
    reads="pretrain",
    inputs=("boards", "device"),
    shown=("imitation/validation_loss", "imitation/top1", "imitation/entropy"),
    axis="step",
    published=(REPORT,),
)


def pretrain_policy(settings: Settings, boards: Path, device: torch.device, work: Work) -> None:
    """Write the policy with the lowest validation loss, and how imitation ended."""
    table = read_boards(boards)
    train = label_arrays(table, read_game_table(boards), max_positions=settings.pretrain.max_positions)
    validation = board_arrays(table, split=Split.VALIDATION)
    policy = new_policy(settings.policy, seed=settings.seed, device=device)
    for outcome in imitate(policy, train, validation, settings.pretrain, seed=settings.seed):
        if isinstance(outcome, ImitationResult):
            result = outcome
        else:
            work.record(outcome)
            work.progress(outcome.step, settings.pretrain.max_steps, "steps at most")
    save_policy(work.folder, policy, settings.policy)
    write_json(
        work.folder / REPORT,
        {
            "num_positions": len(train),
            "num_steps": result.num_steps,
            "has_converged": result.has_converged,
            "best_step": result.best.step,
            "weights": weights_hash(policy),
            **{name.removeprefix("imitation/"): value for name, value in result.best.metrics.items()},
        },
    )
