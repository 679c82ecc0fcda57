"""Thousands of whole selections with made-up players, run by `make prove`: noise is not promoted, and strength is."""

import math

import numpy as np
import pytest
from made_selections import NO_GAIN, Protocol, confirmed, drawn_pairs, screened, selected, share_promoted

from grpo.match.intervals import elo, paired_interval
from grpo.match.phase_guard import phase_changes
from grpo.match.verdict import decide

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


def test_the_best_of_20_equal_checkpoints_looks_stronger_than_it_is_until_fresh_games_are_played() -> None:
    rng = np.random.default_rng(4)
    protocol = Protocol(num_candidates=20, round_pairs=32, draw_rate=0.0)
    first_round, over_all, fresh, fooled, promoted = [], [], [], [], []
    for _ in range(NUM_SELECTIONS):
        trace = screened(rng, EQUAL, protocol)
        first_round.append(max(entry.so_far.score for entry in trace.entries if entry.round == 0))
        winner = [entry.so_far for entry in trace.entries if entry.candidate == trace.winner][-1]
        over_all.append(winner.score)
        fooled.append(winner.low > 0.5)
        confirmation = paired_interval(confirmed(rng, 0.0, protocol))
        fresh.append(confirmation.score)
        promoted.append(confirmation.low > 0.5)
    looks = [round(elo(float(np.mean(scores)))) for scores in (first_round, over_all, fresh)]
    print(f"Elo of the best of 20 by 64 games, of the winner by all its games, by fresh ones: {looks}")
    print(f"called better by the games that chose it {np.mean(fooled):.0%}, by fresh ones {np.mean(promoted):.1%}")
    # The facts' own simulation: 0.10 better at 64 games and score 0.5, some 65 to 80 Elo.
    assert 0.09 <= np.mean(first_round) - 0.5 <= 0.14
    assert np.mean(over_all) > 0.53
    assert np.mean(fooled) > 0.2
    assert abs(np.mean(fresh) - 0.5) < 3 * math.sqrt(0.25 / 600 / NUM_SELECTIONS)
    assert np.mean(promoted) <= 0.04


def test_a_candidate_within_the_tolerance_is_blocked_by_noise_in_at_most_4_percent() -> None:
    rng = np.random.default_rng(5)
    for num_boards in (30, 100, 400):
        shape = (NUM_SELECTIONS, 3, num_boards)
        differences = np.where(rng.random(shape) < 0.2, rng.normal(0.05, 0.2, shape), 0.0)
        tolerance = 0.01  # The mean itself: the worst that is still allowed.
        blocked = [
            any(change.blocks for change in phase_changes(dict(zip("abc", row.tolist(), strict=True)), tolerance=tolerance))
            for row in differences
        ]
        print(f"{num_boards} boards a phase: {np.mean(blocked):.1%} blocked")
        assert np.mean(blocked) <= 0.04


@pytest.mark.parametrize("draws", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("num_pairs", [4, 30, 300])
def test_equal_players_are_promoted_in_at_most_4_percent(num_pairs: int, draws: float) -> None:
    rng = np.random.default_rng(0)
    num_trials = 4_000
    promoted = sum(paired_interval(drawn_pairs(rng, num_pairs, elo=0, draw_rate=draws)).low > 0.5 for _ in range(num_trials))
    print(f"{num_pairs} pairs, {draws:.0%} draws: {promoted / num_trials:.2%} promoted")
    assert promoted / num_trials <= 0.04
