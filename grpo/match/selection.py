"""Report of the step `select`: the decision with its evidence, and sentences for pages.

- Candidate: the checkpoint that games of the step `screen` chose. If promoted, it is the run's champion.
- Pretrained policy: the policy before GRPO, the candidate's own start.
- Ladder: engine opponents with known ratings.
- As played: by real results. Adjudicated: some draws count as wins of the side that an engine finds ahead (`matches.adjudicate`).
"""

from grpo.match.ladder import Placement
from grpo.match.matches import MatchReport
from grpo.metrics.shared import PRETRAINED_STEP
from grpo.statistics.halving import HalvingEntry
from grpo.statistics.intervals import Estimate, Unit, elo_estimate
from grpo.statistics.verdict import Decision


class Selection(Decision):
    """Without a candidate, fields about it are None."""

    champion_step: int  # 0 is the pretrained policy.
    peak_step: int  # The candidate, to resume from; 0 without a candidate.
    peak: Estimate | None = None  # Score of `peak_step` in the confirmation games.
    screening: tuple[HalvingEntry, ...] = ()
    heldout_regret_best: dict[int, Estimate]
    """Step -> mean regret on held-out boards: the best move's value minus the most likely move's."""
    confirmation_best_moves: MatchReport | None = None  # New games against the pretrained policy.
    confirmation_sampled_moves: MatchReport | None = None
    previous_champion: MatchReport | None = None  # Against the registry's champion (of earlier runs).
    previous_weights: str | None = None  # Hash of the registry's champion, if played.
    ladder: Placement | None = None
    ladder_initial: Placement | None = None  # The pretrained policy's, from the same openings.
    initial_weights: str
    candidate_weights: str | None = None

    @property
    def outcome(self) -> str:
        if not self.promoted:
            return "the pretrained policy stays champion"
        step = f"step {self.candidate_step:,}"
        if self.replaces_previous:
            return f"{step} is champion"
        return f"{step} is this run's champion; the registry's champion stays, because {step} was not shown to be better"

    @property
    def gains(self) -> dict[str, Estimate]:
        """Label -> gain in Elo over the pretrained policy."""
        gains: dict[str, Estimate] = {}
        if (games := self.confirmation_best_moves) is not None:
            gains["own start, as played: decides"] = elo_estimate(games.score)
            if games.adjudicated is not None:
                gains["own start, adjudicated"] = elo_estimate(games.adjudicated)
        if (ladder := self.ladder_gain) is not None:
            gains |= {"other opponents, as played": ladder.played, "other opponents, adjudicated": ladder.adjudicated}
        return gains

    def strength(self, step: int) -> str:
        screened = {entry.candidate: entry.so_far for entry in self.screening}
        games = self.confirmation_best_moves if step == self.candidate_step else None
        score = screened.get(step) if games is None else games.score
        if step == PRETRAINED_STEP:
            gain = "It is the start of its run, without GRPO"
        elif score is None:
            gain = "It played no game"
        else:
            note = " in screening games, which overestimate the best step" if games is None else ""
            gain = f"{elo_estimate(score).text(Unit.ELO, suffix=' Elo')} against its own start{note}"
        place = {PRETRAINED_STEP: self.ladder_initial, self.candidate_step: self.ladder}.get(step)
        if place is None:
            return f"{gain}; it was not rated on the ladder."
        return f"{gain}; {place.rating_of_all.text(Unit.ELO, suffix=' Elo')} above a random mover, on the ladder of its run."

    @property
    def placed(self) -> dict[str, Placement]:
        """Policy's name -> rating on the ladder."""
        if self.ladder is None or self.ladder_initial is None:
            return {}
        return {"pretrained": self.ladder_initial, f"step {self.candidate_step:,}": self.ladder}
