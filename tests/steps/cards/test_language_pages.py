"""What people see of a language model's run: cards and pages of steps; none asks for a network's numbers."""

import html
from pathlib import Path
from typing import Any

import pytest
from made_results import CLONED, made_reports, made_results
from test_cards import charts, lines_of, markup

from grpo.base.files import write_json
from grpo.metrics.table import REWARD_PARTS, TASKS, Event, Record
from grpo.settings.tree import read_settings
from steps.cards.html import CardPart
from steps.cards.registry import PAGES
from steps.cards.report_page import report_page
from steps.cards.state import Seen
from steps.step_io.names import ANSWERS, HISTORY, RESULTS
from steps.step_io.results_text import training_lines
from steps.tracking.notes import experiment_note
from steps.tracking.step_notes import headlines, step_note

SETTINGS = read_settings('preset = "test"\npolicy.kind = "language"')
PLAIN = SETTINGS.model_dump(mode="json")
EVIL = "<script>alert(1)</script>\n\n[x](javascript:y)"
TAKEN = {
    **{name: value for name, value in CLONED.items() if not name.startswith("clone_")},
    "model": "jrahn/RookWorld-LM-124M",
    "commit": "0123456789abcdef",
    "num_steps": 0,
    "best_step": 0,
}
TRAINED = made_reports()["finetune"]


def record(step: int, *events: Event) -> Record:
    """Return what a step of GRPO on a language model tells; nothing of a network is among it."""
    names = [
        *("language/reward_mean", "language/reward_trained", "language/parse_rate", "language/truncated", "language/malformed"),
        *("language/entropy", "language/kl_reference", "language/kl_max", "language/zero_variance_groups", "language/sampled_scored_gap"),
        *(f"language/reward/{part}" for part in REWARD_PARTS),
        *(f"language/{name}/{task}" for name in ("reward_mean", "parse_rate", "truncated", "entropy", "kl_reference") for task in TASKS),
        *("control/kl_coefficient", "control/learning_rate", "heldout/regret_best", "heldout/parse_rate"),
    ]
    return Record(step, dict.fromkeys(names, 0.25 + 0.125 * step), events)


def kinds(parts: list[CardPart]) -> list[type]:
    return [type(part) for part in parts]


# Cards.


@pytest.mark.parametrize("step", ["pretrain", "finetune"])
def test_a_live_card_keeps_its_layout_from_nothing_told_to_all_stored(step: str, tmp_path: Path) -> None:
    page = PAGES[step][1]
    told = Seen(PLAIN, records=[record(1, Event("entropy_low", "x")), Record(2, {"language/clone_loss": 1.0})])
    stored = Seen(PLAIN, records=[record(1)])
    report = {**TRAINED, **CLONED} if step == "pretrain" else TRAINED
    write_json(tmp_path / "report.json", report)
    write_json(tmp_path / ANSWERS, [answered()])
    stored.finish(tmp_path, is_reused=False)
    assert kinds(page(Seen(PLAIN))) == kinds(page(told)) == kinds(page(stored))


def test_the_training_card_has_rewards_by_part_what_can_be_read_by_task_and_entropy_and_kl_of_an_answer() -> None:
    shown = charts(PAGES["finetune"][1](Seen(PLAIN, records=[record(1), record(2, Event("entropy_low", "told at 2"))])))
    assert list(lines_of(shown["reward by part"])) == [part.replace("_", " ") for part in REWARD_PARTS]
    assert list(lines_of(shown["parse rate"])) == ["all answers", "policy task", "environment task"]
    assert list(lines_of(shown["truncated at the maximum length"])) == ["all answers", "policy task", "environment task"]
    entropy = lines_of(shown["entropy of an answer at T = 1"])
    assert entropy["all answers"] == [(1, 0.375), (2, 0.5)]
    assert entropy["critical"] == [(1, SETTINGS.grpo.critical_entropy), (2, SETTINGS.grpo.critical_entropy)]
    assert "maximum" in lines_of(shown["KL to the reference, per answer"])
    # Every line of a chart that has numbers is one of a language model's.
    assert not [title for title in shown if "legal moves)" in title or "gradient budget" in title]


def answered(**changes: Any) -> dict[str, Any]:
    answer = {"whose": "trained", "text": " e2e4", "num_tokens": 9, "is_truncated": False, "reward": 2.5, "parts": {"structure": 0.2}}
    return {"task": "move", "prompt": "P: 8/8 w    M:", "target": " e2e4 d2d4", "answers": [{**answer, **changes}]}


def test_some_answers_are_shown_with_their_grades_as_text_whatever_they_are(tmp_path: Path) -> None:
    write_json(tmp_path / ANSWERS, [answered(), answered(text=EVIL, is_truncated=True, whose="pretrained")])
    seen = Seen(PLAIN)
    seen.finish(tmp_path, is_reused=False)
    shown = markup(PAGES["finetune"][1](seen))
    for told in ("policy task: P: 8/8 w M:", "e2e4 d2d4", "trained: structure 0.2", "pretrained (truncated)", ">2.5<"):
        assert told in shown
    assert "<script" not in shown
    assert "](" not in shown


@pytest.mark.parametrize("report", [CLONED, TAKEN], ids=["cloned", "taken"])
def test_the_cloning_card_says_which_model_how_it_went_and_what_the_gate_found(report: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", report)
    seen = Seen(PLAIN)
    seen.finish(tmp_path, is_reused=False)
    shown = markup(PAGES["pretrain"][1](seen))
    assert ("0.7251 nats per token" in shown) == (report is CLONED)
    assert ("Used without cloning" in shown) == (report is TAKEN)
    assert "912,384 parameters" in shown
    assert "policy task 0.95, environment task 0.95" in shown


def test_the_final_card_is_drawn_without_a_networks_numbers(tmp_path: Path) -> None:
    results = made_results(tmp_path, made_reports() | {"pretrain": CLONED})
    write_json(tmp_path / RESULTS, results)
    seen = Seen({})
    seen.finish(tmp_path, is_reused=False)
    parts = report_page(seen)
    assert "Held-out regret of checkpoints" in markup(parts)
    for words in (results["verdict"], *training_lines(results)):
        assert html.escape(words) in markup(parts)


# Pages.


def test_a_steps_page_tells_what_it_does_with_a_language_model(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_text('{"step": 1, "language/parse_rate": 0.9, "language/reward_mean": 3.0, "language/kl_reference": 0.0}\n')
    note = step_note("finetune", tmp_path)
    assert note.startswith("GRPO: samples several answers per prompt")
    assert headlines("finetune", tmp_path) == {}
    (tmp_path / HISTORY).write_text('{"step": 1, "grpo/entropy": 2.0}\n')
    assert step_note("finetune", tmp_path).startswith("GRPO: samples several moves per position")


def test_the_experiments_page_stays_within_what_mlflow_keeps() -> None:
    assert len(experiment_note("1")) < 5_000
