"""`chess-grpo solve`: puzzles and suites in text, and plain words where nothing can be solved."""

from collections.abc import Callable
from pathlib import Path

import chess
import pytest

from steps.cli.solve import _in_order

Run = Callable[..., tuple[int, str, str]]
HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
ROOKS = "1k6/8/1K6/8/8/8/8/6RR b - - 0 1"


@pytest.fixture
def run(console: Run, policy: Path) -> Run:
    return lambda *words: console("solve", policy, *words)


def test_puzzles_are_told_by_rating_and_theme_and_suites_too_with_what_was_left_out(run: Run, tmp_path: Path) -> None:
    rows = [f"p{number},{ROOKS},b8a8 h1h8,{800 + number},80,90,100,mate {'even' if number % 2 else 'odd'},url," for number in range(30)]
    (tmp_path / "puzzles.csv").write_text("\n".join([HEADER, "bad", *rows]))
    (tmp_path / "suite.epd").write_text(f"{chess.Board().epd()} am a3;\n")
    code, out, _ = run(tmp_path / "puzzles.csv", tmp_path / "suite.epd", "--limit", "25")
    assert code == 0
    _, of_puzzles, of_suite = out.split("\n\n")
    names = [line.split()[0] for line in of_puzzles.splitlines()[1:]]
    assert names == ["solved", "800-999", "mate", "left"], "groups of less than 20 puzzles are not told"
    assert "], 25" in of_puzzles
    assert "left out: 1; the first: puzzles.csv, byte " in of_puzzles
    assert "solved  100.0% [" in of_suite


def test_rating_bands_are_in_the_order_of_numbers() -> None:
    groups = ["mate", "1000-1199", "", "800-999", "2knights"]  # The last one is a theme of a table of one's own.
    assert sorted(groups, key=_in_order) == ["", "800-999", "1000-1199", "2knights", "mate"]


def test_what_cannot_be_solved_is_named_with_what_was_left_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "list.epd").write_text(f"{chess.STARTING_FEN}\n")
    code, _, complaint = run(tmp_path / "list.epd")
    assert code == 1
    assert "list.epd" in complaint
    assert "left out: 1" in complaint
