"""Imitation before GRPO: a language model learns to write the examples' target answers.

The loss is the cross-entropy of the answers' tokens, end token included. As in sampling, tokens outside the mask
(`grpo.language.generate.legal_moves`) have probability 0.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from grpo.base.seeding import numpy_stream
from grpo.language.generate.legal_moves import move_masks
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example, LanguageBoards
from grpo.language.text.tasks import TextTask
from grpo.metrics.records import Record
from grpo.settings.tree import PretrainConfig
from grpo.train.fitting import fit

_WARMUP: Final = 0.05  # Fraction of the steps in which the learning rate rises.
_BETAS: Final = (0.9, 0.98)  # AdamW's default 0.999 adapts too slowly, because gradients of transformers change size fast.
_WEIGHT_DECAY: Final = 0.01
_MAX_GRADIENT_NORM: Final = 1.0
_NUM_VALIDATION: Final = 256  # Maximum examples.
_VALIDATION_BATCH: Final = 64  # Maximum examples.


def imitate(
    policy: LanguagePolicy, train: LanguageBoards, validation: LanguageBoards, config: PretrainConfig, *, seed: int
) -> Iterator[Record]:
    """Yield a record at each validation measurement. At the end, the policy has the weights of the lowest validation loss.

    Raises NonFiniteError if a loss is not finite, TooLongError if an example exceeds the model's context.
    """
    parameters = [parameter for parameter in policy.network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY, fused=True)
    # "cloning" selects the random numbers; another name would give another model.
    validation_examples = validation.draw(numpy_stream(seed, "cloning", "validation"), min(_NUM_VALIDATION, len(validation)))

    def clip(*_: object) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, _MAX_GRADIENT_NORM)

    optimizer.register_step_pre_hook(clip)

    def rate(step: int) -> float:
        return config.learning_rate * _schedule(step, config.num_steps)

    def loss(step: int) -> Tensor:
        sums = _sums(policy, train.draw(numpy_stream(seed, "cloning", step), config.batch_size))
        return sum((loss for loss, _ in sums.values()), torch.zeros((), device=policy.device)) / sum(count for _, count in sums.values())

    def validate() -> tuple[float, dict[str, float]]:
        measured = validation_losses(policy, validation_examples)
        return measured["language/imitation_validation_loss"], measured

    for step, train_loss, measured in fit(policy.network, optimizer, config, rate=rate, loss=loss, validate=validate):
        yield Record(step, {"language/imitation_loss": train_loss, **measured})


@torch.no_grad()
def validation_losses(policy: LanguagePolicy, examples: Sequence[Example]) -> dict[str, float]:
    """Return the mean cross-entropy per token, in nats, of all examples and of each text task."""
    totals: dict[TextTask, tuple[float, int]] = {}
    size = min(_VALIDATION_BATCH, policy.config.answers_per_forward)
    for start in range(0, len(examples), size):
        for task, (loss, count) in _sums(policy, examples[start : start + size]).items():
            before = totals.get(task, (0.0, 0))
            totals[task] = before[0] + loss.item(), before[1] + count
    name = "language/imitation_validation_loss"
    overall = sum(loss for loss, _ in totals.values()) / sum(count for _, count in totals.values())
    return {name: overall, **{f"{name}/{task}": loss / count for task, (loss, count) in totals.items()}}


def _sums(policy: LanguagePolicy, examples: Sequence[Example]) -> dict[TextTask, tuple[Tensor, int]]:
    """Return text task -> (sum of losses, number of tokens). A batch per task saves padding."""
    sums: dict[TextTask, tuple[Tensor, int]] = {}
    for task in TextTask:
        if rows := [example for example in examples if example.task == task]:
            prompts = [example.prompt for example in rows]
            answers = [[*ids, policy.end_id] for ids in policy.tokens([example.target for example in rows])]
            batch = AnswerBatch.of(policy, policy.tokens(prompts), answers, move_masks(policy, prompts))
            log_probs = batch.distribution(policy, temperature=1.0).log_prob(batch.columns(policy))
            sums[task] = -log_probs.sum(), len(batch.tokens)
    return sums


def _schedule(step: int, num_steps: int) -> float:
    """Return the learning rate's factor: linear warm-up times linear decay. Steps count from 1."""
    warmup = max(1.0, _WARMUP * num_steps)
    return min(step / warmup, 1.0) * (1 - (step - 1) / num_steps)
