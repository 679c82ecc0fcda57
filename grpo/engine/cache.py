"""On-disk cache of engine scores, keyed by engine, options, limit and full position; shared by runs, safe for concurrent writers.

There is one sqlite file per engine and set of options; the key is limit and FEN. Only complete answers are stored, each with a checksum;
a damaged row is a miss. Raw engine scores are stored, so that another transform needs no new search. The cache never changes a result: if
it cannot be read or written (full, read-only, locked), it warns and everything is a miss.
"""

import hashlib
import sqlite3
import struct
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

import chess

from grpo.base.files import sha256_json
from grpo.board.actions import ACTION_UCI, ID_OF_UCI, NUM_ACTIONS
from grpo.engine.answers import Score
from grpo.engine.identity import EngineIdentity

_FORMAT: Final = 1  # Hashed into the file's name, so that another layout is another file.
_BUSY_SECONDS: Final = 60.0
_SCORE: Final = struct.Struct("<hi?h")  # Action id, value, whether it is a mate, expected score in units.
_NO_EXPECTED: Final = -1
_EXPECTED_UNITS: Final = 2_000  # Engines report wins and draws per mille, so wins plus half the draws is a multiple of 1/2000.
_Result = TypeVar("_Result")


class ValueCache:
    """The cached answers of one engine under one set of options."""

    def __init__(self, folder: Path, *, engine: EngineIdentity, options: Mapping[str, str | int]) -> None:
        """Open or create the file of this engine and these options in `folder`; a damaged file is renamed and replaced."""
        identity = {"format": _FORMAT, "engine": str(engine), "sha256": engine.sha256, "options": dict(options)}
        self.path = folder / f"values-{sha256_json(identity)[:24]}.sqlite"
        self.num_hits = self.num_misses = self.num_stored = self.num_damaged = 0
        self._prefix = sha256_json(identity).encode()
        self._has_warned = False
        with suppress(OSError):  # sqlite then fails to open the file, and `_use` warns.
            folder.mkdir(parents=True, exist_ok=True)
        self._use(_make_table)

    def get(self, limit: str, fens: Iterable[str]) -> dict[str, dict[str, Score]]:
        """Return FEN -> (UCI move -> score) of the positions that are cached under this limit."""
        distinct_fens = list(dict.fromkeys(fens))
        rows = self._use(lambda connection: _rows(connection, limit, distinct_fens)) or {}
        found: dict[str, dict[str, Score]] = {}
        for fen, (scores, checksum) in rows.items():
            if isinstance(scores, bytes) and checksum == self._checksum(limit, fen, scores):
                found[fen] = _unpacked(scores)
            else:
                self.num_damaged += 1
        self.num_hits += len(found)
        self.num_misses += len(distinct_fens) - len(found)
        return found

    def put(self, limit: str, answers: Mapping[str, Mapping[str, Score]]) -> None:
        """Store the scores of complete answers, by FEN, in one transaction."""
        if not answers:
            return
        packed = {fen: _packed(scores) for fen, scores in answers.items()}
        rows = [(fen, limit, scores, self._checksum(limit, fen, scores)) for fen, scores in packed.items()]

        def insert(connection: sqlite3.Connection) -> int:
            return connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows).rowcount

        self.num_stored += self._use(insert) or 0

    def __len__(self) -> int:
        return self._use(lambda connection: int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])) or 0

    def _use(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result | None:
        """Return the result of `work` in a transaction, or None if sqlite fails; a damaged file is renamed and replaced first."""
        for _ in range(2):
            try:
                with closing(self._connect()) as connection, connection:
                    return work(connection)
            except sqlite3.OperationalError as error:  # Locked, read-only or full: the file itself may be intact.
                self._warn(error)
                return None
            except sqlite3.DatabaseError:
                self.num_damaged += 1
                try:
                    self.path.replace(self.path.with_suffix(".damaged"))
                    with closing(self._connect()) as connection, connection:
                        _make_table(connection)
                except (OSError, sqlite3.Error) as error:
                    self._warn(error)
                    return None
        return None

    def _connect(self) -> sqlite3.Connection:
        # After one timeout, later batches do not wait for the lock again.
        return sqlite3.connect(self.path, timeout=0 if self._has_warned else _BUSY_SECONDS)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            warnings.warn(f"{self.path}: {error}; continuing without this cache", RuntimeWarning, stacklevel=4)
        self._has_warned = True

    def _checksum(self, limit: str, fen: str, scores: bytes) -> bytes:
        return hashlib.blake2b(b"\n".join((self._prefix, limit.encode(), fen.encode(), scores)), digest_size=8).digest()


def _make_table(connection: sqlite3.Connection) -> None:
    # A rollback journal, not WAL: it works on any file system, and a batch is one transaction.
    connection.execute(
        "CREATE TABLE IF NOT EXISTS answers"
        " (position TEXT, search TEXT, scores BLOB, checksum BLOB, PRIMARY KEY (position, search)) WITHOUT ROWID"
    )


def _rows(connection: sqlite3.Connection, limit: str, fens: Sequence[str]) -> dict[str, tuple[object, object]]:
    """Return FEN -> packed scores and their checksum, of the cached positions."""
    query = "SELECT scores, checksum FROM answers WHERE position = ? AND search = ?"
    rows = {fen: connection.execute(query, (fen, limit)).fetchone() for fen in fens}
    return {fen: row for fen, row in rows.items() if row is not None}


def _packed(scores: Mapping[str, Score]) -> bytes:
    ids = ID_OF_UCI[chess.WHITE]
    return b"".join(
        _SCORE.pack(ids[move], value, is_mate, _NO_EXPECTED if expected is None else round(expected * _EXPECTED_UNITS))
        for move, (value, is_mate, expected) in scores.items()
    )


def _unpacked(data: bytes) -> dict[str, Score]:
    uci = ACTION_UCI[chess.WHITE]
    return {
        uci[action]: Score(value, is_mate, None if expected == _NO_EXPECTED else expected / _EXPECTED_UNITS)
        for action, value, is_mate, expected in _SCORE.iter_unpack(data)
    }


assert NUM_ACTIONS < 1 << 15, "action ids do not fit the cache's format"
