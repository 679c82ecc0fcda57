"""Files are read side by side: each is drawn from in proportion to its size, and the report says how far it was read."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zstandard
from made_games import as_epd, random_pgn

from grpo.dataset import sources
from grpo.dataset.quotas import SourceReport
from grpo.dataset.sources import file_games
from grpo.reading.games import Game, Rejection, SourceError
from grpo.reading.streams import read_chunks
from grpo.settings.tree import BoardsConfig

PACKERS: dict[str, Callable[[bytes], bytes]] = {".zst": zstandard.compress, "": bytes}


def config_of(*paths: Path, **changes: Any) -> BoardsConfig:
    return BoardsConfig(source="files", files=tuple(map(str, paths)), **{"num_units": 1, "num_tasks": 1, **changes})


def drawn(config: BoardsConfig, *, count: int | None = None, unit: int = 0) -> tuple[list[Game | Rejection], SourceReport]:
    """Return the first entries, or all, and the report on them."""
    report = SourceReport()
    return list(islice(file_games(config, unit=unit, report=report), count)), report


def short_games(count: int, *, who: str) -> str:
    """Return games of a few plies, all different."""
    return "".join(f'[Event "?"]\n[White "{who} {number}"]\n[Black "b"]\n\n1. e4 e5 2. Nf3 Nc6 1-0\n\n' for number in range(count))


@pytest.fixture
def three_sources(tmp_path: Path) -> Path:
    """Return a folder of games from two sites and of positions, of different sizes."""
    folder = tmp_path / "three"
    folder.mkdir()
    (folder / "chess_com.pgn").write_text(random_pgn(20, seed=1, max_plies=40))
    (folder / "lichess.pgn.zst").write_bytes(zstandard.compress(random_pgn(60, seed=2, max_plies=40).encode()))
    (folder / "positions.epd").write_text("\n".join(as_epd(random_pgn(10, seed=3, max_plies=40), every=1).splitlines()[:240]))
    return folder


def test_of_files_of_different_size_and_kind_the_same_fraction_is_read(three_sources: Path) -> None:
    entries, report = drawn(config_of(three_sources), count=160)
    counts = Counter(entry.source for entry in entries)
    assert counts["chess_com.pgn"] == pytest.approx(10, abs=2)
    assert counts["lichess.pgn.zst"] == pytest.approx(30, abs=3)
    assert counts["positions.epd"] == pytest.approx(120, abs=4)
    assert report.files.keys() == counts.keys()
    for name, of_file in report.files.items():
        assert of_file.read == pytest.approx(0.5, abs=0.1), name
        assert of_file.games + of_file.rejected == counts[name]


def test_at_the_end_all_of_each_file_is_read(three_sources: Path) -> None:
    entries, report = drawn(config_of(three_sources))
    assert {name: of_file.read for name, of_file in report.files.items()} == dict.fromkeys(report.files, 1.0)
    assert Counter(entry.source for entry in entries) == {"chess_com.pgn": 20, "lichess.pgn.zst": 60, "positions.epd": 240}


def test_units_share_all_files_and_their_reports_add_up(three_sources: Path) -> None:
    units = [drawn(config_of(three_sources, num_units=3), unit=unit) for unit in range(3)]
    together = Counter((entry.source, entry.offset) for entries, _ in units for entry in entries)
    assert len(together) == 320
    assert set(together.values()) == {1}
    assert all({entry.source for entry in entries} == {"chess_com.pgn", "lichess.pgn.zst", "positions.epd"} for entries, _ in units)
    joined = SourceReport.joined([report.as_facts() for _, report in units])
    assert joined.files["lichess.pgn.zst"].games + joined.files["lichess.pgn.zst"].rejected == 60
    assert joined.files["lichess.pgn.zst"].read == pytest.approx(1.0)


def test_a_tiny_file_gives_at_least_a_tenth_of_an_equal_share_while_it_has_any(tmp_path: Path) -> None:
    (tmp_path / "month.pgn").write_text(short_games(20_000, who="many"))
    (tmp_path / "own.pgn").write_text(short_games(30, who="own"))
    for count in (100, 400):
        entries, _ = drawn(config_of(tmp_path), count=count)
        assert Counter(entry.source for entry in entries)["own.pgn"] == pytest.approx(count / 20, abs=2)
    entries, report = drawn(config_of(tmp_path), count=1_000)
    assert report.files["own.pgn"].read == 1.0
    assert Counter(entry.source for entry in entries)["own.pgn"] == 30


def test_a_file_that_no_game_passes_is_not_read_to_its_end_for_its_share(tmp_path: Path) -> None:
    casual = short_games(2_000, who="casual").replace('[Event "?"]', '[Event "Casual game"]')
    (tmp_path / "casual.pgn").write_text(casual)
    (tmp_path / "good.pgn").write_text(short_games(2_000, who="good"))
    entries, report = drawn(config_of(tmp_path, filters={"rated_only": True}), count=200)
    assert report.files["casual.pgn"].rejected == pytest.approx(100, abs=10)
    assert report.files["good.pgn"].games == pytest.approx(100, abs=10)
    assert len(entries) == 200


@pytest.mark.parametrize("suffix", list(PACKERS))
def test_of_more_files_than_can_be_open_all_are_drawn_from_and_nothing_is_lost_or_read_twice(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        text = short_games(40 + number, who=f"file {number}")
        (tmp_path / f"{number}.pgn{suffix}").write_bytes(PACKERS[suffix](text.encode()))
    num_open, most_open = 0, 0

    def counted(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        nonlocal num_open, most_open
        num_open += 1
        most_open = max(most_open, num_open)
        try:
            yield from read_chunks(*args, **kwargs)
        finally:
            num_open -= 1

    every, _ = drawn(config_of(tmp_path))
    monkeypatch.setattr(sources, "_MAX_OPEN", 3)
    monkeypatch.setattr(sources, "read_chunks", counted)
    entries, report = drawn(config_of(tmp_path))
    assert most_open <= 3
    assert num_open == 0
    assert Counter((entry.source, entry.offset) for entry in entries) == Counter((entry.source, entry.offset) for entry in every)
    assert all(isinstance(entry, Game) for entry in entries)
    assert {of_file.read for of_file in report.files.values()} == {1.0}
    few, report = drawn(config_of(tmp_path), count=60)
    assert {entry.source for entry in few} == {f"{number}.pgn{suffix}" for number in range(9)}
    assert all(0 < of_file.read < 0.5 for of_file in report.files.values())


def test_a_table_of_puzzles_is_no_source_of_boards(tmp_path: Path) -> None:
    (tmp_path / "puzzles.csv").write_text("PuzzleId,FEN,Moves\n")
    with pytest.raises(SourceError, match=r"puzzles\.csv: a \.csv is read as a table of puzzles, .*boards\.exclude"):
        drawn(config_of(tmp_path))
