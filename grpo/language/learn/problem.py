"""GRPO of a language model: a `Problem` of `grpo.train.trainer`, which documents the methods.

The trainer's terms mean:

- initial state: a prompt
- row: an answer
- state of the loss: a prompt and the answer's tokens before one token
- move: this token
- rollout: a group of answers to each prompt
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import numpy_stream
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.logprobs import MAX_GAP, pieces
from grpo.language.learn.rollouts import AnswerSampler, Grader, LanguageRollout, answer_metrics
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example, LanguageBoards
from grpo.policy.distribution import PRECISIONS, MoveDistribution
from grpo.settings.tree import Settings
from grpo.train import probes
from grpo.train.control import Knobs
from grpo.train.objective import Batch, InvariantError, Measured, Terms


class LanguageProblem:
    name = "language"
    is_sequential = True

    def __init__(
        self, reference: LanguagePolicy, boards: LanguageBoards, settings: Settings, *, grader: Grader, first_step: int = 0
    ) -> None:
        """Freeze `reference`, the policy that the KL terms compare with. The network is not copied, so the caller must not change it.

        The reward's chess parts rise linearly to full weight in the `language.reward_warmup_steps` steps from `first_step` on.
        """
        precision = PRECISIONS[settings.grpo.precision]
        self.reference = reference.at_precision(precision)
        self.reference.network.requires_grad_(requires_grad=False)
        self.kl_warmup_steps = settings.language.kl_warmup_steps
        self._max_gap = MAX_GAP[precision]
        self.max_log_ratio = 10 * self._max_gap  # A margin, because minibatches round differently from the rollout's batches.
        self._boards, self._settings, self._grader, self._first_step = boards, settings, grader, first_step
        self._log_vocabulary = math.log(reference.vocabulary)

    def states(self, policy: LanguagePolicy, step: int) -> Sequence[Example]:  # noqa: ARG002
        return self._boards.draw(numpy_stream(self._settings.seed, "prompts", step), self._settings.grpo.states_per_step)

    def rollout(self, policy: LanguagePolicy, states: Sequence[Example], knobs: Knobs, step: int) -> LanguageRollout:
        """Raises NonFiniteError if a weight, logit or reward is NaN or infinite.

        Raises InvariantError if a token's log-probabilities in generation and scoring differ by more than `MAX_GAP`.
        """
        policy.refuse_nonfinite()
        sampler = AnswerSampler(policy=policy, reference=self.reference, grader=self._grader, settings=self._settings)
        rollout = sampler.rollout(
            states,
            temperature=knobs.temperature,
            content_fraction=min(1.0, (step - self._first_step + 1) / max(1, self._settings.language.reward_warmup_steps)),
            step=step,
        )
        if not rollout.rewards.isfinite().all():
            raise NonFiniteError(f"{int((~rollout.rewards.isfinite()).sum())} of {len(rollout.answers)} rewards are not finite")
        if not rollout.largest_gap <= self._max_gap:  # NaN <= x is false.
            raise InvariantError(
                f"sampled and scored log-probabilities of a token differ by up to {rollout.largest_gap:.2e} nats: the trained policy is not"
                " the policy that wrote the answers"
            )
        return rollout

    def rollout_metrics(self, rollout: LanguageRollout) -> dict[str, float]:
        metrics = answer_metrics(rollout)
        return metrics | {"language/normalized_entropy": metrics["language/token_entropy"] / self._log_vocabulary}

    def parts(self, rollout: LanguageRollout, rows: Tensor) -> Iterator[Batch[AnswerBatch]]:
        """Yield the answers `rows` (indices), split for memory. All tokens have equal weight (DAPO, arXiv 2503.14476)."""
        # Sorting puts a group's answers side by side, and the model reads a prompt once per piece.
        for chosen in pieces(rows.sort().values.to(rollout.sampled.device), rollout.batch, self.reference):
            answers = rollout.batch.select_rows(chosen)
            is_token = answers.is_token
            rewards, advantages = (
                per_answer.to(is_token.device)[chosen, None].expand_as(is_token)[is_token][:, None]
                for per_answer in (rollout.rewards, rollout.advantages)
            )
            yield Batch(
                states=answers,
                state_weights=torch.ones(len(advantages), device=is_token.device),
                columns=answers.columns(self.reference),
                weights=torch.ones_like(advantages),
                old_log_probs=rollout.sampled[chosen][is_token][:, None],
                rewards=rewards,
                advantages=advantages,
                temperature=rollout.temperature,
                old=None,
            )

    def distribution(self, policy: LanguagePolicy, part: Batch[AnswerBatch]) -> MoveDistribution:
        return part.states.distribution(policy, temperature=part.temperature)

    def entropies(self, rollout: LanguageRollout) -> tuple[float, float]:
        """Return, in nats, the mean entropy of an answer (summed over its tokens), and ln(vocabulary), the largest entropy of one token."""
        return rollout.measures.of_answers()[0].cpu().mean().item(), self._log_vocabulary

    def kl_reference(self, rollout: LanguageRollout, first: Measured | None) -> float:  # noqa: ARG002
        """Return the mean KL of an answer (summed over its tokens), in nats."""
        return rollout.measures.of_answers()[1].cpu().mean().item()

    def probe(self, _part: Batch[AnswerBatch], terms: Terms, *_others: object) -> dict[str, Tensor]:
        return {"kl_term": terms.weighted["reference_kl"]}

    def step_metrics(self, taken: Sequence[Measured], refused: Measured | None) -> dict[str, float]:
        return {**probes.loss_metrics(self.name, taken, refused), "language/kl_term": probes.mean_over(taken, "kl_term")}

    def state(self) -> dict[str, Tensor]:
        """Return no tensors: seed and step number make each random stream."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing."""
