"""The page of the run's story: how training ended, who was called better than whom and why, and who stands where on the ladder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from made_selections import NO_GAIN, gain

from grpo.base.files import read_json, write_json
from grpo.board.phases import PHASES
from grpo.evaluation.phase_guard import phase_changes
from grpo.evaluation.verdict import AGAINST_OTHERS, Confirmation, ConfirmationEnd, Decision, decide
from grpo.statistics.intervals import p_value, paired_interval
from steps.bodies.report import _because, _nats, _outcome, comparison_rows, decision_rows, ladder_rows, strength_lines, write_report
from steps.step_io.names import DECISIONS, HISTORY, REPORT, REPORT_PAGE
from steps.step_io.work import Work

MATCH = {"text": "0.400 [0.300, 0.500]"}
SAMPLED = {"text": "0.450 [0.350, 0.550]", "adjudicated": {"text": "not shown", "depth": 10}}
CONFIRMED: dict[str, Any] = {
    "candidate_step": 1_004,
    "confirmation_best_moves": MATCH,
    "confirmation_sampled_moves": SAMPLED,
    "previous_champion": None,
}
PLACED = {
    "rating": 260.4,
    "low": 240.0,
    "high": 280.0,
    "low_of_all": 199.6,
    "high_of_all": 320.4,
    "text": "+260 Elo",
    "games": [{"rung": "weak", "score": 0.55}, {"rung": "random", "score": 0.81234}],
}
RUNGS = [
    {"name": "random", "rating": 0.0, "low": 0.0, "high": 0.0},
    {"name": "weak", "rating": 225.0, "low": 160.0, "high": 290.0, "gap": 225.0, "gap_low": 160.0, "gap_high": 290.0},
    {"name": "strong", "rating": 1_225.0, "low": 1_100.0, "high": 1_350.0, "gap": 1_000.0, "gap_low": 900.0, "gap_high": 1_100.0},
]


STRONGER = {
    **PLACED,
    "rating": 700.0,
    "low_of_all": 600.0,
    "high_of_all": 800.0,
    "games": [{"rung": "weak", "score": 0.9}, {"rung": "strong", "score": 0.1}],
}


def test_the_ladder_is_shown_from_its_highest_rung_with_both_policies_where_they_stand() -> None:
    facts = {
        "calibrate": {"rungs": RUNGS},
        "select": {"candidate_step": 1_004, "ladder": STRONGER, "ladder_initial": PLACED},
    }
    assert ladder_rows(facts) == [
        ("strong", "+1,225 [+1,100, +1,350]", "+1,000 [+900, +1,100]", "step 1,004 0.100"),
        ("**step 1,004**", "**+700 [+600, +800]**", "", ""),
        ("**pretrained**", "**+260 [+200, +320]**", "", ""),
        ("weak", "+225 [+160, +290]", "+225 [+160, +290]", "pretrained 0.550, step 1,004 0.900"),
        ("random", "0", "", "pretrained 0.812"),
    ]


def test_matches_are_shown_as_played_and_those_that_were_adjudicated_a_second_time() -> None:
    adjudicated = {"text": "0.600 [0.500, 0.700]", "depth": 10}
    matches = {"random": MATCH, "stockfish-1-nodes": {**MATCH, "adjudicated": adjudicated}}
    rows = [
        ("step 1,004 against pretrained, best moves", MATCH["text"]),
        ("step 1,004 against pretrained, sampled at T = 1", SAMPLED["text"]),
        ("pretrained against random, best moves", MATCH["text"]),
        ("pretrained against stockfish-1-nodes, best moves", MATCH["text"]),
        ("the same, undecided games by depth 10", adjudicated["text"]),
    ]
    assert comparison_rows({"select": CONFIRMED, "baseline": {"matches": matches}}) == rows
    against_previous = {**CONFIRMED, "previous_champion": {**MATCH, "adjudicated": adjudicated}}
    assert comparison_rows({"select": against_previous, "baseline": {"matches": matches}}) == [
        *rows[:2],
        ("step 1,004 against the previous champion, best moves", MATCH["text"]),
        ("the same, undecided games by depth 10", adjudicated["text"]),
        *rows[2:],
    ]


def decision_facts(decision: Decision, screening: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a decision as `report.json` of `select` has it: through JSON and back."""
    facts = asdict(decision) | {"screening": screening}
    facts["ladder_gain"] |= {"finding": decision.ladder_gain.finding, "text": str(decision.ladder_gain)}
    for kind in ("claims", "beside"):
        facts[kind] = [asdict(claim) | {"text": str(claim.interval)} for claim in getattr(decision, kind)]
    return dict(json.loads(json.dumps(facts)))


def confirmation(scores: list[float]) -> Confirmation:
    """Return confirmation games with these scores."""
    return Confirmation(
        pair_scores=tuple(scores),
        end=ConfirmationEnd.ALL_PLAYED,
        interval=paired_interval(scores),
        p_value=p_value(scores),
        log_likelihood_ratio=None,
    )


def test_the_trace_of_a_decision_has_a_row_for_each_thing_that_was_done_or_asked_in_its_order() -> None:
    won, even = [1.0] * 20, [0.5] * 20
    phases = phase_changes({"opening": [-0.01, 0.01] * 30, "endgame": [0.25] * 60}, tolerance=0.01)
    decision = decide(
        1_004,
        against_initial=confirmation(won),
        against_previous=confirmation(even),
        beside={"sampled": even},
        ladder_gain=NO_GAIN,
        phases=phases,
    )
    screening = [
        {"round": 0, "candidate": 1_004, "text": "0.7", "kept": True},
        {"round": 0, "candidate": 2, "text": "0.4", "kept": False},
    ]
    assert decision_rows(decision_facts(decision, screening)) == [
        ("halving, round 1: step 1,004", "0.7; stays"),
        ("halving, round 1: step 2", "0.4; leaves"),
        ("claim: better than the initial policy", f"{paired_interval(won)}; shown, adjusted p 0.0000"),
        ("claim: better than the previous champion", f"{paired_interval(even)}; not shown, adjusted p 0.5000"),
        (f"claim: {AGAINST_OTHERS}", "no difference shown, +0 Elo [-30, +30] as played; +0 Elo [-30, +30] adjudicated"),
        ("beside, decides nothing: sampled", f"{paired_interval(even)}; not shown, adjusted p 0.5000"),
        ("held-out regret, opening, less the pretrained policy's", "+0.0000 [-0.0026, +0.0026], 60 boards"),
        ("held-out regret, endgame, less the pretrained policy's", "+0.2500 [+0.2500, +0.2500], 60 boards; BLOCKS"),
    ]


def test_being_worse_on_the_ladder_is_marked_as_what_blocks() -> None:
    won = confirmation([1.0] * 20)
    for elo, blocks in ((-50, True), (0, False), (50, False)):
        decision = decide(1_004, against_initial=won, against_previous=None, beside={}, ladder_gain=gain(elo), phases=())
        assert [what for what, found in decision_rows(decision_facts(decision, [])) if found.endswith("; BLOCKS")] == (
            [f"claim: {AGAINST_OTHERS}"] if blocks else []
        )


@pytest.mark.parametrize(
    ("scores", "elo", "lines"),
    [
        ([1.0] * 20, 50, ["better", "higher, +50 Elo [+20, +80] as played; +60 Elo [+30, +90] adjudicated"]),
        (
            [1.0] * 20,
            0,
            [
                "better",
                "no difference shown, +0 Elo [-30, +30] as played; +10 Elo [-20, +40] adjudicated",
                "The candidate beats its own start, but was not shown to be stronger against everybody else.",
            ],
        ),
        (
            [1.0] * 20,
            -50,
            [
                "better",
                "worse, -50 Elo [-80, -20] as played; -40 Elo [-70, -10] adjudicated",
                "The candidate beats its own start, but is weaker than its start against everybody else.",
            ],
        ),
        (
            [0.5] * 20,
            50,
            [
                "no improvement shown",
                "higher, +50 Elo [+20, +80] as played; +60 Elo [+30, +90] adjudicated",
                "The candidate was not shown to beat its own start, but is stronger than its start against everybody else.",
            ],
        ),
        ([0.5] * 20, 0, ["no improvement shown", "no difference shown, +0 Elo [-30, +30] as played; +10 Elo [-20, +40] adjudicated"]),
    ],
)
def test_the_strength_is_said_against_the_start_and_against_everybody_else_and_where_they_disagree(
    scores: list[float], elo: float, lines: list[str]
) -> None:
    decision = decide(
        1_004,
        against_initial=confirmation(scores),
        against_previous=None,
        beside={},
        ladder_gain=gain(elo, elo + 10),
        phases=(),
    )
    own, others, *disagreement = lines
    assert strength_lines({**decision_facts(decision, []), "scored_by": "played out"}) == [
        f"Against its own start: {own}, {paired_interval(scores)}, played out.",
        f"Against everybody else (ladder rating less its start's): {others}.",
        *disagreement,
    ]


@pytest.mark.parametrize(
    ("promoted", "previous", "replaces", "outcome"),
    [
        (False, None, False, "the pretrained policy stays"),
        (False, MATCH, False, "the pretrained policy stays"),
        (True, None, True, "step 1,004 is champion"),
        (True, MATCH, True, "step 1,004 is champion"),
        (
            True,
            MATCH,
            False,
            "step 1,004 is this run's champion; the registry's champion stays, for step 1,004 was not shown to be better than it",
        ),
    ],
)
def test_the_outcome_of_a_decision_is_said_in_words(promoted: bool, previous: Any, replaces: bool, outcome: str) -> None:
    decision = {**CONFIRMED, "promoted": promoted, "replaces_previous": replaces, "previous_champion": previous}
    assert _outcome(decision) == outcome


def step_reports() -> dict[str, dict[str, Any]]:
    """Return a report of each step, with the keys that the page reads."""
    won = confirmation([1.0] * 20)
    decision = decide(1_004, against_initial=won, against_previous=None, beside={}, ladder_gain=NO_GAIN, phases=())
    confirmed = {**MATCH, "num_openings": 20, "ends": {"checkmate": 30, "stalemate": 0, "ply cap": 10}}
    of_phases = {phase.value: 10 for phase in PHASES}
    return {
        "join_boards": {"natural_phases": {**of_phases, "endgame": 12_345}, "phases": of_phases},
        "pretrain": {"has_converged": False, "num_steps": 40, "validation_loss": 2.5, "top1": 0.3, "top5": 0.6, "entropy": 2.25},
        "calibrate": {"rungs": RUNGS, "note": "A note.", "engine": "Stockfish 15.1"},
        "baseline": {"matches": {"random": MATCH}},
        "finetune": {
            "first_step": 0,
            "last_step": 1_200,
            "reason": "budget",
            "message": "",
            "mean_entropy_at_end": None,
            "control": {"control/entropy_saturated": 0.25, "control/entropy_idle": 0.5, "control/recoveries": 1.0},
        },
        "select": {
            **CONFIRMED,
            **decision_facts(decision, []),
            "confirmation_best_moves": confirmed,
            "scored_by": "adjudicated",
            "champion_step": 1_004,
            "peak_step": 900,
            "ladder": STRONGER,
            "ladder_initial": PLACED,
        },
    }


DRAWN = {"num_boards": 30, "worst": [], "best": []}


def written(folder: Path, reports: dict[str, dict[str, Any]]) -> Path:
    """Write the report of these steps, and return its folder."""
    folders = {step: folder / step for step in reports}
    for step, report in reports.items():
        folders[step].mkdir()
        write_json(folders[step] / "report.json", report)
    (folders["finetune"] / HISTORY).write_text(
        '{"step": 0, "heldout/regret_best": 0.2}\n{"step": 1, "grpo/entropy": 1.5, "grpo/loss": 1.0}\n'
    )
    write_json(folders["select"] / DECISIONS, DRAWN)
    (folder / "report").mkdir()
    write_report(folders, Work(folder / "report", ()))
    return folder / "report"


def test_the_page_says_verdict_decision_and_place_and_its_facts_are_the_steps_own(tmp_path: Path) -> None:
    reports = step_reports()
    folder = written(tmp_path, reports)
    page = (folder / REPORT_PAGE).read_text()
    assert page.splitlines()[:5] == ["# Verdict: better", "", *(f"- {line}" for line in strength_lines(reports["select"]))]
    for line in (
        "| step 1,004 against pretrained, best moves | 0.400 [0.300, 0.500] |",
        "Confirmation: 20 distinct openings, each with both colours: the sample size of players who always play the same.",
        "For the claims games count as adjudicated. They ended by: 30 checkmate, 10 ply cap.",
        "## Decision: step 1,004 is champion",
        f"- {reports['select']['reasons'][0]}.",
        "- Champion: step 1,004.",
        "  Peak, to resume from: step 900.",
        "| **step 1,004** | **+700 [+600, +800]** |  |  |",
        "A note. Engine: Stockfish 15.1.",
        "| endgame | 12,345 | 10 |",
    ):
        assert line in page.splitlines(), line
    assert "max_steps was reached: NOT converged" in page
    facts = read_json(folder / REPORT)
    assert facts["steps"] == reports
    assert facts["decisions"] == DRAWN
    assert facts["curve"] == [{"step": 0, "heldout/regret_best": 0.2}, {"step": 1, "grpo/entropy": 1.5}]


def test_where_nothing_was_shown_the_page_says_that_the_pretrained_policy_stays(tmp_path: Path) -> None:
    reports = step_reports()
    even = decide(1_004, against_initial=confirmation([0.5] * 20), against_previous=None, beside={}, ladder_gain=NO_GAIN, phases=())
    reports["select"] |= {**decision_facts(even, []), "champion_step": 0}
    page = (written(tmp_path, reports) / REPORT_PAGE).read_text()
    assert "# Verdict: no improvement shown" in page
    assert "## Decision: the pretrained policy stays" in page
    assert "- Champion: the pretrained policy.\n" in page


@pytest.mark.parametrize(
    ("entropy", "words"), [(1.234, "1.23 nats"), (0.0, "0.00 nats"), (None, "not known (a rollback had just been made)")]
)
def test_entropy_is_named_or_said_to_be_unknown(entropy: float | None, words: str) -> None:
    assert _nats(entropy) == words


def test_a_stop_says_why_and_a_spent_budget_needs_no_words() -> None:
    assert _because({"message": "entropy is critical"}) == " (entropy is critical)"
    assert _because({"message": ""}) == ""
