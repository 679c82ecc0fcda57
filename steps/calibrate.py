"""The step `calibrate`. The ladder's opponents ("rungs") go from a random mover to Stockfish."""

from typing import Final

from grpo.base.documents import write_document
from grpo.base.seeding import numpy_stream
from grpo.engine.identity import identify
from grpo.match.ladder import Ladder, LadderReport, Meeting, Rung, ladder_pairings, make_rungs, rate_rungs, wide_gaps
from grpo.match.matches import MatchResult, Pairing, play_matches
from grpo.match.openings import make_openings
from grpo.metrics.records import Record
from grpo.metrics.shared import interval_names
from grpo.statistics.intervals import expected_score
from steps.common.measure import interval_metrics, playing_engines
from steps.names import REPORT
from steps.run.step import Outside, Step
from steps.run.work import Work

STEP: Final = Step(
    name="calibrate",
    says="Rates the ladder's opponents by games against each other: Elo above a random mover.",
    reads=(
        "evaluation.ladder_fractions",
        "evaluation.ladder_nodes",
        "evaluation.num_calibration_pairs",
        "evaluation.max_plies",
        "evaluation.opening_book",
    ),
    outside=(Outside.ENGINE, Outside.BOOK),
    shows=interval_names("ladder/rating"),
    pages=(REPORT,),
    resources="games",
    is_registered=True,
)
_SEED: Final = 0  # Not the run's, so runs with equal ladder settings share the output.


def body(work: Work) -> None:
    rungs = make_rungs(work.settings.evaluation)
    results = _play(work, rungs)
    pair_scores = {meeting: result.pair_scores() for meeting, result in results.items()}
    ladder = rate_rungs(rungs, pair_scores)
    for warning in wide_gaps(rungs, pair_scores):
        work.say(f"WARNING: {warning}")
    for index, rung in enumerate(ladder.rungs):
        work.log(Record(index, interval_metrics("ladder/rating", rung.rating)))  # Step: the rung's index.
    meetings = tuple(_meeting(ladder, meeting, result) for meeting, result in results.items())
    engine = str(identify(work.machine.stockfish))
    write_document(work.folder / REPORT, LadderReport(**dict(ladder), engine=engine, meetings=meetings))


def _play(work: Work, rungs: tuple[Rung, ...]) -> dict[tuple[int, int], MatchResult]:
    """Return (stronger rung, weaker rung) -> match."""
    config, meetings, pairings = work.settings.evaluation, ladder_pairings(len(rungs)), list[Pairing]()
    count = config.num_calibration_pairs
    with playing_engines(work.machine) as pool:
        rng = numpy_stream(_SEED, "openings", "ladder")
        openings = make_openings(config, count=count * len(meetings), rng=rng, pool=pool, exclude=set())
        for number, meeting in enumerate(meetings):
            part = openings[number * count : (number + 1) * count]  # No shared openings, so errors are independent.
            first, second = (rungs[index].player(pool, numpy_stream(_SEED, "ladder", *meeting, index)) for index in meeting)
            pairings.append(Pairing(first=first, second=second, openings=part))
        results = play_matches(
            pairings,
            max_plies=config.max_plies,
            on_games_done=lambda done: work.progress(done, 2 * len(openings), "games"),
            num_processes=work.machine.num_threads,
        )
    return dict(zip(meetings, results, strict=True))


def _meeting(ladder: Ladder, meeting: tuple[int, int], result: MatchResult) -> Meeting:
    first, second = (ladder.rungs[index] for index in meeting)
    expected = expected_score(first.rating.value - second.rating.value)
    return Meeting(first=first.name, second=second.name, expected=expected, match=result.report())
