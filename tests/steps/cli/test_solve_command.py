"""`chess-grpo solve`: puzzles and suites of any packing, in text and JSON, and plain words where nothing can be solved."""

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import chess
import pytest
from doubles import CPU, TINY

from grpo.evaluation.exercises import expected_credits
from grpo.evaluation.puzzles import Puzzle, read_puzzle_table, solve_puzzles
from grpo.learning.checkpoints import save_policy
from grpo.policy.distribution import PositionBatch, new_policy
from grpo.reading.games import SourceError
from steps.cli.solve import add_commands

HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
ROOKS = "1k6/8/1K6/8/8/8/8/6RR b - - 0 1"


def table(count: int, *extra: str) -> str:
    """Return puzzles of mate in one, each with another rating, and further rows."""
    rows = [
        f"p{number},{ROOKS},b8a8 h1h8,{800 + 10 * number},80,90,100,mate {'even' if number % 2 == 0 else 'odd'},url,"
        for number in range(count)
    ]
    return "\n".join([HEADER, *rows, *extra]) + "\n"


def likeliest(fen: str) -> str:
    """Return the move in SAN that the policy of these tests plays."""
    board = chess.Board(fen)
    batch = PositionBatch.from_boards([board])
    best = int(new_policy(TINY, seed=0, device=CPU).distribution(batch, temperature=1.0).best())
    from grpo.board.actions import action_move

    return board.san(action_move(int(batch.action_ids[0, best]), board.turn))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a policy."""
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CHESS_GRPO_DEVICE", "cpu")
    folder = tmp_path / "model"
    folder.mkdir()
    save_policy(folder, new_policy(TINY, seed=0, device=CPU), TINY)
    return folder


Run = Callable[..., str]


@pytest.fixture
def run(model: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs the command on the model and returns what it prints."""

    def command(*arguments: str | Path) -> str:
        parser = argparse.ArgumentParser()
        add_commands(parser.add_subparsers())
        given = parser.parse_args(["solve", str(model), *map(str, arguments)])
        assert given.run(given) == 0
        return capsys.readouterr().out

    return command


def found(run: Run, *arguments: str | Path) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    facts: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return facts


def test_puzzles_are_told_by_rating_and_theme_with_what_was_left_out(run: Run, tmp_path: Path, model: Path) -> None:
    path = tmp_path / "puzzles.csv"
    path.write_text(table(30, "bad", f"q,{ROOKS},b8a8 h1g2,900,1,1,1,mate,url,", "worse"))
    said = run(path)
    first, blank, name, performance, solved, *rest = said.splitlines()
    assert first.startswith(f"{model}: run model, weights ")
    assert first.endswith("; best moves; 95 % intervals")
    assert (blank, name) == ("", "puzzles.csv")
    assert performance.startswith("  performance rating, on the scale of Lichess's puzzles: ")
    assert solved.startswith("  solved   ")
    assert solved.endswith(", 30")
    assert [line.split()[0] for line in rest[:3]] == ["800-999", "1000-1199", "mate"], "themes of less than 20 puzzles are left to the JSON"
    assert rest[3].startswith("  left out  illegal move: 1; the first: puzzles.csv, byte ")
    assert rest[4].startswith("  left out  unreadable row: 2; the first: puzzles.csv, byte ")
    assert len(rest) == 5


def test_json_has_all_numbers(run: Run, tmp_path: Path, model: Path) -> None:
    path = tmp_path / "puzzles.csv"
    path.write_text(table(6, "bad"))
    facts = found(run, path)
    assert facts["model"]["name"] == str(model)
    assert len(facts["model"]["weights_hash"]) == 64
    (of_file,) = facts["files"].values()
    assert of_file["kind"] == "puzzles"
    assert of_file["solved"]["num"] == 6
    assert of_file["by_theme"].keys() == {"mate", "even", "odd"}
    assert of_file["left_out"]["unreadable row"]["count"] == 1
    puzzles = [one for one in read_puzzle_table([path.read_bytes()], "x") if isinstance(one, Puzzle)]
    solved = solve_puzzles(partial(expected_credits, new_policy(TINY, seed=0, device=CPU), temperature=0.0), puzzles)
    assert of_file["solved"]["solved"] == solved.sum()


def test_a_temperature_gives_expected_shares(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "puzzles.csv"
    path.write_text(table(4))
    assert "moves at temperature 0.7, expected fractions" in run(path, "--temperature", "0.7")
    warm = found(run, path, "--temperature", "0.7")["files"]["puzzles.csv"]["solved"]["share"]
    hot = found(run, path, "--temperature", "1000")["files"]["puzzles.csv"]["solved"]["share"]
    board = chess.Board(ROOKS)
    board.push_uci("b8a8")
    assert hot == pytest.approx(2 / board.legal_moves.count(), rel=0.01), "two of all moves give mate"
    assert 0 < warm < 1
    assert warm != pytest.approx(hot, rel=0.001)


def test_suites_are_told_by_suite_and_points_only_where_there_are_some(run: Run, tmp_path: Path) -> None:
    start = chess.STARTING_FEN.rsplit(" ", 2)[0]
    right = likeliest(chess.STARTING_FEN)
    (tmp_path / "plain.epd").write_text(
        f'{start} bm {right}; id "good.1";\n{start} am a3; id "good.2";\n'
        f'{start} am {right}; id "bad.1";\n{start} am {right} a3; id "bad.2";\n{start} bm Ke2; id "bad.3";\n'
    )
    (tmp_path / "points.epd").write_text(f'{start} c0 "{right}=3, Nh3=4"; id "x.1";\n')
    if right == "Nh3":
        pytest.fail("choose another move for this test")
    facts = found(run, tmp_path / "plain.epd", tmp_path / "points.epd")["files"]
    assert {name: of["solved"]["solved"] for name, of in facts["plain.epd"]["by_suite"].items()} == {"good": 2, "bad": 0}
    assert facts["plain.epd"]["left_out"]["illegal move"]["count"] == 1
    assert (facts["points.epd"]["solved"]["share"], facts["points.epd"]["points"]["share"]) == (0, 0.75)
    said = run(tmp_path / "plain.epd", tmp_path / "points.epd")
    plain, _, points = said.partition("\npoints.epd\n")
    assert "points" not in plain
    assert "  points   75.0% [" in points
    assert "  x" not in points, "one problem is no suite"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("games.pgn", "1. e4 *", "games have no solutions"),
        ("puzzles.csv", "", "no header and no puzzle in it"),
        ("puzzles.csv", f"{HEADER}\n", "it has nothing to solve (it is empty)"),
        ("puzzles.csv", f"{HEADER}\nbad\nbad\n", "it has nothing to solve (unreadable row: 2)"),
        ("list.epd", f"{chess.STARTING_FEN}\n", "it has nothing to solve (no answer: 1)"),
        ("puzzles.txt", "", "cannot tell by its suffix"),
    ],
)
def test_what_cannot_be_solved_is_an_error_in_plain_words(name: str, content: str, message: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError) as caught:
        run(tmp_path / name)
    assert message in str(caught.value)
    assert name in str(caught.value)


def test_the_sample_puzzles_are_solved(run: Run) -> None:
    folder = os.environ.get("CHESS_GRPO_SAMPLE_DATA")
    if folder is None:
        pytest.skip("CHESS_GRPO_SAMPLE_DATA does not name the folder of lichess_puzzles_1499.csv")
    facts = found(run, Path(folder) / "lichess_puzzles_1499.csv")["files"]["lichess_puzzles_1499.csv"]
    assert facts["solved"]["num"] == 1_499
    assert facts["left_out"] == {}
    assert sum(share["num"] for share in facts["by_band"].values()) == 1_499
