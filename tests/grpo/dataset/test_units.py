"""A unit takes its own games, whatever file, folder or order they come in, and fills its quotas from them as far as they go."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import pytest
from made_games import random_pgn
from scripted_engine import ScriptedEngine

from grpo.board.phases import Phase
from grpo.dataset.games import SourceError
from grpo.dataset.quotas import Quota, QuotaCell, boards_per_cell, cut_to_quota
from grpo.dataset.table import Position, Split
from grpo.dataset.units import file_games, unit_boards_per_cell, unit_positions
from grpo.engine.pool import EnginePool
from grpo.settings.tree import BoardsConfig

SMALL: dict[str, Any] = {"num_train": 60, "num_validation": 15, "num_heldout": 15, "num_units": 2}
ENDLESS: dict[str, Any] = {"num_train": 30_000, "num_validation": 30_000, "num_heldout": 30_000, "num_units": 1}


@dataclass
class Filled:
    positions: list[Position]
    quota: Quota

    @property
    def cells(self) -> Counter[QuotaCell]:
        return Counter((position.split, position.phase) for position in self.positions)


def filled(
    config: BoardsConfig,
    *,
    unit: int = 0,
    engine: str = "true",  # A program that is no engine: for files none is asked.
) -> Filled:
    quota = Quota(unit_boards_per_cell(config), config, seed=0)
    made = Filled([], quota)
    with EnginePool(engine, num_processes=1, options={}) as pool:
        for positions in unit_positions(quota, config, unit=unit, seed=0, players=pool):
            made.positions += positions
    return made


def files_config(*paths: Path | str, **changes: Any) -> BoardsConfig:
    return BoardsConfig(files=tuple(map(str, paths)), **{**SMALL, **changes})


GAMES = random_pgn(60)  # They reach all phases.


@pytest.fixture(scope="session")
def long_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pgn") / "long.pgn"
    path.write_text(GAMES + GAMES[: GAMES.index("[Event", 1)])
    return path


def test_units_share_no_game_and_together_have_all(long_games: Path) -> None:
    config = files_config(long_games, **{**ENDLESS, "num_units": 3})
    units = [filled(config, unit=unit) for unit in range(3)]
    assert sum(unit.quota.report.games for unit in units) == 60
    assert sum((unit.quota.report.rejected for unit in units), Counter()) == {"duplicate": 1}
    assert all(unit.quota.report.games > 8 for unit in units), "dealt out evenly, more or less"
    found = Counter(game_id for unit in units for game_id in unit.quota.games)
    assert len(found) == 60
    assert set(found.values()) == {1}


def test_a_game_that_two_files_hold_gives_its_boards_to_the_dataset_once(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first.pgn", "second.pgn")]
    for path in paths:
        path.write_text(GAMES)
    config = files_config(*paths, **ENDLESS | {"num_units": 2})
    units = [filled(config, unit=unit).positions for unit in range(2)]
    keys = [{position.key for position in unit} for unit in units]
    assert keys[0] & keys[1], "both units took the same games"
    kept, _, _ = cut_to_quota([*units[0], *units[1]], boards_per_cell(config), max_per_game_and_phase=config.max_per_game_and_phase)
    assert len(kept) == len(keys[0] | keys[1])


def test_a_list_of_positions_fills_the_quotas_without_a_move_to_imitate(tmp_path: Path, random_boards: list[chess.Board]) -> None:
    (tmp_path / "list.epd").write_text("\n".join(board.epd() for board in random_boards[::3]))
    config = files_config(tmp_path / "list.epd")
    made = filled(config)
    assert made.cells == unit_boards_per_cell(config)
    assert {(position.label, position.ply, position.source) for position in made.positions} == {("", 0, "list.epd")}


def test_engine_games_that_add_nothing_come_to_an_end(scripted: Callable[..., ScriptedEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.dataset.units.MAX_IDLE_GAMES", 20)
    monkeypatch.setattr("grpo.dataset.engine_games.MAX_PLIES", 8)
    config = BoardsConfig(**SMALL)
    made = filled(config, unit=1, engine=scripted().path)
    assert made.quota.missing[Split.TRAIN, Phase.ENDGAME] == unit_boards_per_cell(config)[Split.TRAIN, Phase.ENDGAME]
    assert made.quota.report.natural_phases[Phase.ENDGAME] == 0
    assert made.positions


def test_a_table_of_puzzles_is_no_source_of_boards(tmp_path: Path) -> None:
    (tmp_path / "puzzles.csv").write_text("PuzzleId,FEN,Moves\n")
    config = BoardsConfig(files=(str(tmp_path / "puzzles.csv"),))
    with pytest.raises(SourceError, match=r"takes games .* no puzzles \(\.csv\); give puzzles to boards\.exclude"):
        next(file_games(config, unit=0))
