"""The page of the run's story: what it says of how training ended, and of who stands where on the ladder."""

from typing import Any

import pytest

from steps.reporting import _because, _nats, comparison_rows, ladder_rows

MATCH = {"text": "0.400 [0.300, 0.500]"}
CONFIRMED: dict[str, Any] = {"candidate_step": 4, "confirmation_best_moves": MATCH, "confirmation_sampled_moves": MATCH}
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


def test_the_ladder_is_shown_from_its_highest_rung_with_the_policy_where_it_stands() -> None:
    assert ladder_rows({"calibrate": {"rungs": RUNGS}, "baseline": {"ladder": PLACED}}) == [
        ("strong", "+1,225 [+1,100, +1,350]", "+1,000 [+900, +1,100]", ""),
        ("**pretrained**", "**+260 [+200, +320]**", "", ""),
        ("weak", "+225 [+160, +290]", "+225 [+160, +290]", "0.550"),
        ("random", "0", "", "0.812"),
    ]


def test_matches_are_shown_as_played_and_those_that_were_adjudicated_a_second_time() -> None:
    adjudicated = {"text": "0.600 [0.500, 0.700]", "depth": 10}
    matches = {"random": MATCH, "stockfish-1-nodes": {**MATCH, "adjudicated": adjudicated}}
    assert comparison_rows({"select": CONFIRMED, "baseline": {"matches": matches}})[2:] == [
        ("pretrained against random, best moves", MATCH["text"]),
        ("pretrained against stockfish-1-nodes, best moves", MATCH["text"]),
        ("the same, undecided games by depth 10", adjudicated["text"]),
    ]


@pytest.mark.parametrize(
    ("entropy", "words"), [(1.234, "1.23 nats"), (0.0, "0.00 nats"), (None, "not known (a rollback had just been made)")]
)
def test_entropy_is_named_or_said_to_be_unknown(entropy: float | None, words: str) -> None:
    assert _nats(entropy) == words


def test_a_stop_says_why_and_a_spent_budget_needs_no_words() -> None:
    assert _because({"message": "entropy is critical"}) == " (entropy is critical)"
    assert _because({"message": ""}) == ""
