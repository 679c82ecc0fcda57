"""Prompts with answers as padded token ids, and the logits of the answers' tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from grpo.language.generate.answers import TooLongError
from grpo.language.model.policy import LanguagePolicy

IGNORED: Final = -100  # Padding in `targets`; torch's cross-entropy ignores this index.


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class AnswerBatch:
    """R prompts, padded on the left, and their answers, padded on the right. All answers begin in the same column.

    Answers have an end token only if the caller appends it.

    Legend: R rows, C columns of `input_ids`, T tokens of the longest answer, K tokens of all answers, V size of the vocabulary.
    """

    input_ids: Tensor  # [R, C], prompts and answers, without the last column, which predicts nothing.
    attention_mask: Tensor  # [R, C], 1 for tokens, 0 for padding.
    targets: Tensor  # [R, T], the answers' tokens, then `IGNORED`. Column C - T + t of `input_ids` predicts `targets[:, t]`.

    @classmethod
    def of(cls, policy: LanguagePolicy, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Self:
        """Batch token ids (at least one row) on the policy's device. Raises TooLongError if a row exceeds the model's context."""
        context, longest = policy.max_positions, max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
        if context is not None and longest > context:
            raise TooLongError(
                f"an example of {longest} tokens does not fit into the model's context of {context}: lower language.num_history_moves"
            )
        prompt_width, answer_width = max(map(len, prompts)), max(map(len, answers))
        input_ids = torch.full((len(prompts), prompt_width + answer_width), policy.pad_id)
        mask = torch.zeros_like(input_ids)
        targets = torch.full((len(prompts), answer_width), IGNORED)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            start, end = prompt_width - len(prompt), prompt_width + len(answer)
            input_ids[row, start:end] = torch.tensor([*prompt, *answer])
            mask[row, start:end] = 1
            targets[row, : len(answer)] = torch.tensor(answer)
        device = policy.device
        return cls(input_ids=input_ids[:, :-1].to(device), attention_mask=mask[:, :-1].to(device), targets=targets.to(device))

    def __len__(self) -> int:
        return len(self.targets)

    def select_rows(self, rows: Tensor) -> Self:
        rows = rows.to(self.targets.device)
        return type(self)(input_ids=self.input_ids[rows], attention_mask=self.attention_mask[rows], targets=self.targets[rows])

    @property
    def is_token(self) -> Tensor:
        """[R, T] bool, False on padding."""
        return self.targets != IGNORED

    @property
    def tokens(self) -> Tensor:
        """[K], row after row."""
        return self.targets[self.is_token]

    def logits(self, policy: LanguagePolicy) -> Tensor:
        """Return the logits that predict `tokens`, [K, V] float32."""
        return policy.logits(self.input_ids, self.attention_mask, num_last=self.targets.shape[1])[self.is_token]
