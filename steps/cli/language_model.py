"""The commands for language models alone: `cost`, what GRPO needs; `single-batch`, one rollout, and one batch overfitted as a test."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import chess
import pyarrow as pa

from grpo.base.seeding import numpy_stream
from grpo.board.encoding import position_key
from grpo.board.phases import phase_of
from grpo.dataset.table import Position, Split, board_row, board_table
from grpo.engine.answers import EngineError
from grpo.engine.identity import identify
from grpo.engine.move_values import engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.metrics.table import TASKS
from grpo.policy.files import LANGUAGE
from grpo.settings.tree import ConfigError, Settings
from steps.cli.parser import add_settings, given_settings
from steps.runs.find_policy import find_policy
from steps.runs.names import POLICY_NAMES
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say
from steps.step_io.dataset import read_boards
from steps.step_io.names import BOARDS

if TYPE_CHECKING:
    from grpo.language.learn.memory_estimate import Shape
    from grpo.language.learn.rollouts import GradedAnswer, LanguageRollout
    from grpo.language.learn.single_batch import SingleBatch
    from grpo.language.model.policy import LanguagePolicy
    from grpo.language.text.examples import Example
    from grpo.settings.language import LanguageConfig

_PROMPT_TOKENS: Final = 60
_REMEDY: Final = (
    "lower language.answers_per_forward, set language.gradient_checkpointing = true or grpo.precision = 'bfloat16', or take a smaller model"
)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `cost` and `single-batch`."""
    _add_cost(commands)
    _add_single_batch(commands)


def _add_cost(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    parser.add_argument(
        "--answer-tokens", type=int, metavar="N", help="of the longest answer without its thought (default language.max_answer_tokens)"
    )
    parser.add_argument("--teraflops", type=float, default=10.0, metavar="X", help="10^12 operations a second of the machine (default 10)")
    parser.add_argument("--memory", type=float, metavar="GIB", help="of the GPU: exit code 1 if a step needs more")
    add_settings(parser)
    parser.set_defaults(run=_cost)


def _add_single_batch(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "single-batch",
        description="One rollout of a language model, answer by answer: prompt, answer, parsed fields, each part of the reward, the"
        " advantage, and the log-probability as sampled and as scored. With --update, train on that one batch: if its loss does not fall,"
        " the training code or the rewards are at fault.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"{POLICY_NAMES}; without it language.model of the settings, untrained")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--boards", type=Path, metavar="FOLDER", help="a dataset's folder: the prompts of a run's first rollout on it")
    prompts.add_argument("--fen", action="append", metavar="FEN", help="a position, evaluated by Stockfish; may be repeated")
    parser.add_argument("--update", type=int, default=0, metavar="N", help="take N optimiser steps on the batch (default 0)")
    add_settings(parser)
    parser.set_defaults(run=_single_batch)


def _cost(given: argparse.Namespace) -> int:
    settings = given_settings(given)
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
    """Return the shape of the model that the settings name, with its adapter."""
    from grpo.language.learn.memory_estimate import KNOWN_SHAPES, shape_of

    if language.model in KNOWN_SHAPES and not language.lora.rank:
        return KNOWN_SHAPES[language.model]
    from grpo.language.model.loading import empty_model

    return shape_of(empty_model(language), language.lora)


def _single_batch(given: argparse.Namespace) -> int:
    settings, machine = _settings(given), Machine.here()
    if given.update < 0:
        raise ConfigError(f"--update {given.update}: give a number of optimiser steps, at least 0")
    if given.boards and not (given.boards / BOARDS).is_file():
        raise ConfigError(f"{given.boards} is not a dataset: it has no {BOARDS}; give the output of the step join_boards")
    boards = [_board(fen) for fen in given.fen or ()]
    policy = _policy(given.model, settings, machine)
    from grpo.language.learn.single_batch import SingleBatch
    from grpo.language.text.rewards import grade

    examples = _of_dataset(given.boards, settings) if given.boards else _of_positions(boards, settings, machine)
    grader = partial(grade, weights=settings.language.rewards, logistic_slope=settings.values.logistic_slope)
    single = SingleBatch(policy, examples, settings, grader=grader)
    batch = single.write()
    for line in _batch_lines(batch):
        say(line)
    if not given.update:
        return 0
    return _overfit(single, batch, given.update, settings)


def _settings(given: argparse.Namespace) -> Settings:
    """Return the settings; their policy is a language model unless they say otherwise."""
    kind = [] if any(line.strip().startswith("policy.kind") for line in given.set) else ['policy.kind = "language"']
    settings = given_settings(argparse.Namespace(config=given.config, set=[*kind, *given.set]))
    if settings.policy.kind != LANGUAGE:
        raise ConfigError('single-batch is only for language models: give policy.kind = "language"')
    return settings


def _policy(name: str | None, settings: Settings, machine: Machine) -> "LanguagePolicy":
    """Return the policy of this name, or the model of the settings."""
    if name is not None:
        found = find_policy(name, machine)
        if found.kind != LANGUAGE:
            raise ConfigError(f"{name} is a chess network; single-batch is only for language models")
    from grpo.language.model.loading import load_language_policy, load_model
    from steps.runtime.device import torch_device

    device = torch_device(machine)
    return (
        load_model(settings.language, seed=settings.seed, device=device) if name is None else load_language_policy(found.folder, device)[0]
    )


def _of_dataset(folder: Path, settings: Settings) -> "list[Example]":
    """Return the prompts of the first rollout of a run with these settings on a dataset."""
    from grpo.language.text.examples import LanguageBoards

    boards = LanguageBoards.of_table(read_boards(folder), Split.TRAIN, config=settings.language)
    return boards.draw(numpy_stream(settings.seed, "prompts", 0), settings.grpo.states_per_step)


def _of_positions(positions: Sequence[chess.Board], settings: Settings, machine: Machine) -> "list[Example]":
    """Return the prompts of each position for both tasks, or for the only task that is trained."""
    from grpo.language.text.examples import LanguageBoards
    from grpo.language.text.tasks import LanguageTask

    share = settings.language.environment_share
    tasks = [task for task, is_asked in ((LanguageTask.MOVE, share < 1), (LanguageTask.ENVIRONMENT, share > 0)) if is_asked]
    boards = LanguageBoards(_valued(positions, settings, machine), settings.language)
    rng = numpy_stream(settings.seed, "prompts", 0)
    return [boards.example(index, task, rng=rng) for index in range(len(boards)) for task in tasks]


def _board(fen: str) -> chess.Board:
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise ConfigError(f"--fen {fen!r}: {error}; give a whole FEN, in quotes") from None
    if not board.is_valid() or board.is_game_over():
        raise ConfigError(f"--fen {fen!r}: not a legal position with a move to play; give one that is not over")
    return board


def _valued(boards: Sequence[chess.Board], settings: Settings, machine: Machine) -> pa.Table:
    """Return the positions with value tables, in the format of a dataset."""
    engine = identify(machine.stockfish)
    limit, options = f"depth {settings.values.depth}", engine_options(settings.values)
    rows = []
    with EnginePool(machine.stockfish, num_processes=1, options=options) as pool:
        found = value_tables(boards, pool, settings.values, depth=settings.values.depth)
        for index, (board, table) in enumerate(zip(boards, found, strict=True)):
            if isinstance(table, EngineError):
                raise table
            position = Position(
                fen=board.fen(),
                key=position_key(board),
                phase=phase_of(board),
                split=Split.TRAIN,
                label="",
                game_id=str(index),
                ply=board.ply(),
                source="fen",
                offset=index,
            )
            rows.append(board_row(position, table, None, engine=str(engine), limit=limit, transform=settings.values.transform))
    return board_table(rows)


def _batch_lines(batch: "LanguageRollout") -> Iterator[str]:
    size = batch.group_size
    num_prompts = len(batch.answers) // size
    for number, group in enumerate(batch.groups()):
        example = group[0].example
        yield f"Prompt {number + 1} of {num_prompts}, {TASKS[example.task.value]} task"
        yield f"  {example.prompt}"
        yield f"  the full answer: {example.target!r}"
        for place, answer in enumerate(group, start=number * size):
            yield from _answer_lines(batch, place, answer)
        yield ""
    yield (
        f"{num_prompts} prompts, {size} answers each: mean reward {batch.totals.mean():.3f},"
        f" {sum(answer.reading.is_readable for answer in batch.answers)} of {len(batch.answers)} readable,"
        f" {int(batch.is_truncated.sum())} truncated at the maximum length and excluded from the loss"
    )
    yield f"sampled and scored log-probabilities differ by at most {batch.largest_gap:.1e} nats per token"


def _answer_lines(batch: "LanguageRollout", place: int, answer: "GradedAnswer") -> Iterator[str]:
    read = answer.reading
    cut = "  TRUNCATED, excluded from the loss" if batch.is_truncated[place] else ""
    yield (
        f"  {place % batch.group_size + 1:2}  reward {answer.grades.total():.3f}  advantage {batch.advantages[place]:+.3f}"
        f"  log-probability {batch.sampled[place].sum():.4f} sampled, {batch.measures.log_probs[place].sum():.4f} scored,"
        f" {answer.answer.num_tokens} tokens{cut}"
    )
    if answer.answer.thought:
        yield f"      thought: {answer.answer.thought!r}"
    yield f"      {answer.text!r}"
    parts = "malformed" if read.is_malformed else "  ".join(f"{name} {value:.3f}" for name, value in answer.grades.parts.items())
    decision = f"; best move {answer.decision or 'missing'}" if answer.example.task.value == "move" else ""
    legal = "" if not decision or answer.grades.is_legal_best else ", not legal" if answer.decision else ""
    yield (
        f"      parsed: {read.num_sections} of {read.num_sections_expected} sections,"
        f" {read.num_fields} of {read.num_fields_expected} fields{decision}{legal}"
    )
    yield f"      {parts}"


def _overfit(single: "SingleBatch", batch: "LanguageRollout", num_steps: int, settings: Settings) -> int:
    """Train on the batch, print loss and measures, and return 0 if the loss falls, else 1."""
    if not batch.num_trained or not batch.advantages.any():
        say("Nothing can be learned from this batch: " + _why_nothing(batch))
        return 1
    say(f"\n{num_steps} optimiser steps on this batch, learning rate {settings.grpo.learning_rate:g}")
    print(f"  {'steps':>5}  {'loss':>10}  {'clipped':>8}  {'ratios':>15}  log-probability of better, of worse answers")
    losses = []
    for update in single.updates(batch, num_steps):
        losses.append(update.loss)
        measures = update.measures
        print(
            f"  {update.num_steps:5}  {update.loss:10.6f}  {measures['language/clip_fraction']:8.1%}"
            f"  {measures['language/ratio_min']:7.4f} {measures['language/ratio_max']:7.4f}  {update.better:+.5f}  {update.worse:+.5f}"
        )
    before, after = batch.totals, single.write(step=1).totals
    say(f"New answers to the same prompts: mean reward {after.mean():.3f}, before {before.mean():.3f}")
    if losses[-1] < losses[0]:
        say(f"The loss of the batch fell by {losses[0] - losses[-1]:.2g}: the training code works.")
        return 0
    say(
        f"The loss of the batch did not fall ({losses[0]:.6f}, then {losses[-1]:.6f}): try a smaller grpo.learning_rate, then a larger one;"
        " if neither helps, the fault is in the rewards, masks or gradients."
    )
    return 1


def _why_nothing(batch: "LanguageRollout") -> str:
    if not batch.num_trained:
        return "all answers are truncated at the maximum length. Raise language.max_answer_tokens, or clone first"
    return "all groups have zero variance: their answers have equal rewards. Raise grpo.group_size or grpo.temperature, or clone first"
