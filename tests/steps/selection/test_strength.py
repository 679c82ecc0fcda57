"""The ladder as `calibrate` leaves it, repeatable whatever else a run does; and what `baseline` knows of the policy before GRPO."""

from pathlib import Path
from typing import Any, cast

import pytest
from made_selection import step
from made_work import Listener, work_in
from presets import tiny_settings

from grpo.base.documents import read_document
from grpo.base.seeding import numpy_stream
from grpo.engine.identity import identify
from grpo.match.ladder import BaselineReport, LadderPairing, LadderReport, make_rungs
from grpo.match.matches import MatchResult, Pairing
from grpo.statistics.intervals import Estimate, expected_score
from steps import baseline, calibrate
from steps.cards.page import Seen
from steps.common import measure
from steps.common.measure import read_ladder
from steps.names import REPORT
from steps.run.work import read_history

SETTINGS = tiny_settings()


def test_each_rung_has_a_rating_with_its_interval_the_same_whatever_the_runs_seed(
    inputs: dict[str, Path], stockfish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[str] = []
    play = calibrate.play_matches

    def noted(pairings: list[Pairing], **how: Any) -> list[MatchResult]:
        met.extend(opening for pairing in pairings for opening in pairing.openings)
        return play(pairings, **how)

    monkeypatch.setattr(calibrate, "play_matches", noted)
    calibrated = inputs["calibrate"]
    report, records = read_document(calibrated / REPORT, LadderReport), read_history(calibrated)
    assert [rung.name for rung in report.rungs] == ["random", "stockfish-1-nodes, 50 % random", "stockfish-1-nodes"]
    ratings = [rung.rating for rung in report.rungs]
    assert ratings[0] == Estimate(value=0, low=0, high=0)
    assert all(rating.low < rating.value < rating.high for rating in ratings[1:])
    assert [rung.gap is None for rung in report.rungs] == [True, False, False]
    assert report.engine == str(identify(stockfish))
    elo_of = {rung.name: rung.rating.value for rung in report.rungs}
    assert [met.expected for met in report.meetings] == [expected_score(elo_of[met.first] - elo_of[met.second]) for met in report.meetings]
    assert [record.metrics["ladder/rating"] for record in records] == [rating.value for rating in ratings]
    again = step(calibrate, tmp_path / "again", tiny_settings("seed = 1"), {}, engine=stockfish)
    assert (again / REPORT).read_bytes() == (calibrated / REPORT).read_bytes()
    assert len(met) == len(set(met)) == 3 * SETTINGS.evaluation.num_calibration_pairs, "each opening serves once"


def test_a_rung_draws_alike_against_both_players_by_the_openings_place_and_otherwise_than_another_rung(
    stockfish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rungs, numbers, drawn = make_rungs(SETTINGS.evaluation), list[list[int]](), list[tuple[Any, ...]]()

    def place(num_players: int, play: Any, _: Any, openings: list[str], __: Any) -> tuple[()]:
        places = [(player, number, rung) for player in range(num_players) for number, rung in enumerate(rungs[:2])]
        play([LadderPairing(player=player, rung=rung, openings=openings[number + 1 : number + 3]) for player, number, rung in places])
        return ()

    monkeypatch.setattr(measure, "place_on_ladder", place)
    monkeypatch.setattr(measure.Arena, "matches", lambda _arena, pairings: numbers.extend(list(pairing.openings) for pairing in pairings))
    monkeypatch.setattr(measure, "numpy_stream", lambda *name: drawn.append(name) or numpy_stream(*name))
    with measure.Arena(SETTINGS, work_in(tmp_path / "work", SETTINGS, stockfish=stockfish).machine, lambda *_: None) as arena:
        arena.place(cast("Any", ["candidate", "initial"]), cast("Any", None), ["a", "b", "c", "d"], "purpose")
    assert numbers == [[1, 2], [2, 3]] * 2
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


def test_the_baseline_leaves_regret_both_matches_and_a_place_on_the_ladder(inputs: dict[str, Path], stockfish: str, tmp_path: Path) -> None:
    told = Listener()
    folder = step(baseline, tmp_path / "baseline", SETTINGS, inputs, engine=stockfish, listeners=(told,))
    report = read_document(folder / REPORT, BaselineReport)
    for match in report.matches.values():
        assert match.score.num_pairs == match.num_openings == SETTINGS.evaluation.num_baseline_pairs
        assert match.adjudicated is not None
    place, ladder = report.ladder, read_ladder(inputs["calibrate"])
    rungs = {rung.name: rating for rung, rating in zip(ladder.rungs, ladder.ratings, strict=True)}
    assert [part.rung_rating for part in place.games] == [rungs[part.rung] for part in place.games]
    assert place.rating_of_all.low <= place.rating.low < place.rating.value < place.rating.high <= place.rating_of_all.high
    # A fresh policy plays like chance.
    assert report.matches["random"].score.value > report.matches["stockfish-1-nodes"].score.value
    assert told.metrics["baseline/rating"] == place.rating.value
    assert baseline.card(Seen({}, folder=folder))
