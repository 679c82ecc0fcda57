"""Reasoning before the move: what a model may write, freely, between the position in a policy prompt and its graded answer.

With `language.think_tokens` = B > 0 a policy prompt is read without the label `    M:` at its end. The model writes a thought of at most B
tokens, which ends when it writes the label; when B are spent, what is missing of the label is forced. The answer follows as it does without
a thought. The end token in a thought ends everything: that answer is empty. Prompts of the environment task, which has one right answer
that its prompt determines, never have a thought.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.base.errors import PlainError
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.tasks import ANSWER_LABEL


class ThoughtError(PlainError, ValueError):
    """A tokenizer joins the label that ends a thought with the text before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptTokens:
    """A prompt as token ids."""

    ids: tuple[int, ...]
    """What the model reads before it writes."""
    label: tuple[int, ...]
    """What ends the thought; empty where there is none."""


def prompt_tokens(policy: LanguagePolicy, prompts: Sequence[str]) -> list[PromptTokens]:
    """Return the token ids of prompts; with `language.think_tokens` those of the policy task are split from their label.

    Raises ThoughtError if the tokenizer joins the label with the text before it.
    """
    if not policy.config.think_tokens:
        return [PromptTokens(ids=tuple(ids), label=()) for ids in policy.tokens(prompts)]
    found = []
    heads = policy.tokens([prompt.removesuffix(ANSWER_LABEL) for prompt in prompts])
    for prompt, head, whole in zip(prompts, heads, policy.tokens(prompts), strict=True):
        if whole[: len(head)] != head:
            raise ThoughtError(
                f"language.think_tokens: the tokenizer of {policy.origin.model!r} joins {ANSWER_LABEL!r} with the text before it in"
                f" {prompt!r}, so that no thought can end there; use another model, or language.think_tokens = 0"
            )
        found.append(PromptTokens(ids=tuple(head), label=tuple(whole[len(head) :])))
    return found


class Draft:
    """What is written behind one prompt, token by token: a thought if there is one, its label, and the answer."""

    def __init__(self, policy: LanguagePolicy, label: Sequence[int]) -> None:
        """Begin with nothing; `label` ends the thought, and is empty where there is none."""
        self.ids: list[int] = []
        self.is_forced: list[bool] = []
        """Of each token: whether the model had no choice, so that it was not sampled."""
        self.log_probs: list[float] = []
        """Nats, of each sampled token."""
        self.num_thought: int | None = None
        """Tokens of the thought, without its label; None before it has ended, and where there is none."""
        self.answer_start: int | None = None if label else 0
        """Index of the answer's first token; None while the model thinks."""
        self._label, self._config, self._end = list(label), policy.config, policy.end_id

    @property
    def forced(self) -> int | None:
        """The only token that may come next; None where the model chooses."""
        is_spent = self.answer_start is None and len(self.ids) >= self._config.think_tokens
        return self._label[self._num_of_label()] if is_spent else None

    def write(self, token: int, log_prob: float) -> bool:
        """Append a token, and return whether another one may follow; the log-probability of a forced one is not kept."""
        is_forced = self.forced is not None
        self.ids.append(token)
        self.is_forced.append(is_forced)
        if not is_forced:
            self.log_probs.append(log_prob)
        if self.answer_start is None:
            num_label = self._num_of_label()
            if token == self._end:
                self.num_thought = self.answer_start = len(self.ids) - 1
            elif num_label == len(self._label):
                self.answer_start = len(self.ids)
                self.num_thought = self.answer_start - num_label
            else:
                return True
        return token != self._end and len(self.ids) - self.answer_start < self._config.max_answer_tokens

    def _num_of_label(self) -> int:
        """Return how many of the label's first tokens the draft ends with."""
        return max(num for num in range(min(len(self._label), len(self.ids)) + 1) if self.ids[len(self.ids) - num :] == self._label[:num])
