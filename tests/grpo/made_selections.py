"""Whole selections with made-up players: a noisy regret screen, halving, fresh confirmation, verdict; only the games are drawn by lot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grpo.settings.tree import SelectionConfig
from grpo.statistics.halving import HalvingTrace, sequential_halving
from grpo.statistics.intervals import Estimate, expected_score
from grpo.statistics.verdict import Decision, LadderGain, candidates_by_regret, decide

DEFAULT = SelectionConfig()


def gain(played: float, adjudicated: float = 0.0, *, margin: float = 30.0) -> LadderGain:
    """Return a gain on the ladder, in Elo, with intervals of this margin."""
    found = [Estimate(value=value, low=value - margin, high=value + margin) for value in (played, adjudicated)]
    return LadderGain(played=found[0], adjudicated=found[1], num_pairs=150, num_planned=300)


NO_GAIN = gain(0.0)
"""Nothing is shown by the ladder, either way."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How much is played; the defaults are the preset's."""

    num_candidates: int = DEFAULT.num_candidates
    round_pairs: int = DEFAULT.num_screening_pairs
    confirmation_pairs: int = DEFAULT.num_confirmation_pairs
    draw_rate: float = 0.5


def drawn_pairs(rng: np.random.Generator, num_pairs: int, *, elo: float, draw_rate: float) -> list[float]:
    win = expected_score(elo) - draw_rate / 2
    return list(rng.choice([0.0, 0.5, 1.0], p=[1 - win - draw_rate, draw_rate, win], size=(num_pairs, 2)).mean(1).tolist())


def confirmed(rng: np.random.Generator, elo: float, protocol: Protocol) -> list[float]:
    """Return the pair scores of fresh games of a player of this strength against the initial policy."""
    return drawn_pairs(rng, protocol.confirmation_pairs, elo=elo, draw_rate=protocol.draw_rate)


def screened(rng: np.random.Generator, elos: Mapping[int, float], protocol: Protocol) -> HalvingTrace:
    # The standard error of a held-out regret is 0.1 on 600 boards; 50 Elo are hardly more than that, so the screen is no oracle.
    regrets = {step: 0.1 - 1e-4 * elo + 0.004 * rng.normal() for step, elo in elos.items()}
    return sequential_halving(
        candidates_by_regret(regrets, count=protocol.num_candidates),
        lambda steps, _: {step: drawn_pairs(rng, protocol.round_pairs, elo=elos[step], draw_rate=protocol.draw_rate) for step in steps},
    )


def selected(rng: np.random.Generator, elos: Mapping[int, float], protocol: Protocol) -> Decision:
    """Return the verdict of a whole selection among checkpoints that are this much stronger than the initial policy."""
    winner = screened(rng, elos, protocol).winner
    return decide(
        winner, against_initial=confirmed(rng, elos[winner], protocol), against_previous=None, beside={}, ladder_gain=NO_GAIN, phases=()
    )


def share_promoted(decisions: Sequence[Decision]) -> float:
    return sum(decision.promoted for decision in decisions) / len(decisions)


def simulated(rng: np.random.Generator, elo: float, num_pairs: int) -> tuple[float, ...]:
    """Return pairs whose games are drawn now and then, and whose two games share an opening that favors one of the players."""
    # A mean score of e, of which the luck of the opening moves up to a fifth; draws take as much from wins as from losses.
    mean = expected_score(elo)
    room = min(mean, 1 - mean)
    luck = rng.uniform(-0.2, 0.2, num_pairs) * room
    scores = np.zeros(num_pairs)
    for _ in range(2):
        draw = 0.5 * room
        uniform = rng.random(num_pairs)
        scores += np.where(uniform < mean + luck - draw / 2, 1.0, np.where(uniform < mean + luck + draw / 2, 0.5, 0.0)) / 2
    return tuple(scores)
