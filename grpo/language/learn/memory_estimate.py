"""What GRPO on a language model costs: memory and floating-point operations of one step, from its shape and the settings alone.

`chess-grpo cost` prints it. Bytes are what must be there at once, without the libraries' own (some 0.5 GiB) and what an allocator wastes.
Weights, Adam and the loss are float32; with `grpo.precision = "bfloat16"` what a forward pass keeps for its gradient has half the size, and
a copy of the weights is there in bfloat16. With LoRA gradients, Adam, reference and copy are of the adapter alone. Operations are
multiplications and additions of matrices, two for each weight and token (Kaplan et al., arXiv 2001.08361, section 2.1), and those of
attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from torch import nn

from grpo.language.model.loading import DEFAULT_GPT2
from grpo.language.model.lora import adapter_size
from grpo.settings.language import LoraConfig
from grpo.settings.tree import Settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_LOGITS: Final = 1 << 25
"""Numbers of a forward pass's logits at most: 128 MiB in float32. Answers are cut into pieces so."""
_BYTES: Final = 4
GIB: Final = 1024**3
_SAVED: Final = 54
"""Numbers that a block keeps for its gradient, by width and token: some 28 for layer norms, attention and matrices, the others for GELU,
which transformers computes step by step. Measured on a GPT-2 as the difference of 4 and 8 answers' resident memory."""
_SAVED_CHECKPOINTED: Final = 1
"""The same with gradient checkpointing: a block keeps its input."""
_LOSS_TABLES: Final = 10
"""Tables of a piece's tokens by vocabulary while its gradient is made: 8 that the objective keeps (counted by
`torch.autograd.graph.saved_tensors_hooks`), and two gradients on their way."""
_MEASURE_TABLES: Final = 8
"""The same for exact measures: logits, log-probabilities and probabilities of policy and reference, and products of two."""
_GENERATION_COPIES: Final = 2
"""Of keys and values, while a token is added."""
_EMBEDDING_GRADIENTS: Final = 2
"""Before they are added up: the embedding is the head too."""
_FORWARDS_OF_MEASURES: Final = 2
"""Policy and reference, for exact entropy and divergence."""
_FORWARDS_AN_UPDATE: Final = 4
"""One, a gradient that costs two, and the reference's."""
_FORWARDS_WITHOUT_WEIGHTS: Final = 1
"""Of a gradient's two, that of the weights: with LoRA they have none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A causal language model's sizes."""

    vocabulary: int
    width: int
    num_layers: int
    num_parameters: int
    num_in_blocks: int
    """Weights that a token is multiplied with in the blocks."""
    num_in_adapter: int = 0
    """Weights of LoRA's adapter, which are all that is trained; 0 without."""

    @classmethod
    def of_gpt2(cls, *, vocabulary: int, positions: int, width: int, num_layers: int) -> "Shape":
        """Return the shape of a GPT-2, whose output and input embedding are one.

        Its weights: embeddings, in each block 12 w^2 + 13 w, and the last layer norm's.

        >>> ROOKWORLD.num_parameters
        124439808
        """
        embeddings = (vocabulary + positions) * width
        return cls(
            vocabulary=vocabulary,
            width=width,
            num_layers=num_layers,
            num_parameters=embeddings + num_layers * (12 * width**2 + 13 * width) + 2 * width,
            num_in_blocks=12 * num_layers * width**2,
        )

    @property
    def num_in_head(self) -> int:
        """Weights that a token is multiplied with where its next one is scored."""
        return self.vocabulary * self.width

    @property
    def num_trained(self) -> int:
        """Weights that training changes."""
        return self.num_in_adapter or self.num_parameters


ROOKWORLD: Final = Shape.of_gpt2(vocabulary=50_257, positions=1_024, width=768, num_layers=12)
"""`jrahn/RookWorld-LM-124M`, a GPT-2 of the smallest published size."""
KNOWN_SHAPES: Final = {DEFAULT_GPT2: ROOKWORLD}
"""Model on the hub -> its shape, which is known here without asking it."""


def shape_of(network: "PreTrainedModel", lora: LoraConfig) -> Shape:
    """Return the shape of any causal language model of transformers, with the adapter that it gets; it needs no weights.

    Raises LoraError when it cannot have that adapter.
    """
    described = network.config.get_text_config()
    head: nn.Module | None = network.get_output_embeddings()  # type: ignore[no-untyped-call]
    embeddings = [each for each in network.modules() if isinstance(each, nn.Embedding)]
    others = {id(module.weight) for module in (head, *embeddings) if module is not None}
    parameters = list(network.parameters())
    return Shape(
        vocabulary=described.vocab_size,
        width=described.hidden_size,
        num_layers=described.num_hidden_layers,
        num_parameters=sum(weights.numel() for weights in parameters),
        num_in_blocks=sum(weights.numel() for weights in parameters if weights.dim() == 2 and id(weights) not in others),
        num_in_adapter=adapter_size(network, lora),
    )


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
    """Answers written, scored or trained on at once, at most."""
    num_inner_epochs: int = 1
    refreshes_reference: bool = False
    is_half: bool = False
    """Whether forward passes are in bfloat16."""
    recomputes: bool = False
    """Whether gradients are checkpointed."""

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
            is_half=grpo.precision == "bfloat16",
            recomputes=language.gradient_checkpointing,
        )

    @property
    def num_answers(self) -> int:
        """Answers of a step."""
        return self.num_prompts * self.group_size

    @property
    def num_tokens(self) -> int:
        """Tokens of a prompt with its answer."""
        return self.prompt_tokens + self.answer_tokens

    def per_piece(self, shape: Shape) -> int:
        """Return the answers of one forward pass with a gradient, which the size of logits bounds too."""
        return min(self.per_forward, max(1, MAX_LOGITS // (self.answer_tokens * shape.vocabulary)))


def lasting_bytes(shape: Shape, work: StepSize) -> dict[str, int]:
    """Return what is kept from step to step, by name."""
    trained = _BYTES * shape.num_trained
    return {
        "weights": _BYTES * (shape.num_parameters + shape.num_in_adapter),
        "gradients": trained,
        "Adam's two moments": 2 * trained,
        "reference": trained,
        "copy of the last step (weights, Adam)": 3 * trained + (trained if work.refreshes_reference else 0),
    }


def passing_bytes(shape: Shape, work: StepSize) -> dict[str, int]:
    """Return what a part of a step needs while it lasts, by the part's name; only one of them at a time."""
    of_forward = _BYTES // 2 if work.is_half else _BYTES
    half_weights = of_forward * shape.num_parameters if work.is_half else 0
    rows = work.per_piece(shape)
    table = _BYTES * rows * work.answer_tokens * shape.vocabulary
    of_token = of_forward * shape.num_layers * shape.width
    saved = _SAVED_CHECKPOINTED + _SAVED / shape.num_layers if work.recomputes else _SAVED
    return {
        "generation": half_weights + _GENERATION_COPIES * 2 * of_token * min(work.per_forward, work.num_answers) * work.num_tokens,
        "exact measures": half_weights + _MEASURE_TABLES * table,
        "update": half_weights
        + int(saved * of_token * rows * work.num_tokens)
        + _LOSS_TABLES * table
        + (0 if shape.num_in_adapter else _EMBEDDING_GRADIENTS * _BYTES * shape.num_in_head),
    }


def peak_bytes(shape: Shape, work: StepSize) -> int:
    """Return the largest need at one time."""
    return sum(lasting_bytes(shape, work).values()) + max(passing_bytes(shape, work).values())


def operations(shape: Shape, work: StepSize) -> dict[str, int]:
    """Return floating-point operations of a step by part.

    An answer's tokens are scored, a prompt's are not; generation reads the prompt of a group once.
    """
    answers = work.num_answers * work.answer_tokens

    def forward(tokens: int) -> int:
        # Each token's queries meet the keys and values of those before it: 4 w operations for each of the T / 2 of them, in each block.
        attention = 2 * shape.num_layers * shape.width * work.num_tokens * tokens
        return 2 * (shape.num_in_blocks + shape.num_in_adapter) * tokens + 2 * shape.num_in_head * answers + attention

    whole = forward(work.num_answers * work.num_tokens)
    an_update = _FORWARDS_AN_UPDATE - (_FORWARDS_WITHOUT_WEIGHTS if shape.num_in_adapter else 0) + work.recomputes
    return {
        "generation": forward(work.num_prompts * work.prompt_tokens + answers),
        "exact entropy and divergence": _FORWARDS_OF_MEASURES * whole,
        "update": work.num_inner_epochs * an_update * whole,
    }


def memory_table(shape: Shape, work: StepSize, *, num_steps: int, teraflops: float) -> str:
    """Return all of it for people.

    Args:
        shape: of the model.
        work: one step.
        num_steps: of the run.
        teraflops: 10^12 operations a second that the machine reaches, which are fewer than its maker names.
    """
    lasting, passing, counted = lasting_bytes(shape, work), passing_bytes(shape, work), operations(shape, work)
    total = sum(counted.values())
    trained = f", {shape.num_in_adapter:,} more in LoRA's adapter, which alone is trained" if shape.num_in_adapter else ""
    lines = [
        f"{shape.num_parameters:,} parameters{trained}; {work.num_answers} answers of {work.answer_tokens} tokens to prompts of"
        f" {work.prompt_tokens}, {work.per_forward} at once",
        "",
        *_rows("kept from step to step", lasting),
        *_rows("while it lasts, one at a time", passing),
        f"  {'at most, together':44} {peak_bytes(shape, work) / GIB:8.2f} GiB",
        "",
        *(f"  {name:44} {number / 1e12:8.2f} TFLOP" for name, number in counted.items()),
        f"  {'a step':44} {total / 1e12:8.2f} TFLOP: {total / teraflops / 1e12:.1f} s at {teraflops:g} TFLOP/s",
        f"  {f'{num_steps:,} steps':44} {num_steps * total / 1e12:8.2f} TFLOP: {num_steps * total / teraflops / 3.6e15:.2f} hours;"
        " generation reaches less, token by token",
    ]
    return "\n".join(lines)


def _rows(title: str, found: Mapping[str, int]) -> list[str]:
    return [title, *(f"  {name:44} {number / GIB:8.2f} GiB" for name, number in found.items())]
