"""Prompts and answers as padded token ids, and the logits of the answers' tokens: for cloning, scoring and the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from grpo.language.generate.answers import TooLongError
from grpo.language.model.policy import LanguagePolicy

IGNORED: Final = -100


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class AnswerBatch:
    """Prompts with the answers behind them.

    Legend: R rows, C columns, A the longest answer's tokens, K tokens of all answers, V the vocabulary.

    Prompts are padded on the left and answers on the right, so that all answers begin in one column, as they do when the model writes them.
    """

    input_ids: Tensor
    """[R, C], without the last column, from which nothing is predicted."""
    attention_mask: Tensor
    """[R, C], 1 on tokens of a prompt or answer."""
    targets: Tensor
    """[R, A], the answers' tokens, with the end if an answer has it, each to be predicted from the column before it; then `IGNORED`."""

    @classmethod
    def of(cls, policy: LanguagePolicy, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Self:
        """Return the batch of these prompts and answers, token ids each, on the policy's device.

        Raises TooLongError for a pair that the model has no room for.
        """
        room, longest = policy.max_positions, max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
        if room is not None and longest > room:
            raise TooLongError(f"an example of {longest} tokens does not fit into the model's {room}: lower language.num_history_moves")
        width, length = max(map(len, prompts)), max(map(len, answers))
        input_ids = torch.full((len(prompts), width + length), policy.pad_id)
        mask = torch.zeros_like(input_ids)
        targets = torch.full((len(prompts), length), IGNORED)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            start, end = width - len(prompt), width + len(answer)
            input_ids[row, start:end] = torch.tensor([*prompt, *answer])
            mask[row, start:end] = 1
            targets[row, : len(answer)] = torch.tensor(answer)
        return cls(
            input_ids=input_ids[:, :-1].to(policy.device),
            attention_mask=mask[:, :-1].to(policy.device),
            targets=targets.to(policy.device),
        )

    def __len__(self) -> int:
        return len(self.targets)

    def select_rows(self, rows: Tensor) -> Self:
        """Return the batch of the given rows, with the same columns."""
        rows = rows.to(self.targets.device)
        return type(self)(input_ids=self.input_ids[rows], attention_mask=self.attention_mask[rows], targets=self.targets[rows])

    @property
    def is_token(self) -> Tensor:
        """Where an answer has a token, [R, A] bool."""
        return self.targets != IGNORED

    @property
    def tokens(self) -> Tensor:
        """The tokens of all answers, row after row, [K]."""
        return self.targets[self.is_token]

    def logits(self, policy: LanguagePolicy) -> Tensor:
        """Return the logits that predict each of `tokens`, [K, V] float32."""
        return policy.logits(self.input_ids, self.attention_mask, num_last=self.targets.shape[1])[self.is_token]
