"""Sequential halving chooses one of a run's checkpoints by games (Karnin, Koren and Somekh, ICML 2013).

In each round, the remaining checkpoints (candidates) play the initial policy (before GRPO) from the same new openings, and the half with
the lower scores so far is dropped. But the first candidate, the last checkpoint, stays unless another is shown to be better, because few
games differ by chance (docs/results.md). A pair score is the mean score of an opening's two games, in [0, 1].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo.base.documents import Document
from grpo.statistics.intervals import LEVEL, Estimate, holm, p_value, paired_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class HalvingEntry:
    round: int  # From 0.
    candidate: int  # Step.
    pair_scores: tuple[float, ...]  # Against the initial policy, in this round.
    so_far: Estimate  # Mean over all rounds up to this one.
    kept: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class HalvingTrace:
    entries: tuple[HalvingEntry, ...]
    winner: int


class Screened(Document):
    """Report of the step `screen`."""

    candidate_step: int | None  # None if no checkpoint has a finite regret on held-out boards.
    reason: str  # Why there is no candidate, or "".
    heldout_regret_best: dict[int, Estimate]
    """Step -> mean value that the most likely moves lose on held-out boards."""
    screening: tuple[HalvingEntry, ...] = ()
    openings: dict[str, list[str]]  # Name of later games, such as `ladder` -> FENs of their openings.
    previous_weights: str | None = None
    """Weights' hash of earlier runs' best policy, stored beside this report; None if this policy plays no games."""


def halving_rounds(num_candidates: int) -> tuple[int, ...]:
    """Return the number of candidates in each round.

    >>> halving_rounds(5)
    (5, 3, 2)
    """
    return (num_candidates, *halving_rounds(_num_kept(num_candidates))) if num_candidates > 1 else ()


def sequential_halving(candidates: Sequence[int], play: Callable[[Sequence[int], int], Mapping[int, Sequence[float]]]) -> HalvingTrace:
    """Halve the candidates (at least one) until one is left.

    `play`: (candidates, round from 0) -> candidate -> new pair scores, on openings that the round shares.
    """
    remaining = list(candidates)
    scores = {candidate: list[float]() for candidate in remaining}
    entries: list[HalvingEntry] = []
    for number in range(len(halving_rounds(len(remaining)))):
        new_pairs = {candidate: tuple(scores) for candidate, scores in play(remaining, number).items()}
        assert len({len(pairs) for pairs in new_pairs.values()}) == 1, "candidates of one round played different numbers of pairs"
        for candidate, pairs in new_pairs.items():
            scores[candidate] += pairs
        ranked = sorted(remaining, key=lambda candidate: -sum(scores[candidate]))  # Stable, so ties keep their order.
        if remaining[0] == candidates[0] and not _is_first_beaten([scores[candidate] for candidate in remaining]):
            ranked = [remaining[0], *(candidate for candidate in ranked if candidate != remaining[0])]
        kept = ranked[: _num_kept(len(remaining))]
        for candidate, pairs in new_pairs.items():
            so_far, is_kept = paired_interval(scores[candidate]), candidate in kept
            entries.append(HalvingEntry(round=number, candidate=candidate, pair_scores=pairs, so_far=so_far, kept=is_kept))
        remaining = [candidate for candidate in remaining if candidate in kept]
    return HalvingTrace(entries=tuple(entries), winner=remaining[0])


def _is_first_beaten(scores: Sequence[Sequence[float]]) -> bool:
    """Return whether another is shown to be better: one-sided 2.5 %, paired by opening, Holm."""
    first, *others = scores
    # As pair scores.
    differences = [[(1 + score - of_first) / 2 for score, of_first in zip(other, first, strict=True)] for other in others]
    return min(holm([p_value(pairs) for pairs in differences])) <= LEVEL


def _num_kept(num_candidates: int) -> int:
    return (num_candidates + 1) // 2
