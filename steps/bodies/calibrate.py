"""Rate the opponents that strength is measured with, by their own games."""

from typing import Any, Final

from grpo.base.files import write_json
from grpo.base.seeding import numpy_stream
from grpo.engine.identity import EngineIdentity
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.metrics.table import Record
from grpo.play.ladder import LADDER_NOTE, Ladder, ladder_pairings, make_rungs, rate_rungs
from grpo.play.matches import MatchResult, play_match
from grpo.play.openings import make_openings
from grpo.settings.tree import Settings
from grpo.statistics.intervals import expected_score
from steps.step_io.names import REPORT
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work

SPEC: Final = StepSpec(
    name="calibrate",
    body=__name__,
    reads="calibrate",
    inputs=("engine", "opening book"),
    shown=("ladder/rating", "ladder/rating_low", "ladder/rating_high"),
    axis="rung",
    published=(REPORT,),
)
_SEED: Final = 0  # Not the run's: runs that differ in their seed are measured by one and the same ladder.


def calibrate_ladder(settings: Settings, *, engine: EngineIdentity, engine_path: str, num_processes: int, work: Work) -> None:
    """Write the ladder: its rungs with ratings, intervals and their covariance, and the games that they come from."""
    config = settings.evaluation
    rungs = make_rungs(config.ladder)
    meetings = ladder_pairings(len(rungs))
    count = config.ladder.num_calibration_pairs
    results: dict[tuple[int, int], MatchResult] = {}
    with EnginePool(engine_path, num_processes=num_processes, options={"Hash": PLAYING_HASH_MIB}) as pool:
        rng = numpy_stream(_SEED, "openings", "ladder")
        openings = make_openings(config, count=count * len(meetings), rng=rng, pool=pool, exclude=set())
        for number, meeting in enumerate(meetings):
            part = openings[number * count : (number + 1) * count]  # Each opening serves once, so that meetings err independently.
            one, other = (rungs[rung].player(pool, numpy_stream(_SEED, "ladder", *meeting, rung)) for rung in meeting)
            results[meeting] = play_match(one, other, part, max_plies=config.max_plies)
            work.progress(2 * count * len(results), 2 * count * len(meetings), "games")
    ladder = rate_rungs(rungs, {meeting: result.pair_scores() for meeting, result in results.items()})
    for index in range(len(rungs)):
        rating, low, high = ladder.interval(index)
        work.record(Record(index, {"ladder/rating": rating, "ladder/rating_low": low, "ladder/rating_high": high}))
    write_json(
        work.folder / REPORT,
        {
            "engine": str(engine),
            **ladder.facts(),
            "meetings": [_meeting_facts(ladder, meeting, result) for meeting, result in results.items()],
            "note": LADDER_NOTE,
        },
    )


def _meeting_facts(ladder: Ladder, meeting: tuple[int, int], result: MatchResult) -> dict[str, Any]:
    """Return a meeting as plain data, with the score that the ratings expect: where they differ much, one number is not all there is."""
    one, other = meeting
    wins, draws, losses = result.wins_draws_losses()
    interval = result.interval()
    return {
        "first": ladder.rungs[one].name,
        "second": ladder.rungs[other].name,
        "score": interval.score,
        "low": interval.low,
        "high": interval.high,
        "expected": expected_score(ladder.interval(one, other)[0]),
        "num_pairs": interval.num_pairs,
        "wins": wins,
        "draws": draws,
        "losses": losses,
        "ends": result.ends(),
    }
