"""Which checkpoint may be called better than the initial policy, and with what certainty.

The best of many equal checkpoints looks better than it is (the winner's curse), so three stages share no game: held-out regret screens all,
sequential halving (`grpo.evaluation.halving`) chooses one, and only the confirmation games, played after the choice, are reported.
Everything here is arithmetic on scores: the games are played by whom it is handed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from grpo.evaluation.phase_guard import PhaseChange
from grpo.statistics.intervals import LEVEL, Z95, Outcomes, ScoreInterval, holm, p_value, paired_interval
from grpo.statistics.sprt import Sprt, SprtOutcome


class Verdict(StrEnum):
    """What the confirmation games, and the held-out boards by phase, say of the candidate."""

    BETTER = "better"
    NO_IMPROVEMENT = "no improvement shown"
    WORSE_IN_A_PHASE = "better, but worse in a phase"


class ConfirmationEnd(StrEnum):
    """Why no more confirmation games were played."""

    ALL_PLAYED = "all planned pairs are played"
    ACCEPTED = "the SPRT accepts"
    REJECTED = "the SPRT rejects"
    UNDECIDED = "the SPRT is undecided at the last pair"


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """Fresh games of the chosen candidate, played after the choice."""

    pair_scores: tuple[float, ...]
    end: ConfirmationEnd
    interval: ScoreInterval
    """Of a test that stopped early it leans a little towards what stopped it; the verdict is then the SPRT's."""
    p_value: float
    """One-sided, against "no better". Of an SPRT its alpha when it accepts, else 1: a p-value looked at again and again is none."""
    log_likelihood_ratio: float | None
    """Of an SPRT."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One thing that may be said of the candidate."""

    name: str
    interval: ScoreInterval
    p_value: float
    adjusted_p: float
    """By Holm over the claims of its family."""
    is_shown: bool
    """The adjusted value is at most 2.5 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The verdict with all it rests on, as plain data."""

    candidate: int
    """Its step."""
    verdict: Verdict
    promoted: bool
    """The candidate is this run's champion; else the initial policy stays."""
    replaces_previous: bool
    """The registry's champion gives way: promoted, and shown to be better than it where there is one besides the initial policy."""
    reasons: tuple[str, ...]
    claims: tuple[Claim, ...]
    """Those that decide: against the initial policy, and against the previous champion where there is one."""
    beside: tuple[Claim, ...]
    """Other ways of scoring or playing; a family of their own, for they decide nothing."""
    phases: tuple[PhaseChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RegretEstimate:
    """Mean held-out regret with its standard error."""

    mean: float
    stderr: float

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.mean + Z95 * self.stderr


BETTER_THAN_INITIAL = "better than the initial policy"
BETTER_THAN_PREVIOUS = "better than the previous champion"


def candidates_by_regret(regret_by_step: Mapping[int, float], count: int) -> list[int]:
    """Return the steps of the checkpoints with the lowest held-out regret, best first; the later one of equals."""
    return sorted(regret_by_step, key=lambda step: (regret_by_step[step], -step))[:count]


def play_confirmation(play: Callable[[int], Sequence[float]], *, num_pairs: int, batch_pairs: int, sprt: Sprt | None) -> Confirmation:
    """Play the fresh games that the verdict rests on: all of them, or under an SPRT as few as it needs.

    Args:
        play: takes a number of pairs, plays that many further openings, returns their mean scores seen from the candidate.
        num_pairs: how many in all; under an SPRT at most.
        batch_pairs: how many are played between two looks of the SPRT; without one all are played at once.
        sprt: give each of several deciding tests alpha = `LEVEL` / their number, so that Holm can accept it by itself.

    Raises ValueError when a number is not positive, or `play` returned another number of scores than asked for.
    """
    if min(num_pairs, batch_pairs) < 1:
        raise ValueError(f"num_pairs ({num_pairs}) and batch_pairs ({batch_pairs}) must be at least 1")
    scores: list[float] = []
    outcome = SprtOutcome.GO_ON
    while len(scores) < num_pairs and outcome == SprtOutcome.GO_ON:
        asked = num_pairs if sprt is None else min(batch_pairs, num_pairs - len(scores))
        fresh = play(asked)
        if len(fresh) != asked:
            raise ValueError(f"asked for {asked} confirmation pairs and got {len(fresh)}")
        scores.extend(fresh)
        outcome = SprtOutcome.GO_ON if sprt is None else sprt.outcome(scores)
    accepted = outcome == SprtOutcome.ACCEPT
    return Confirmation(
        pair_scores=tuple(scores),
        end=ConfirmationEnd.ALL_PLAYED if sprt is None else _SPRT_ENDS[outcome],
        interval=paired_interval(scores),
        p_value=p_value(scores) if sprt is None else sprt.alpha if accepted else 1.0,
        log_likelihood_ratio=None if sprt is None else sprt.log_likelihood_ratio(Outcomes.of_pairs(scores)),
    )


_SPRT_ENDS = {
    SprtOutcome.ACCEPT: ConfirmationEnd.ACCEPTED,
    SprtOutcome.REJECT: ConfirmationEnd.REJECTED,
    SprtOutcome.GO_ON: ConfirmationEnd.UNDECIDED,
}


def decide(
    candidate: int,
    *,
    against_initial: Confirmation,
    against_previous: Confirmation | None,
    beside: Mapping[str, Sequence[float]],
    phases: Sequence[PhaseChange],
) -> Decision:
    """Return the verdict on a candidate. "No improvement shown" is one, and then the initial policy stays champion.

    The claim of being better than the initial policy decides. That of being better than the registry's previous champion decides whether
    that one gives way; being two, both are adjusted by Holm. Other scores (sampled moves, adjudicated games) are reported and
    never make a champion: at T = 1 sampled moves measure how sharp a policy is as much as how good it is.

    Args:
        candidate: its step.
        against_initial: the confirmation games.
        against_previous: the same against the registry's champion, None where there is none or it is the initial policy.
        beside: name of a further claim -> mean scores of its pairs; none without a pair.
        phases: of `phase_changes`; one that blocks keeps the candidate from promotion.
    """
    deciding = {BETTER_THAN_INITIAL: against_initial}
    if against_previous is not None:
        deciding[BETTER_THAN_PREVIOUS] = against_previous
    claims = _claims({name: (games.interval, games.p_value) for name, games in deciding.items()})
    others = _claims({name: (paired_interval(scores), p_value(scores)) for name, scores in beside.items()})
    worse = [change for change in phases if change.blocks]
    is_better = claims[0].is_shown
    promoted = is_better and not worse
    return Decision(
        candidate=candidate,
        verdict=Verdict.NO_IMPROVEMENT if not is_better else Verdict.WORSE_IN_A_PHASE if worse else Verdict.BETTER,
        promoted=promoted,
        replaces_previous=promoted and all(claim.is_shown for claim in claims),
        reasons=(*(_claim_reason(claim, deciding[claim.name]) for claim in claims), *map(_phase_reason, worse)),
        claims=claims,
        beside=others,
        phases=tuple(phases),
    )


def _claims(found: Mapping[str, tuple[ScoreInterval, float]]) -> tuple[Claim, ...]:
    adjusted = holm([p for _, p in found.values()])
    return tuple(
        Claim(name=name, interval=interval, p_value=p, adjusted_p=by_holm, is_shown=by_holm <= LEVEL)
        for (name, (interval, p)), by_holm in zip(found.items(), adjusted, strict=True)
    )


def _claim_reason(claim: Claim, games: Confirmation) -> str:
    shown = "shown" if claim.is_shown else "not shown"
    return f"{claim.name}: {shown}, {claim.interval}; {games.end}; adjusted p {claim.adjusted_p:.4f}, needed at most {LEVEL}"


def _phase_reason(change: PhaseChange) -> str:
    found = f"{change.change.value:+.4f} [{change.change.low:+.4f}, {change.change.high:+.4f}] on {change.num_boards} boards"
    return f"held-out regret of the {change.phase} grew beyond the tolerance: {found}, adjusted p {change.adjusted_p:.4f}"


def peak_step(*, games: Mapping[int, ScoreInterval], regrets: Mapping[int, RegretEstimate]) -> int:
    """Return the step that `peak` names: the best lower bound against the initial policy.

    Where none played, the lowest upper end of regret. A bound, not a point: the highest of many noisy scores is mostly luck.
    Of equals the first named.

    Args:
        games: step -> score over all its games against the initial policy.
        regrets: step -> held-out regret; looked at only when no step played.

    Raises ValueError when nothing was measured.
    """
    if games:
        return max(games, key=lambda step: games[step].low)
    if not regrets:
        raise ValueError("no checkpoint was measured, by games or by regret, so none is the peak")
    return min(regrets, key=lambda step: regrets[step].high)
