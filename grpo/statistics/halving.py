"""Sequential halving: chooses a checkpoint and spends most games on close candidates (Karnin, Koren and Somekh, ICML 2013).

All candidates of a round play the same fresh openings, so that no opening favors one of them. Scores are summed over the rounds, and the
lower half is eliminated. These games overestimate the winner's strength, because it was chosen by them (the winner's curse): only games
played afterwards may be reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo.base.documents import Document
from grpo.statistics.intervals import Estimate, paired_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class HalvingEntry:
    """One candidate in one round."""

    round: int
    candidate: int
    """Step of the checkpoint."""
    pair_scores: tuple[float, ...]
    """Pair scores of this round against the initial policy."""
    so_far: Estimate
    """Score over the rounds up to this one, with its interval; the score alone decides `kept`."""
    kept: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class HalvingTrace:
    """All rounds of a halving with their results, and the winner."""

    entries: tuple[HalvingEntry, ...]
    winner: int


class Screened(Document):
    """The report of `screen`."""

    candidate_step: int | None
    """None if no checkpoint could play."""
    reason: str
    """Why there is no candidate."""
    heldout_regret_best: dict[int, Estimate]
    """Step of each checkpoint -> held-out regret, where it was measured."""
    screening: tuple[HalvingEntry, ...] = ()
    """A candidate in a round of the halving, in the order in which they played."""
    openings: dict[str, list[str]]
    """Stage after the screening -> FENs; the previous champion has some only where it is to be played."""
    previous_weights: str | None = None
    """Hash of the weights of the previous champion where it is to be played: its policy is beside the report."""


def halving_rounds(num_candidates: int) -> tuple[int, ...]:
    """Return the number of candidates in each round; half of them, rounded up, stay. One candidate needs no round.

    >>> halving_rounds(5)
    (5, 3, 2)
    """
    return (num_candidates, *halving_rounds(_num_kept(num_candidates))) if num_candidates > 1 else ()


def sequential_halving(candidates: Sequence[int], play: Callable[[int, int], Sequence[float]]) -> HalvingTrace:
    """Halve the candidates by games until one is left.

    Args:
        candidates: Steps of checkpoints, at least one, the most promising first; of equal scores the one listed earlier stays.
        play: (candidate, round) -> its fresh pair scores against the initial policy, on openings that all candidates of the round
            share. Rounds count from 0.
    """
    remaining = list(candidates)
    scores = {candidate: list[float]() for candidate in remaining}
    entries: list[HalvingEntry] = []
    for number in range(len(halving_rounds(len(remaining)))):
        new_pairs = {candidate: tuple(play(candidate, number)) for candidate in remaining}
        assert len({len(pairs) for pairs in new_pairs.values()}) == 1, "candidates of one round played different numbers of pairs"
        for candidate, pairs in new_pairs.items():
            scores[candidate] += pairs
        ranked = sorted(remaining, key=lambda candidate: -sum(scores[candidate]))  # Stable: the earlier of ties.
        kept = ranked[: _num_kept(len(remaining))]
        for candidate, pairs in new_pairs.items():
            so_far, is_kept = paired_interval(scores[candidate]), candidate in kept
            entries.append(HalvingEntry(round=number, candidate=candidate, pair_scores=pairs, so_far=so_far, kept=is_kept))
        remaining = [candidate for candidate in remaining if candidate in kept]
    return HalvingTrace(entries=tuple(entries), winner=remaining[0])


def _num_kept(num_candidates: int) -> int:
    return (num_candidates + 1) // 2
