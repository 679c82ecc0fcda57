"""The ladder as `calibrate` leaves it, repeatable whatever else a run does; and what `baseline` knows of the policy before GRPO."""

from pathlib import Path

from made_selection import step
from made_work import Listener
from presets import tiny_settings

from grpo.base.files import read_json
from grpo.engine.identity import identify
from grpo.match.matches import DEPTH
from steps import baseline, calibrate
from steps.cards.page import Seen
from steps.measure import read_ladder
from steps.names import REPORT
from steps.run.work import read_history

SETTINGS = tiny_settings()


def test_each_rung_has_a_rating_with_its_interval_the_same_whatever_the_runs_seed(
    inputs: dict[str, Path], stockfish: str, tmp_path: Path
) -> None:
    calibrated = inputs["calibrated"]
    report, records = read_json(calibrated / REPORT), read_history(calibrated)
    assert [rung["name"] for rung in report["rungs"]] == ["random", "stockfish-1-nodes, 50 % random", "stockfish-1-nodes"]
    assert [report["rungs"][0][key] for key in ("rating", "low", "high")] == [0, 0, 0]
    assert all(rung["low"] < rung["rating"] < rung["high"] for rung in report["rungs"][1:])
    assert report["engine"] == str(identify(stockfish))
    assert [record.metrics["ladder/rating"] for record in records] == [rung["rating"] for rung in report["rungs"]]
    again = step(calibrate, tmp_path / "again", tiny_settings("seed = 1"), {}, engine=stockfish)
    assert (again / REPORT).read_bytes() == (calibrated / REPORT).read_bytes()


def test_the_baseline_leaves_regret_both_matches_and_a_place_on_the_ladder(inputs: dict[str, Path], stockfish: str, tmp_path: Path) -> None:
    told = Listener()
    folder = step(baseline, tmp_path / "baseline", SETTINGS, inputs, engine=stockfish, listeners=(told,))
    report = read_json(folder / REPORT)
    for facts in report["matches"].values():
        assert facts["num_pairs"] == facts["num_openings"] == SETTINGS.evaluation.num_baseline_pairs
        assert facts["adjudicated"]["depth"] == DEPTH
    place, ladder = report["ladder"], read_ladder(inputs["calibrated"])
    rungs = {rung.name: rating for rung, rating in zip(ladder.rungs, ladder.ratings.tolist(), strict=True)}
    assert [part["rung_rating"] for part in place["games"]] == [rungs[part["rung"]] for part in place["games"]]
    assert place["low_of_all"] <= place["low"] < place["rating"] < place["high"] <= place["high_of_all"]
    # A fresh policy plays like chance.
    assert report["matches"]["random"]["score"] > report["matches"]["stockfish-1-nodes"]["score"]
    assert told.metrics["baseline/rating"] == place["rating"]
    assert baseline.card(Seen({}, folder=folder))
