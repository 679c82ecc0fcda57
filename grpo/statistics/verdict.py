"""The verdict: whether the chosen checkpoint is better than the initial policy and no worse than it on the ladder, and the peak.

The best of many equal checkpoints looks better than it is (the winner's curse), so the three stages of selection share no game. Held-out
regret screens all checkpoints, sequential halving (`grpo.statistics.halving`) chooses one, and only the confirmation games, which are
played after the choice, are reported. A policy can learn to beat its own start and be no stronger against anybody else, so the candidate
and its start also meet the same opponents of the ladder. This module only computes on scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from grpo.base.documents import Document
from grpo.statistics.intervals import LEVEL, REPEATED_Z, Estimate, Unit, elo_estimate, holm, p_value, paired_interval
from grpo.statistics.phase_guard import PhaseChange


class Verdict(StrEnum):
    """The verdict on a candidate, by confirmation games, by games against the ladder, and by held-out regret per phase."""

    BETTER = "better"
    NO_IMPROVEMENT = "no improvement shown"
    WORSE = "worse than its start"
    WORSE_ON_LADDER = "better than its start only: worse on the ladder"
    WORSE_IN_A_PHASE = "better, but worse in a phase"


class LadderFinding(StrEnum):
    """The candidate on the ladder, compared with the initial policy."""

    HIGHER = "higher"
    NOT_SHOWN = "no difference shown"
    WORSE = "worse"


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderGain:
    """The candidate's ladder rating less the initial policy's, in Elo, with repeated 95 % intervals paired by opening."""

    played: Estimate
    """Gain in games as played; it decides."""
    adjudicated: Estimate
    """Gain in the same games with undecided ones adjudicated."""
    num_pairs: int
    """Openings that both played against each of the two rungs."""
    num_planned: int
    """The most that they would have played."""

    @property
    def look(self) -> int:
        """Return at which look of `REPEATED_Z` play stopped."""
        return len(REPEATED_Z) * self.num_pairs // self.num_planned

    @property
    def detectable(self) -> float:
        """Return the true difference in Elo, up or down, that play up to the last look shows in 80 % of the cases."""
        half_width_at_last = (self.played.high - self.played.value) * self.num_pairs / self.num_planned
        return half_width_at_last * (1 + 0.8416 / REPEATED_Z[-1])  # 0.8416 is the normal quantile of 80 %.

    @property
    def finding(self) -> LadderFinding:
        """Return what is shown: a difference, if the whole interval as played lies on one side of 0."""
        if self.played.low > 0:
            return LadderFinding.HIGHER
        return LadderFinding.WORSE if self.played.high < 0 else LadderFinding.NOT_SHOWN

    def __str__(self) -> str:
        played, adjudicated = (gain.text(Unit.ELO, suffix=" Elo") for gain in (self.played, self.adjudicated))
        return f"{self.finding}, {played} as played; {adjudicated} adjudicated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One claim about the candidate with its p-value."""

    name: str
    interval: Estimate
    """Score of its games."""
    p_value: float
    adjusted_p: float
    """Holm-adjusted over the claims of its family."""
    is_shown: bool
    """Whether the adjusted p-value is at most 2.5 %."""


class Decision(Document):
    """The verdict with its claims; without a candidate there is no claim."""

    candidate_step: int | None
    verdict: Verdict
    promoted: bool
    """Whether the candidate is this run's champion; otherwise the initial policy stays."""
    replaces_previous: bool
    """Whether it replaces the registry's champion: it is promoted, and shown to be better than that one if there is one."""
    sentence: str
    """The verdict in one sentence: against its own start, and against other opponents."""
    claims: tuple[Claim, ...] = ()
    """The deciding claims: against the initial policy, and against the previous champion if there is one."""
    beside: tuple[Claim, ...] = ()
    """Claims for other ways of scoring or playing; a separate family, because they decide nothing."""
    ladder_gain: LadderGain | None = None
    """A candidate that is worse on the ladder is not promoted."""
    phases: tuple[PhaseChange, ...] = ()
    """The candidate's held-out regret less the initial policy's, by phase."""


_EVEN = 0.5
"""The score of two equal policies."""
BETTER_THAN_INITIAL = "better than the pretrained policy"
BETTER_THAN_PREVIOUS = "better than the previous champion"
AGAINST_OTHERS = "against other opponents (ladder rating less the pretrained policy's)"


def candidates_by_regret(regret_by_step: Mapping[int, float]) -> list[int]:
    """Return the steps of the checkpoints, the lowest held-out regret first; ties go to the later step."""
    return sorted(regret_by_step, key=lambda step: (regret_by_step[step], -step))


def decide_without_candidate(reason: str) -> Decision:
    """Return the verdict if no checkpoint could play, for this reason."""
    return Decision(
        candidate_step=None,
        verdict=Verdict.NO_IMPROVEMENT,
        promoted=False,
        replaces_previous=False,
        sentence=f"No checkpoint could play, so none was shown to beat the pretrained policy: {reason}.",
    )


def decide(
    candidate: int,
    *,
    against_initial: Sequence[float],
    against_previous: Sequence[float] | None,
    beside: Mapping[str, Sequence[float]],
    ladder_gain: LadderGain,
    phases: Sequence[PhaseChange],
) -> Decision:
    """Return the verdict on a candidate; unless the verdict is "better", the initial policy stays champion.

    The claim of being better than the initial policy decides. The claim of being better than the registry's previous champion decides
    whether that one is replaced; both claims are adjusted by Holm. Other scores (sampled moves, adjudicated games) are reported but never
    make a champion: at T = 1 sampled moves measure a policy's sharpness as much as its strength. A candidate that is shown to be worse than
    the initial policy on the ladder, or in a phase of the game, is not promoted.

    Args:
        candidate: Step of the checkpoint.
        against_initial: Pair scores of the confirmation games against the initial policy.
        against_previous: Those against the registry's champion; None if there is none or it is the initial policy.
        beside: Name of a further claim -> its pair scores, at least one.
        ladder_gain: The candidate's ladder rating less the initial policy's.
        phases: Results of `phase_changes`; one that blocks prevents promotion.
    """
    deciding = {BETTER_THAN_INITIAL: against_initial}
    if against_previous is not None:
        deciding[BETTER_THAN_PREVIOUS] = against_previous
    claims = _claims(deciding)
    worse = [change for change in phases if change.blocks]
    if claims[0].interval.high < _EVEN:
        verdict = Verdict.WORSE
    elif not claims[0].is_shown:
        verdict = Verdict.NO_IMPROVEMENT
    elif ladder_gain.finding == LadderFinding.WORSE:
        verdict = Verdict.WORSE_ON_LADDER
    else:
        verdict = Verdict.WORSE_IN_A_PHASE if worse else Verdict.BETTER
    promoted = verdict == Verdict.BETTER
    return Decision(
        candidate_step=candidate,
        verdict=verdict,
        promoted=promoted,
        replaces_previous=promoted and all(claim.is_shown for claim in claims),
        sentence=_sentence(candidate, claims[0], ladder_gain, [change.phase for change in worse]),
        claims=claims,
        beside=_claims(beside),
        ladder_gain=ladder_gain,
        phases=tuple(phases),
    )


def _sentence(candidate: int, claim: Claim, gain: LadderGain, worse_phases: Sequence[str]) -> str:
    if claim.is_shown:
        own = "beats its own start"
    else:
        own = "plays worse than its own start" if claim.interval.high < _EVEN else "was not shown to beat its own start"
    others = {
        LadderFinding.HIGHER: "it gains too" if claim.is_shown else "it gains",
        LadderFinding.NOT_SHOWN: "the games are too few to tell",
        LadderFinding.WORSE: "it is weaker",
    }[gain.finding]
    against = "But against" if gain.finding == (LadderFinding.WORSE if claim.is_shown else LadderFinding.HIGHER) else "Against"
    elo, on_ladder = (gained.text(Unit.ELO, suffix=" Elo") for gained in (elo_estimate(claim.interval), gain.played))
    sentence = f"Step {candidate:,} {own} ({elo}). {against} other opponents {others} ({on_ladder} on the ladder)."
    return sentence + (f" Its held-out regret grew in the {' and the '.join(worse_phases)}." if worse_phases else "")


def _claims(pair_scores: Mapping[str, Sequence[float]]) -> tuple[Claim, ...]:
    adjusted = holm([p_value(scores) for scores in pair_scores.values()])
    return tuple(
        Claim(name=name, interval=paired_interval(scores), p_value=p_value(scores), adjusted_p=by_holm, is_shown=by_holm <= LEVEL)
        for (name, scores), by_holm in zip(pair_scores.items(), adjusted, strict=True)
    )


def peak_step(scores: Mapping[int, Estimate]) -> int:
    """Return the step of the alias `peak`: the best lower bound of the score against the initial policy.

    A bound is used because the highest of many noisy estimates is mostly luck. Ties go to the first step.

    Args:
        scores: Step -> score over all its games against the initial policy; at least one.
    """
    return max(scores, key=lambda step: scores[step].low)
