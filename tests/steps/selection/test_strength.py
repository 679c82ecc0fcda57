"""The ladder as `calibrate` leaves it, repeatable whatever else a run does; and what `baseline` knows of the policy before GRPO."""

from pathlib import Path

import pytest
from listeners import Listener
from made_selection import step, write_inputs
from presets import TEST, tiny_settings

from grpo.base.files import read_json
from grpo.engine.identity import identify
from grpo.match.matches import DEPTH
from grpo.settings.tree import read_settings
from steps import baseline, calibrate
from steps.cards.page import Seen
from steps.measure import read_ladder
from steps.names import REPORT
from steps.run.work import read_history

SETTINGS = tiny_settings()
TEXT = f"""preset = "{TEST}"
evaluation.max_plies = 80
evaluation.ladder_fractions = [1.0, 0.3]
evaluation.ladder_nodes = [1, 40]
evaluation.num_calibration_pairs = 2"""


@pytest.fixture(scope="module")
def calibrated(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ladder of four rungs."""
    return step(calibrate, tmp_path_factory.mktemp("ladder") / "one", read_settings(TEXT), {}, engine=stockfish)


def test_each_rung_has_a_rating_with_its_interval_and_the_random_mover_is_zero(calibrated: Path, stockfish: str) -> None:
    report, records = read_json(calibrated / REPORT), read_history(calibrated)
    names = [rung["name"] for rung in report["rungs"]]
    assert names == ["random", "stockfish-1-nodes, 30 % random", "stockfish-1-nodes", "stockfish-40-nodes"]
    assert [report["rungs"][0][key] for key in ("rating", "low", "high")] == [0, 0, 0]
    assert all(rung["low"] < rung["rating"] < rung["high"] for rung in report["rungs"][1:])
    assert 0 < report["rungs"][1]["rating"] < report["rungs"][2]["rating"]
    assert (report["engine"], [record.step for record in records]) == (str(identify(stockfish)), [0, 1, 2, 3])
    assert [record.metrics["ladder/rating"] for record in records] == [rung["rating"] for rung in report["rungs"]]


def test_the_ladder_is_the_same_to_the_last_byte_whatever_the_runs_seed(calibrated: Path, stockfish: str, tmp_path: Path) -> None:
    again = step(calibrate, tmp_path / "again", read_settings(f"seed = 1\n{TEXT}"), {}, engine=stockfish)
    assert (again / REPORT).read_bytes() == (calibrated / REPORT).read_bytes()


# The baseline.


@pytest.fixture(scope="module")
def inputs(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("inputs"), stockfish)


def test_the_baseline_leaves_regret_both_matches_and_a_place_on_the_ladder(inputs: dict[str, Path], stockfish: str, tmp_path: Path) -> None:
    told = Listener()
    folder = step(baseline, tmp_path / "baseline", SETTINGS, inputs, engine=stockfish, told=told)
    report = read_json(folder / REPORT)
    assert report.keys() == {"heldout", "matches", "ladder"}
    assert list(report["matches"]) == ["random", "stockfish-1-nodes"]
    for facts in report["matches"].values():
        assert facts["num_pairs"] == facts["num_openings"] == SETTINGS.evaluation.num_baseline_pairs
        assert facts["adjudicated"]["depth"] == DEPTH
    place, ladder = report["ladder"], read_ladder(inputs["calibrated"])
    rungs = {rung.name: rating for rung, rating in zip(ladder.rungs, ladder.ratings.tolist(), strict=True)}
    assert [part["rung_rating"] for part in place["games"]] == [rungs[part["rung"]] for part in place["games"]]
    assert [part["num_pairs"] for part in place["games"]] == [SETTINGS.evaluation.num_rung_pairs] * 2
    assert place["low_of_all"] <= place["low"] < place["rating"] < place["high"] <= place["high_of_all"]
    # A fresh policy plays like chance.
    assert report["matches"]["random"]["score"] > report["matches"]["stockfish-1-nodes"]["score"]
    assert place["probes"]
    assert told.metrics["baseline/rating"] == place["rating"]
    assert told.metrics["baseline/score_engine_high"] == report["matches"]["stockfish-1-nodes"]["high"]
    assert told.metrics["baseline/score_random"] == report["matches"]["random"]["score"]
    names = [name for record in told.records for name in record.metrics]
    assert len(names) == len(set(names)), "each metric once"
    seen = Seen({}, folder=folder)
    assert baseline.card(seen)
