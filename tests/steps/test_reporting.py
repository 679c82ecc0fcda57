"""The page of the run's story: what it says of the decision, of how training ended, and of who stands where on the ladder."""

from typing import Any

import pytest

from steps.reporting import _because, _nats, _outcome, comparison_rows, decision_rows, ladder_rows

MATCH = {"text": "0.400 [0.300, 0.500]"}
CONFIRMED: dict[str, Any] = {
    "candidate_step": 4,
    "confirmation_best_moves": MATCH,
    "confirmation_sampled_moves": MATCH,
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
BETTER = {**PLACED, "rating": 310.0, "low_of_all": 260.0, "high_of_all": 360.0, "games": [{"rung": "weak", "score": 0.62}]}
RUNGS = [
    {"name": "random", "rating": 0.0, "low": 0.0, "high": 0.0},
    {"name": "weak", "rating": 225.0, "low": 160.0, "high": 290.0, "gap": 225.0, "gap_low": 160.0, "gap_high": 290.0},
    {"name": "strong", "rating": 1_225.0, "low": 1_100.0, "high": 1_350.0, "gap": 1_000.0, "gap_low": 900.0, "gap_high": 1_100.0},
]


def test_the_ladder_is_shown_from_its_highest_rung_with_both_policies_where_they_stand() -> None:
    facts = {
        "calibrate": {"rungs": RUNGS},
        "baseline": {"ladder": PLACED},
        "select": {"candidate_step": 1_200, "ladder": BETTER},
    }
    assert ladder_rows(facts) == [
        ("strong", "+1,225 [+1,100, +1,350]", "+1,000 [+900, +1,100]", ""),
        ("**step 1,200**", "**+310 [+260, +360]**", "", ""),
        ("**pretrained**", "**+260 [+200, +320]**", "", ""),
        ("weak", "+225 [+160, +290]", "+225 [+160, +290]", "pretrained 0.550, step 1,200 0.620"),
        ("random", "0", "", "pretrained 0.812"),
    ]


def test_matches_are_shown_as_played_and_those_that_were_adjudicated_a_second_time() -> None:
    adjudicated = {"text": "0.600 [0.500, 0.700]", "depth": 10}
    matches = {"random": MATCH, "stockfish-1-nodes": {**MATCH, "adjudicated": adjudicated}}
    assert comparison_rows({"select": CONFIRMED, "baseline": {"matches": matches}}) == [
        ("step 4 against pretrained, best moves", MATCH["text"]),
        ("step 4 against pretrained, sampled at T = 1", MATCH["text"]),
        ("pretrained against random, best moves", MATCH["text"]),
        ("pretrained against stockfish-1-nodes, best moves", MATCH["text"]),
        ("the same, undecided games by depth 10", adjudicated["text"]),
    ]


def test_games_against_the_previous_champion_are_shown_when_there_were_any() -> None:
    previous = {"text": "0.550 [0.450, 0.650]"}
    rows = comparison_rows({"select": {**CONFIRMED, "previous_champion": previous}, "baseline": {"matches": {}}})
    assert rows[2:] == [("step 4 against the previous champion, best moves", previous["text"])]


DECISION: dict[str, Any] = {"candidate_step": 4, "promoted": True, "replaces_previous": True, "previous_champion": MATCH}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"promoted": False, "replaces_previous": False}, "the pretrained policy stays"),
        ({}, "step 4 is champion"),
        ({"replaces_previous": False, "previous_champion": None}, "step 4 is champion"),
        (
            {"replaces_previous": False},
            "step 4 is this run's champion; the registry's champion stays, for step 4 was not shown to be better than it",
        ),
    ],
)
def test_the_outcome_says_who_is_champion_here_and_in_the_registry(change: dict[str, Any], words: str) -> None:
    assert _outcome(DECISION | change) == words


def test_each_step_of_the_decision_is_a_row_and_a_phase_that_got_worse_says_that_it_blocks() -> None:
    claim = {"name": "better", "text": "0.600", "is_shown": True, "adjusted_p": 0.00123}
    found = {"value": 0.01, "low": -0.002, "high": 0.022}
    decision = {
        "screening": [
            {"round": 0, "candidate": 1_100, "text": "0.450", "kept": False},
            {"round": 0, "candidate": 1_200, "text": "0.550", "kept": True},
        ],
        "claims": [claim],
        "beside": [{**claim, "is_shown": False, "adjusted_p": 0.5}],
        "phases": [
            {"phase": "opening", "change": found, "num_boards": 30, "blocks": False},
            {"phase": "endgame", "change": found, "num_boards": 20, "blocks": True},
        ],
    }
    assert decision_rows(decision) == [
        ("halving, round 1: step 1,100", "0.450; leaves"),
        ("halving, round 1: step 1,200", "0.550; stays"),
        ("claim: better", "0.600; shown, adjusted p 0.0012"),
        ("beside, decides nothing: better", "0.600; not shown, adjusted p 0.5000"),
        ("held-out regret, opening, less the pretrained policy's", "+0.0100 [-0.0020, +0.0220], 30 boards"),
        ("held-out regret, endgame, less the pretrained policy's", "+0.0100 [-0.0020, +0.0220], 20 boards; BLOCKS"),
    ]


@pytest.mark.parametrize(
    ("entropy", "words"), [(1.234, "1.23 nats"), (0.0, "0.00 nats"), (None, "not known (a rollback had just been made)")]
)
def test_entropy_is_named_or_said_to_be_unknown(entropy: float | None, words: str) -> None:
    assert _nats(entropy) == words


def test_a_stop_says_why_and_a_spent_budget_needs_no_words() -> None:
    assert _because({"message": "entropy is critical"}) == " (entropy is critical)"
    assert _because({"message": ""}) == ""
