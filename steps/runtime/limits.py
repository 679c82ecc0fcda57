"""What a kind of policy cannot do, refused before any work."""

from grpo.base.errors import PlainError


class SeveralProcessesError(PlainError, RuntimeError):
    """A language model is to be trained by more than one process."""


def refuse_several(num_processes: int) -> None:
    """Raise SeveralProcessesError for more than one process, on one machine or on several: of language models one trains, alone."""
    if num_processes > 1:
        raise SeveralProcessesError(
            f'policy.kind = "language" is trained by one process on one machine, and {num_processes} were asked for: run'
            " flows/chess_grpo.py, and `chess-grpo finetune` without torchrun; more prompts or answers a step take"
            " grpo.states_per_step, grpo.group_size and a GPU with more memory"
        )
