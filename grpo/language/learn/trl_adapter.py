"""TRL's GRPO trainer as this project uses it: it writes the answers, compares them within their group, and gives the loss.

Its own loop (`train`) is not used: that keeps no rollout in its checkpoints, notifies its callbacks of NaN weights too late, and ends with
generators in a state that only it can restore. `LanguageTrainer` asks for one rollout and for the loss of its parts, with every random
number from a stream named by the step; so a checkpoint between two rollouts is all there is to keep.

Legend: B answers, P tokens of the longest prompt (padded on the left), T tokens of the longest answer (padded on the right).
"""

import copy
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from grpo.language.model.policy import LanguagePolicy
from grpo.settings.tree import Settings

_BY_ANSWER: Final = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
)

Reward = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], list[float]]
"""Rows of a rollout and the text of their answers -> what each is worth."""


class Engine(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer around a policy and its reference; `rollout` and `loss` are all that is asked of it."""

    def __init__(self, policy: LanguagePolicy, reference: PreTrainedModel, settings: Settings, reward: Reward) -> None:
        """Prepare.

        Args:
            policy: what is trained; its network is changed in place, and its `forward` wrapped.
            reference: the frozen model of the KL term, a model of its own; its `forward` is wrapped too.
            settings: the run's.
            reward: grades answers.
        """
        config, language = settings.grpo, settings.language
        self.size = EngineSize.of(settings)
        self.policy = policy
        self._last_log_probs = torch.empty(0)
        # Nothing is written there; TRL wants a name.
        with tempfile.TemporaryDirectory() as folder, _quiet():
            arguments = GRPOConfig(
                output_dir=folder,
                use_cpu=policy.device.type == "cpu",
                bf16=config.precision == "bfloat16",
                tf32=False,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                seed=settings.seed,
                gradient_checkpointing=False,
                disable_dropout=True,
                per_device_train_batch_size=self.size.per_forward,
                gradient_accumulation_steps=self.size.forwards_per_update,
                steps_per_generation=self.size.forwards_per_rollout,
                num_iterations=config.num_inner_epochs,
                num_generations=config.group_size,
                max_completion_length=language.max_answer_tokens,
                # One temperature, and the whole distribution: what is sampled is what is scored.
                temperature=config.temperature,
                top_p=1.0,
                top_k=0,
                min_p=None,
                repetition_penalty=1.0,
                beta=0.0,  # Or it would read the reference from the disk; it gets ours below.
                epsilon=config.clip_low,
                epsilon_high=config.clip_high,
                scale_rewards="group" if config.divide_by_std else "none",
                loss_type=language.loss,
                mask_truncated_completions=True,
            )

            def graded_reward(completions: list[str], **columns: Any) -> list[float]:
                names = [name for name in columns if isinstance(columns[name], list) and len(columns[name]) == len(completions)]
                rows = [{name: columns[name][index] for name in names} for index in range(len(completions))]
                return reward(rows, completions)

            super().__init__(
                model=policy.network,
                reward_funcs=graded_reward,
                args=arguments,
                train_dataset=Dataset.from_dict({"prompt": [""]}),  # Rows are passed to `rollout`.
                processing_class=policy.tokenizer,
            )
        reference.to(policy.device)  # type: ignore[arg-type]  # It wraps torch's, and hides its type.
        self.ref_model = reference.train(mode=False).requires_grad_(requires_grad=False)
        add_fused_lm_head(self.ref_model, temperature=config.temperature)
        # What TRL's own loop would set: into how many losses an update is cut.
        self.current_gradient_accumulation_steps = self.size.forwards_per_update

    def rollout(self, rows: Sequence[Mapping[str, Any]], *, seed: int, kl_coefficient: float) -> dict[str, Tensor]:
        """Write and grade one answer for each row; rows of a group follow each other.

        Args:
            rows: with the key `prompt`; what else they hold is passed to the reward.
            seed: of the answers.
            kl_coefficient: of this rollout's losses, above 0.

        Returns token ids and masks [B, P] and [B, T], advantages [B], log-probabilities [B, T] of the reference and, where the rollout is
        used more than once, of the policy that wrote it.
        """
        assert kl_coefficient > 0, "at 0 TRL scores no reference"
        self.beta = kl_coefficient
        with _quiet(), self.as_trained(), torch.random.fork_rng(devices=self._cuda()):
            torch.manual_seed(seed)
            made: dict[str, Tensor] = self._generate_and_score_completions([dict(row) for row in rows])
        self._metrics["train"].clear()
        return made

    def loss(self, rollout: Mapping[str, Tensor], rows: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of some of a rollout's answers, scaled for their fraction of an update, and what was measured of it.

        Ratios are those of a token's probability to the one that it was sampled with, where the rollout has that: it is used only once,
        and at once, where it has not, and the ratio is 1 by construction.
        """
        part: dict[str, Tensor] = {name: value[rows] if name in _BY_ANSWER else value for name, value in rollout.items()}
        with _quiet(), self.as_trained():
            loss: Tensor = self.compute_loss(self.model, part)
        measures = {name: values[-1] for name, values in self._metrics["train"].items() if values}
        self._metrics["train"].clear()
        found = {"language/kl_term": self.beta * measures["kl"], "language/clip_fraction": measures["clip_ratio/region_mean"]}
        mask = part["completion_mask"].bool()
        if "old_per_token_logps" in part and mask.any():
            ratios = (self._last_log_probs - part["old_per_token_logps"])[mask].exp()
            found |= {"language/ratio_min": ratios.min().item(), "language/ratio_max": ratios.max().item()}
        return loss, found

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Score as TRL does, and keep the log-probabilities [B, T] of the last pass."""
        scored: tuple[Tensor, Tensor | None, Tensor | None] = super()._get_per_token_logps_and_entropies(*arguments, **named)
        self._last_log_probs = scored[0].detach()
        return scored

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Return prompts as the policy reads them in games too: one way from text to tokens."""
        return self.policy.tokens(prompts), None, {}

    def log_probs(self, model: PreTrainedModel, ids: Tensor, mask: Tensor, num_tokens: int) -> Tensor:
        """Return the log-probabilities [B, T] that the loss gives the last `num_tokens` of each row."""
        with _quiet(), self.as_trained(), torch.no_grad():
            scored: Tensor = self._get_per_token_logps_and_entropies(model, ids, mask, num_tokens)[0]
        return scored

    def drawn_with_scores(self, prompts: Sequence[Sequence[int]], *, seed: int) -> GenerateDecoderOnlyOutput:
        """Write answers exactly as a rollout does, and return, with them, what each token was drawn from.

        Args:
            prompts: their tokens.
            seed: of the answers.
        """
        kept: list[GenerateDecoderOnlyOutput] = []
        generate = self.model.generate

        def recording(**arguments: Any) -> Tensor:
            config = copy.deepcopy(arguments.pop("generation_config"))
            config.output_scores = config.return_dict_in_generate = True
            kept.append(generate(**arguments, generation_config=config))
            return kept[-1].sequences

        self.model.generate = recording  # For TRL's own call, with all that it sets.
        try:
            with _quiet(), self.as_trained(), torch.random.fork_rng(devices=self._cuda()):
                torch.manual_seed(seed)
                self._generate_single_turn([list(ids) for ids in prompts], None, {}, 1)
        finally:
            del self.model.generate
        return kept[0]

    def set_entropy_coefficient(self, coefficient: float) -> None:
        """Set what a nat of mean token entropy is worth in the next losses."""
        self.entropy_coef = coefficient
        self._entropy_bonus_enabled = coefficient > 0

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Hold the network in training mode, by which TRL knows which of its sizes count; there is no dropout that it would wake."""
        self.model.train()
        try:
            yield
        finally:
            self.model.eval()

    def _cuda(self) -> list[int]:
        return [torch.cuda.current_device()] if self.accelerator.device.type == "cuda" else []


class EngineSize:
    """How a rollout is cut: answers of a forward pass, passes of an update, passes of a rollout."""

    def __init__(self, *, num_answers: int, num_minibatches: int, most: int) -> None:
        """Cut so that all parts are equal, as the loss's weights ask for, and none is larger than `most`."""
        self.per_update = num_answers // num_minibatches
        self.per_forward = max(size for size in range(1, min(most, self.per_update) + 1) if self.per_update % size == 0)
        self.forwards_per_update = self.per_update // self.per_forward
        self.forwards_per_rollout = self.forwards_per_update * num_minibatches

    @classmethod
    def of(cls, settings: Settings) -> "EngineSize":
        """Return the cut that settings ask for."""
        config = settings.grpo
        return cls(
            num_answers=config.states_per_step * config.group_size,
            num_minibatches=config.num_minibatches,
            most=settings.language.answers_per_forward,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to themselves what TRL and transformers say of each other's names, and of arguments that are ours on purpose."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)
            yield
    finally:
        logger.setLevel(before)
