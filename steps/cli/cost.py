"""The command `chess-grpo cost`: memory and time of a language model's GRPO before anybody pays for them."""

import argparse
from typing import TYPE_CHECKING

from grpo.policy.files import LANGUAGE
from grpo.settings.tree import ConfigError
from steps.cli.parser import add_settings, given_settings
from steps.runtime.terminal_lines import say

if TYPE_CHECKING:
    from grpo.language.learn.memory_estimate import Shape
    from grpo.settings.language import LanguageConfig

_PROMPT_TOKENS = 60
_REMEDY = (
    "lower language.answers_per_forward, set language.gradient_checkpointing = true or grpo.precision = 'bfloat16', or take a smaller model"
)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `cost`."""
    parser = commands.add_parser(
        "cost",
        description="Memory and floating-point operations of GRPO on a language model, computed from the model's shape and the settings."
        " Nothing is loaded but the model's config.json; RookWorld-LM's shape is known without a hub.",
    )
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=_PROMPT_TOKENS,
        metavar="N",
        help=f"of the longest prompt (default {_PROMPT_TOKENS}, an estimate for a FEN in GPT-2's tokens; the small model's have up to 100)",
    )
    parser.add_argument("--answer-tokens", type=int, metavar="N", help="of the longest answer (default language.max_answer_tokens)")
    parser.add_argument("--teraflops", type=float, default=10.0, metavar="X", help="10^12 operations a second of the machine (default 10)")
    parser.add_argument("--memory", type=float, metavar="GIB", help="of the GPU: exit code 1 if a step needs more")
    add_settings(parser)
    parser.set_defaults(run=_cost)


def _cost(given: argparse.Namespace) -> int:
    settings = given_settings(argparse.Namespace(config=given.config, set=given.set))
    if settings.policy.kind != LANGUAGE:
        raise ConfigError("cost is only for language models: give --config language, or --set 'policy.kind=\"language\"'")
    numbers = {"--prompt-tokens": given.prompt_tokens, "--answer-tokens": given.answer_tokens, "--teraflops": given.teraflops}
    for name, number in {**numbers, "--memory": given.memory}.items():
        if number is not None and not number > 0:
            raise ConfigError(f"{name} {number:g}: give a number above 0")
    from grpo.language.learn.memory_estimate import GIB, StepSize, memory_table, peak_bytes

    shape = _shape(settings.language)
    work = StepSize.of(settings, prompt_tokens=given.prompt_tokens, answer_tokens=given.answer_tokens)
    print(memory_table(shape, work, num_steps=settings.grpo.num_steps, teraflops=given.teraflops))
    if given.memory is None:
        return 0
    needed = peak_bytes(shape, work) / GIB
    fits = needed <= given.memory
    say(f"\n{needed:.2f} GiB {'fit' if fits else 'do not fit'} into {given.memory:g} GiB" + ("" if fits else f": {_REMEDY}"))
    return 0 if fits else 1


def _shape(language: "LanguageConfig") -> "Shape":
    """Return the shape of the model that the settings name."""
    from grpo.language.learn.memory_estimate import KNOWN_SHAPES, shape_of

    if language.model in KNOWN_SHAPES:
        return KNOWN_SHAPES[language.model]
    from grpo.language.model.loading import empty_model

    return shape_of(empty_model(language))
