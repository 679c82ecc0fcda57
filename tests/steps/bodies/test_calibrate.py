"""The ladder as a step leaves it: from its own games, repeatable, and the same whatever else a run does."""

from pathlib import Path
from typing import Any

import pytest

from grpo.base.files import read_json
from grpo.engine.identity import EngineIdentity
from grpo.play.matches import End
from grpo.settings.roles import settings_read_by
from grpo.settings.tree import Settings, read_settings
from steps.bodies.calibrate import calibrate_ladder
from steps.step_io.names import REPORT
from steps.step_io.work import Work

ENGINE = EngineIdentity(name="Stockfish", sha256="0" * 64)
TEXT = """preset = "test"
evaluation.max_plies = 80
evaluation.ladder = {random_fractions = [1.0, 0.3], nodes = [1, 40], num_calibration_pairs = 2}"""


def calibrated(settings: Settings, stockfish: str, folder: Path, *, num_processes: int = 1) -> Work:
    """Return the work of one calibration."""
    folder.mkdir()
    work = Work(folder, ())
    calibrate_ladder(settings, engine=ENGINE, engine_path=stockfish, num_processes=num_processes, work=work)
    return work


@pytest.fixture(scope="module")
def work(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A small ladder of four rungs."""
    return calibrated(read_settings(TEXT), stockfish, tmp_path_factory.mktemp("ladder") / "one")


@pytest.fixture(scope="module")
def report(work: Work) -> Any:
    return read_json(work.folder / REPORT)


def test_each_rung_has_a_rating_with_its_interval_and_the_random_mover_is_zero(report: Any, work: Work) -> None:
    names = [rung["name"] for rung in report["rungs"]]
    assert names == ["random", "stockfish-1-nodes, 30 % random", "stockfish-1-nodes", "stockfish-40-nodes"]
    assert [report["rungs"][0][key] for key in ("rating", "low", "high")] == [0, 0, 0]
    assert all(rung["low"] < rung["rating"] < rung["high"] for rung in report["rungs"][1:])
    assert 0 < report["rungs"][1]["rating"] < report["rungs"][2]["rating"]
    assert (report["engine"], [record.step for record in work.history()]) == (str(ENGINE), [0, 1, 2, 3])
    assert [record.metrics["ladder/rating"] for record in work.history()] == [rung["rating"] for rung in report["rungs"]]


def test_the_file_has_the_score_of_each_meeting_beside_what_the_ratings_expect(report: Any) -> None:
    met = [(part["first"], part["second"]) for part in report["meetings"]]
    names = [rung["name"] for rung in report["rungs"]]
    assert met == [(names[one], names[other]) for one, other in ((1, 0), (2, 1), (2, 0), (3, 2), (3, 1))]
    for part in report["meetings"]:
        assert part["wins"] + part["draws"] + part["losses"] == sum(part["ends"].values()) == 2 * part["num_pairs"] == 4
        assert part["score"] == (part["wins"] + part["draws"] / 2) / 4
        assert part["ends"].keys() == {end.value for end in End}
    # The likeliest ratings expect of each rung just what it scored, up to what is added: 3 games spread over 5 meetings.
    assert abs(sum(4 * (part["score"] - part["expected"]) for part in report["meetings"] if names[3] == part["first"])) < 1


def test_the_ladder_is_the_same_to_the_last_byte_whatever_the_runs_seed_and_the_number_of_processes(
    work: Work, stockfish: str, tmp_path: Path
) -> None:
    again = calibrated(read_settings(f"seed = 1\n{TEXT}"), stockfish, tmp_path / "again", num_processes=2)
    assert (again.folder / REPORT).read_bytes() == (work.folder / REPORT).read_bytes()


# What the step's version is made of.


@pytest.mark.parametrize(
    "text",
    [
        "seed = 1",
        "boards.num_train = 300",
        "evaluation.adjudication_depth = 4",
        "evaluation.ladder = {num_probe_pairs = 2, num_rung_pairs = 5}",
    ],
)
def test_what_a_run_learns_from_and_how_a_policy_is_placed_makes_no_other_ladder(text: str) -> None:
    assert settings_read_by("calibrate", read_settings(f'preset = "test"\n{text}')) == settings_read_by("calibrate", read_settings("test"))
