"""Prints what one language model's answers are worth over `language.think_tokens`, on boards that nobody trained on.

nice -n 19 python benchmarks/thoughts.py FOLDER_OF_A_POLICY FOLDER_OF_BOARDS [--budgets 0 4 16] [--questions 200]

All budgets have the same questions, of the policy task, and the same random numbers, so that gains over the first budget are paired. A
reward is that of one answer drawn at T = 1; regret is of best answers on held-out boards, by the stronger search. Intervals are 95 %, over
questions or boards.
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from grpo.dataset.table import Split
from grpo.language.generate.generator import PolicyAnswerGenerator
from grpo.language.learn.evaluation import EvaluationBoards, evaluate_language
from grpo.language.learn.heldout_reward import HeldoutReward, heldout_reward, questions
from grpo.language.model.loading import load_language_policy
from grpo.language.text.examples import LanguageBoards
from grpo.language.text.rewards import grade
from grpo.settings.tree import read_settings
from grpo.statistics.intervals import Z95
from steps.step_io.dataset import read_boards


def main() -> None:
    """Measure each budget, and print its row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", type=Path, help="a folder with a language model as a policy: of pretrain, select, or a checkpoint")
    parser.add_argument("boards", type=Path, help="the folder of a dataset")
    parser.add_argument("--budgets", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--questions", type=int, default=200)
    given = parser.parse_args()
    policy, _ = load_language_policy(given.policy, torch.device("cpu"))
    config = policy.config.model_copy(update={"environment_share": 0.0, "num_heldout_boards": given.questions, "num_sampled_answers": 1})
    table = read_boards(given.boards)
    asked = questions(LanguageBoards.of_table(table, Split.VALIDATION, config=config), given.questions)
    boards = EvaluationBoards.of_table(table, config=config)
    slope = read_settings('policy.kind = "language"').values.logistic_slope
    grader = partial(grade, weights=config.rewards, logistic_slope=slope)
    print(
        f"{given.policy}: {len(asked)} questions, {len(boards)} held-out boards, trained with think_tokens = {policy.config.think_tokens}\n"
    )
    print("budget  thought  reward                gain over the first   best answers' regret      parsed   legal")
    first: HeldoutReward | None = None
    for budget in given.budgets:
        policy.config = config.model_copy(update={"think_tokens": budget})
        drawn = heldout_reward(policy, asked, grader)
        first = drawn if first is None else first
        best = evaluate_language(PolicyAnswerGenerator(policy, policy.config), boards)
        numbers = drawn.metrics() | best.metrics()
        reward, of_reward = numbers["heldout/reward"], Z95 * numbers["heldout/reward_stderr"]
        regret, of_regret = numbers["heldout/regret_best"], Z95 * numbers["heldout/regret_best_stderr"]
        gain = "" if drawn is first else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*drawn.gain_over(first))
        print(
            f"{budget:6}  {drawn.num_thought.mean():7.2f}  {reward:.3f} [{reward - of_reward:.3f}, {reward + of_reward:.3f}]  {gain:24}"
            f"  {regret:.4f} [{regret - of_regret:.4f}, {regret + of_regret:.4f}]"
            f"  {drawn.is_readable.mean():6.1%}  {best.is_legal.mean():6.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
