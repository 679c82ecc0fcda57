"""The strength curve: a few games of the policy while it trains, against the two rungs of the ladder nearest to the start.

It decides nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grpo.base.files import read_json
from grpo.base.seeding import numpy_stream
from grpo.engine.answers import EngineError
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.play.ladder import Rung
from grpo.play.matches import MatchResult
from grpo.play.openings import make_openings
from grpo.play.players import Player
from grpo.settings.tree import Settings
from grpo.statistics.intervals import Z95, ScoreInterval, paired_interval
from grpo.statistics.ratings import rate_against
from steps.bodies.measure import play_adjudicated, read_ladder
from steps.step_io.dataset import position_keys
from steps.step_io.names import REPORT

_STREAM: Final = "strength curve"


def nearest_rungs(calibrated: Path, measured: Path) -> list[dict[str, Any]]:
    """Return the rungs that placed the pretrained policy on the ladder, the weaker first, as plain data: name, nodes, share, rating.

    Ratings are rounded to 0.1 Elo, so that the last bits of a fit make no other version of what depends on them.

    Args:
        calibrated: folder of the step `calibrate`.
        measured: folder of the step `baseline`.
    """
    nearest = {part["rung"] for part in read_json(measured / REPORT)["ladder"]["games"]}
    ladder = read_ladder(calibrated)
    return [
        {"name": rung.name, "nodes": rung.nodes, "random_share": rung.random_share, "rating": round(float(rating), 1)}
        for rung, rating in zip(ladder.rungs, ladder.ratings, strict=True)
        if rung.name in nearest
    ]


def rungs_text(rungs: Sequence[Mapping[str, Any]]) -> str:
    """Return what of the rungs the curve depends on, in a line: names and ratings.

    >>> rungs_text([{"name": "random", "nodes": 1, "random_share": 1.0, "rating": 0.0}])
    'random at 0.0 Elo'
    """
    return ", ".join(f"{rung['name']} at {rung['rating']:.1f} Elo" for rung in rungs)


class StrengthCurve:
    """Measures a player at each checkpoint by the same games: equal openings, and equal random numbers of the opponents.

    Nothing but the player differs between two points, so points are paired; two equal players get equal points.
    """

    def __init__(
        self, settings: Settings, rungs: Sequence[Mapping[str, Any]], *, boards: Path, engine_path: str, num_processes: int
    ) -> None:
        """Prepare; openings are made when the first games are played.

        Args:
            settings: the run's.
            rungs: the opponents, from `nearest_rungs`; at least one.
            boards: folder of the dataset, of which no board is an opening.
            engine_path: the engine that the ladder was rated with.
            num_processes: how many of it, while games are played.
        """
        self._settings = settings
        self._rungs = [Rung(nodes=rung["nodes"], random_share=rung["random_share"]) for rung in rungs]
        self._ratings = [float(rung["rating"]) for rung in rungs]
        self._boards = boards
        self._engine_path = engine_path
        self._num_processes = num_processes
        self._openings: list[str] = []

    def measured(self, player: Player) -> dict[str, float]:
        """Return the metrics of a point: rating and scores, each with its 95 % interval.

        Raises EngineError when the engine fails; OpeningsError when the opening book has too few openings.
        """
        return curve_metrics(self._ratings, self.played(player))

    def played(self, player: Player) -> list[MatchResult]:
        """Return the games against each rung, on openings of its own; the errors are those of `measured`."""
        config, count = self._settings.evaluation, self._settings.grpo.num_curve_pairs
        with EnginePool(self._engine_path, num_processes=self._num_processes, options={"Hash": PLAYING_HASH_MIB}) as pool:
            if not self._openings:
                rng = numpy_stream(self._settings.seed, "openings", _STREAM)
                used = position_keys(self._boards)
                self._openings = make_openings(config, count=count * len(self._rungs), rng=rng, pool=pool, exclude=used)
            results = []
            for number, rung in enumerate(self._rungs):
                opponent = rung.player(pool, numpy_stream(self._settings.seed, _STREAM, number))
                part = self._openings[number * count : (number + 1) * count]
                results.append(play_adjudicated(player, opponent, part, config=config, pool=pool, on_games_done=lambda _: None))
        if num_failed := sum(result.adjudication.num_failed for result in results if result.adjudication is not None):
            raise EngineError(f"the engine failed on the final positions of {num_failed} games, which could not be adjudicated")
        return results


def curve_metrics(ratings: Sequence[float], results: Sequence[MatchResult]) -> dict[str, float]:
    """Return the metrics of a point of the curve.

    Args:
        ratings: of the opponents, in Elo above the random mover; taken as exact.
        results: the player's games against each of them.
    """
    placed = rate_against(ratings, [result.pair_scores() for result in results])
    return {
        "strength/rating": placed.elo,
        "strength/rating_low": placed.elo - Z95 * placed.standard_error,
        "strength/rating_high": placed.elo + Z95 * placed.standard_error,
        **_score("strength/score_as_played", paired_interval([score for result in results for score in result.pair_scores()])),
        **_score(
            "strength/score_adjudicated",
            paired_interval([score for result in results for score in result.pair_scores(adjudicated=True)]),
        ),
    }


def _score(name: str, interval: ScoreInterval) -> dict[str, float]:
    return {name: interval.score, f"{name}_low": interval.low, f"{name}_high": interval.high}
