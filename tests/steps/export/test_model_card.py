"""The model card: every number from a report, nothing claimed that no report says, and no text of a file obeyed."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_reports import CODE, REPORTS, match

from grpo.base.files import write_json, write_manifest
from grpo.settings.grpo import GrpoConfig
from grpo.statistics.intervals import paired_interval
from steps.export.model_card import CardError, CardFacts, model_card
from steps.export.network_card import NetworkCard
from steps.runs.facts import RunFacts, facts_behind, run_facts

DEFAULT = GrpoConfig()
SETTINGS = {
    "seed": 4,
    "grpo": {"learning_rate": 7e-4, "estimator": "sampled", "max_gradient_norm": DEFAULT.max_gradient_norm, "clip_high": 0.31},
}
GONE = object()


def manifest(step: str) -> dict[str, Any]:
    inputs = {"engine": "Stockfish 15.1 (sha256 af67e5f96d92cf6a)"}
    return {"step": step, "output_hash": f"hash-of-{step}", "code": CODE, "parts": {"inputs": inputs, "settings": SETTINGS}}


def facts(policy_step: int | None = 100, **changes: dict[str, Any]) -> CardFacts:
    """Return a card's facts, with some keys of some reports changed or `GONE`."""
    reports = copy.deepcopy(REPORTS)
    for step, keys in changes.items():
        for key, value in keys.items():
            reports[step].pop(key, None)
            if value is not GONE:
                reports[step][key] = value
    return CardFacts(
        run="ChessGrpo/17",
        policy_step=policy_step,
        words=NetworkCard({"width": 64, "hidden_width": 32}),
        hashes={"weights": "e" * 64},
        behind=RunFacts(reports=reports, manifests={step: manifest(step) for step in reports}),
        parity="1,000 of 1,000 best moves equal",
    )


def section(card: str, name: str) -> str:
    """Return the text below a heading."""
    found = re.search(rf"^## {name}\n\n(.*?)(?=^## |\Z)", card, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1]


def test_the_card_says_what_the_data_were() -> None:
    data = section(model_card(facts()), "Data")
    for said in (
        "3,300 boards from 421 games",
        "3,000 train",
        "210 validation",
        "90 heldout",
        "Stockfish 15.1 (sha256 af67e5f96d92cf6a)",
        "| opening | 7,001 | 1,100 |",
        "| middlegame | 7,002 | 1,101 |",
        "| endgame | 7,003 | 1,099 |",
        "engine (3,300 boards)",
    ):
        assert said in data


def test_the_card_says_how_training_went_and_why_it_ended() -> None:
    training = section(model_card(facts()), "Training")
    for said in (
        "1,400 steps",
        "validation loss stopped falling",
        "2.361 nats",
        "top-1 0.294",
        "steps 0 to 250",
        "budget_spent",
        "1.71 nats",
    ):
        assert said in training
    unhappy = section(
        model_card(facts(pretrain={"has_converged": False}, finetune={"mean_entropy_at_end": None, "message": "entropy is critical"})),
        "Training",
    )
    assert "NOT converged" in unhappy
    assert "(entropy is critical)" in unhappy
    assert "unknown (right after a rollback)" in unhappy


def test_every_result_has_its_interval_and_its_number_of_games() -> None:
    results = section(model_card(facts()), "Results")
    for line in (
        f"| step 100 against pretrained, best moves, played out | 100 | {paired_interval([0.5] * 50)} |",
        f"| step 100 against pretrained, sampled at T = 1, played out | 100 | {paired_interval([0.75] * 50)} |",
        f"| pretrained against random, best moves, played out | 60 | {paired_interval([0.75] * 30)} |",
        f"| pretrained against stockfish-1-nodes, best moves, played out | 62 | {paired_interval([0.25] * 31)} |",
    ):
        assert line in results
    assert "Verdict: **better**, by games played out" in results
    assert "pretrained, best move: 0.0610 (opening 0.0611, middlegame 0.0752, endgame 0.0469)" in results
    assert "step 100, best move: 0.0485" in results


def test_optional_results_are_told_where_they_are_and_left_out_where_not() -> None:
    plain = section(model_card(facts()), "Results")
    assert not re.search(r"^\|.*adjudicated", plain, flags=re.MULTILINE)
    assert "ladder" not in plain
    assert "promoted" not in plain
    placed = {"text": "+612 [+580, +640] Elo", "games": [match(0.5, 7), match(0.5, 8)]}
    full = section(
        model_card(
            facts(
                select={"confirmation_best_moves": {**match(0.5), "adjudicated": match(0.8125)}, "promoted": True, "ladder": placed},
                baseline={"ladder": placed, "matches": {"random": {**match(0.75), "adjudicated": match(0.9375)}}},
            )
        ),
        "Results",
    )
    assert f"| step 100 against pretrained, best moves, adjudicated | 100 | {paired_interval([0.8125] * 50)} |" in full
    assert f"| pretrained against random, best moves, adjudicated | 100 | {paired_interval([0.9375] * 50)} |" in full
    assert "| pretrained on the ladder | 30 | +612 [+580, +640] Elo |" in full
    assert "| step 100 on the ladder | 30 | +612 [+580, +640] Elo |" in full
    assert "promoted to champion" in full
    assert "not promoted" in section(model_card(facts(select={"promoted": False})), "Results")


def test_the_card_says_the_strength_against_the_start_and_against_everybody_else_and_where_they_disagree() -> None:
    claim = {"is_shown": True, "text": str(paired_interval([0.625] * 50))}
    compared = {
        "claims": [claim],
        "ladder_gain": {"text": "worse, -40 Elo [-70, -10] as played"},
        "disagreement": "it only beats its start",
    }
    results = section(model_card(facts(select=compared)), "Results")
    assert f"- Against its own start: better, {claim['text']}, played out.\n" in results
    assert "- Against everybody else (ladder rating less its start&#x27;s): worse, -40 Elo [-70, -10] as played.\n" in results
    assert "- It only beats its start.\n" in results


def test_games_against_the_previous_champion_are_told_when_there_were_any() -> None:
    line = f"| step 100 against the previous champion, best moves, played out | 24 | {paired_interval([0.625] * 12)} |"
    assert line in section(model_card(facts(select={"previous_champion": match(0.625, 12)})), "Results")
    assert "previous champion" not in model_card(facts())


@pytest.mark.parametrize(
    ("step", "key"),
    [(step, key) for step, report in REPORTS.items() for key in report],
)
def test_a_report_without_a_key_that_is_not_optional_is_no_card(step: str, key: str) -> None:
    with pytest.raises(CardError, match=f"has no '{key}'"):
        model_card(facts(**{step: {key: GONE}}))


def test_a_policy_that_did_not_play_the_confirmation_says_so() -> None:
    assert "not confirmed" not in model_card(facts(100))
    peak = section(model_card(facts(250)), "Results")
    assert "The confirmation was played by step 100; this policy is step 250, whose own strength was not confirmed." in peak
    assert "step 250, best move: 0.0497" in peak
    assert "This policy is the pretrained one" in section(model_card(facts(0)), "Results")
    assert "trained by behaviour cloning of moves only" in section(model_card(facts(0)), "What it is")


def test_the_limits_count_the_draws_for_lack_of_technique() -> None:
    limits = section(model_card(facts()), "Limits")
    assert "50% of the 100 confirmation games" in limits
    assert "(45% by repetition)" in limits
    for said in ("No search", "sample size", "no Chess960"):
        assert said in limits


def test_settings_are_the_main_ones_and_all_that_differ_from_the_defaults() -> None:
    settings = section(model_card(facts()), "Settings")
    assert "| seed | 4 | 0 |" in settings
    assert f"| grpo.learning_rate | 0.0007 | {DEFAULT.learning_rate} |" in settings
    assert f"| grpo.clip_high | 0.31 | {DEFAULT.clip_high} |" in settings
    assert "max_gradient_norm" not in settings


def test_the_licence_depends_on_where_the_boards_came_from() -> None:
    assert "the engine played" in section(model_card(facts()), "Licence")
    files = section(model_card(facts(join_boards={"sources": {"lichess_2013.pgn.zst": 5, "engine": 1}})), "Licence")
    assert "lichess_2013.pgn.zst" in files
    assert "CC0" in files
    assert "no third party has rights" not in files


def test_the_hashes_name_what_the_policy_is_made_of() -> None:
    hashes = section(model_card(facts()), "Hashes")
    for said in (
        "e" * 64,
        "dataset: hash-of-join_boards",
        "output of select: hash-of-select",
        "c" * 40,
        "lock " + "d" * 64,
        "1,000 of 1,000",
    ):
        assert said in hashes


def test_a_policy_of_which_nothing_is_known_claims_nothing() -> None:
    card = model_card(CardFacts(run="some folder", policy_step=None, words=NetworkCard({"width": 8}), hashes={}))
    for name in ("Data", "Training", "Settings", "Results"):
        assert section(card, name).startswith("Unknown: the run that made this policy")
    assert "Its strength is unknown here" in section(card, "Limits")
    assert "Source and licence of the boards are unknown here" in section(card, "Licence")
    assert "Elo [" not in card


EVIL = "<script>alert(1)</script> [x](javascript:y) | `z` ![i](j) _a_ **b** ~~c~~\n# Heading {{ }}"


def test_text_of_files_is_shown_and_not_obeyed() -> None:
    card = model_card(
        CardFacts(
            run=EVIL,
            policy_step=100,
            words=NetworkCard({"width": EVIL}),
            hashes={EVIL: EVIL},
            behind=RunFacts(
                reports={
                    **copy.deepcopy(REPORTS),
                    "join_boards": {**REPORTS["join_boards"], "sources": {EVIL: 1}, "labels": {EVIL: 1}},
                    "finetune": {**REPORTS["finetune"], "reason": EVIL, "message": EVIL},
                    "baseline": {**REPORTS["baseline"], "matches": {EVIL: {**match(0.5), "text": EVIL}}},
                    "select": {**REPORTS["select"], "verdict": EVIL},
                },
                manifests={step: json.loads(json.dumps(manifest(step)).replace("Stockfish", "<b>Stockfish")) for step in REPORTS},
            ),
            parity=EVIL,
        )
    )
    assert "<" not in card
    assert "](" not in card
    assert "`z`" not in card
    assert "_a_" not in card
    assert "**b**" not in card
    assert "~~" not in card
    assert not re.search(r"^# Heading", card, flags=re.MULTILINE)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in card
    for line in card.splitlines():
        if line.startswith("|"):
            assert line.count("|") == 4


def made_output(root: Path, step: str, inputs: dict[str, str], settings: dict[str, Any], version: str = "v") -> str:
    """Write the output of a step, as the store lays them out, and return its hash."""
    folder = root / step / version
    folder.mkdir(parents=True)
    write_json(folder / "report.json", REPORTS.get(step, {}) | {"made_as": version})
    for name in ("champion", "peak") if step == "select" else ():
        (folder / name).mkdir()
        (folder / name / "weights.safetensors").write_bytes(b"weights")
    made = write_manifest(folder, {"step": step, "version": version, "code": CODE, "parts": {"inputs": inputs, "settings": settings}})
    return str(made["output_hash"])


def test_the_run_behind_a_policy_is_found_by_hashes_and_no_other_run_is_taken_for_it(tmp_path: Path) -> None:
    evaluation = {"evaluation": {"max_plies": 200}}
    hashes = {}
    for version in ("a", "b"):
        boards = made_output(tmp_path, "join_boards", {"engine": "E"}, {}, version)
        pretrained = made_output(tmp_path, "pretrain", {"boards": boards}, {}, version)
        finetuned = made_output(tmp_path, "finetune", {"boards": boards, "pretrained": pretrained}, {}, version)
        hashes[version] = {"boards": boards, "pretrained": pretrained, "finetuned": finetuned}
        known = {"boards": boards, "pretrained": pretrained}
        made_output(tmp_path, "baseline", known, evaluation, version)
        made_output(tmp_path, "baseline", known, {"evaluation": {"max_plies": 9}}, f"{version}-other-settings")
        made_output(tmp_path, "select", hashes[version], evaluation, version)
    for version in ("a", "b"):
        for name in ("champion", "peak"):
            found = facts_behind(tmp_path / "select" / version / name)
            assert {step: report["made_as"] for step, report in found.reports.items()} == dict.fromkeys(REPORTS, version)
    of_pretrained = facts_behind(tmp_path / "pretrain" / "b")
    assert {step: report["made_as"] for step, report in of_pretrained.reports.items()} == {
        "join_boards": "b",
        "pretrain": "b",
        "baseline": "b",
    }


def test_of_a_folder_without_a_run_nothing_is_found(tmp_path: Path) -> None:
    assert facts_behind(tmp_path) == RunFacts(reports={}, manifests={})


def test_steps_of_no_interest_are_left_out(tmp_path: Path) -> None:
    made_output(tmp_path, "pretrain", {}, {})
    made_output(tmp_path, "check_boards", {}, {})
    found = run_facts({step: tmp_path / step / "v" for step in ("pretrain", "check_boards")})
    assert set(found.reports) == set(found.manifests) == {"pretrain"}
