"""A causal language model as somebody who answers prompts."""

from collections.abc import Sequence

import numpy as np

from grpo.language.generate.answers import drawn_answers, greedy_answers
from grpo.language.model.policy import LanguagePolicy
from grpo.settings.language import LanguageConfig


class PolicySpeaker:
    """Answers with a language policy, many prompts at once."""

    def __init__(self, policy: LanguagePolicy, config: LanguageConfig) -> None:
        """Ask by other rules than those that the policy was saved with, if `config` is another than its own."""
        self.policy = policy
        self.config = config

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        """Return the answers of the likeliest token each time."""
        return [answer.text for answer in greedy_answers(self.policy, prompts)]

    def drawn(self, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator]) -> list[str]:
        """Return answers drawn at a temperature, each from its own stream."""
        return [answer.text for answer in drawn_answers(self.policy, prompts, temperature=temperature, streams=streams)]
