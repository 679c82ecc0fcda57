"""Prompts with answers as padded token ids, and the answers' logits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import torch
from torch import Tensor

from grpo.language.generate.answers import TooLongError, distinct_prompts
from grpo.language.generate.legal_moves import MoveMask, State, token_choices
from grpo.language.model.policy import LanguagePolicy, TokenChoices, token_distribution
from grpo.policy.distribution import MoveDistribution

IGNORED: Final = -100  # Padding in `targets`; torch's cross-entropy ignores this index.


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class AnswerBatch:
    """Distinct prompts, padded on the left, and their answers, padded on the right. The model reads each prompt once.

    Answers have an end token only if the caller appends it.

    Legend: P prompts, C tokens of the longest prompt, R answers, T tokens of the longest answer, K tokens of all answers, V logits.
    """

    prompt_ids: Tensor  # [P, C]
    prompt_mask: Tensor  # [P, C], 1 for tokens, 0 for padding.
    prompt_of: Tensor  # [R], index of each answer's prompt.
    targets: Tensor  # [R, T], the answers' tokens, then `IGNORED`.
    states: tuple[Sequence[State], ...]  # [R][tokens], the tokens allowed in each place.

    @classmethod
    def of(
        cls,
        policy: LanguagePolicy,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        masks: Sequence[MoveMask | None] | None = None,
    ) -> Self:
        """Batch token ids (at least one row) on the policy's device; without `masks`, every token is allowed.

        Raises TooLongError if a prompt and its answer exceed the model's context.
        """
        context, longest = policy.max_positions, max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
        if context is not None and longest > context:
            raise TooLongError(
                f"an example of {longest} tokens does not fit into the model's context of {context}: lower language.num_history_moves"
            )
        prompt_ids, prompt_mask, prompt_of = distinct_prompts(policy, prompts)
        width, row_masks = max(map(len, answers)), masks or [None] * len(answers)
        return cls(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            prompt_of=prompt_of,
            targets=torch.tensor([[*ids, *[IGNORED] * (width - len(ids))] for ids in answers], device=policy.device),
            states=tuple([None] * len(ids) if mask is None else mask.states(ids) for ids, mask in zip(answers, row_masks, strict=True)),
        )

    def __len__(self) -> int:
        return len(self.targets)

    def select_rows(self, rows: Tensor) -> Self:
        rows = rows.to(self.targets.device)
        prompts, prompt_of = torch.unique(self.prompt_of[rows], return_inverse=True)
        return replace(
            self,
            prompt_ids=self.prompt_ids[prompts],
            prompt_mask=self.prompt_mask[prompts],
            prompt_of=prompt_of,
            targets=self.targets[rows],
            states=tuple(self.states[row] for row in rows.tolist()),
        )

    @property
    def is_token(self) -> Tensor:
        """[R, T] bool, False on padding."""
        return self.targets != IGNORED

    @property
    def tokens(self) -> Tensor:
        """[K], row after row."""
        return self.targets[self.is_token]

    def logits(self, policy: LanguagePolicy) -> Tensor:
        """Return the logits that predict `tokens`, [K, V] float32.

        The model reads answers up to the last place that allows several tokens. Later logits are 0, because a single allowed token has
        probability 1.
        """
        num_read = max(
            index for states in self.states for index, state in enumerate(states) if state is None or len(state) > 1 or not index
        )
        output = policy.forward(self.prompt_ids, self.prompt_mask, num_last=1, use_cache=num_read > 0)
        logits = [output.logits[:, -1:][self.prompt_of]]
        if num_read:
            cache = output.past_key_values
            cache.batch_select_indices(self.prompt_of)
            read, is_read = self.targets[:, :num_read].clamp(min=0), self.is_token[:, :num_read].to(self.prompt_mask.dtype)
            mask = torch.cat([self.prompt_mask[self.prompt_of], is_read], dim=1)
            logits.append(policy.forward(read, mask, num_last=num_read, use_cache=True, past_key_values=cache).logits[:, -num_read:])
        num_certain = self.targets.shape[1] - 1 - num_read
        logits.append(logits[0].new_zeros(len(self), num_certain, logits[0].shape[-1]))
        return torch.cat(logits, dim=1)[self.is_token].float()

    def distribution(self, policy: LanguagePolicy, *, temperature: float) -> MoveDistribution:
        """Return each token's distribution, [K, columns]. A column is an allowed token."""
        return token_distribution(self.logits(policy), self._choices(policy), temperature=temperature)

    def columns(self, policy: LanguagePolicy) -> Tensor:
        """Return each token's column in its distribution, [K, 1]."""
        choices = self._choices(policy)
        return (self.tokens if choices is None else choices.columns(self.tokens))[:, None]

    def _choices(self, policy: LanguagePolicy) -> TokenChoices | None:
        return token_choices([state for states in self.states for state in states], policy)
