"""Fine-tune a language model by GRPO, in the training loop of every policy (`steps.bodies.training_loop`)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from grpo.dataset.table import Split
from grpo.language.generate.player import AnswerGenerator
from grpo.language.learn.evaluation import EvaluationBoards, evaluate_language, heldout_reward, questions
from grpo.language.learn.trainer import LanguageTrainer
from grpo.language.model.loading import LANGUAGE_FORMAT, load_language_policy
from grpo.language.text.examples import Example, LanguageBoards
from grpo.language.text.rewards import Grades, grade
from grpo.learning.checkpoints import load_checkpoint
from grpo.settings.tree import Settings
from steps.bodies.language_answers import shown_examples, write_answers
from steps.bodies.training_loop import TrainingLoop
from steps.step_io.dataset import read_boards
from steps.step_io.names import FINDINGS, LEARNABILITY, REPORT
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work

SPEC: Final = StepSpec(
    name="finetune",
    body=__name__,
    reads="finetune",
    inputs=("boards", "pretrained", "checkpoint", "engine", "device"),
    shown=("language/reward_mean", "language/parse_rate", "heldout/regret_best", "heldout/parse_rate"),
    axis="step",
    published=(REPORT, LEARNABILITY, FINDINGS),
    resumes=True,
)


def finetune_language(
    settings: Settings,
    *,
    boards: Path,
    pretrained: Path,
    checkpoint: Path | None,
    facts: Mapping[str, Any],
    device: torch.device,
    work: Work,
    on_assessed: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Write checkpoints, history, and why training ended; after a kill, resume.

    Args:
        settings: the run's.
        boards: folder of the joined dataset.
        pretrained: folder of the pretrained policy: the frozen reference, and the start unless there is a checkpoint.
        checkpoint: to resume from, for as many steps again as the settings say, with its optimiser state.
        facts: written into each checkpoint: where it comes from.
        device: to train on.
        work: the folder to fill, the folder in which to keep what a kill must not take, and the sinks.
        on_assessed: called with what was found before the first update.
    """
    table = read_boards(boards)
    policy, policy_config = load_language_policy(pretrained, device)
    policy.config = settings.language  # Of this run; a checkpoint says by which rules it answers in games.
    reference = policy.copied()
    origin = None
    if checkpoint is not None:
        resumed, _, origin = load_checkpoint(checkpoint, torch.device("cpu"), LANGUAGE_FORMAT)
    first = 0 if origin is None else origin.step

    def grader(example: Example, text: str) -> Grades:
        return grade(example, text, logistic_slope=settings.values.logistic_slope)

    trainer = LanguageTrainer(
        policy,
        reference,
        LanguageBoards.of_table(table, Split.TRAIN, config=settings.language),
        settings,
        grader=grader,
        first_step=first,
    )
    if origin is not None:
        trainer.load_weights(resumed.network.state_dict())
        trainer.begin_from(origin)
    evaluated = EvaluationBoards.of_table(table, config=settings.language)
    asked = questions(LanguageBoards.of_table(table, Split.VALIDATION, config=settings.language), settings.language.num_heldout_boards)
    generator = AnswerGenerator(trainer.evaluation_policy, settings.language)
    TrainingLoop(
        trainer,
        policy_config,
        LANGUAGE_FORMAT,
        settings.grpo,
        first=first,
        heldout=lambda: (
            evaluate_language(generator, evaluated).metrics() | heldout_reward(trainer.evaluation_policy, asked, grader).metrics()
        ),
        facts=facts,
        work=work,
        on_assessed=on_assessed,
    ).run()
    asked = shown_examples(LanguageBoards.of_table(table, Split.VALIDATION, config=settings.language), seed=settings.seed)
    before, _ = load_language_policy(pretrained, device)
    write_answers(work.folder, {"pretrained": before, "trained": trainer.evaluation_policy}, asked, grader)
