"""Artifacts of an embedded tracking store whose home was copied or moved: MLflow stores their places as absolute paths."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from steps.runtime.machine import Machine, sqlite_file
from steps.tracking.tags import NOTE

_FOLDER: Final = "mlartifacts"
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "runs": ("artifact_uri",),
    "experiments": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
    "logged_models": ("artifact_location",),
}
"""Table of MLflow's SQLite store -> columns with the place of artifacts."""
_BACKUP: Final = ".before-repair"


def homes_elsewhere(machine: Machine) -> dict[Path, int]:
    """Return the folders, other than this home, where the store looks for artifacts that this home has, each with its number of runs."""
    file = sqlite_file(machine.tracking_uri)
    if file is None or not file.is_file():
        return {}
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as store:
            return dict(Counter(home for run, home in _runs(store) if home != machine.home and (machine.home / _FOLDER / run).is_dir()))
    except sqlite3.DatabaseError:  # No store of MLflow's; the preflight's check `tracking` says so.
        return {}


def repair(machine: Machine) -> Path:
    """Let the store look for artifacts in this home, and its pages name it, in one transaction; return the copy of the store before that.

    Nothing may be writing to the store. Raises sqlite3.OperationalError when another process holds it.
    """
    file = sqlite_file(machine.tracking_uri)
    assert file is not None, "only an embedded store is repaired"
    backup = file.with_name(f"{file.name}{_BACKUP}")
    with closing(sqlite3.connect(file)) as store:
        with closing(sqlite3.connect(backup)) as copy:
            store.backup(copy)
        old_homes = homes_elsewhere(machine)
        with store:
            for table, columns in _PLACES.items():
                for column in columns:
                    for old in old_homes:
                        start, new = f"{old.as_uri()}/{_FOLDER}", f"{machine.home.as_uri()}/{_FOLDER}"
                        # Table and column are the constants above; SQLite takes no parameters for them.
                        change = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {column} = ? OR {column} LIKE ? ESCAPE '\\'"  # noqa: S608
                        store.execute(change, (new, len(start) + 1, start, f"{_escaped(start)}/%"))
            for old in old_homes:
                # Where champion, report and boards are, as the pages of the runs tell it.
                texts = (f"{old}/", f"{machine.home}/")
                store.execute("UPDATE tags SET value = replace(value, ?, ?) WHERE key = ?", (*texts, NOTE))
                sources = (f"{old.as_uri()}/", f"{machine.home.as_uri()}/")
                store.execute("UPDATE datasets SET dataset_source = replace(dataset_source, ?, ?)", sources)
    return backup


def _runs(store: sqlite3.Connection) -> Iterator[tuple[str, Path]]:
    """Yield each run whose artifacts are files, and the home that they are in."""
    for run, place in store.execute("SELECT run_uuid, artifact_uri FROM runs"):
        home, found, _ = str(place).partition(f"/{_FOLDER}/")
        if found and home.startswith("file://"):
            yield str(run), Path(unquote(urlsplit(home).path))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
