"""Text summaries of a dataset, or of files of games and positions, for `chess-grpo boards inspect`."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import chess
import pyarrow as pa
import pyarrow.compute as pc

from grpo.base.files import read_json
from grpo.board.encoding import position_key
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.file_reports import FILE_HEADERS, file_rows
from grpo.dataset.quotas import SourceReport
from grpo.dataset.sources import file_games
from grpo.dataset.table import Split
from grpo.reading.games import Game, Rejection
from grpo.settings.tree import BoardsConfig
from steps.cli.tables import text_table
from steps.step_io.dataset import read_boards
from steps.step_io.names import REPORT

_NUM_MOVES_SHOWN: Final = 3
_PROGRESS_GAMES: Final = 20_000
_MAX_FILES: Final = 30


@dataclass(slots=True)
class FilesReport:
    """Counts of files of games and positions."""

    source: SourceReport = field(default_factory=SourceReport)
    results: Counter[str] = field(default_factory=Counter)
    plies: list[int] = field(default_factory=list)
    ratings: list[int] = field(default_factory=list)
    num_unrated: int = 0
    """Players without a rating."""
    seconds: float = 0.0

    @property
    def num_entries(self) -> int:
        """All games and listed positions, usable or not."""
        return self.source.num_games + sum(self.source.rejected.values())


def inspect_files(
    config: BoardsConfig, *, on_rejection: Callable[[Rejection], None] = lambda _: None, say: Callable[[str], None] = lambda _: None
) -> FilesReport:
    """Read files completely, as a dataset of one unit would, and count their content; no engine is needed.

    Raises SourceError when a file cannot be read to its end.
    """
    report = FilesReport()
    start = time.perf_counter()
    for entry in file_games(config.model_copy(update={"num_units": 1}), unit=0, report=report.source):
        if isinstance(entry, Rejection):
            report.source.reject(entry)
            on_rejection(entry)
        else:
            _count(entry, report)
        if report.num_entries % _PROGRESS_GAMES == 0:
            say(f"{report.num_entries:,} games, {report.num_entries / (time.perf_counter() - start):,.0f}/s")
    report.seconds = time.perf_counter() - start
    return report


def _count(game: Game, report: FilesReport) -> None:
    report.source.num_games += 1
    report.source.natural_phases.update(phase_of(board) for board in game.boards)
    report.results[game.result] += 1
    report.plies.append(len(game.moves))
    known = [rating for rating in (game.white_rating, game.black_rating) if rating is not None]
    report.ratings += known
    report.num_unrated += 2 - len(known)


def files_text(report: FilesReport) -> str:
    """Format the counts of `inspect_files`."""
    source = report.source
    lines = [
        f"games and positions  {report.num_entries:,}: {source.num_games:,} usable + {sum(source.rejected.values()):,} rejected"
        f" ({report.num_entries / max(report.seconds, 1e-9):,.0f}/s)",
        *_counts("rejected", source.rejected),
        *_counts("positions left out", source.left_out),
        *_counts("positions by phase", {phase.value: source.natural_phases[phase] for phase in PHASES}),
        *_counts("results", report.results),
    ]
    if len(source.files) > 1:
        rows = [(name, f"{each.games:,}", f"{each.rejected:,}") for name, each in sorted(source.files.items())[:_MAX_FILES]]
        lines.append(text_table([("file", "usable", "rejected"), *rows], indent="  "))
        lines += [f"  and {len(source.files) - _MAX_FILES:,} more files"] if len(source.files) > _MAX_FILES else []
    if source.num_games:
        lines.append(f"plies per game       {_spread(report.plies)}")
        lines.append(f"ratings              {_spread(report.ratings)}; {report.num_unrated:,} players without one")
    return "\n".join(lines)


def dataset_text(folder: Path, *, num_examples: int) -> str:
    """Return a summary of a dataset's folder, with some boards printed.

    Raises OSError when there is no dataset.
    """
    boards = read_boards(folder)
    facts: Mapping[str, Any] = read_json(folder / REPORT)
    natural = facts["natural_phases"]
    cells = Counter(zip(boards["split"].to_pylist(), boards["phase"].to_pylist(), strict=True))
    lines = [
        f"boards               {boards.num_rows:,} from {facts['used_games']:,} games",
        f"  {'':12}{''.join(f'{phase:>12}' for phase in PHASES)}",
        *(f"  {split:12}{''.join(f'{cells[split, phase]:12,}' for phase in PHASES)}" for split in Split),
        f"  {'in the source':12}{''.join(f'{natural[phase]:12,}' for phase in PHASES)}",
        *_counts("sources", facts["sources"]),
        *_file_lines(facts),
        *_counts("labels from", facts["labels"]),
        *_counts("missing", facts["missing"]),
        *_counts("games rejected", facts["rejected"]),
        *_counts("positions left out", facts["left_out"] | {"duplicate": facts["duplicates"]}),
        f"ratings              {_spread(_ratings(boards))}",
        f"endgame material     {facts['endgame_signatures']['distinct']:,} kinds",
        *_counts("  commonest", dict(list(facts["endgame_signatures"]["commonest"].items())[:5])),
        f"values by            {', '.join(pc.unique(boards['engine']).to_pylist())}, {', '.join(pc.unique(boards['limit']).to_pylist())},"
        f" {', '.join(pc.unique(boards['transform']).to_pylist())}",
    ]
    return "\n".join(lines + [text for row in _examples(boards, num_examples) for text in ("", _drawn(row))])


def _file_lines(facts: Mapping[str, Any]) -> Iterable[str]:
    if rows := file_rows(facts, most=_MAX_FILES):
        yield text_table([FILE_HEADERS, *rows], indent="  ")


def _ratings(boards: pa.Table) -> list[int]:
    games = boards.group_by("game_id").aggregate([("white_rating", "max"), ("black_rating", "max")])
    return [rating for side in ("white", "black") for rating in games[f"{side}_rating_max"].to_pylist() if rating is not None]


def _examples(boards: pa.Table, count: int) -> list[dict[str, Any]]:
    """Return some rows of all phases in turn: those with the smallest keys, which is an arbitrary but fixed choice."""
    rows: list[dict[str, Any]] = []
    for index in range(count):
        of_phase = boards.filter(pc.equal(boards["phase"], PHASES[index % len(PHASES)].value)).sort_by("key")
        place = index // len(PHASES)
        rows += of_phase.slice(place, 1).to_pylist()
    return rows


def _drawn(row: Mapping[str, Any]) -> str:
    board = chess.Board(row["fen"])
    assert position_key(board) == row["key"]
    best = sorted(zip(row["values"], row["moves"], strict=True), reverse=True)[:_NUM_MOVES_SHOWN]
    moves = ", ".join(f"{board.san(chess.Move.from_uci(move))} {value:.3f}" for value, move in best)
    return (
        f"{row['phase']}, {row['split']}, {row['source']} at {row['offset']:,}, ply {row['ply']}\n{board.unicode(empty_square='·')}\n"
        f"{row['fen']}\nlabel {board.san(chess.Move.from_uci(row['label']))} (from the {row['label_from']}); best by value: {moves}"
    )


def _counts(title: str, counts: Mapping[str, int]) -> Iterable[str]:
    shown = {name: count for name, count in sorted(counts.items(), key=lambda item: -item[1]) if count}
    if shown:
        yield f"{title:20} {', '.join(f'{name} {count:,}' for name, count in shown.items())}"


def _spread(numbers: Sequence[int]) -> str:
    return f"{min(numbers):,} to {max(numbers):,}, median {median(numbers):,.0f}" if numbers else "none"
