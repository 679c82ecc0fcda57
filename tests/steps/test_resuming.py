"""A run is gone on from only where its boards and network would be made alike; each difference is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.config import Settings, read_settings
from grpo.engine import EngineIdentity
from steps import slices
from steps.resuming import ResumeError, refuse_unlike
from steps.store import Store
from steps.tracking import Origin

ENGINE = EngineIdentity(name="Scripted 1", sha256="0" * 64)
STEPS = ("build_boards", "join_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "select", "report")


@pytest.fixture
def settings(games_text: str, tmp_path: Path) -> Settings:
    """Return settings with games and something that judges."""
    (tmp_path / "games.pgn").write_text(games_text)
    (tmp_path / "judges.epd").write_text("8/5k2/8/8/3R4/8/5K2/8 w - -\n")
    return of(tmp_path / "games.pgn", exclude=[str(tmp_path / "judges.epd")])


def of(*files: Path, **boards: Any) -> Settings:
    """Return settings with these files."""
    return read_settings(json.dumps({"preset": "test", "boards": {"source": "files", "files": list(map(str, files)), **boards}}))


@pytest.fixture
def refused(settings: Settings, tmp_path: Path) -> Callable[..., str]:
    """Return what resumes a run of `settings` and returns the differences, "" if there are none."""
    store = Store(tmp_path / "home")
    parts = {
        "join_boards": {"settings": slices.dataset(settings), "inputs": slices.source_inputs(settings, ENGINE) | {"unit-0000": "hash"}},
        "pretrain": {"settings": slices.network(settings), "inputs": {}},
    }
    outputs = {}
    for step in STEPS:
        with store.writing(step, "v1", {"parts": parts.get(step, {})}):
            pass
        outputs[step] = store.find(step, "v1")
    origin: Any = {"name": "peak", "metaflow_run": "7", "policy_step": 4, "outputs": outputs}

    def resume(now: Settings, engine: EngineIdentity = ENGINE, without: str = "") -> str:
        given: Origin = {**origin, "outputs": {step: output for step, output in outputs.items() if step != without}}
        try:
            refuse_unlike(given, now, engine, store)
        except ResumeError as error:
            return str(error)
        return ""

    return resume


def test_a_run_is_gone_on_from_with_the_same_settings_and_files(settings: Settings, refused: Callable[..., str]) -> None:
    assert refused(settings) == ""


def test_where_the_files_lie_and_over_how_many_tasks_they_are_spread_makes_no_difference(
    settings: Settings, refused: Callable[..., str], tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for name in ("games.pgn", "judges.epd"):
        shutil.move(tmp_path / name, there)
    assert refused(of(there / "games.pgn", exclude=[str(there / "*.epd")], num_tasks=1)) == ""


def test_how_a_policy_is_trained_and_measured_may_differ(settings: Settings, refused: Callable[..., str]) -> None:
    grpo = settings.grpo.model_copy(update={"learning_rate": 1e-3})
    selection = settings.selection.model_copy(update={"num_candidates": 1})
    assert refused(settings.model_copy(update={"grpo": grpo, "selection": selection})) == ""


def test_a_file_with_another_content_is_refused_by_name(settings: Settings, refused: Callable[..., str], tmp_path: Path) -> None:
    with (tmp_path / "games.pgn").open("a") as file:
        file.write("\n")
    message = refused(settings)
    assert message.startswith(
        "--resume-from peak: run 7 was made otherwise, and only grpo.*, evaluation.* and selection.* may change:\n  file"
    )
    assert "  file games.pgn: origin '" in message
    assert message.count("origin '") == 1
    assert message.endswith("Give the origin's settings (same preset and overrides), or start without --resume-from")


def test_a_file_with_another_name_is_refused(settings: Settings, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "games.pgn").rename(tmp_path / "other.pgn")
    message = refused(of(tmp_path / "other.pgn", exclude=[str(tmp_path / "judges.epd")]))
    assert "  file games.pgn: origin '" in message
    assert "  file other.pgn: origin None, now '" in message


def test_one_file_more_or_less_is_refused(settings: Settings, refused: Callable[..., str], tmp_path: Path) -> None:
    shutil.copy(tmp_path / "games.pgn", tmp_path / "more.pgn")
    message = refused(of(tmp_path / "games.pgn", tmp_path / "more.pgn", exclude=[str(tmp_path / "judges.epd")]))
    assert "  file more.pgn: origin None, now '" in message
    assert "games.pgn" not in message


def test_other_judged_positions_are_refused(settings: Settings, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "judges.epd").write_text("8/5k2/8/8/4R3/8/5K2/8 w - -\n")
    message = refused(settings)
    assert "  judged positions: origin '" in message
    assert "  judged positions: origin '" in refused(of(tmp_path / "games.pgn"))


def test_the_name_of_a_file_that_judges_makes_no_difference(settings: Settings, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "judges.epd").rename(tmp_path / "renamed.epd")
    other = EngineIdentity(name="Scripted 2", sha256="1" * 64)
    renamed = of(tmp_path / "games.pgn", exclude=[str(tmp_path / "renamed.epd")])
    assert "judged" not in refused(renamed, other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"filters": {"min_plies": 20}}, "boards.filters.min_plies: origin None, now 20"),
        ({"shortage": "accept"}, "boards.shortage: origin 'error', now 'accept'"),
        ({"num_units": 3}, "boards.num_units: origin 2, now 3"),
        (
            {"validation_from": "2020.01.01", "heldout_from": "2020.02.01"},
            "boards.heldout_from: origin '', now '2020.02.01'\n  boards.validation_from: origin '', now '2020.01.01'",
        ),
    ],
)
def test_settings_that_make_other_boards_are_refused_by_name(
    change: dict[str, Any], words: str, settings: Settings, refused: Callable[..., str], tmp_path: Path
) -> None:
    assert f"\n  {words}\n" in refused(of(tmp_path / "games.pgn", exclude=[str(tmp_path / "judges.epd")], **change))


def test_another_engine_is_refused(settings: Settings, refused: Callable[..., str]) -> None:
    other = EngineIdentity(name="Scripted 2", sha256="1" * 64)
    assert f"engine: origin {ENGINE}, now {other}" in refused(settings, other)


def test_a_run_that_was_not_finished_is_refused(settings: Settings, refused: Callable[..., str]) -> None:
    assert refused(settings, without="select") == "--resume-from peak: run 7 has no output of select"
