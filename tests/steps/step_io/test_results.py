"""The results of a run: what the document has, and what people read of it."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_results import CLONED, CODE, ENGINE, FINDING, made_reports, made_results, write_outputs

from grpo.base.files import write_json
from grpo.settings.language import SMALL
from steps.bodies.report import write_report
from steps.export.language_card import LanguageCard
from steps.export.model_card import CardFacts, model_card
from steps.export.network_card import NetworkCard
from steps.runs.results import document_behind
from steps.step_io.names import REPORT_PAGE, RESULTS
from steps.step_io.results import Results, ResultsError, read_results
from steps.step_io.results_text import report_markdown
from steps.step_io.work import Work
from steps.tracking import notes


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return made_results(tmp_path)


def card_of(results: Results | None, *, policy_step: int | None = 100, **facts: Any) -> str:
    given = {"run": "ChessGrpo/17", "words": NetworkCard({"width": 64}), "hashes": {"weights": "e" * 64}} | facts
    return model_card(CardFacts(policy_step=policy_step, results=results, **given))


# The document.


def test_the_document_is_plain_data_and_every_file_of_the_step_is_made_of_it(results: Results, tmp_path: Path) -> None:
    folders = {step: tmp_path / "outputs" / step / f"v-{step}" for step in results["outputs"]}
    made = tmp_path / "outputs" / "report" / "v"
    made.mkdir(parents=True)
    write_report(folders, Work(made, ()))
    assert read_results(made / RESULTS) == results
    assert (made / REPORT_PAGE).read_text() == report_markdown(results)


def test_every_number_has_its_interval_its_games_and_its_yardstick(results: Results) -> None:
    found = {each["name"]: each for each in results["measurements"]}
    best = found["candidate against pretrained, best moves, adjudicated"]
    assert [best[key] for key in ("unit", "value", "num_games")] == ["score", 1.0, 100]  # type: ignore[literal-required]
    assert best["low"] == results["decision"]["confirmation_best_moves"]["adjudicated"]["low"]
    assert best["output"] == results["outputs"]["select"]["output_hash"]
    assert best["yardstick"]["pretrained policy"] == results["outputs"]["pretrain"]["output_hash"]
    assert (best["yardstick"]["evaluation.max_plies"], best["yardstick"]["engine"]) == ("200", ENGINE)
    assert found["held-out regret, candidate"]["yardstick"] == {"held-out boards": results["outputs"]["join_boards"]["output_hash"]}
    placed = [found[name]["value"] for name in ("candidate on the ladder", "pretrained on the ladder, openings of the candidate")]
    assert placed == [260, 240], "of the games of the ladder gain, and not the 250 of the baseline"


def test_the_document_names_places_outputs_settings_code_and_findings(results: Results) -> None:
    assert results["places"]["champion"] == "outputs/select/v-select/champion"
    assert results["outputs"].keys() == made_reports().keys()
    assert (results["settings"]["grpo.learning_rate"], results["engine"], results["code"]) == (7e-4, ENGINE, CODE)
    assert results["findings"] == {"verdict": "findings", "findings": [FINDING]}
    assert results["verdict"] == results["decision"]["sentence"]


def test_a_document_of_another_format_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / RESULTS, {"steps": {}})
    with pytest.raises(ResultsError, match="has format None, this code reads 1"):
        read_results(tmp_path / RESULTS)


def test_the_run_behind_a_policy_is_found_by_hash_and_no_other_run_is_taken_for_it(tmp_path: Path) -> None:
    for name, score in (("a", 0.75), ("b", 0.5)):
        folders = write_outputs(tmp_path / name, made_reports(score=score))
        (folders["select"] / "champion").mkdir()
        (tmp_path / name / "outputs" / "report" / "v").mkdir(parents=True)
        write_report(folders, Work(tmp_path / name / "outputs" / "report" / "v", ()))
    (tmp_path / "a" / "outputs" / "report" / "v").rename(tmp_path / "b" / "outputs" / "report" / "other")
    selected = [tmp_path / name / "outputs" / "select" / "v-select" / "champion" for name in ("a", "b")]
    found = [document_behind(folder) for folder in selected]
    assert found[0] is None, "its run did not reach `report` here"
    assert found[1] is not None
    assert found[1]["decision"]["verdict"] == "no improvement shown"
    assert document_behind(tmp_path) is None


# Pages.


def test_the_pages_name_the_verdict_and_its_numbers(results: Results) -> None:
    report = report_markdown(results)
    assert results["verdict"] in report
    assert results["verdict"] in notes.ended("## Configuration", results, places={"Report": "there/report.md"})
    assert "0.0485" in report
    assert "260" in card_of(results)
    assert results["decision"]["verdict"] in notes.version_note(results["decision"])


EVIL = "<script>alert(1)</script> [x](javascript:y) | `z` ![i](j) _a_ **b** ~~c~~\n# Heading {{ }}"


def test_text_of_files_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    reports = made_reports()
    reports["join_boards"] |= {"sources": {EVIL: 1}, "labels": {EVIL: 1}, "files": {EVIL: {"read": 0.5, "games": 1, "rejected": 0}}}
    reports["finetune"] |= {"reason": EVIL, "message": EVIL}
    reports["calibrate"] |= {"engine": EVIL, "note": EVIL}
    results = made_results(tmp_path, reports)
    results["engine"], results["settings"][EVIL], results["settings"]["seed"] = EVIL, EVIL, EVIL
    card = card_of(results, run=EVIL, hashes={EVIL: EVIL}, words=NetworkCard({"width": EVIL}))
    for page in (card, report_markdown(results)):
        for bad in ("<script", "](", "`z`", "_a_", "**b**", "~~"):
            assert bad not in page, bad
        assert not re.search(r"^# Heading", page, flags=re.MULTILINE)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


# The model card.


def test_a_policy_that_did_not_play_the_confirmation_says_so(results: Results) -> None:
    assert "not confirmed" not in card_of(results)
    peak = card_of(results, policy_step=250)
    assert "The confirmation was played by step 100; this policy is step 250, whose own strength was not confirmed." in peak
    assert "Of this policy, step 250, over all phases: 0.0497." in peak
    start = card_of(results, policy_step=0)
    assert "This policy is the pretrained one" in start
    assert "trained by behavior cloning of moves only" in start


def test_a_policy_of_which_nothing_is_known_claims_nothing() -> None:
    card = card_of(None, policy_step=None)
    assert card.count("Unknown: the results of the run that made this policy") == 4
    assert "Its strength is unknown here" in card
    assert "Elo [" not in card


# A language model.


@pytest.mark.parametrize("is_cloned", [True, False])
def test_a_language_models_pages_have_its_own_parts_and_no_number_of_a_network(is_cloned: bool, tmp_path: Path) -> None:
    taken = {"model": "jrahn/RookWorld-LM-124M", "commit": "0123456789abcdef", "num_steps": 0}
    pretrained = CLONED if is_cloned else {name: each for name, each in CLONED.items() if not name.startswith("clone_")} | taken
    reports = made_reports() | {"pretrain": pretrained}
    reports["select"]["confirmation_best_moves"]["answers"] = {
        "first": dict.fromkeys(("answers", "moves", "unreadable", "illegal", "asked_again", "forfeits"), 1_234)
    }
    results = made_results(tmp_path, copy.deepcopy(reports))
    assert results["kind"] == "language"
    described = {"language": {"max_questions": 3}, "origin": {"model": pretrained["model"], "commit": pretrained["commit"]}}
    for page in (report_markdown(results), card_of(results, words=LanguageCard(described))):
        assert "policy task 0.953 [0.910, 0.980], environment task 0.953" in page
        assert "1.71 nats an answer then" in page
        assert "Recoveries from critical entropy: 1." in page
        assert "gave 1,234 answers for 1,234 moves: 1,234 unreadable" in page
        assert "top-1" not in page
        assert ("validation loss 0.725 nats a token" in page) == is_cloned
        assert ("jrahn/RookWorld-LM-124M at commit 0123456789ab" in page) != is_cloned
    card = card_of(results, words=LanguageCard(described))
    assert "A causal language model that writes its moves as text, trained by behavior cloning of answers, then by 100 steps" in card
    assert ("The initial weights are" in card) == (pretrained["model"] != SMALL)
    # Defaults are those of the kind, so that none is shown as changed.
    results["settings"] = {"grpo.clip_low": 0.1}
    assert "| grpo.clip_low" not in card_of(results, words=LanguageCard(described))
    json.dumps(results, allow_nan=False)
