"""Language models train in one process only: the check that refuses more before any work."""

from grpo.base.errors import PlainError


class SeveralProcessesError(PlainError, RuntimeError):
    """More than one process was requested to train a language model."""


def refuse_several(num_processes: int) -> None:
    """Raise SeveralProcessesError for more than one process, whether on one machine or on several."""
    if num_processes > 1:
        raise SeveralProcessesError(
            f'policy.kind = "language" trains in one process on one machine, but {num_processes} processes were requested: run'
            " flows/chess_grpo.py, or `chess-grpo finetune` without torchrun; for more prompts or answers per step raise"
            " grpo.states_per_step or grpo.group_size on a GPU with more memory"
        )
