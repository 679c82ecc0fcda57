"""The graded reward on boards that nobody trained on: the same questions each time, so that policies can be compared by question."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import sampled_answers
from grpo.language.learn.rollouts import Grader
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example, LanguageBoards
from grpo.statistics.intervals import Z95

_ROOT = 0  # Of questions and draws: policies of all runs are asked the same ones.


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class HeldoutReward:
    """What a policy's answers to N questions are worth, drawn at T = 1."""

    rewards: NDArray[np.float64]
    """[N] points, all parts at full weight."""
    is_readable: NDArray[np.bool_]
    """[N], whether every field of the answer can be read."""
    num_thought: NDArray[np.int64]
    """[N], tokens of the thought before the answer; 0 where there is none."""

    def metrics(self) -> dict[str, float]:
        """Return mean, its standard error, and the fraction of answers that can be read."""
        return {
            "heldout/reward": float(self.rewards.mean()),
            "heldout/reward_stderr": float(self.rewards.std(ddof=1) / math.sqrt(len(self.rewards))),
            "heldout/parse_rate_drawn": float(self.is_readable.mean()),
        }

    def gain_over(self, other: "HeldoutReward") -> tuple[float, float, float]:
        """Return how much more these answers are worth than another policy's to the same questions: mean, and its 95 % interval."""
        differences = self.rewards - other.rewards
        mean, stderr = float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(len(differences)))
        return mean, mean - Z95 * stderr, mean + Z95 * stderr


def questions(boards: LanguageBoards, count: int) -> list[Example]:
    """Return examples of a split's boards, always the same."""
    return boards.draw(numpy_stream(_ROOT, "held-out questions"), count)


def heldout_reward(policy: LanguagePolicy, examples: Sequence[Example], grader: Grader) -> HeldoutReward:
    """Return what drawn answers are worth; the draws are the same for all policies as far as their distributions are."""
    streams = [numpy_stream(_ROOT, "held-out answers", number) for number in range(len(examples))]
    answers = sampled_answers(policy, [example.prompt for example in examples], temperature=1.0, streams=streams)
    grades = [grader(example, answer.text) for example, answer in zip(examples, answers, strict=True)]
    return HeldoutReward(
        rewards=np.array([one.total() for one in grades]),
        is_readable=np.array([one.reading.is_readable for one in grades]),
        num_thought=np.array([answer.num_thought or 0 for answer in answers]),
    )
