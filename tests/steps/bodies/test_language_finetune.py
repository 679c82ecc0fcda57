"""`finetune` with a language model, within one process: what it leaves, and that a broken run ends as one that was not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_training import in_store
from written_language import CPU, settings, writer, written_boards

from grpo.base.files import read_json, verified_manifest
from grpo.language.learn.evaluation import heldout_reward, questions
from grpo.language.learn.trainer import LanguageTrainer
from grpo.language.model.loading import LANGUAGE_FORMAT
from grpo.language.text.rewards import grade
from grpo.learning.checkpoints import checkpoint_folders, checkpoint_step, load_checkpoint, weights_hash
from grpo.learning.learnability import Learnability
from grpo.settings.tree import Settings
from steps.bodies.live_diagnosis import LiveDiagnosis
from steps.bodies.training_loop import TrainingLoop
from steps.step_io.names import FINDINGS
from steps.step_io.work import Work, read_history

SETTINGS = {"grpo.num_steps": 4, "grpo.steps_per_checkpoint": 2, "grpo.num_minibatches": 2, "grpo.num_inner_epochs": 2}


def finetuned(home: Path, *, change: Callable[[LanguageTrainer], None] = lambda trainer: None, **changes: Any) -> Path:
    """Return the output of a tiny fine-tuning of a model whose answers nobody can read, which is let through."""
    config: Settings = settings(**{**SETTINGS, **changes})
    boards = written_boards(config)

    def grader(example: Any, text: str) -> Any:
        return grade(example, text, logistic_slope=config.values.logistic_slope)

    trainer = LanguageTrainer(writer(config), writer(config), boards, config, grader=grader)
    trainer.preflight = lambda: Learnability(findings=(), metrics={})
    change(trainer)
    asked = questions(boards, 6)

    def heldout() -> dict[str, float]:
        found = heldout_reward(trainer.evaluation_policy, asked, grader).metrics()
        return {**found, "heldout/regret_best": -found["heldout/reward"]}

    def body(work: Work) -> None:
        TrainingLoop(trainer, config.policy, LANGUAGE_FORMAT, config.grpo, first=0, heldout=heldout, facts={}, work=work).run()

    return in_store(home, body, watcher=LiveDiagnosis({"grpo": config.grpo.model_dump(mode="json")}))


def test_a_run_leaves_history_report_findings_and_whole_checkpoints(tmp_path: Path) -> None:
    folder = finetuned(tmp_path)
    history = read_history(folder)
    assert [record.step for record in history] == list(range(5))
    assert [record.step for record in history if "heldout/reward" in record.metrics] == [0, 2, 4]
    assert [checkpoint_step(path) for path in checkpoint_folders(folder / "checkpoints")] == [2, 4]
    for path in checkpoint_folders(folder / "checkpoints"):
        verified_manifest(path)
    policy, config, state = load_checkpoint(checkpoint_folders(folder / "checkpoints")[-1], CPU, LANGUAGE_FORMAT)
    assert config.kind == "language"
    assert state.step == 4
    report = read_json(folder / "report.json")
    assert report["reason"] == "budget_spent"
    assert report["weights"] == weights_hash(policy)
    assert (folder / FINDINGS).is_file()
