"""The command `chess-grpo plan-games`: sample size (number of games) for an Elo difference, fixed or by SPRT."""

import argparse
import sys
from collections.abc import Iterator

from grpo.statistics.intervals import expected_score
from grpo.statistics.planning import (
    Assumptions,
    Certainty,
    PlanError,
    expected_sprt,
    games_head_to_head,
    games_per_arm,
    smallest_difference,
)
from grpo.statistics.sprt import Sprt, SprtModel
from steps.runtime.terminal_lines import say

_ROUGH_GAMES = 60
"""Thirty pairs: below this the normal approximation is rough."""


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `plan-games`."""
    plan = commands.add_parser(
        "plan-games",
        description="How many games are needed to show a difference in strength. Games are played in pairs: each opening with both"
        " colors. Take the draw rate from a match of your own players.",
    )
    plan.add_argument("--elo", type=float, default=30.0, metavar="X", help="the difference to show (default 30)")
    plan.add_argument("--probability", type=float, default=0.8, metavar="P", help="chance to show it if it is there (default 0.8)")
    plan.add_argument(
        "--level",
        type=float,
        default=0.025,
        metavar="A",
        help="one-sided chance to claim it if it is not (default 0.025: the lower end of a 95 %% interval above 0)",
    )
    plan.add_argument("--draw-rate", type=float, default=0.3, metavar="D", help="share of drawn games (default 0.3)")
    plan.add_argument(
        "--pair-correlation",
        type=float,
        default=0.0,
        metavar="R",
        help="between the two games of an opening (default 0: independent; below 0 where openings favor a color)",
    )
    plan.add_argument("--games", type=int, metavar="N", help="also print the difference that this many head-to-head games can show")
    plan.add_argument("--opponent-score", type=float, default=0.5, metavar="S", help="score against the common opponent (default 0.5)")
    plan.add_argument("--sprt", type=float, nargs=2, metavar=("ELO0", "ELO1"), help="bounds of a sequential test (default 0 and X)")
    plan.add_argument("--alpha", type=float, default=0.05, help="the sequential test's chance to accept a player of ELO0 (default 0.05)")
    plan.add_argument("--beta", type=float, default=0.05, help="and to reject one of ELO1 (default 0.05)")
    plan.add_argument(
        "--model", type=SprtModel, choices=list(SprtModel), default=SprtModel.LOGISTIC, help="what its bounds mean (default logistic)"
    )
    plan.set_defaults(run=plan_games)


def plan_games(given: argparse.Namespace) -> int:
    """Print the plan and return 0; print the reason and return 2 when the question has no answer."""
    try:
        lines = list(_lines(given))
    except PlanError as error:
        say(f"chess-grpo plan-games: {error}", sys.stderr)
        return 2
    say("\n".join(lines))
    return 0


def _lines(given: argparse.Namespace) -> Iterator[str]:
    assumed = Assumptions(draw_rate=given.draw_rate, pair_correlation=given.pair_correlation)
    certainty, of_ours = (Certainty(level=given.level, probability=given.probability, is_padded=is_padded) for is_padded in (False, True))
    head_to_head = games_head_to_head(given.elo, assumed=assumed, certainty=certainty)
    by_ours = games_head_to_head(given.elo, assumed=assumed, certainty=of_ours)
    per_arm = games_per_arm(given.elo, around_score=given.opponent_score, assumed=assumed, certainty=certainty)
    yield f"To show a difference of {given.elo:g} Elo (score {expected_score(given.elo):.3f}) with probability {given.probability:.0%},"
    yield f"one-sided level {given.level:.1%}, {given.draw_rate:.0%} draws, pair correlation {given.pair_correlation:g}:"
    yield f"  against each other: {head_to_head:,} games ({head_to_head // 2:,} openings, each with both colors)"
    yield f"  {by_ours:,} by the interval of this project's verdicts, which adds a pair lost and a pair won"
    yield f"  each against a common opponent, scores near {given.opponent_score:.2f}: {per_arm:,} games each, {2 * per_arm:,} in all"
    if head_to_head < _ROUGH_GAMES:
        yield f"  (the normal approximation is rough for so few games; play at least {_ROUGH_GAMES})"
    yield from _sprt_lines(given, assumed)
    if given.games is not None:
        smallest = smallest_difference(given.games, assumed=assumed, certainty=of_ours)
        if smallest is None:
            yield f"{given.games:,} head-to-head games show no difference with that probability, however large."
        else:
            yield f"{given.games:,} head-to-head games show a difference of {smallest:.0f} Elo with that probability, and no smaller one"
            yield "(by the interval of this project's verdicts)."


def _sprt_lines(given: argparse.Namespace, assumed: Assumptions) -> Iterator[str]:
    elo0, elo1 = given.sprt or (0.0, given.elo)
    try:
        test = Sprt(elo0=elo0, elo1=elo1, alpha=given.alpha, beta=given.beta, model=given.model)
    except ValueError as error:
        raise PlanError(f"no such sequential test: {error}") from error
    yield "Or sequentially, until the result is clear, by"
    yield f"SPRT [{elo0:g}, {elo1:g}] Elo, {test.model}, alpha {test.alpha:g}, beta {test.beta:g}:"
    for true_elo in (elo0, (elo0 + elo1) / 2, elo1):
        length = expected_sprt(test, true_elo=true_elo, assumed=assumed)
        yield f"  if the truth is {true_elo:+g} Elo: about {length.num_games:,.0f} games on average, accepted in {length.acceptance:.0%}"
