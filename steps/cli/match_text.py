"""Results of a match as text and as plain data: scores with intervals, sample size, and the smallest difference that can be shown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from grpo.engine.identity import EngineIdentity
from grpo.play.matches import MatchResult
from grpo.settings.tree import Settings
from grpo.statistics.intervals import LEVEL, MatchStatistics, Outcomes, match_statistics
from grpo.statistics.planning import Assumptions, Certainty, smallest_difference
from steps.bodies.measure import answer_facts
from steps.cli.players import Entrant

_CERTAINTY: Final = Certainty(level=LEVEL, probability=0.8, is_padded=True)
_WIDE_ELO: Final = 100.0
"""Who can detect only larger differences is told to play more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One way to count the games, from the first player's side."""

    name: str
    statistics: MatchStatistics
    pentanomial: tuple[float, ...]
    """Pairs that scored 0, 0.5, 1, 1.5 and 2 of 2."""
    text: str
    draw_rate: float
    smallest_elo: float | None
    """The smallest Elo difference that so many games show with probability 0.8; None if they can show none."""


def scores(result: MatchResult) -> list[Scored]:
    """Return the score as played, and the adjudicated score if there is one."""
    played = [game.score for game in result.games]
    found = [_scored("as played", result.pair_scores(), str(result.interval()), played)]
    if result.is_adjudicated:
        decided = [game.score if game.adjudicated is None else game.adjudicated for game in result.games]
        found.append(_scored("adjudicated", result.pair_scores(adjudicated=True), str(result.interval(adjudicated=True)), decided))
    return found


def _scored(name: str, pair_scores: Sequence[float], text: str, game_scores: Sequence[float]) -> Scored:
    outcomes = Outcomes.of_pairs(pair_scores)
    draw_rate = sum(score == 0.5 for score in game_scores) / len(game_scores)
    smallest = None  # All games were drawn.
    if draw_rate < 1:
        assumed = Assumptions(draw_rate=draw_rate, pair_correlation=0.0)
        smallest = smallest_difference(len(game_scores), assumed=assumed, certainty=_CERTAINTY)
    return Scored(
        name=name,
        statistics=match_statistics(outcomes),
        pentanomial=outcomes.counts,
        text=text,
        draw_rate=draw_rate,
        smallest_elo=smallest,
    )


def match_text(result: MatchResult, entrants: Sequence[Entrant]) -> str:
    """Return the results as text."""
    wins, draws, losses = result.wins_draws_losses()
    lines = [f"{result.first} against {result.second}"]
    for scored in scores(result):
        statistics = scored.statistics
        lines += [
            f"  {scored.name:13}{scored.text}",
            f"  {'':13}likelihood of superiority {statistics.likelihood_of_superiority:.1%}",
            f"  {'':13}{_power(scored, len(result.games))}",
            f"  {'':13}pairs LL {scored.pentanomial[0]}, LD {scored.pentanomial[1]}, LW or DD {scored.pentanomial[2]},"
            f" DW {scored.pentanomial[3]}, WW {scored.pentanomial[4]}",
        ]
    return "\n".join(
        [
            *lines,
            f"  {'games':13}won {wins:,}, drawn {draws:,}, lost {losses:,}",
            f"  {'ends':13}{', '.join(f'{end} {count:,}' for end, count in result.ends().items() if count)}",
            *(f"  {'answers':13}{getattr(result, player)}: {counts}" for player, counts in result.replies().items()),
            f"  {'sample':13}{result.num_openings:,} distinct openings, {result.num_distinct_games:,} distinct games; {_sample(entrants)}",
        ]
    )


def _power(scored: Scored, num_games: int) -> str:
    if scored.smallest_elo is None:
        return (
            f"{num_games // 2:,} pairs with {scored.draw_rate:.0%} draws are too few to show any difference with probability"
            f" {_CERTAINTY.probability:.0%}; play more games"
        )
    more = "; play more games" if scored.smallest_elo > _WIDE_ELO else ""
    return (
        f"{num_games // 2:,} pairs with {scored.draw_rate:.0%} draws can only detect differences above {scored.smallest_elo:.0f} Elo (with"
        f" probability {_CERTAINTY.probability:.0%}){more}"
    )


def _sample(entrants: Sequence[Entrant]) -> str:
    remarks = []
    if all(entrant.is_deterministic for entrant in entrants):
        remarks.append("both players are deterministic, so openings are the sample: more games from them would be identical")
    else:
        remarks.append("pairs of games are the sample")
    unrepeatable = [entrant.contestant.text for entrant in entrants if not entrant.contestant.is_repeatable]
    if unrepeatable:
        remarks.append(f"{' and '.join(dict.fromkeys(unrepeatable))}: random by the clock, so these games are not reproducible")
    return "; ".join(remarks)


def match_summary(result: MatchResult, entrants: Sequence[Entrant], settings: Settings, engine: EngineIdentity) -> dict[str, Any]:
    """Return the results as plain data; `engine` evaluated openings and adjudicated games."""
    wins, draws, losses = result.wins_draws_losses()
    return {
        "players": [dict(entrant.facts) for entrant in entrants],
        "seed": settings.seed,
        "evaluation": settings.evaluation.model_dump(mode="json"),
        "engine": str(engine),
        "num_pairs": len(result.games) // 2,
        "num_openings": result.num_openings,
        "num_distinct_games": result.num_distinct_games,
        "is_deterministic": all(entrant.is_deterministic for entrant in entrants),
        "is_repeatable": all(entrant.contestant.is_repeatable for entrant in entrants),
        "wins": wins,
        "draws": draws,
        "losses": losses,
        "ends": result.ends(),
        **answer_facts(result),
        "adjudication": None if result.adjudication is None else asdict(result.adjudication),
        "scores": {
            scored.name: {
                **asdict(scored.statistics),
                "pentanomial": list(scored.pentanomial),
                "draw_rate": scored.draw_rate,
                "smallest_elo_shown": scored.smallest_elo,
                "text": scored.text,
            }
            for scored in scores(result)
        },
    }
