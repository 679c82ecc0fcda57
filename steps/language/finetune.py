"""Fine-tune a language model by GRPO."""

import torch

from grpo.dataset.table import Split
from grpo.language.generate.player import AnswerGenerator
from grpo.language.learn.evaluation import EvaluationBoards, evaluate_language, heldout_reward, reward_examples
from grpo.language.learn.problem import LanguageProblem
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import LanguageBoards
from grpo.language.text.rewards import grade
from grpo.policy.checkpoints import load_checkpoint
from grpo.train.trainer import Trainer
from steps.common.dataset import read_boards
from steps.common.training_loop import TrainingLoop
from steps.language.answers import shown_examples, write_answers
from steps.run.step import OfRun
from steps.run.work import Work


def body(work: Work) -> None:
    """Write checkpoints, report, findings, and answers of both policies."""
    settings, checkpoint = work.settings, work.of_run.get(OfRun.CHECKPOINT)
    language, table = settings.language, read_boards(work.inputs["join_boards"])
    policy = LanguagePolicy.load(work.inputs["pretrain"], work.device)
    policy.config = language  # Checkpoints save these settings, which commands such as `play` use.
    reference = policy.copied()  # The pretrained policy, also after a resume.
    resumed = None if checkpoint is None else load_checkpoint(checkpoint, torch.device("cpu"), LanguagePolicy)

    train = LanguageBoards(table, Split.TRAIN, language)
    first_step = 0 if resumed is None else resumed[1].step
    problem = LanguageProblem(reference, train, settings, grader=grade, first_step=first_step)
    trainer = Trainer(problem, policy, settings.grpo, seed=settings.seed, first_step=first_step)
    if resumed is not None:
        trainer.begin_from(*resumed)
    heldout_boards = EvaluationBoards.of_table(table, config=language)
    validation = LanguageBoards(table, Split.VALIDATION, language)
    examples = reward_examples(validation, language.num_heldout_boards)
    generator = AnswerGenerator(trainer.evaluation_policy, language)

    def measure() -> dict[str, float]:
        return evaluate_language(generator, heldout_boards).metrics() | heldout_reward(trainer.evaluation_policy, examples, grade).metrics()

    TrainingLoop(work, trainer, measure).run()
    before = LanguagePolicy.load(work.inputs["pretrain"], work.device)
    shown = shown_examples(validation, seed=settings.seed)
    write_answers(work.folder, {"pretrained": before, "trained": trainer.evaluation_policy}, shown, grade)
