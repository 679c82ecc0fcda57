"""The dataset is the same bytes however it is made, and what the engine fails on is dropped, replaced and counted."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import chess
import pytest
from made_games import random_pgn
from made_work import work_in
from presets import TEST
from scripted_engine import ScriptedEngine

from grpo.base.files import file_hashes, read_json, sha256_json
from grpo.board.encoding import decode, mover_fen, position_key
from grpo.dataset.exclusions import excluded_positions
from grpo.dataset.games import SourceError
from grpo.dataset.labels import label_arrays
from grpo.dataset.quotas import boards_per_cell
from grpo.dataset.table import Split
from grpo.engine.move_values import NUM_DEEP, ValueTable, engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.settings.names import declared
from grpo.settings.tree import Settings, read_settings, settings_over
from steps import build_boards, join_boards
from steps.common.dataset import position_keys, read_boards, read_game_table
from steps.names import REPORT
from steps.run.work import Part


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A small dataset of 60 random games that reach all phases, in units for many tasks."""
    (file := tmp_path / "games.pgn").write_text(random_pgn(60))
    boards = {"num_train": 30, "num_validation": 9, "num_heldout": 9, "num_units": 4, "files": [str(file)]}
    return read_settings(json.dumps({"preset": TEST, "boards": boards, "grpo": {"states_per_step": 6}}))


def build(settings: Settings, folder: Path, engine: str, *, num_tasks: int = 1) -> Path:
    """Build a dataset, its units dealt out to tasks, and return its folder."""
    folder.mkdir()
    parts = []
    for number in range(num_tasks):
        work = work_in(
            folder / f"part-{number}",
            declared(settings, build_boards.STEP.reads),
            stockfish=engine,
            part=Part(number=number, count=num_tasks),
        )
        build_boards.body(work)
        parts.append(work.folder)
    work = work_in(folder / "dataset", declared(settings, join_boards.STEP.reads), parts=parts)
    join_boards.body(work)
    return work.folder


def checked(folder: Path, settings: Settings) -> dict[str, dict[str, Any]]:
    """Check all that must hold of a whole dataset, and return its boards by key."""
    rows: list[dict[str, Any]] = read_boards(folder).to_pylist()
    games = {game["game_id"]: game for game in read_game_table(folder).to_pylist()}
    assert Counter((row["split"], row["phase"]) for row in rows) == boards_per_cell(settings.boards)
    assert {row["game_id"]: row["split"] for row in rows} == {name: game["split"] for name, game in games.items()}
    assert position_keys(folder) == {row["key"] for row in rows}.union(*(game["keys"] for game in games.values()))
    for row in rows:
        assert set(row["moves"]) == {move.uci() for move in chess.Board(row["fen"]).legal_moves}
        assert games[row["game_id"]]["keys"][row["ply"]] == row["key"]
        assert (row["strong_values"] is not None) == (row["split"] == Split.HELDOUT)
    by_key = {row["key"]: row for row in rows}
    assert len(by_key) == len(rows) == read_json(folder / REPORT)["rows"]
    return by_key


def check_judge(rows: dict[str, dict[str, Any]], settings: Settings, engine: str) -> None:
    """Check that the judge of a held-out board searches all moves deeply, and the reward the best few."""
    row = max((row for row in rows.values() if row["split"] == Split.HELDOUT), key=lambda row: len(row["moves"]))
    reward, judge = (settings.boards.depth, NUM_DEEP), (settings.evaluation.heldout_depth, len(row["moves"]))
    with EnginePool(engine, num_processes=1, options=engine_options()) as pool:
        found = {
            (depth, num_deep): table.values.tolist()
            for depth in (reward[0], judge[0])
            for num_deep in (reward[1], judge[1])
            for table in value_tables([chess.Board(row["fen"])], pool, depth=depth, num_deep=num_deep)
            if isinstance(table, ValueTable)
        }
    assert (row["values"], row["strong_values"]) == (found[reward], found[judge])
    assert found.pop(judge) not in found.values(), "depth and number of moves make a difference"


def test_one_task_or_many_give_the_same_bytes(settings: Settings, stockfish: str, tmp_path: Path) -> None:
    one = build(settings, tmp_path / "one", stockfish)
    check_judge(checked(one, settings), settings, stockfish)
    assert file_hashes(build(settings, tmp_path / "more", stockfish, num_tasks=3)) == file_hashes(one)


def test_what_is_taken_from_games_is_the_same_on_every_machine_and_keeps_to_quotas_and_exclusions(
    settings: Settings, scripted: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    (judged := tmp_path / "judged.pgn").write_text(random_pgn(5))  # The first of the sixty.
    changes = {"seed": 5, "boards": {"num_units": 2, "max_per_game_and_phase": 2, "exclude": [str(judged)]}}
    given = settings_over(settings.model_dump(mode="json"), changes)
    folder = build(given, tmp_path / "made", scripted().path)
    rows = checked(folder, given)
    assert max(Counter((row["game_id"], row["phase"]) for row in rows.values()).values()) == 2
    games, excluded = read_game_table(folder), excluded_positions([str(judged)])
    assert not rows.keys() & excluded
    report = read_json(folder / REPORT)
    assert report["used_games"] == games.num_rows
    labels = label_arrays(read_boards(folder), games, max_positions=45)
    assert len(labels) == 45
    assert not {position_key(decode(row)) for row in labels.encodings} & excluded
    # A hash that moves on purpose is written anew by the commit that moves it.
    told = [
        (row["key"], row["split"], row["label"], row["offset"], row["ply"], row["centipawns"]) for row in read_boards(folder).to_pylist()
    ]
    hashes = [sha256_json(each)[:12] for each in (told, [labels.encodings.tolist(), labels.played.tolist()])]
    counted = {name: report[name] for name in ("games", "duplicates", "left_out", "natural_phases")}
    assert hashes == ["92b385f93a5c", "d0f9d2e0ee14"]
    assert counted == {
        "games": 31,
        "duplicates": 19,
        "left_out": {"judged": 982},
        "natural_phases": {"endgame": 3781, "middlegame": 757, "opening": 766},
    }


def test_a_board_of_two_parts_is_joined_once_and_the_limit_of_a_game_holds_over_all_parts(
    settings: Settings, scripted: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    given = settings_over(settings.model_dump(mode="json"), {"boards": {"num_units": 1, "max_per_game_and_phase": 2}})
    build(given, tmp_path / "made", scripted().path)
    part = tmp_path / "made" / "part-0"
    once, twice = (work_in(tmp_path / name, given, parts=[part] * count) for count, name in ((1, "once"), (2, "twice")))
    for work in (once, twice):
        join_boards.body(work)
    assert read_boards(twice.folder) == read_boards(once.folder)
    num_duplicates = [read_json(work.folder / REPORT)["duplicates"] for work in (once, twice)]
    assert num_duplicates[1] == 2 * num_duplicates[0] + read_boards(once.folder).num_rows
    stricter = settings_over(given.model_dump(mode="json"), {"boards": {"max_per_game_and_phase": 1}})
    work = work_in(tmp_path / "stricter", stricter, parts=[part])
    with suppress(SourceError):
        join_boards.body(work)
        rows = read_boards(work.folder).to_pylist()
        assert set(Counter((row["game_id"], row["phase"]) for row in rows).values()) == {1}


def test_a_position_on_which_the_engine_always_fails_is_dropped_and_another_takes_its_place(
    settings: Settings, scripted: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    settings = settings_over(settings.model_dump(mode="json"), {"boards": {"num_units": 1}})
    sound = checked(build(settings, tmp_path / "sound", scripted().path), settings)
    bad = [next(row for row in sound.values() if row["split"] == split) for split in Split]
    faults = [{"kind": "no score", "fen": mover_fen(chess.Board(row["fen"])), "times": 10_000} for row in bad]
    folder = build(settings, tmp_path / "faulty", scripted(*faults).path)
    found = checked(folder, settings)
    assert read_json(folder / REPORT)["left_out"] == {"engine failure": 3}
    assert sound.keys() - found.keys() == {row["key"] for row in bad}
    for key in sound.keys() & found.keys():
        assert found[key] | {"engine": ""} == sound[key] | {"engine": ""}, "what the others are worth does not change"
