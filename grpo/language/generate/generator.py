"""Answer generator: a language model policy that answers batches of prompts."""

from collections.abc import Sequence

import numpy as np

from grpo.language.generate.answers import greedy_answers, sampled_answers
from grpo.language.model.policy import LanguagePolicy
from grpo.settings.language import LanguageConfig


class PolicyAnswerGenerator:
    """Answers batches of prompts with a language model policy."""

    def __init__(self, policy: LanguagePolicy, config: LanguageConfig) -> None:
        """Store the policy, and the settings to use, which may differ from those that the policy was saved with."""
        self.policy = policy
        self.config = config

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        """Return the greedy answers."""
        return [answer.text for answer in greedy_answers(self.policy, prompts)]

    def sampled(self, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator]) -> list[str]:
        """Return answers sampled at a temperature, each from its own stream."""
        return [answer.text for answer in sampled_answers(self.policy, prompts, temperature=temperature, streams=streams)]
