"""The dataset is the same bytes however it is made, holds exactly what was asked for, and accounts for all that it does not hold."""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chess
import pyarrow.parquet as pq
import pytest
import zstandard
from listeners import Listener
from made_games import HEADER, PLANTED, random_pgn, with_planted_games
from scripted_engine import ScriptedEngine

from grpo.base.files import read_json
from grpo.board.encoding import mover_fen, position_key
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.quotas import boards_per_cell
from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA, Split
from grpo.engine.identity import EngineIdentity
from grpo.reading.games import SourceError
from grpo.settings.tree import Settings, read_settings
from steps.bodies.build_boards import build_units
from steps.bodies.join_boards import join_units
from steps.step_io.dataset import position_keys, read_boards, read_game_table
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Work

FILES = ("boards.parquet", "games.parquet", "report.json", "history.jsonl")
ACCEPTED: dict[str, Any] = {"num_train": 900, "num_validation": 150, "num_heldout": 150, "max_per_game_and_phase": 1}
NOBODY = EngineIdentity(name="Scripted 1", sha256="0" * 64)


def settings_of(*paths: Path | str, **boards: Any) -> Settings:
    """Return small settings; with paths, the boards come from these files."""
    given = {"num_train": 30, "num_validation": 9, "num_heldout": 9, "num_units": 2, "num_tasks": 1, "games": {"nodes": [1, 5]}}
    given["max_per_game_and_phase"] = 6  # Small files have few games.
    files = {"source": "files", "files": list(map(str, paths))} if paths else {}
    return read_settings(
        json.dumps({"preset": "test", "boards": given | files | boards, "values": {"depth": 1}, "grpo": {"states_per_step": 6}})
    )


def build(
    settings: Settings,
    folder: Path,
    engine: str,
    *,
    tasks: Sequence[Sequence[int]] | None = None,
    identity: EngineIdentity = NOBODY,
    listener: Listener | None = None,
    terminal: TerminalSink | None = None,
) -> Path:
    """Build a dataset, its units dealt out to tasks, and return its folder; the engine is always called the same."""
    shutil.rmtree(folder, ignore_errors=True)
    sinks = () if listener is None else (listener,)
    parts = []
    for number, units in enumerate(tasks or [range(settings.boards.num_units)]):
        parts.append(folder / f"part-{number}")
        parts[-1].mkdir(parents=True)
        work = Work(parts[-1], sinks, terminal=terminal)
        build_units(settings, units, identity, engine, work)
        work.write_history()
    out = folder / "dataset"
    out.mkdir()
    work = Work(out, sinks)
    join_units(settings, parts, work)
    work.write_history()
    return out


def digests(folder: Path) -> dict[str, str]:
    """Return the hashes of a dataset's files."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}


def board_keys(folder: Path) -> set[str]:
    return {row["key"] for row in rows_of(folder)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the boards of a dataset."""
    return list(read_boards(folder).to_pylist())


def facts_of(folder: Path) -> Any:
    """Return the report of a dataset."""
    return read_json(folder / "report.json")


def check_dataset(folder: Path, settings: Settings) -> None:
    """Check all that must hold of a whole dataset."""
    assert pq.read_schema(folder / "boards.parquet").equals(BOARD_SCHEMA)
    assert pq.read_schema(folder / "games.parquet").equals(GAME_SCHEMA)
    rows, games, facts = rows_of(folder), read_game_table(folder).to_pylist(), facts_of(folder)
    assert Counter((row["split"], row["phase"]) for row in rows) == boards_per_cell(settings.boards)
    assert len({row["key"] for row in rows}) == len(rows)
    assert position_keys(folder) == {row["key"] for row in rows}.union(*(game["keys"] for game in games))
    split_of_game = {game["game_id"]: game["split"] for game in games}
    assert len(split_of_game) == len(games) == facts["used_games"]
    assert {row["game_id"]: row["split"] for row in rows} == split_of_game
    by_id = {game["game_id"]: game for game in games}
    for row in rows:
        board = chess.Board(row["fen"])
        assert (row["key"], row["phase"]) == (position_key(board), phase_of(board))
        if row["label_from"] == "game":
            game = by_id[row["game_id"]]
            assert (game["moves"][row["ply"]], game["keys"][row["ply"]]) == (row["label"], row["key"])
            assert row["ply"] in game["label_plies"]
        assert set(row["moves"]) == {move.uci() for move in board.legal_moves}
        assert row["label"] in row["moves"]
        assert (row["strong_values"] is not None) == (row["split"] == Split.HELDOUT)
    assert facts["rows"] == len(rows)
    assert facts["missing"] == {}
    assert facts["phases"] == {phase: len(rows) // 3 for phase in PHASES}


@pytest.fixture
def packed(games_text: str, epd_text: str, tmp_path: Path) -> Callable[[str], Path]:
    """Return a writer of the same games (or positions) in many forms; the file's name says which."""

    def write(name: str) -> Path:
        path = tmp_path / "sources" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        data = (epd_text if ".epd" in name else with_planted_games(games_text)).encode()
        if name.endswith(".zst"):
            path.write_bytes(zstandard.compress(data))
        else:
            path.write_bytes(data)
        return path

    return write


# Bit for bit the same.


@pytest.mark.parametrize(
    ("name", "dealt"),
    [
        ("games.pgn", [[[3], [1], [2], [0]], [[3, 1, 0, 2]]]),
        ("list.epd.zst", [[[1], [0, 3, 2]]]),
    ],
)
def test_one_task_two_or_many_give_the_same_bytes(
    name: str, dealt: list[list[list[int]]], packed: Callable[[str], Path], stockfish: str, tmp_path: Path
) -> None:
    settings = settings_of(packed(name), num_units=4)
    one = build(settings, tmp_path / "one", stockfish)
    check_dataset(one, settings)
    for tasks in dealt:
        assert digests(build(settings, tmp_path / "more", stockfish, tasks=tasks)) == digests(one), tasks


# Faults of the engine.


def test_a_position_on_which_the_engine_always_fails_is_dropped_and_another_takes_its_place(
    games_text: str, scripted: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    (tmp_path / "games.pgn").write_text(games_text)
    settings = settings_of(tmp_path / "games.pgn", num_units=1)
    sound = rows_of(build(settings, tmp_path / "sound", scripted().path))
    bad = [next(row for row in sound if row["split"] == split) for split in Split]
    faults = [{"kind": "no score", "fen": mover_fen(chess.Board(row["fen"])), "times": 10_000} for row in bad]
    listener = Listener()
    folder = build(settings, tmp_path / "faulty", scripted(*faults).path, listener=listener)
    check_dataset(folder, settings)
    assert facts_of(folder)["left_out"] == {"engine failure": 3}
    assert listener.metrics["boards/dropped"] == listener.metrics["boards/left_out"] == 3
    expected = {row["key"]: row for row in sound if row not in bad}
    found = {row["key"]: row for row in rows_of(folder)}
    assert len(found.keys() - expected.keys()) == 3
    assert {key: found[key] for key in expected} == expected, "what the others are worth does not change"


# Shortage.


def test_a_shortage_is_an_error_with_the_histogram_the_rejections_and_what_to_change(stockfish: str, tmp_path: Path) -> None:
    (tmp_path / "short.pgn").write_text(random_pgn(12, max_plies=16) + HEADER + "\n1. e4 e5 2. Ke3 *\n")
    with pytest.raises(SourceError) as refusal:
        build(settings_of(tmp_path / "short.pgn", num_units=1), tmp_path / "out", stockfish)
    message = str(refusal.value)
    assert message.startswith(f"{tmp_path}/short.pgn cannot fill the quotas: missing ")
    assert re.search(r"missing, train +\d+ +\d+ +10\n", message)
    assert re.search(r"positions read .* 0\n\nFrom 12 games;", message)
    assert "games rejected: 1 illegal move" in message
    assert message.endswith(
        "Give more games, lower boards.num_train, boards.num_validation or boards.num_heldout, raise boards.max_per_game_and_phase, choose"
        ' boards.shortage = "accept", or boards.num_units = 1, since parts that find the same positions lose some'
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("This is a letter.\n", "(1 not a game); give PGN files of standard chess, or lists of positions"),
        ("\n\n", "(it holds none at all); give PGN files of standard chess, or lists of positions"),
        (
            HEADER + "\n1. e4 e5 *\n",
            "(1 filtered: min_rating); loosen boards.filters.min_rating (a game counts at the first filter that drops it)",
        ),
    ],
)
def test_files_without_anything_usable_are_an_error_that_says_why(content: str, why: str, stockfish: str, tmp_path: Path) -> None:
    (tmp_path / "bad.pgn").write_text(content)
    with pytest.raises(SourceError) as refusal:
        build(
            settings_of(tmp_path / "bad.pgn", filters={} if "filtered" not in why else {"min_rating": 3_000}), tmp_path / "out", stockfish
        )
    assert str(refusal.value) == f"{tmp_path}/bad.pgn: no usable game or position {why}"


def test_an_accepted_shortage_is_reported_cell_by_cell(games_text: str, stockfish: str, tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(games_text)
    settings = settings_of(tmp_path / "games.pgn", num_units=2, shortage="accept", **ACCEPTED)
    listener = Listener()
    folder = build(settings, tmp_path / "out", stockfish, listener=listener)
    found = Counter((row["split"], row["phase"]) for row in rows_of(folder))
    lacking = {f"{split}/{phase}": count - found[split, phase] for (split, phase), count in boards_per_cell(settings.boards).items()}
    facts = facts_of(folder)
    assert facts["missing"] == {cell: count for cell, count in lacking.items() if count}
    assert "train/endgame" in facts["missing"]
    assert listener.metrics["boards/missing"] == sum(facts["missing"].values())
    assert facts["rows"] == sum(found.values()) == 1_200 - sum(facts["missing"].values())


def test_an_empty_cell_is_an_error_even_where_a_shortage_is_accepted(stockfish: str, tmp_path: Path) -> None:
    (tmp_path / "short.pgn").write_text(random_pgn(12, max_plies=16))
    with pytest.raises(SourceError, match=r"missing, train +0 +0 +10\n"):  # No opening is missing: there are some, if too few.
        build(settings_of(tmp_path / "short.pgn", num_units=1, shortage="accept"), tmp_path / "out", stockfish)


# What is left out.


def test_rejected_games_are_counted_the_first_are_named_and_the_good_ones_are_all_used(
    packed: Callable[[str], Path], stockfish: str, tmp_path: Path
) -> None:
    folder = build(settings_of(packed("games.pgn"), num_units=1, shortage="accept", **ACCEPTED), tmp_path / "out", stockfish)
    facts = facts_of(folder)
    assert facts["rejected"] == {**dict.fromkeys(PLANTED, 1), "duplicate": 1}
    assert len(facts["first_rejected"]) == len(PLANTED) + 1
    assert "games.pgn, game 1: not a game ()" in facts["first_rejected"]
    assert facts["games"] == 60 == facts["used_games"]


@pytest.mark.parametrize("kind", ["epd", "csv", "pgn"])
def test_judged_positions_are_no_boards_and_are_counted(kind: str, games_text: str, stockfish: str, tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(games_text)
    settings = settings_of(tmp_path / "games.pgn", num_units=1)
    rows = rows_of(build(settings, tmp_path / "free", stockfish))
    judges = tmp_path / f"judges.{kind}"
    if kind == "epd":
        fens = [row["fen"] for row in rows[::9]]
        judges.write_text("".join(f'{chess.Board(fen).mirror().epd()} id "x";\n' for fen in fens))
    elif kind == "csv":
        fens = [row["fen"] for row in rows[::9]]
        judges.write_text("PuzzleId,FEN,Moves\n" + "".join(f"{i},{row['fen']},{row['label']}\n" for i, row in enumerate(rows[::9])))
    else:
        used = rows[0]
        judges.write_text("[Event" + games_text.split("[Event")[1 + used["offset"]])
        fens = [row["fen"] for row in rows if row["game_id"] == used["game_id"]]
    assert fens
    listener = Listener()
    excluding = settings.model_copy(update={"boards": settings.boards.model_copy(update={"exclude": (str(judges),)})})
    folder = build(excluding, tmp_path / "judged", stockfish, listener=listener)
    check_dataset(folder, excluding)
    judged = {position_key(chess.Board(fen)) for fen in fens}
    assert board_keys(folder).isdisjoint(judged)
    games = read_game_table(folder).to_pylist()
    assert judged.isdisjoint(game["keys"][ply] for game in games for ply in game["label_plies"])
    left_out = facts_of(folder)["left_out"]["judged"]
    assert left_out >= len(fens)
    assert listener.metrics["boards/left_out"] == left_out


# The joined report.


# Files that cannot be read.


def test_a_file_that_is_cut_short_ends_the_step_with_its_name(packed: Callable[[str], Path], stockfish: str, tmp_path: Path) -> None:
    path = packed("games.pgn.zst")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(SourceError, match=f"{path}: damaged or cut short"):
        build(settings_of(path, num_train=3_000, num_units=1, shortage="accept"), tmp_path / "out", stockfish)
