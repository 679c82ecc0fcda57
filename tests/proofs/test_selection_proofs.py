"""Thousands of whole selections with made-up players, run by `make prove`: noise is not promoted, and strength is."""

import numpy as np
import pytest
from made_selections import NO_GAIN, Protocol, confirmed, screened, selected, share_promoted

from grpo.statistics.verdict import decide

pytestmark = pytest.mark.prove

NUM_SELECTIONS = 1_000
EQUAL = dict.fromkeys(range(50, 1_050, 50), 0.0)
STRONG_STEP = 500
PROTOCOLS = {
    "half draws": Protocol(),
    "few draws": Protocol(draw_rate=0.1),
    "many draws": Protocol(draw_rate=0.8),
}

protocols = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS.keys())


@protocols
def test_of_1_000_selections_among_20_equal_checkpoints_at_most_5_percent_promote(protocol: Protocol) -> None:
    rng = np.random.default_rng(1)
    decisions = [selected(rng, EQUAL, protocol) for _ in range(NUM_SELECTIONS)]
    print(f"promoted {share_promoted(decisions):.1%}")
    assert share_promoted(decisions) <= 0.05


@protocols
def test_among_one_50_elo_stronger_and_19_equal_a_wrong_one_is_promoted_in_at_most_5_percent(protocol: Protocol) -> None:
    rng = np.random.default_rng(2)
    decisions = [selected(rng, EQUAL | {STRONG_STEP: 50.0}, protocol) for _ in range(NUM_SELECTIONS)]
    found = [decision for decision in decisions if decision.candidate_step == STRONG_STEP]
    right = sum(decision.promoted for decision in found) / NUM_SELECTIONS
    wrong = sum(decision.promoted for decision in decisions if decision.candidate_step != STRONG_STEP) / NUM_SELECTIONS
    print(
        f"power: the stronger one promoted {right:.1%} (chosen by screen and halving {len(found) / NUM_SELECTIONS:.1%},"
        f" then confirmed {share_promoted(found):.1%}); a wrong one {wrong:.1%}"
    )
    assert wrong <= 0.05
    assert right >= 0.5
    assert share_promoted(found) >= 0.9, "once chosen, 50 Elo are nearly always confirmed"


@protocols
def test_a_history_of_noise_claims_no_progress_whatever_the_previous_champion(protocol: Protocol) -> None:
    # Five runs, one after the other, each from where the last ended; nothing ever gets stronger. All claims of a run count.
    rng = np.random.default_rng(3)
    runs, claimed = 0, 0
    for _ in range(NUM_SELECTIONS // 5):
        has_champion = False
        for _ in range(5):
            winner = screened(rng, EQUAL, protocol).winner
            previous = confirmed(rng, 0.0, protocol) if has_champion else None
            against_initial = confirmed(rng, 0.0, protocol)
            decision = decide(winner, against_initial=against_initial, against_previous=previous, beside={}, ladder_gain=NO_GAIN, phases=())
            claimed += any(claim.is_shown for claim in decision.claims)
            runs += 1
            has_champion = has_champion or decision.promoted or runs % 5 == 2
    print(f"{claimed / runs:.1%} of {runs} runs claim anything")
    assert claimed / runs <= 0.05
