"""Make the dataset: positions of some units with the value of every legal move, then all units joined and cut to the quotas."""

import gc
import heapq
import json
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TextIO

import chess
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grpo.base.files import read_json, write_json
from grpo.board.phases import PHASES, Phase
from grpo.dataset.engine_games import material_signature
from grpo.dataset.exclusions import ExcludedPositions
from grpo.dataset.quotas import Candidate, Quota, SourceReport, boards_per_cell, cell_names, cut_to_quota, shortage_message
from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA, Position, Split, board_row, board_table, phase_counts
from grpo.dataset.units import fill_unit
from grpo.engine.answers import EngineError
from grpo.engine.cache import ValueCache
from grpo.engine.identity import EngineIdentity
from grpo.engine.move_values import ValueTable, engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.metrics.table import Record
from grpo.reading.games import Rejection, SourceError
from grpo.settings.tree import Settings
from steps.step_io.names import BOARDS, GAMES, REPORT
from steps.step_io.work import Work

REJECTED: Final = "rejected.jsonl"
_ROWS_PER_GROUP: Final = 16_384
_NUM_SIGNATURES_SHOWN: Final = 20


def build_units(
    settings: Settings, units: Sequence[int], engine: EngineIdentity, engine_path: str, work: Work, *, cache_folder: Path | None
) -> None:
    """Write boards with the value of every legal move, their games, and what was left out, for each unit; and a report of all.

    With a cache folder, searches that were made before are not made again, and new ones are kept there.
    """
    # What is imported stays; looking through it again and again took a fifth of this step's own time.
    gc.freeze()
    excluded = ExcludedPositions.read(settings.boards.exclude) if settings.boards.exclude else frozenset[str]()
    options = engine_options(settings.values)
    cache = None if cache_folder is None else ValueCache(cache_folder, engine=engine, options=options)
    total = sum(boards_per_cell(settings.boards).values()) * len(units) // settings.boards.num_units
    # Two engines, because players search one line and values all; they take turns, so that one core is enough.
    players = EnginePool(engine_path, num_processes=1, options={"Hash": settings.values.hash_mib})
    with players, EnginePool(engine_path, num_processes=1, options=options) as pool:
        valuer = _Valuer(settings, engine, pool, cache)

        def progress() -> None:
            work.progress(min(valuer.num_rows, total), total, "boards")

        reports = {
            str(unit): _build_unit(settings, unit, players, valuer, excluded, progress=progress, folder=work.folder) for unit in units
        }
    write_json(work.folder / REPORT, reports)
    if cache is not None:
        counts = {"hits": cache.num_hits, "misses": cache.num_misses, "stored": cache.num_stored, "damaged": cache.num_damaged}
        work.measured(Record(0, {f"cache/{name}": count for name, count in counts.items()}))


def _build_unit(
    settings: Settings,
    unit: int,
    players: EnginePool,
    valuer: "_Valuer",
    excluded: Container[str],
    *,
    progress: Callable[[], None],
    folder: Path,
) -> dict[str, Any]:
    """Write the files of one unit and return the facts of its report."""
    report = SourceReport()
    parts: list[pa.Table] = [board_table([])]

    def value_candidates(candidates: list[Candidate], quota: Quota) -> None:
        parts.append(board_table(valuer.rows(candidates, quota)))
        progress()

    with (folder / f"unit-{unit:04d}.{REJECTED}").open("w", encoding="utf-8") as rejected:
        quota = fill_unit(
            settings.boards,
            unit=unit,
            seed=settings.seed,
            players=players,
            report=report,
            excluded=excluded,
            on_rejection=lambda rejection: write_rejection(rejected, rejection),
            on_candidates=value_candidates,
        )
    pq.write_table(pa.concat_tables(parts), folder / f"unit-{unit:04d}.{BOARDS}")
    pq.write_table(pa.Table.from_pylist(list(quota.games.values()), schema=GAME_SCHEMA), folder / f"unit-{unit:04d}.{GAMES}")
    return report.as_facts()


class _Valuer:
    """Makes rows of candidates, and discards those whose search failed or whose evaluation is outside the window."""

    def __init__(self, settings: Settings, engine: EngineIdentity, pool: EnginePool, cache: ValueCache | None) -> None:
        self._settings, self._engine, self._pool, self._cache = settings, str(engine), pool, cache
        self.num_rows = 0
        """Made so far, over all units."""

    def rows(self, candidates: Sequence[Candidate], quota: Quota) -> list[dict[str, Any]]:
        depth, transform = self._settings.values.depth, self._settings.values.transform
        max_centipawns = self._settings.boards.filters.max_centipawns
        heldout = [candidate for candidate in candidates if candidate.position.split == Split.HELDOUT]
        strong = dict(
            zip(
                [candidate.position.key for candidate in heldout],
                self._tables(heldout, self._settings.evaluation.heldout_depth),
                strict=True,
            )
        )
        rows = []
        for candidate, table in zip(candidates, self._tables(candidates, depth), strict=True):
            deeper = strong.get(candidate.position.key)
            if isinstance(table, EngineError) or isinstance(deeper, EngineError):
                quota.discard(candidate, "engine failure")
            elif max_centipawns is not None and _is_more_uneven(table, max_centipawns):
                quota.discard(candidate, "max_centipawns")
            else:
                rows.append(board_row(candidate.position, table, deeper, engine=self._engine, limit=f"depth {depth}", transform=transform))
        self.num_rows += len(rows)
        return rows

    def _tables(self, candidates: Sequence[Candidate], depth: int) -> Iterator[ValueTable | EngineError]:
        boards = [candidate.board for candidate in candidates]
        fens = [candidate.mover_fen for candidate in candidates]
        return value_tables(boards, self._pool, self._settings.values, depth=depth, cache=self._cache, mover_fens=fens)


def _is_more_uneven(table: ValueTable, max_centipawns: int) -> bool:
    best = table.scores[int(table.values.argmax())]
    return best.is_mate or abs(best.value) > max_centipawns


def write_rejection(file: TextIO, rejection: Rejection) -> None:
    """Write a rejection as a line of JSON."""
    file.write(json.dumps(asdict(rejection), sort_keys=True, ensure_ascii=False) + "\n")


def join_units(settings: Settings, folders: Sequence[Path], work: Work) -> None:
    """Write all units as one table with exactly the boards that were asked for, their games, and a report that accounts for the rest.

    Raises SourceError when boards are missing and the settings do not accept it, or when there are none of some split and phase.
    """
    boards = _concatenated(folders, BOARDS, BOARD_SCHEMA)
    wanted = boards_per_cell(settings.boards)
    kept, num_joined_duplicates, missing = cut_to_quota(
        _positions(boards), wanted, max_per_game_and_phase=settings.boards.max_per_game_and_phase
    )
    report = SourceReport.joined([unit for folder in folders for unit in read_json(folder / REPORT).values()])
    report.num_duplicates += num_joined_duplicates
    what = f"{', '.join(settings.boards.files)}" if settings.boards.source == "files" else "engine games"
    if any(missing.values()) and settings.boards.shortage != "accept":
        if not report.num_games:
            raise SourceError(_nothing_usable(what, report))
        raise SourceError(shortage_message(missing, report, what))
    if empty := [cell for cell, count in missing.items() if count == wanted[cell]]:
        raise SourceError(shortage_message({cell: missing[cell] for cell in empty}, report, what))
    boards = boards.take(kept)
    games = _concatenated(folders, GAMES, GAME_SCHEMA)
    games = games.filter(pc.is_in(games["game_id"], pc.unique(boards["game_id"])))
    # A game met in several units, under other texts, is one game.
    first = {game_id: index for index, game_id in reversed(list(enumerate(games["game_id"].to_pylist())))}
    games = games.take(sorted(first.values()))
    pq.write_table(boards, work.folder / BOARDS, row_group_size=_ROWS_PER_GROUP)
    pq.write_table(games, work.folder / GAMES)
    num_rejected = _join_rejected(folders, work.folder / REJECTED)
    facts = report.as_facts() | _dataset_facts(boards, games) | {"missing": cell_names(missing), "rejected_lines": num_rejected}
    write_json(work.folder / REPORT, facts)
    work.record(
        Record(
            0,
            {
                "boards/games": facts["games"],
                "boards/rejected_games": sum(facts["rejected"].values()),
                "boards/duplicates": facts["duplicates"],
                "boards/dropped": facts["left_out"].get("engine failure", 0),
                "boards/left_out": sum(facts["left_out"].values()),
                "boards/missing": sum(missing.values()),
                "boards/rows": facts["rows"],
                "boards/endgame_signatures": facts["endgame_signatures"]["distinct"],
                **{f"boards/natural/{phase}": facts["natural_phases"][phase] for phase in PHASES},
                **{f"boards/kept/{phase}": facts["phases"][phase] for phase in PHASES},
            },
        )
    )


def _nothing_usable(what: str, report: SourceReport) -> str:
    why = ", ".join(f"{count:,} {reason}" for reason, count in sorted(report.rejected.items())) or "it holds none at all"
    return f"{what}: no usable game or position ({why}); give PGN files of standard chess, or lists of positions"


def _dataset_facts(boards: pa.Table, games: pa.Table) -> dict[str, Any]:
    phases = boards["phase"].to_pylist()
    endgames = [fen for fen, phase in zip(boards["fen"].to_pylist(), phases, strict=True) if phase == Phase.ENDGAME]
    signatures = Counter(material_signature(chess.Board(fen)) for fen in endgames)
    return {
        "rows": boards.num_rows,
        "phases": phase_counts(phases),
        "splits": dict(sorted(Counter(boards["split"].to_pylist()).items())),
        "sources": dict(sorted(Counter(boards["source"].to_pylist()).items())),
        "labels": dict(sorted(Counter(boards["label_from"].to_pylist()).items())),
        "used_games": games.num_rows,
        "endgame_signatures": {"distinct": len(signatures), "commonest": dict(signatures.most_common(_NUM_SIGNATURES_SHOWN))},
    }


def _join_rejected(folders: Sequence[Path], target: Path) -> int:
    """Write all rejections by file and offset, and return how many there are; each unit's are in that order already."""
    paths = sorted((path for folder in folders for path in folder.glob(f"unit-*.{REJECTED}")), key=lambda path: path.name)

    def place(line: str) -> tuple[str, int]:
        rejection = json.loads(line)
        return rejection["source"], rejection["offset"]

    num_lines = 0
    with ExitStack() as stack, target.open("w", encoding="utf-8") as joined:
        for line in heapq.merge(*(stack.enter_context(path.open(encoding="utf-8")) for path in paths), key=place):
            joined.write(line)
            num_lines += 1
    return num_lines


def _concatenated(folders: Sequence[Path], name: str, schema: pa.Schema) -> pa.Table:
    paths = sorted((path for folder in folders for path in folder.glob(f"unit-*.{name}")), key=lambda path: path.name)
    return pa.concat_tables([pq.read_table(path, schema=schema) for path in paths])


def read_boards(folder: Path) -> pa.Table:
    """Return the joined table of boards."""
    return pq.read_table(folder / BOARDS, schema=BOARD_SCHEMA)


def read_game_table(folder: Path) -> pa.Table:
    """Return the joined table of games."""
    return pq.read_table(folder / GAMES, schema=GAME_SCHEMA)


def board_keys(folder: Path) -> set[str]:
    """Return the keys of all boards: no opening of a match may be one of them."""
    return set(pq.read_table(folder / BOARDS, columns=["key"])["key"].to_pylist())


def _positions(table: pa.Table) -> list[Position]:
    rows = table.select(list(Position.__slots__)).to_pylist()
    return [Position(**{**row, "phase": Phase(row["phase"]), "split": Split(row["split"])}) for row in rows]
