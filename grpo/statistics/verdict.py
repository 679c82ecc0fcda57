"""The verdict: is the candidate, a chosen checkpoint of the run, better than the initial policy?

The initial policy is the policy before GRPO; messages call it the pretrained policy or the candidate's own start. Luck helps to choose the
best of several checkpoints, so each stage uses new data:

- held-out regret (mean loss of value by the policy's most likely move, on boards outside training) ranks checkpoints
- games of sequential halving choose the candidate
- confirmation games from new openings decide

Candidate and initial policy also play engine opponents with known ratings (rungs of the ladder). The registry keeps the champion of earlier
runs (`previous`). A pair score is the mean score of an opening's two games, in [0, 1].
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from grpo.base.documents import Document
from grpo.statistics.intervals import LEVEL, REPEATED_Z, Estimate, Unit, elo_estimate, holm, p_value, paired_interval
from grpo.statistics.phase_guard import PhaseChange


class Verdict(StrEnum):
    BETTER = "better"
    NO_IMPROVEMENT = "no improvement shown"
    WORSE = "worse than its start"
    WORSE_ON_LADDER = "better than its start only: worse on the ladder"
    WORSE_IN_A_PHASE = "better, but worse in a phase"


class LadderFinding(StrEnum):
    HIGHER = "higher"
    NOT_SHOWN = "no difference shown"
    WORSE = "worse"


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderGain:
    """The candidate's ladder rating minus the initial policy's, in Elo."""

    played: Estimate
    adjudicated: Estimate  # An engine scores draws by repetition, fifty moves or ply cap.
    num_pairs: int  # Openings of a policy against each of the two rungs that are nearest in rating. Games may stop halfway.
    num_planned: int  # Maximum of `num_pairs`.

    @property
    def detectable(self) -> float:
        """Smallest true difference that all planned games would show with probability 80 %."""
        standard_error = (self.played.high - self.played.value) / REPEATED_Z[0] * math.sqrt(self.num_pairs / self.num_planned)
        # 2.802 would do without the interim analysis; 1.110: Jennison and Turnbull, Group Sequential Methods, 2000, table 2.2.
        return 2.802 * math.sqrt(1.110) * standard_error

    @property
    def finding(self) -> LadderFinding:
        if self.played.low > 0:
            return LadderFinding.HIGHER
        return LadderFinding.WORSE if self.played.high < 0 else LadderFinding.NOT_SHOWN

    def __str__(self) -> str:
        played, adjudicated = (gain.text(Unit.ELO, suffix=" Elo") for gain in (self.played, self.adjudicated))
        return f"{self.finding}, {played} as played; {adjudicated} adjudicated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    name: str
    interval: Estimate  # Mean pair score.
    p_value: float  # Probability of this or a higher score between equal policies.
    adjusted_p: float  # By `holm` over `Decision.claims` or over `Decision.beside`.
    is_shown: bool  # `adjusted_p` is at most 2.5 %.


class Decision(Document):
    candidate_step: int | None
    verdict: Verdict
    promoted: bool  # The candidate is this run's champion.
    replaces_previous: bool
    """The candidate is promoted, and shown to be better than the registry's champion (if one was played)."""
    sentence: str
    claims: tuple[Claim, ...] = ()  # Against the initial policy, and the registry's champion.
    beside: tuple[Claim, ...] = ()  # From games that do not decide.
    ladder_gain: LadderGain | None = None
    phases: tuple[PhaseChange, ...] = ()


_EVEN = 0.5  # Score of two equal policies.
BETTER_THAN_INITIAL = "better than the pretrained policy"
BETTER_THAN_PREVIOUS = "better than the previous champion"
AGAINST_OTHERS = "against other opponents (ladder rating less the pretrained policy's)"


def candidates_by_regret(regret_by_step: Mapping[int, float], *, count: int) -> list[int]:
    """Return at most `count` steps: the last, then those of lowest held-out regret (of equal regrets, the later)."""
    return sorted(regret_by_step, key=lambda step: (step != max(regret_by_step), regret_by_step[step], -step))[:count]


def decide_without_candidate(reason: str) -> Decision:
    sentence = f"No checkpoint could play, so none was shown to beat the pretrained policy: {reason}."
    return Decision(candidate_step=None, verdict=Verdict.NO_IMPROVEMENT, promoted=False, replaces_previous=False, sentence=sentence)


def decide(
    candidate: int,
    *,
    against_initial: Sequence[float],
    against_previous: Sequence[float] | None,
    beside: Mapping[str, Sequence[float]],
    ladder_gain: LadderGain,
    phases: Sequence[PhaseChange],
) -> Decision:
    """Return the verdict on a candidate. A loss on the ladder, or a phase that blocks, prevents promotion.

    - `against_previous`: pair scores against the registry's champion; None if there is none, or if it is the initial policy
    - `beside`: name -> pair scores (at least one) of games that do not decide, such as games with sampled moves
    """
    deciding = {BETTER_THAN_INITIAL: against_initial}
    if against_previous is not None:
        deciding[BETTER_THAN_PREVIOUS] = against_previous
    claims = _claims(deciding)
    worse = [change for change in phases if change.blocks]
    if claims[0].interval.high < _EVEN:  # Claim 0 is against the initial policy.
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
        own += " after Holm's correction" if claim.interval.low > _EVEN else ""
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
