"""Choosing a champion: noise is not promoted, strength is, and each gate is tried from both sides."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from made_selections import NO_GAIN, Protocol, confirmed, drawn_pairs, gain, screened

from grpo.statistics.halving import halving_rounds, sequential_halving
from grpo.statistics.intervals import LEVEL, REPEATED_Z, p_value, paired_interval
from grpo.statistics.phase_guard import FEWEST_BOARDS, PhaseChange, phase_changes
from grpo.statistics.verdict import Decision, LadderGain, Verdict, candidates_by_regret, decide

STRONG = [0.5] * 60 + [0.75] * 40
WEAK = [1 - score for score in STRONG]
EVEN = [0.25, 0.5, 0.5, 0.75] * 25
UNLUCKY = [0.25] * 5 + [0.5] * 50
# One-sided p between 0.0125 and 0.025: enough for one claim, not for one of two.
LIKELY = [0.5] * 50 + [0.75] * 30 + [0.25] * 15


def verdict_on(
    scores: Sequence[float],
    *,
    previous: Sequence[float] | None = None,
    beside: Mapping[str, Sequence[float]] | None = None,
    ladder_gain: LadderGain = NO_GAIN,
    phases: Sequence[PhaseChange] = (),
) -> Decision:
    return decide(
        300,
        against_initial=scores,
        against_previous=previous,
        beside=beside or {},
        ladder_gain=ladder_gain,
        phases=phases,
    )


# The verdict.


def test_a_candidate_is_better_only_when_the_whole_interval_lies_above_one_half() -> None:
    rng = np.random.default_rng(2)
    verdicts = []
    for _ in range(100):
        scores = drawn_pairs(rng, 60, elo=25, draw_rate=0.5)
        decision = verdict_on(scores)
        assert (decision.verdict == Verdict.BETTER) == (paired_interval(scores).low > 0.5) == decision.promoted
        verdicts.append(decision.promoted)
    assert 10 < sum(verdicts) < 90, "both sides of the gate were seen"


def test_two_deciding_claims_are_adjusted_by_holm() -> None:
    assert LEVEL / 2 < p_value(LIKELY) < LEVEL
    assert verdict_on(LIKELY).promoted
    one_of_two = verdict_on(LIKELY, previous=EVEN)
    assert not one_of_two.promoted, "one of two claims must be surer than one alone"
    assert "was not shown to beat its own start after Holm's correction (+" in one_of_two.sentence, "its interval is above 0"
    assert "Holm" not in verdict_on(EVEN, previous=EVEN).sentence + verdict_on(STRONG, previous=EVEN).sentence
    assert verdict_on(LIKELY, previous=STRONG).replaces_previous, "the second of two is as sure as one alone"
    unbeaten, only_previous = verdict_on(STRONG, previous=EVEN), verdict_on(EVEN, previous=STRONG)
    assert (unbeaten.promoted, unbeaten.replaces_previous) == (True, False)
    assert (only_previous.verdict, only_previous.replaces_previous) == (Verdict.NO_IMPROVEMENT, False)


def test_scores_beside_are_reported_and_never_make_or_unmake_a_champion() -> None:
    brilliant, dreadful = [1.0] * 100, [0.0] * 100
    decision = verdict_on(EVEN, beside={"sampled": brilliant})
    assert (decision.verdict, decision.beside[0].is_shown) == (Verdict.NO_IMPROVEMENT, True)
    decision = verdict_on(LIKELY, beside={"sampled": dreadful, "adjudicated": dreadful})
    assert decision.promoted
    assert [claim.name for claim in decision.beside] == ["sampled", "adjudicated"]
    assert decision.beside[0].interval == paired_interval(dreadful)


# Against other opponents.


@pytest.mark.parametrize(
    ("scores", "elo", "verdict", "words"),
    [
        (STRONG, 50, Verdict.BETTER, "beats its own start (+70 Elo [+49, +89]). Against other opponents it gains too (+50 Elo"),
        (STRONG, 0, Verdict.BETTER, ". Against other opponents the games are too few to tell (+0 Elo"),
        (
            STRONG,
            -20,
            Verdict.BETTER,
            ". Against other opponents the games are too few to tell (-20 Elo",
        ),  # The interval reaches above 0.
        (STRONG, -50, Verdict.WORSE_ON_LADDER, ". But against other opponents it is weaker (-50 Elo"),
        (EVEN, 50, Verdict.NO_IMPROVEMENT, "was not shown to beat its own start (+0 Elo"),
        (EVEN, 50, Verdict.NO_IMPROVEMENT, ". But against other opponents it gains (+50 Elo"),
        (EVEN, -50, Verdict.NO_IMPROVEMENT, ". Against other opponents it is weaker (-50 Elo"),
        (UNLUCKY, 0, Verdict.NO_IMPROVEMENT, "was not shown to beat its own start (-16 Elo [-37, +6])"),
        (WEAK, 0, Verdict.WORSE, "plays worse than its own start (-70 Elo [-89, -49])"),
        (WEAK, 50, Verdict.WORSE, ". But against other opponents it gains (+50 Elo"),
    ],
)
def test_a_candidate_that_beats_its_start_and_is_not_worse_on_the_ladder_is_promoted_and_a_sentence_says_what_was_shown(
    scores: Sequence[float], elo: float, verdict: Verdict, words: str
) -> None:
    decision = verdict_on(scores, ladder_gain=gain(elo, -elo))  # As played decides, not as adjudicated.
    assert decision.verdict == verdict
    assert decision.promoted == decision.replaces_previous == (verdict == Verdict.BETTER)
    assert words in decision.sentence


def test_a_difference_that_the_ladder_could_have_missed_is_shown_in_80_of_a_hundred_cases() -> None:
    found = gain(0.0, margin=10 * REPEATED_Z[0])  # A standard error of 10 after the first of two parts.
    assert found.num_planned == 2 * found.num_pairs
    errors = 10 * (1 / np.array([1, 2])) ** 0.5
    measured = found.detectable + np.random.default_rng(1).normal(size=(100_000, 2)).cumsum(1) * errors**2 / errors[0]
    assert (measured > np.array(REPEATED_Z) * errors).any(1).mean() == pytest.approx(0.80, abs=0.01)


# Halving.


@pytest.mark.parametrize(("num_candidates", "rounds"), [(1, ()), (2, (2,)), (5, (5, 3, 2)), (8, (8, 4, 2))])
def test_half_of_the_candidates_rounded_up_stay_until_two_play_for_the_last_place(num_candidates: int, rounds: tuple[int, ...]) -> None:
    assert halving_rounds(num_candidates) == rounds


def test_scores_add_up_over_the_rounds_and_the_lower_half_leaves() -> None:
    table = {
        (10, 0): [0.5, 0.75] * 8,
        (20, 0): [1.0, 1.0] * 8,
        (30, 0): [0.5, 0.5] * 8,
        (40, 0): [0.25, 0.25] * 8,
        # The second round alone would choose 10; both together choose 20.
        (10, 1): [0.75, 0.5] * 8,
        (20, 1): [0.5, 0.5] * 8,
    }
    trace = sequential_halving(
        [40, 10, 20, 30], lambda candidates, number: {candidate: table[candidate, number] for candidate in candidates}
    )
    assert trace.winner == 20
    assert [(entry.round, entry.candidate, entry.kept) for entry in trace.entries] == [
        (0, 40, False),  # The first is shown to be weaker.
        (0, 10, True),
        (0, 20, True),
        (0, 30, False),
        (1, 10, False),
        (1, 20, True),
    ]
    assert trace.entries[-1].so_far == paired_interval([1.0] * 16 + [0.5] * 16)


def test_of_candidates_with_equal_scores_those_listed_first_stay() -> None:
    trace = sequential_halving([20, 10, 30, 15], lambda candidates, _: {candidate: [0.5, 0.75] for candidate in candidates})
    assert [entry.candidate for entry in trace.entries if entry.kept] == [20, 10, 20]


@pytest.mark.parametrize(("num_pairs", "winner"), [(40, 30), (400, 10)])
def test_the_first_candidate_stays_unless_another_is_shown_to_be_better(num_pairs: int, winner: int) -> None:
    better, last = [0.75, 0.25, 0.75, 0.5] * (num_pairs // 4), [0.5, 0.5, 0.25, 0.75] * (num_pairs // 4)
    table = {10: better, 20: [0.0] * num_pairs, 30: last}
    trace = sequential_halving([30, 10, 20], lambda candidates, _: {candidate: table[candidate] for candidate in candidates})
    assert trace.winner == winner


# Phases.


def test_a_phase_blocks_when_it_is_shown_to_be_worse_than_the_tolerance() -> None:
    rng = np.random.default_rng(1)
    differences = {
        "opening": (rng.normal(0.0, 0.1, 400)).tolist(),
        "middlegame": (rng.normal(-0.02, 0.1, 400)).tolist(),
        "endgame": (rng.normal(0.05, 0.1, 400)).tolist(),
    }
    changes = phase_changes(differences, tolerance=0.02)
    assert [(change.phase, change.blocks) for change in changes] == [("opening", False), ("middlegame", False), ("endgame", True)]
    decision = verdict_on(STRONG, phases=changes)
    assert (decision.verdict, decision.promoted, decision.replaces_previous) == (Verdict.WORSE_IN_A_PHASE, False, False)
    assert decision.sentence.endswith(" Its held-out regret grew in the endgame.")
    assert verdict_on(STRONG, phases=changes[:2]).promoted
    assert verdict_on(EVEN, phases=changes).verdict == Verdict.NO_IMPROVEMENT


def test_the_change_of_a_phase_worked_by_hand() -> None:
    # Mean 0.03, standard deviation 0.01 * sqrt(100 / 99), standard error 0.0010050; one-sided p of 0.03 - 0.029 over it: 0.1599.
    (change,) = phase_changes({"endgame": [0.02, 0.04] * 50}, tolerance=0.029)
    assert (change.change.value, change.change.high) == pytest.approx((0.03, 0.03 + 1.959964 * 0.00100504), abs=1e-7)
    assert (change.adjusted_p, change.num_boards, change.blocks) == (pytest.approx(0.1599, abs=1e-4), 100, False)


def test_worse_within_the_tolerance_worse_on_few_boards_or_worse_by_luck_does_not_block() -> None:
    assert not phase_changes({"endgame": [0.019, 0.0195] * 500}, tolerance=0.02)[0].blocks
    assert not phase_changes({"endgame": [0.3, 0.4] * (FEWEST_BOARDS // 2 - 1)}, tolerance=0.02)[0].blocks
    assert phase_changes({"endgame": [0.3, 0.4] * (FEWEST_BOARDS // 2)}, tolerance=0.02)[0].blocks
    assert not phase_changes({"endgame": [0.9] * 5 + [0.0] * 95}, tolerance=0.02)[0].blocks


def test_phases_are_adjusted_by_holm_and_boards_that_all_changed_alike_leave_no_doubt() -> None:
    likely = [0.02, 0.04] * 50  # One-sided p of 2.05 standard errors above the tolerance: 0.02.
    tolerance = 0.03 - 2.05 * 0.00100504
    assert [change.blocks for change in phase_changes({"endgame": likely}, tolerance=tolerance)] == [True]
    assert [change.blocks for change in phase_changes({"opening": likely, "endgame": likely}, tolerance=tolerance)] == [False, False]
    assert [phase_changes({"endgame": [change] * 100}, tolerance=0.5)[0].blocks for change in (0.5, 0.75)] == [False, True]


EQUAL = dict.fromkeys(range(50, 1_050, 50), 0.0)


# Who plays, and what `peak` is.


def test_the_games_that_chose_a_candidate_flatter_it_and_the_confirmation_does_not() -> None:
    rng = np.random.default_rng(5)
    chosen_by, fresh = [], []
    for _ in range(100):
        trace = screened(rng, EQUAL, Protocol(num_candidates=8, round_pairs=20))
        chosen_by.append(max(entry.so_far.value for entry in trace.entries))
        fresh.append(np.mean(confirmed(rng, 0.0, Protocol(confirmation_pairs=60))))
    assert np.mean(chosen_by) > 0.52, "the winner's curse: all of them are equal"
    assert abs(np.mean(fresh) - 0.5) < 3 * 0.25 / np.sqrt(60 * 100)


def test_the_last_step_comes_first_then_the_lowest_regrets_and_of_equals_the_later_step() -> None:
    regrets = {0: 0.30, 50: 0.20, 100: 0.10, 150: 0.20, 200: 0.10, 250: 0.40}
    for given in (regrets, dict(reversed(regrets.items()))):
        assert candidates_by_regret(given, count=9) == [250, 200, 100, 150, 50, 0]
        assert candidates_by_regret(given, count=2) == [250, 200]
    assert candidates_by_regret({}, count=4) == []
