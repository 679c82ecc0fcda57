"""The files of a dataset are read in turns of one game each."""

from pathlib import Path

import pytest
from made_games import random_pgn

from grpo.dataset.games import Game, SourceError
from grpo.dataset.sources import file_games
from grpo.settings.tree import BoardsConfig


def test_files_give_a_game_each_in_turn_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.dataset.sources._MAX_OPEN", 2)
    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        (tmp_path / f"{name}.pgn").write_text(random_pgn(count, max_plies=8, seed=ord(name)))
    read = list(file_games(BoardsConfig(source="files", files=(str(tmp_path),), num_units=1, num_tasks=1), unit=0))
    assert all(isinstance(entry, Game) for entry in read)
    assert [entry.source for entry in read] == ["a.pgn", "b.pgn", "a.pgn", "a.pgn", "c.pgn", "c.pgn"]


def test_a_table_of_puzzles_is_no_source_of_boards(tmp_path: Path) -> None:
    (tmp_path / "puzzles.csv").write_text("PuzzleId,FEN,Moves\n")
    config = BoardsConfig(source="files", files=(str(tmp_path / "puzzles.csv"),))
    with pytest.raises(SourceError, match=r"a \.csv is read as a table of puzzles, which measure a policy"):
        next(file_games(config, unit=0))
