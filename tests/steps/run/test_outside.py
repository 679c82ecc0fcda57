"""Versions have what no step computes: files by their content."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo.settings.tree import Settings
from steps.run import outside
from steps.run.machine import Machine
from steps.run.outside import OUTSIDE
from steps.run.step import Outside


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(outside, "identify", lambda engine: f"identity of {engine}")
    return Machine(stockfish="engine", home=tmp_path, tracking_uri="", device="cpu", num_threads=1)


def test_a_dataset_depends_on_the_engine_on_names_and_contents_of_games_and_on_what_is_excluded(machine: Machine, tmp_path: Path) -> None:
    def sources(files: Sequence[Path], exclude: Sequence[Path] = ()) -> dict[str, str]:
        boards = {"files": list(map(str, files)), "exclude": list(map(str, exclude))}
        return OUTSIDE[Outside.SOURCES](Settings.model_validate({"boards": boards}), machine)

    games, same, judged = (tmp_path / name for name in ("games.pgn", "same.pgn", "judged.epd"))
    for file in (games, same, judged):
        file.write_text("1. e4 *\n")
    before, excluding = sources([games]), sources([games], [judged])
    assert before["engine"] == "identity of engine"
    assert len({str(found) for found in (sources([]), before, sources([same]), sources([games, same]), excluding)}) == 5
    judged.write_text("1. c4 *\n")
    assert sources([games], [judged]) != excluding
    games.write_text("1. d4 *\n")
    assert sources([games]) != before


def test_the_report_depends_on_the_defaults_that_it_shows_and_not_on_those_in_no_version(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defaults(**values: Any) -> dict[str, str]:
        monkeypatch.setattr(outside, "flattened", lambda _: {name.replace("__", "."): value for name, value in values.items()})
        return OUTSIDE[Outside.DEFAULTS](Settings(), machine)

    assert defaults(grpo__learning_rate=1.0) != defaults(grpo__learning_rate=2.0)
    assert defaults(grpo__learning_rate=1.0, resources__cores=1) == defaults(grpo__learning_rate=1.0, resources__cores=2)
