"""One rollout looked at answer by answer, and trained on alone until its loss falls: the first thing to try when nothing is learnt.

A policy that cannot be moved towards the better of its own answers, with nothing else to learn, cannot be trained at all: then gradients,
advantages, masks or the learning rate are at fault, and not the data.

Legend: B answers, T tokens of the longest one.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import named_seed
from grpo.language.generate.answers import refuse_too_long
from grpo.language.learn.rollouts import GradedAnswer, Grader, LanguageRollout, write_rollout
from grpo.language.learn.trl_adapter import Engine
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example
from grpo.settings.tree import Settings


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeenBatch:
    """A rollout, and what it says of itself answer by answer."""

    rollout: LanguageRollout
    advantages: Tensor
    """[B]"""
    sampled: Tensor
    """[B] nats: log-probability of the answer's tokens by the distributions that they were drawn from."""
    scored: Tensor
    """[B] nats: the same by the pass that the loss makes."""
    largest_gap: float
    """Nats, between the two, of one token."""


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
            policy: who answers; `updates` changes its network in place. The reference is a copy of it as it is now.
            examples: one for each group.
            settings: the run's; the whole batch is one minibatch.
            grader: grades an answer.
        """
        sizes = {"states_per_step": len(examples), "num_minibatches": 1, "num_inner_epochs": 1}
        self._settings = settings.model_copy(update={"grpo": settings.grpo.model_copy(update=sizes)})
        self.policy, self._examples, self._grader = policy, examples, grader
        self._graded: list[GradedAnswer] = []
        self._engine = Engine(policy, copy.deepcopy(policy.network), self._settings, self._reward)
        refuse_too_long(policy, policy.tokens([example.prompt for example in examples]))

    def _reward(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[float]:
        for row, text in zip(rows, texts, strict=True):
            grades = self._grader(row["example"], text)
            ids = tuple(row["completion_ids"])
            self._graded.append(GradedAnswer(example=row["example"], text=text, token_ids=ids, grades=grades, reward=grades.total()))
        return [answer.reward for answer in self._graded]

    def write(self, *, step: int = 0) -> SeenBatch:
        """Write a group of answers to each prompt; `step` names the stream, 0 being that of a run's first rollout.

        Raises NonFiniteError when the policy's scores are NaN or infinite.
        """
        config = self._settings.grpo
        seed = named_seed(self._settings.seed, "answers", step)
        prompts = self.policy.tokens([example.prompt for example in self._examples for _ in range(config.group_size)])
        self.policy.refuse_nonfinite()
        self.policy.refuse_nonfinite_logits(self._examples[0].prompt)
        rollout = write_rollout(
            self._engine,
            self._examples,
            group_size=config.group_size,
            seed=seed,
            kl_coefficient=config.kl_coefficient,
            temperature=config.temperature,
            max_collection_kl=0.0,
            graded=self._graded,
        )
        mask = rollout.measures.mask
        made = self._engine.drawn_with_scores(prompts, seed=seed)
        answers = made.sequences[:, max(map(len, prompts)) :]
        assert torch.equal(answers * mask, rollout.inputs["completion_ids"] * mask), "the same seed wrote other answers"
        assert made.scores is not None
        drawn_from = torch.stack(made.scores, dim=1).float().log_softmax(-1)
        sampled = drawn_from.gather(2, answers[:, :, None])[:, :, 0].masked_fill(~mask, 0.0)
        scored = self._scored(rollout)
        return SeenBatch(
            rollout=rollout,
            advantages=rollout.inputs["advantages"].cpu(),
            sampled=sampled.sum(1).cpu(),
            scored=scored.sum(1).cpu(),
            largest_gap=(sampled - scored).abs().max().item(),
        )

    def updates(self, batch: SeenBatch, num_steps: int) -> Iterator[Update]:
        """Yield the batch as it is, and after each of so many optimiser steps on it.

        Raises NonFiniteError when the loss or a gradient is NaN or infinite.
        """
        config = self._settings.grpo
        self._engine.set_entropy_coefficient(config.entropy_coefficient)
        before = self._scored(batch.rollout)
        inputs = {**batch.rollout.inputs, "old_per_token_logps": before}
        parameters = [parameter for parameter in self.policy.network.parameters() if parameter.requires_grad]
        optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
        is_trained = (~batch.rollout.is_truncated).to(self.policy.device)
        advantages = batch.advantages.to(self.policy.device)
        for number in range(num_steps + 1):
            optimiser.zero_grad(set_to_none=True)
            loss, measures = self._loss(inputs)
            change = (self._scored(batch.rollout) - before).sum(1)
            yield Update(
                num_steps=number,
                loss=loss,
                measures=measures,
                better=_mean(change[is_trained & (advantages > 0)]),
                worse=_mean(change[is_trained & (advantages < 0)]),
            )
            if number < num_steps:
                norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_gradient_norm)
                if not torch.isfinite(norm):
                    raise NonFiniteError(f"after {number} steps on the batch the gradient is not finite; lower grpo.learning_rate")
                optimiser.step()

    def _loss(self, inputs: Mapping[str, Tensor]) -> tuple[float, dict[str, float]]:
        """Return the loss of the whole batch with its gradients left in the network, and what was measured of it."""
        whole, seen = 0.0, []
        for rows in torch.split(torch.arange(self._engine.size.per_update), self._engine.size.per_forward):
            loss, measured = self._engine.loss(inputs, rows.to(self.policy.device))
            if not torch.isfinite(loss):
                raise NonFiniteError("the loss of the batch is not finite; lower grpo.learning_rate")
            loss.backward()  # type: ignore[no-untyped-call]
            whole += loss.item()
            seen.append(measured)
        names = sorted({name for measured in seen for name in measured})
        values = {name: [measured[name] for measured in seen if name in measured] for name in names}
        extremes = {"language/ratio_min": min, "language/ratio_max": max}
        return whole, {name: extremes[name](of) if name in extremes else sum(of) / len(of) for name, of in values.items()}

    def _scored(self, rollout: LanguageRollout) -> Tensor:
        """Return the log-probability [B, T] of each token by the policy as it is; 0 where the mask is."""
        mask, inputs = rollout.measures.mask, rollout.inputs
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], mask.long()], dim=1)
        parts = [
            self._engine.log_probs(self._engine.model, ids[rows], attention[rows], mask.shape[1])
            for rows in torch.split(torch.arange(len(ids), device=ids.device), self._engine.size.per_forward)
        ]
        return torch.cat(parts).masked_fill(~mask, 0.0)


def _mean(values: Tensor) -> float:
    """Return the mean; 0 of none."""
    return values.mean().item() if len(values) else 0.0
