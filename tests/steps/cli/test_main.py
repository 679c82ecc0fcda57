"""The command `chess-grpo`: datasets made and looked at, and plain words with exit code 1 where that cannot be."""

import contextlib
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from made_games import HEADER, with_planted_games

from grpo.base.files import MANIFEST, read_json, verified_manifest
from steps.cli import boards as boards_command
from steps.cli.boards import CHECKS
from steps.cli.main import COMMANDS, main

SMALL = ("boards.num_train=30", "boards.num_validation=9", "boards.num_heldout=9", "boards.num_units=2")
ONE_TASK = ("--set", "boards.num_tasks=1")
SETTINGS = ("--config", "test", *(word for key in (*SMALL, "grpo.states_per_step=6", "values.depth=1") for word in ("--set", key)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the value cache of these tests apart."""
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "home"


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(console: Run) -> Run:
    return console


class InThisProcess:
    """Stands for the pool of processes that `boards build` starts, where a test is about something else: their start takes seconds."""

    def __init__(self, num_processes: int, mp_context: object) -> None:
        pass

    def __enter__(self) -> "InThisProcess":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(work(*arguments))  # type: ignore[func-returns-value]
        return future


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards_command, "ProcessPoolExecutor", InThisProcess)


@pytest.fixture
def games(games_text: str, tmp_path: Path) -> Path:
    """Return a file of 60 games."""
    path = tmp_path / "games.pgn"
    path.write_text(games_text)
    return path


def from_file(path: Path) -> tuple[str, ...]:
    """Return the arguments that make a file the source."""
    return *ONE_TASK, "--set", 'boards.source="files"', "--set", f"boards.files={json.dumps(str(path))}"


# Build.


@pytest.fixture(scope="module")
def built(games_text: str, stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Build a dataset of a file, and return its folder and what the command printed."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "games.pgn").write_text(games_text)
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setenv("CHESS_GRPO_HOME", str(folder / "home"))
        patch.setattr(boards_command, "ProcessPoolExecutor", InThisProcess)
        assert main(["boards", "build", str(folder / "deep" / "out"), *SETTINGS, *from_file(folder / "games.pgn")]) == 0
    return folder / "deep" / "out", said.getvalue()


def test_build_makes_a_whole_dataset_and_says_what_is_in_it(built: tuple[Path, str]) -> None:
    out, said = built
    assert {path.name for path in out.iterdir()} == {
        *("boards.parquet", "games.parquet", "rejected.jsonl", "report.json", CHECKS, MANIFEST)
    }
    table = pq.read_table(out / "boards.parquet")
    assert Counter(table["phase"].to_pylist()) == {"opening": 16, "middlegame": 16, "endgame": 16}
    assert Counter(table["split"].to_pylist()) == {"train": 30, "validation": 9, "heldout": 9}
    manifest = verified_manifest(out)
    assert manifest["settings"]["boards"]["num_train"] == 30, "--set is laid over the preset"
    assert manifest["settings"]["policy"]["width"] == 16, "the preset is `test`"
    assert manifest["engine"].startswith("Stockfish")
    assert f"boards               48 from {read_json(out / 'report.json')['used_games']} games" in said
    assert re.search(r"^  train +10 +10 +10$", said, re.MULTILINE)
    assert re.search(r"^  heldout +3 +3 +3$", said, re.MULTILINE)
    assert "sources              games.pgn 48" in said
    assert said.endswith(f"all checks passed; written: {out / 'boards.parquet'}\n")
    assert [path.name for path in out.parent.iterdir()] == ["out"], "nothing else is left"


def test_a_build_whose_boards_do_not_pass_the_checks_leaves_nothing_behind(
    run: Run, games: Path, stockfish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    from steps.bodies.check_boards import ChecksError

    def refuse(*_: object) -> None:
        raise ChecksError("the dataset is not fit to train on")

    monkeypatch.setattr(boards_command, "check_dataset", refuse)
    there = tmp_path / "there"
    code, _, complaints = run("boards", "build", there / "out", *SETTINGS, *from_file(games))
    assert (code, complaints) == (1, "chess-grpo: the dataset is not fit to train on\n")
    assert list(there.iterdir()) == []


# Inspect.


def test_inspect_shows_a_dataset_with_boards_drawn(run: Run, built: tuple[Path, str]) -> None:
    out, said_before = built
    code, said, complaints = run("boards", "inspect", out, "--examples", "4")
    assert (code, complaints) == (0, "")
    summary, *examples = said.split("\n\n")
    assert summary in said_before
    assert len(examples) == 4
    rows = pq.read_table(out / "boards.parquet").to_pylist()
    for example, phase in zip(examples, ("opening", "middlegame", "endgame", "opening"), strict=True):
        row = next(row for row in rows if row["fen"] in example)
        assert row["phase"] == phase
        assert example.startswith(f"{phase}, {row['split']}, games.pgn at {row['offset']:,}, ply {row['ply']}\n")
        assert len(example.strip().splitlines()) == 1 + 8 + 1 + 1
        assert "(from the game); best by value: " in example
        assert f"{max(row['values']):.3f}" in example
    assert len({example.splitlines()[9] for example in examples}) == 4
    assert run("boards", "inspect", out, "--examples", "0")[1] == summary + "\n"


def test_inspect_counts_files_without_an_engine(run: Run, tmp_path: Path, games_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", "/nowhere/stockfish")
    (tmp_path / "games.pgn").write_text(with_planted_games(games_text))
    listing = tmp_path / "rejected.jsonl"
    code, said, complaints = run("boards", "inspect", tmp_path / "games.pgn", "--rejected", listing)
    assert (code, complaints) == (0, "")
    assert said.startswith("games and positions  79: 60 usable + 19 rejected (")
    assert "illegal move 1" in said
    assert "duplicate 1" in said
    rejections = [json.loads(line) for line in listing.read_text().splitlines()]
    assert len(rejections) == 19
    assert all(rejection.keys() == {"source", "offset", "reason", "detail"} for rejection in rejections)
    assert [rejection["offset"] for rejection in rejections] == sorted(rejection["offset"] for rejection in rejections)


def test_inspect_counts_results_lengths_and_ratings(run: Run, tmp_path: Path) -> None:
    games = [
        HEADER.replace("*", "1-0").replace('[White "a"]', '[White "a"]\n[WhiteElo "1700"]\n[BlackElo "1800"]')
        + "\n1. e4 e5 2. Nf3 1-0\n\n",
        HEADER.replace("*", "0-1") + "\n1. e4 e5 0-1\n\n",
        HEADER.replace('[White "a"]', '[White "c"]\n[WhiteElo "2000"]') + "\n1. e4 *\n\n",
    ]
    (tmp_path / "games.pgn").write_text("".join(games))
    _, said, _ = run("boards", "inspect", tmp_path / "games.pgn")
    lines = [re.sub(r"\(.*/s\)", "", line).rstrip() for line in said.splitlines()]
    assert lines == [
        "games and positions  3: 3 usable + 0 rejected",
        "positions by phase   opening 6",
        "results              1-0 1, 0-1 1, * 1",
        "plies per game       1 to 3, median 2",
        "ratings              1,700 to 2,000, median 1,800; 3 players without one",
    ]


def test_inspect_tells_what_filters_would_leave_out(run: Run, games: Path) -> None:
    code, said, _ = run("boards", "inspect", games, "--set", "boards.filters.min_rating=1030", "--set", "boards.filters.first_ply=2")
    assert code == 0
    assert "games and positions  60: 15 usable + 45 rejected" in said
    assert "rejected             filtered: min_rating 45" in said
    assert "positions left out   first_ply 30" in said


def test_inspect_looks_at_one_dataset_at_a_time(run: Run, games: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "boards.parquet").write_bytes(b"")
    code, said, complaints = run("boards", "inspect", tmp_path / "out", games)
    assert (code, said) == (1, "")
    assert complaints == "chess-grpo: inspect takes one dataset at a time; name one folder, or files of games and positions\n"


# Usage.


def test_a_command_imports_nothing_that_only_others_need() -> None:
    code = "import sys; from steps.cli.main import main\ntry: main([{!r}, '--help'])\nfinally: print(sorted(sys.modules))"

    def modules(command: str) -> str:
        return subprocess.run([sys.executable, "-c", code.format(command)], check=True, capture_output=True, text=True).stdout

    uci = modules("uci")
    assert "'torch'" not in uci
    assert "'pyarrow'" not in uci
    assert "'mlflow'" not in modules("plan-games")
    assert "'pyarrow'" in modules("boards"), "so that the test can fail"


def test_the_list_of_commands_needs_none_of_their_modules(run: Run) -> None:
    code, said, _ = run("--help")
    assert code == 0
    assert all(f"\n    {name}" in said for name in COMMANDS)
    script = "import sys; from steps.cli.main import main\ntry: main(['--help'])\nfinally: print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert not [name for name in ("torch", "mlflow", "pyarrow", "pydantic", "steps.cli.match") if f"'{name}'" in loaded]


def test_a_reader_that_has_gone_is_no_error_of_ours() -> None:
    script = "import steps.cli.main as c, steps.cli.plan_games as p; p._lines = lambda given: ['x' * 100] * 10_000; c.main(['plan-games'])"
    done = subprocess.run(["bash", "-c", f'{sys.executable} -c "{script}" | head -1'], capture_output=True, text=True, check=True)
    assert (len(done.stdout), done.stderr) == (101, "")
