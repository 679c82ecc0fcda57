"""A dataset as a folder that `datasets.load_dataset` and pandas read: one Parquet file a split, and a card."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grpo.base.files import file_hashes, read_json
from grpo.dataset.file_reports import FILE_HEADERS, file_rows
from grpo.dataset.table import Split
from steps.export.hub import OTHER_LICENCE, OWN_LICENCE, front_matter, licence_facts
from steps.step_io.dataset import read_boards, read_game_table
from steps.step_io.names import HUB_CARD, REPORT
from steps.step_io.results_text import escaped, markdown_list, markdown_table

SPLITS: Final = {Split.TRAIN: "train", Split.VALIDATION: "validation", Split.HELDOUT: "test"}
"""Split -> its usual name elsewhere."""
_MAX_FILES: Final = 1_000
_TITLE: Final = "Chess positions with the value of every legal move"
_SIZES: Final = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))
_COLUMNS: Final = {
    "fen": "the position, with both clocks",
    "moves": "its legal moves in UCI; `values`, `centipawns`, `mate_in`, `expected` and `strong_values` are parallel lists",
    "values": "value of each move for the player to move, a win probability in [0, 1]: the reward",
    "centipawns, mate_in": "the engine's score of each move; one of the two is null",
    "strong_values": "values by a deeper search, in the split `test` only",
    "label": "the move to imitate: the move played (`label_from` is `game`) or the best by value (`engine`)",
    "phase": "opening, middlegame or endgame",
    "game_id, ply, source, offset": "the game (all its boards are in one split), the half-move, the file and the byte in it",
    "white_rating, black_rating, date": "of the game, where its tags give them",
    "key": "equal for positions that differ only in clocks or are each other's color mirror; none is there twice",
    "engine, limit, transform": "how `values` were computed",
}


def export_dataset(dataset: Path, folder: Path, *, licence: str | None = None) -> dict[str, int]:
    """Write a dataset's boards (`data/`) and games (`games/`), a file a split, and a card; return split -> boards.

    The card states this licence; without one, the project's own for engine games, and `other` for games from files.
    """
    boards, games = read_boards(dataset), read_game_table(dataset)
    counts = {name: _write(boards, split, folder / "data" / f"{name}.parquet") for split, name in SPLITS.items()}
    games_of = {name: _write(games, split, folder / "games" / f"{name}.parquet") for split, name in SPLITS.items()}
    configs = {"boards": ("data", counts), "games": ("games", games_of)}
    facts = read_json(dataset / REPORT)
    stated = licence or (OTHER_LICENCE if facts.get("files") else OWN_LICENCE)
    (folder / HUB_CARD).write_text(_card(facts, boards, counts, configs, licence=stated), encoding="utf-8")
    return counts


def is_export_of(dataset: Path, folder: Path) -> bool:
    """Return whether a folder has what `export_dataset` writes of this dataset, except that its card may be edited."""
    with tempfile.TemporaryDirectory() as made:
        export_dataset(dataset, Path(made))
        wanted, found = file_hashes(Path(made)), file_hashes(folder)
    return found.pop(HUB_CARD, "") != "" and found == {name: digest for name, digest in wanted.items() if name != HUB_CARD}


def _write(table: pa.Table, split: Split, path: Path) -> int:
    rows = table.filter(pc.equal(table["split"], split.value)).drop_columns(["split"])
    if rows.num_rows:  # `load_dataset` reads no file without rows.
        path.parent.mkdir(exist_ok=True)
        pq.write_table(rows, path)
    return len(rows)


def _card(
    facts: Mapping[str, Any],
    boards: pa.Table,
    counts: Mapping[str, int],
    configs: Mapping[str, tuple[str, Mapping[str, int]]],
    *,
    licence: str,
) -> str:
    size = next((words for limit, words in _SIZES if boards.num_rows < limit), "n>10M")
    listed = [
        {"config_name": config}
        | ({"default": True} if config == "boards" else {})
        | {"data_files": [{"split": split, "path": f"{folder}/{split}.parquet"} for split, count in of_splits.items() if count]}
        for config, (folder, of_splits) in configs.items()
        if any(of_splits.values())
    ]
    metadata = {
        "pretty_name": _TITLE,
        **licence_facts(licence),
        "tags": ["chess", "reinforcement-learning", "grpo"],
        "size_categories": [size],
        "configs": listed,
    }
    values = ", ".join(sorted({f"{each['engine']}, {each['limit']}, {each['transform']}" for each in _values_by(boards)}))
    files = file_rows(facts, most=_MAX_FILES)
    table = f"\n{markdown_table(FILE_HEADERS, files)}\n" if files else ""
    made = [f"{source}: {count:,} boards" for source, count in sorted(facts["sources"].items()) if source not in facts.get("files", {})]
    rights = (
        "The boards of files are under their publishers' licences; the database of Lichess, if it is that, is CC0."
        if files
        else "All games were played by the engine for this dataset: no third party has rights in them."
    )
    return f"""\
{front_matter(metadata)}# {_TITLE}

{boards.num_rows:,} positions from {facts["used_games"]:,} games ({", ".join(f"{count:,} {split}" for split, count in counts.items())}), a
third each of openings, middlegames and endgames. All boards of one game are in one split, and no position is there twice.
Values by: {escaped(values)}.

```python
from datasets import load_dataset
import pandas

boards = load_dataset("PATH_OR_NAME", "boards", split="train")
games = load_dataset("PATH_OR_NAME", "games", split="train")
frame = pandas.read_parquet("PATH/data/train.parquet")
```

## Columns of the boards

{markdown_list(f"{column}: {meaning}" for column, meaning in _COLUMNS.items())}

The games have all their moves (`moves`, in UCI), and in `label_plies` the plies whose moves may be imitated.

## Sources

{markdown_list(made)}
{table}
{rights}
"""


def _values_by(boards: pa.Table) -> list[dict[str, str]]:
    columns = ["engine", "limit", "transform"]
    rows: list[dict[str, str]] = boards.group_by(columns).aggregate([]).to_pylist()
    return rows
