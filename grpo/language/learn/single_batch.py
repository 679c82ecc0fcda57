"""One rollout looked at answer by answer, and trained on alone until its loss falls: the first thing to try when nothing is learnt.

A policy that cannot be moved towards the better of its own answers, with nothing else to learn, cannot be trained at all: then gradients,
advantages, masks or the learning rate are at fault, and not the data.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.control.controller import Control
from grpo.language.learn.logprobs import exact_measures
from grpo.language.learn.loss import backward
from grpo.language.learn.rollouts import Grader, LanguageRollout, write_rollout
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example
from grpo.settings.tree import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """The batch as it stands after so many optimiser steps on it."""

    num_steps: int
    loss: float
    measures: Mapping[str, float]
    """`language/kl_term`, `language/clip_fraction`, `language/ratio_min` and `language/ratio_max`, over the batch."""
    better: float
    """Nats: mean change, since the batch was written, in the log-probability of answers that were better than their group's mean."""
    worse: float
    """The same of those that were worse."""


class SingleBatch:
    """One batch of prompts, asked and trained on as in the first rollout of a run, but with all parts of the reward at full weight."""

    def __init__(self, policy: LanguagePolicy, examples: Sequence[Example], settings: Settings, *, grader: Grader) -> None:
        """Prepare.

        Args:
            policy: who answers; `updates` changes its network, or by `language.lora` an adapter of it. The reference is what it is now.
            examples: one for each group.
            settings: the run's; the whole batch is one minibatch.
            grader: grades an answer.
        """
        self._examples, self._settings, self._grader = examples, settings, grader
        self.policy, self._reference = policy.with_reference(settings.language.lora, seed=settings.seed)

    def write(self, *, step: int = 0) -> LanguageRollout:
        """Write a group of answers to each prompt; `step` names the streams, 0 being those of a run's first rollout.

        Raises NonFiniteError when the policy's scores are NaN or infinite, TooLongError when a prompt and an answer might not fit.
        """
        self.policy.refuse_nonfinite()
        return write_rollout(
            self.policy,
            self._reference,
            self._examples,
            self._settings,
            grader=self._grader,
            content_fraction=1.0,
            max_collection_kl=0.0,
            step=step,
        )

    def updates(self, batch: LanguageRollout, num_steps: int) -> Iterator[Update]:
        """Yield the batch as it is, and after each of so many optimiser steps on it.

        Raises NonFiniteError when the loss or a gradient is NaN or infinite.
        """
        config = self._settings.grpo
        knobs = Control(config, first_step=0).knobs(0)
        parameters = list(self.policy.trained.parameters())
        optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
        trained = batch.is_trained.nonzero()[:, 0]
        advantages = batch.advantages[trained]
        for number in range(num_steps + 1):
            optimiser.zero_grad(set_to_none=True)
            measured = backward(self.policy, self._reference, batch, trained, config=config, knobs=knobs)
            if not math.isfinite(measured.loss):
                raise NonFiniteError("the loss of the batch is not finite; lower grpo.learning_rate")
            now = exact_measures(self.policy, self._reference, batch.batch, temperature=config.temperature)
            change = (now.log_probs - batch.measures.log_probs).sum(1).cpu()[trained]
            yield Update(
                num_steps=number,
                loss=measured.loss,
                measures=measured.measures,
                better=_mean(change[advantages > 0]),
                worse=_mean(change[advantages < 0]),
            )
            if number < num_steps:
                norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_gradient_norm)
                if not torch.isfinite(norm):
                    raise NonFiniteError(f"after {number} steps on the batch the gradient is not finite; lower grpo.learning_rate")
                optimiser.step()


def _mean(values: Tensor) -> float:
    """Return the mean; 0 of none."""
    return values.mean().item() if len(values) else 0.0
