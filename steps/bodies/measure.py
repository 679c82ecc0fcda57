"""Strength measured by games: matches adjudicated, a place on the ladder, and both as plain data."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from grpo.base.files import read_json
from grpo.base.seeding import numpy_stream
from grpo.engine.pool import EnginePool
from grpo.play.adjudication import adjudicate
from grpo.play.ladder import Ladder, LadderPlacement, Rung, num_openings_to_place, place_on_ladder
from grpo.play.matches import MatchResult, play_match
from grpo.play.openings import make_openings
from grpo.play.players import Player
from grpo.settings.tree import EvaluationConfig
from steps.step_io.names import REPORT


def read_ladder(calibrated: Path) -> Ladder:
    """Return the ladder that the step `calibrate` left in a folder."""
    return Ladder.from_facts(read_json(calibrated / REPORT))


def place_players(
    players: Sequence[Player],
    ladder: Ladder,
    *,
    config: EvaluationConfig,
    seed: int,
    purpose: str,
    pool: EnginePool,
    exclude: set[str],
    on_games_done: Callable[[int], None],
) -> tuple[LadderPlacement, ...]:
    """Return where players stand on the ladder, from games against the same rungs on the same openings, which serve nothing else.

    A rung that several players meet on the same openings draws the same random numbers against each.

    Args:
        players: those to rate.
        ladder: from `read_ladder`; of the engine that `pool` runs, with `PLAYING_HASH_MIB`.
        config: how many pairs, and by which rules.
        seed: root of the random streams.
        purpose: names the streams of openings and opponents: one for each call.
        pool: engines for opponents, openings and adjudication.
        exclude: `position_key` of positions that may not be openings; those used are added.
        on_games_done: called now and then with the number of finished games.
    """
    rng = numpy_stream(seed, "openings", "placement", purpose)
    openings = make_openings(config, count=num_ladder_openings(ladder, config), rng=rng, pool=pool, exclude=exclude)
    num_played = 0

    def play(player: Player, rung: Rung, part: Sequence[str]) -> MatchResult:
        nonlocal num_played
        before = num_played
        opponent = rung.player(pool, numpy_stream(seed, "placement", purpose, rung.name, part[0]))
        result = play_adjudicated(player, opponent, part, config=config, pool=pool, on_games_done=lambda done: on_games_done(before + done))
        num_played += len(result.games)
        return result

    return place_on_ladder(
        [partial(play, player) for player in players],
        ladder,
        openings,
        num_probe_pairs=config.ladder.num_probe_pairs,
        num_rung_pairs=config.ladder.num_rung_pairs,
    )


def placement_facts(placement: LadderPlacement, ladder: Ladder) -> dict[str, Any]:
    """Return a place on the ladder as plain data, with the facts of the matches that it comes from."""
    parts = {
        name: [
            {"rung": ladder.rungs[part.rung].name, "rung_rating": float(ladder.ratings[part.rung]), **match_facts(part.result)}
            for part in games
        ]
        for name, games in (("games", placement.games), ("probes", placement.probes))
    }
    return {
        "rating": placement.rating,
        "low": placement.low,
        "high": placement.high,
        "low_of_all": placement.low_of_all,
        "high_of_all": placement.high_of_all,
        "reach": placement.reach.value,
        "text": placement.text(ladder),
        **parts,
    }


def match_facts(result: MatchResult) -> dict[str, Any]:
    """Return a match as plain data: score with interval, as played and as adjudicated, how games ended, and answers without a move."""
    wins, draws, losses = result.wins_draws_losses()
    facts = {
        **asdict(result.interval()),
        "text": str(result.interval()),
        "wins": wins,
        "draws": draws,
        "losses": losses,
        "ends": result.ends(),
        "num_openings": result.num_openings,
    }
    if answers := {player: counts.facts() for player, counts in result.replies().items()}:
        facts["answers"] = answers
    if result.adjudication is None:
        return facts
    interval = result.interval(adjudicated=True)
    return {**facts, "adjudicated": asdict(interval) | {"text": str(interval)} | asdict(result.adjudication)}


def num_ladder_openings(ladder: Ladder, config: EvaluationConfig) -> int:
    """Return how many openings a place on the ladder may take."""
    return num_openings_to_place(
        len(ladder.rungs), num_probe_pairs=config.ladder.num_probe_pairs, num_rung_pairs=config.ladder.num_rung_pairs
    )


def play_adjudicated(
    player: Player,
    opponent: Player,
    openings: Sequence[str],
    *,
    config: EvaluationConfig,
    pool: EnginePool,
    on_games_done: Callable[[int], None],
) -> MatchResult:
    """Return a match between two players, undecided games adjudicated by the engine."""
    result = play_match(player, opponent, openings, max_plies=config.max_plies, on_games_done=on_games_done)
    return adjudicate(result, pool, depth=config.adjudication_depth, centipawns=config.adjudication_centipawns)
