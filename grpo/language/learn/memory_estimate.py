"""What GRPO on a GPT-2 costs: memory and floating-point operations of one step, from its shape and the settings alone.

`python -m grpo.language.learn.memory_estimate` prints it for `jrahn/RookWorld-LM-124M`. Bytes are those of float32, in which weights, Adam
and loss are; they are what must be there at once, without the libraries' own (some 0.5 GiB) and what an allocator wastes. Operations are
multiplications and additions of matrices, two for each weight and token (Kaplan et al., arXiv 2001.08361, section 2.1), and those of
attention.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grpo.settings.tree import Settings, read_settings

_BYTES: Final = 4
_GIB: Final = 1024**3
_SAVED: Final = 54
"""Numbers that a block keeps for its gradient, by width and token: some 17 for layer norms, attention and matrices, the others for GELU,
which transformers computes step by step. Measured by benchmarks/language_cost.py as the difference of 4 and 8 answers."""
_LOGIT_COPIES: Final = 9
"""Tables of answer tokens by vocabulary that exact measures hold at once: logits and log-probabilities of policy and reference, as they
come and as they are used, and what products of two take on their way; measured so too."""
_GENERATION_COPIES: Final = 2
"""Of keys and values, while a token is added."""
_GENERATION_TILES: Final = 4
"""While the reference scores what was written; measured so too."""
_MOST_LOGITS: Final = 1 << 25
"""Numbers of such a table at most (`logprobs.exact_measures` cuts a rollout so)."""
_TILE: Final = (4_096, 32_768)
"""Tokens by vocabulary that TRL's head scores at once (1.16), so that the loss holds no table of logits; its gradient scores them again."""
_EMBEDDING_GRADIENTS: Final = 2
"""Before they are added up: the embedding is the head too."""
_FORWARDS_BESIDE_UPDATES: Final = 3
"""The reference's for the loss, and policy and reference for exact entropy and divergence."""
_FORWARDS_AN_UPDATE: Final = 3
"""One, and a gradient that costs two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A GPT-2's sizes; output and input embedding are one."""

    vocabulary: int
    positions: int
    width: int
    num_layers: int

    @property
    def num_parameters(self) -> int:
        """Weights: embeddings, in each block 12 w^2 + 13 w, and the last layer norm's.

        >>> ROOKWORLD.num_parameters
        124439808
        """
        embeddings = (self.vocabulary + self.positions) * self.width
        return embeddings + self.num_layers * (12 * self.width**2 + 13 * self.width) + 2 * self.width

    @property
    def num_in_blocks(self) -> int:
        """Weights that a token is multiplied with in the blocks."""
        return 12 * self.num_layers * self.width**2

    @property
    def num_in_head(self) -> int:
        """Weights that a token is multiplied with where its next one is scored."""
        return self.vocabulary * self.width


ROOKWORLD: Final = Shape(vocabulary=50_257, positions=1_024, width=768, num_layers=12)
"""`jrahn/RookWorld-LM-124M`, a GPT-2 of the smallest published size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSize:
    """A step: how many answers, and how long."""

    num_prompts: int
    group_size: int
    prompt_tokens: int
    """Of the longest prompt, to which the others are padded."""
    answer_tokens: int
    """Of the longest answer."""
    per_forward: int
    """Answers scored or trained on at once."""
    num_inner_epochs: int = 1
    refreshes_reference: bool = False

    @classmethod
    def of(cls, settings: Settings, *, prompt_tokens: int, answer_tokens: int | None = None) -> "StepSize":
        """Return the step that settings ask for, with all answers as long as may be unless `answer_tokens` says otherwise."""
        grpo, language = settings.grpo, settings.language
        return cls(
            num_prompts=grpo.states_per_step,
            group_size=grpo.group_size,
            prompt_tokens=prompt_tokens,
            answer_tokens=language.max_answer_tokens if answer_tokens is None else answer_tokens,
            per_forward=min(language.answers_per_forward, grpo.states_per_step * grpo.group_size // grpo.num_minibatches),
            num_inner_epochs=grpo.num_inner_epochs,
            refreshes_reference=grpo.steps_per_reference_refresh > 0,
        )

    @property
    def num_answers(self) -> int:
        """Answers of a step."""
        return self.num_prompts * self.group_size

    @property
    def num_tokens(self) -> int:
        """Tokens of a prompt with its answer."""
        return self.prompt_tokens + self.answer_tokens


def lasting_bytes(shape: Shape, work: StepSize) -> dict[str, int]:
    """Return what is kept from step to step, by name."""
    weights = _BYTES * shape.num_parameters
    return {
        "weights": weights,
        "gradients": weights,
        "Adam's two moments": 2 * weights,
        "reference": weights,
        "copy of the last step (weights, Adam)": 3 * weights + (weights if work.refreshes_reference else 0),
    }


def passing_bytes(shape: Shape, work: StepSize) -> dict[str, int]:
    """Return what a part of a step needs while it lasts, by the part's name; only one of them at a time."""
    logits = _BYTES * min(work.num_answers * work.answer_tokens * shape.vocabulary, _MOST_LOGITS)
    cache = 2 * _BYTES * shape.num_layers * shape.width * work.num_answers * work.num_tokens
    saved = _BYTES * _SAVED * shape.num_layers * shape.width * work.per_forward * work.num_tokens
    tile = _BYTES * min(work.per_forward * work.num_tokens, _TILE[0]) * min(shape.vocabulary, _TILE[1])
    return {
        "generation": _GENERATION_COPIES * cache + _GENERATION_TILES * tile,
        "exact measures": _LOGIT_COPIES * logits,
        "update": saved + 2 * tile + _EMBEDDING_GRADIENTS * _BYTES * shape.num_in_head,
    }


def peak_bytes(shape: Shape, work: StepSize) -> int:
    """Return the largest need at one time."""
    return sum(lasting_bytes(shape, work).values()) + max(passing_bytes(shape, work).values())


def operations(shape: Shape, work: StepSize) -> dict[str, int]:
    """Return floating-point operations of a step by part; an answer's token is scored, a prompt's is not."""
    tokens, answers = work.num_answers * work.num_tokens, work.num_answers * work.answer_tokens
    # Each token's queries meet the keys and values of those before it: 4 w operations for each of the T / 2 of them, in each block.
    attention = 2 * shape.num_layers * shape.width * work.num_tokens * tokens
    forward = 2 * shape.num_in_blocks * tokens + 2 * shape.num_in_head * answers + attention
    return {
        "generation": forward,
        "reference, and exact entropy and divergence": _FORWARDS_BESIDE_UPDATES * forward,
        "update": work.num_inner_epochs * (_FORWARDS_AN_UPDATE * forward + 2 * shape.num_in_head * answers),
    }


def memory_table(shape: Shape, work: StepSize, *, teraflops: float) -> str:
    """Return all of it for people; `teraflops` is what the machine reaches, which is less than what its maker names."""
    lasting, passing, counted = lasting_bytes(shape, work), passing_bytes(shape, work), operations(shape, work)
    lines = [
        f"GPT-2 of {shape.num_parameters:,} parameters; {work.num_answers} answers of {work.answer_tokens} tokens to prompts of"
        f" {work.prompt_tokens}, {work.per_forward} at once",
        "",
        *_rows("kept from step to step", lasting),
        *_rows("while it lasts, one at a time", passing),
        f"  {'at most, together':44} {peak_bytes(shape, work) / _GIB:8.2f} GiB",
        "",
        *(f"  {name:44} {number / 1e12:8.2f} TFLOP" for name, number in counted.items()),
        f"  {'a step':44} {sum(counted.values()) / 1e12:8.2f} TFLOP: {sum(counted.values()) / teraflops / 1e12:.1f} s at"
        f" {teraflops:g} TFLOP/s; generation reaches less, token by token",
    ]
    return "\n".join(lines)


def _rows(title: str, found: Mapping[str, int]) -> list[str]:
    return [title, *(f"  {name:44} {number / _GIB:8.2f} GiB" for name, number in found.items())]


def main() -> None:
    """Print the table for the command line's settings and shape."""
    parser = argparse.ArgumentParser(
        prog="python -m grpo.language.learn.memory_estimate", description="Memory and operations of a GRPO step on a GPT-2."
    )
    parser.add_argument("--settings", default='policy.kind = "language"', help="TOML as --config-value settings takes it")
    parser.add_argument(
        "--prompt-tokens", type=int, default=60, help="of the longest prompt; 60 is an estimate for a FEN in GPT-2's tokens"
    )
    parser.add_argument("--answer-tokens", type=int, help="of the longest answer, if it is not language.max_answer_tokens")
    parser.add_argument("--teraflops", type=float, default=10.0, help="that the machine reaches, in 10^12 operations a second")
    for name in ("vocabulary", "positions", "width", "num_layers"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(ROOKWORLD, name))
    given = parser.parse_args()
    shape = Shape(vocabulary=given.vocabulary, positions=given.positions, width=given.width, num_layers=given.num_layers)
    work = StepSize.of(read_settings(given.settings), prompt_tokens=given.prompt_tokens, answer_tokens=given.answer_tokens)
    print(memory_table(shape, work, teraflops=given.teraflops))


if __name__ == "__main__":
    main()
