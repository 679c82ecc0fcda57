"""What people see of a language model's run: cards, pictures, report, model card and pages; none asks for a network's numbers."""

import math
from pathlib import Path
from typing import Any

import pytest
from logged_runs import words
from made_reports import CODE, REPORTS
from test_cards import charts, lines_of, markup

from grpo.base.files import write_json
from grpo.metrics.table import REWARD_PARTS, TASKS, Event, Record
from grpo.settings.tree import read_settings
from steps.bodies.report import _page
from steps.cards.html import CardPart, Chart
from steps.cards.registry import PAGES
from steps.cards.report_page import report_page
from steps.cards.state import Seen
from steps.export.language_card import LanguageCard
from steps.export.model_card import CardFacts, model_card
from steps.runs.facts import RunFacts
from steps.step_io.names import ANSWERS, HISTORY
from steps.tracking.notes import experiment_note
from steps.tracking.plots import language_plots
from steps.tracking.step_notes import headlines, step_note

SETTINGS = read_settings('preset = "test"\npolicy.kind = "language"\ngrpo.num_curve_pairs = 0')
PLAIN = SETTINGS.model_dump(mode="json")
EVIL = "<script>alert(1)</script>\n\n[x](javascript:y)"
RATE = {"rate": 0.953, "low": 0.91, "high": 0.98, "num": 64, "legal_rate": 0.5, "truncated": 0.01, "example": " e2e4"}
CLONED: dict[str, Any] = {
    "model": "small",
    "commit": "",
    "num_parameters": 912_384,
    "num_tokens": 2_048,
    "num_steps": 3_000,
    "best_step": 2_750,
    "parse_rates": {"move": RATE, "environment": {**RATE, "legal_rate": None}},
    "clone_loss": 0.8,
    "clone_validation_loss": 0.7251,
}
TAKEN = {
    **{name: value for name, value in CLONED.items() if not name.startswith("clone_")},
    "model": "jrahn/RookWorld-LM-124M",
    "commit": "0123456789abcdef",
    "num_steps": 0,
    "best_step": 0,
}
TRAINED = {
    **REPORTS["finetune"],
    "control": {"control/entropy_saturated": 0.0, "control/entropy_idle": 0.0, "control/recoveries": 0.0},
}


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
    report = {**REPORTS["finetune"], **CLONED} if step == "pretrain" else TRAINED
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
    steps = {**REPORTS, "pretrain": CLONED, "finetune": TRAINED}
    facts = {"steps": facts_of(steps), "curve": [{"step": 1, **record(1).metrics}], "decisions": {}}
    write_json(tmp_path / "report.json", facts)
    seen = Seen({})
    seen.finish(tmp_path, is_reused=False)
    try:
        parts = report_page(seen)
    except KeyError as error:
        pytest.fail(f"the page asks for {error}")
    shown = {part.spec["title"]["text"]: part.spec for part in parts if isinstance(part, Chart)}
    assert lines_of(shown["parse rate"])["parsed"] == [(1, 0.375)]
    assert "mean reward" not in shown


# Pictures and pages.


def test_the_pictures_are_of_what_was_measured() -> None:
    drawn = language_plots([record(1), record(2)], SETTINGS)
    assert drawn.keys() == {"entropy", "reward", "reward_parts", "kl", "clip", "reading", "regret"}
    assert f"critical: {SETTINGS.grpo.critical_entropy:g} nats" in words(drawn["entropy"])
    assert "language/entropy/move: 0.5 at the end" in words(drawn["entropy"])
    assert all(f"language/reward/{part}: 0.5 at the end" in words(drawn["reward_parts"]) for part in REWARD_PARTS)
    assert drawn == language_plots([record(1), record(2)], SETTINGS)
    assert language_plots([Record(0, {})], SETTINGS).keys() == drawn.keys(), "a history that lacks a metric is drawn without it"


def test_a_steps_page_tells_what_it_does_with_a_language_model(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_text('{"step": 1, "language/parse_rate": 0.9, "language/reward_mean": 3.0, "language/kl_reference": 0.0}\n')
    note = step_note("finetune", tmp_path)
    assert note.startswith("GRPO: samples several answers per prompt")
    assert "| `language/parse_rate` |  | 0.9 |" in note
    assert "grpo/" not in note
    assert headlines("finetune", tmp_path) == {"language/parse_rate": 0.9, "language/reward_mean": 3.0, "language/kl_reference": 0.0}
    (tmp_path / HISTORY).write_text('{"step": 1, "grpo/entropy": 2.0}\n')
    assert step_note("finetune", tmp_path).startswith("GRPO: samples several moves per position")


def test_the_experiments_page_stays_within_what_mlflow_keeps() -> None:
    assert len(experiment_note("1")) < 5_000


def facts_of(steps: dict[str, Any]) -> dict[str, Any]:
    """Return the reports of a run as the final page reads them."""
    score = {"score": 0.6, "low": 0.5, "high": 0.7, "text": "0.6 [0.5, 0.7]", "num_pairs": 8, "num_openings": 8, "ends": {"checkmate": 16}}
    placed = {"rating": 10.0, "low": 5.0, "high": 15.0, "low_of_all": 4.0, "high_of_all": 16.0, "text": "+10 Elo", "games": []}
    claim = {"name": "better", "interval": score, "text": "0.6", "is_shown": True, "adjusted_p": 0.01}
    decision = {
        "verdict": "better",
        "candidate_step": 4,
        "peak_step": 4,
        "champion_step": 4,
        "promoted": True,
        "replaces_previous": True,
        "confirmation_best_moves": score,
        "confirmation_sampled_moves": score,
        "previous_champion": None,
        "screening": [],
        "claims": [claim],
        "beside": [],
        "phases": [],
        "reasons": ["it won"],
        "scored_by": "played out",
        "ladder": placed,
        "ladder_initial": placed,
        "ladder_gain": {"finding": "higher", "text": "higher, +5 Elo [+1, +9]"},
        "disagreement": "",
        "heldout_regret_best": {"4": {"mean": 0.1, "stderr": 0.01}},
    }
    ladder = {"rungs": [{"name": "random", "rating": 0.0, "low": 0.0, "high": 0.0}], "note": "n", "engine": "Stockfish"}
    return {**steps, "select": decision, "calibrate": ladder, "baseline": {"matches": {}}}


@pytest.mark.parametrize("report", [CLONED, TAKEN], ids=["cloned", "taken"])
def test_the_report_tells_the_cloning_and_that_entropy_is_an_answers(report: dict[str, Any]) -> None:
    page = _page(facts_of({**REPORTS, "pretrain": report, "finetune": TRAINED}))
    assert "policy task 0.953 [0.910, 0.980], environment task 0.953" in page
    assert "1.71 nats an answer then" in page
    assert "Recoveries from critical entropy: 0." in page
    assert "top-1" not in page
    assert ("validation loss 0.725 nats a token" in page) == (report is CLONED)
    assert ("`jrahn/RookWorld-LM-124M` at commit `0123456789ab`" in page) == (report is TAKEN)


@pytest.mark.parametrize("report", [CLONED, TAKEN], ids=["cloned", "taken"])
def test_the_model_card_is_of_a_language_model(report: dict[str, Any]) -> None:
    parts = {"inputs": {"engine": "Stockfish"}, "settings": {"seed": 0, "grpo": PLAIN["grpo"], "language": PLAIN["language"]}}
    reports = {**REPORTS, "pretrain": report}
    manifests = {step: {"step": step, "output_hash": "h", "code": CODE, "parts": parts} for step in reports}
    card = model_card(
        CardFacts(
            run="7",
            policy_step=4,
            words=LanguageCard({"language": PLAIN["language"], "origin": {"model": report["model"], "commit": report["commit"]}}),
            hashes={},
            behind=RunFacts(reports=reports, manifests=manifests),
        )
    )
    assert "A causal language model that writes its moves as text, trained by behaviour cloning of answers, then by 4 steps of GRPO" in card
    assert "name no legal move" in card
    assert "policy.onnx" not in card
    assert "channels" not in card
    assert "top-1" not in card
    assert "Parse rate at T = 1: policy task 0.953 [0.910, 0.980]" in card
    assert ("The initial weights are" in card) == (report is TAKEN)
    # Defaults are those of the kind, so that none is shown as changed.
    assert "grpo.clip_low" not in card
    assert math.isclose(PLAIN["grpo"]["clip_low"], 0.1)
