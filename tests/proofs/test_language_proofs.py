"""A language model on its whole way, as preset `language` has it on fewer boards: pretrained, let through, trained by GRPO, and played."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from made_work import work_in

from grpo.dataset.table import Split
from grpo.language.learn.evaluation import heldout_reward, reward_examples
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import LanguageBoards
from grpo.language.text.rewards import grade
from grpo.policy.checkpoints import load_checkpoint
from grpo.settings.tree import Settings, read_settings
from grpo.statistics.intervals import wilson_interval
from steps import build_boards, join_boards
from steps.common.dataset import read_boards
from steps.language import finetune, pretrain
from steps.run.work import read_history

pytestmark = pytest.mark.prove

CPU = torch.device("cpu")
NUM_QUESTIONS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    settings: Settings
    boards: Path
    pretrained: Path
    tuned: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, stockfish: str) -> Trained:
    settings = read_settings('preset = "language"\nboards.num_train = 18_000\nresources.num_tasks = 1')
    root = tmp_path_factory.mktemp("language")
    boards, pretrained, tuned = (root / name for name in ("boards", "pretrained", "tuned"))
    build_boards.body(work_in(root / "units", settings, stockfish=stockfish))
    join_boards.body(work_in(boards, settings, parts=[root / "units"]))
    pretrain.body(work_in(pretrained, settings, inputs={"join_boards": boards}))
    work = work_in(tuned, settings, inputs={"join_boards": boards, "pretrain": pretrained})
    finetune.body(work)
    work.write_history()
    return Trained(settings=settings, boards=boards, pretrained=pretrained, tuned=tuned)


def test_grpo_raises_the_graded_reward_and_leaves_the_parse_rate(trained: Trained) -> None:
    settings = trained.settings
    history = read_history(trained.tuned)
    assert all(math.isfinite(value) for record in history for value in record.metrics.values())
    assert sum(record.metrics.get("language/skipped", 0) for record in history) == 0
    boards = LanguageBoards(read_boards(trained.boards), Split.VALIDATION, settings.language)
    asked = reward_examples(boards, NUM_QUESTIONS)

    last = sorted((trained.tuned / "checkpoints").iterdir())[-1]
    after, before = (
        heldout_reward(policy, asked, grade)
        for policy in (load_checkpoint(last, CPU, LanguagePolicy)[0], LanguagePolicy.load(trained.pretrained, CPU))
    )
    gains = after.rewards - before.rewards
    mean, stderr = gains.mean(), gains.std(ddof=1) / math.sqrt(len(gains))
    low, high = mean - 1.96 * stderr, mean + 1.96 * stderr
    print(
        f"reward {before.rewards.mean():.3f} -> {after.rewards.mean():.3f}: {mean:+.3f} [{low:+.3f}, {high:+.3f}] on {len(asked)} questions"
    )
    print(f"parse rate {before.is_readable.mean():.3f} -> {after.is_readable.mean():.3f}")
    assert low > 0
    fallen = before.is_readable.astype(float) - after.is_readable.astype(float)
    assert fallen.mean() - 1.96 * fallen.std(ddof=1) / math.sqrt(len(fallen)) <= 0, "the parse rate fell, beyond chance"
    assert wilson_interval(int(after.is_readable.sum()), len(asked))[1] > 0.9
