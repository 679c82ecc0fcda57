"""An in-memory stand-in for Metaflow's metadata service, which stores its data in PostgreSQL."""

import itertools
import re
import time
from typing import Any, Final

from infra.batch_standin.json_server import Answer

_VERSION: Final = {"METADATA_SERVICE_VERSION": "2.3.6"}
_Row = dict[str, Any]


class MetadataService:
    """Flows, their runs, steps and tasks, with what is said of tasks; forgotten when the process ends."""

    def __init__(self) -> None:
        # Metaflow writes the other nodes' commands by replacing the task's number wherever it occurs, even in the package's hash.
        self._numbers = itertools.count(1_000_000_001)
        self._rows: dict[str, _Row] = {}
        """By path: /flows/F/runs/R/steps/S/tasks/T."""
        self._said: dict[tuple[str, str], list[_Row]] = {}
        """By a task's path and one of metadata and artifacts."""

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """Answer one request."""
        path = path.partition("?")[0].rstrip("/")
        if path == "/ping":
            return Answer("pong", headers=_VERSION)
        if path.endswith("/heartbeat"):
            return Answer({"wait_time_in_seconds": 10}, headers=_VERSION)
        if method == "PATCH" and path.endswith("/tag/mutate"):
            return self._retag(path.removesuffix("/tag/mutate"), body)
        if method == "POST":
            return self._post(path, body)
        return self._get(path)

    def _post(self, path: str, body: Any) -> Answer:
        parent, _, kind = path.rpartition("/")
        if kind in ("metadata", "artifact"):
            key = "artifacts" if kind == "artifact" else kind
            rows = [{"ts_epoch": int(time.time() * 1000), "id": next(self._numbers), **row} for row in body]
            self._said.setdefault((parent, key), []).extend(rows)
            return Answer({"num_rows": len(rows)}, headers=_VERSION)
        row: _Row = {"ts_epoch": int(time.time() * 1000), "tags": [], "system_tags": [], **body}
        if kind == "run":
            row["run_number"] = row.get("run_number") or next(self._numbers)
            path = f"{parent}/runs/{row['run_number']}"
        elif kind == "step":
            path = parent
        elif kind == "task":
            row["task_id"] = row.get("task_id") or next(self._numbers)
            path = f"{parent}/tasks/{row['task_id']}"
        if path in self._rows:
            return Answer({"message": f"{path} is there already"}, 409, _VERSION)
        self._rows[path] = row
        return Answer(row, headers=_VERSION)

    def _get(self, path: str) -> Answer:
        if path in self._rows:
            return Answer(self._rows[path], headers=_VERSION)
        parent, _, kind = path.rpartition("/")
        if parent in self._rows and kind in ("metadata", "artifacts"):
            rows = self._said.get((parent, kind), [])
            return Answer(_latest(rows) if kind == "artifacts" else rows, headers=_VERSION)
        if found := re.fullmatch(r"(.*/tasks/[^/]+)/attempt/(\d+)/artifacts", path):
            return Answer(_latest(self._artifacts(found[1], int(found[2]))), headers=_VERSION)
        if found := re.fullmatch(r"(.*/tasks/[^/]+)/artifacts/([^/]+)(?:/attempt/(\d+))?", path):
            attempt = None if found[3] is None else int(found[3])
            named = [row for row in _latest(self._artifacts(found[1], attempt)) if row["name"] == found[2]]
            return Answer(named[0], headers=_VERSION) if named else _missing(path)
        if kind == "filtered_tasks":
            return _missing(path)
        if kind in ("flows", "runs", "steps", "tasks") and (not parent or parent in self._rows):
            return Answer([row for key, row in self._rows.items() if key.rpartition("/")[0] == path], headers=_VERSION)
        return _missing(path)

    def _artifacts(self, task: str, attempt: int | None) -> list[_Row]:
        rows = self._said.get((task, "artifacts"), [])
        return [row for row in rows if attempt is None or row["attempt_id"] == attempt]

    def _retag(self, path: str, body: Any) -> Answer:
        if path not in self._rows:
            return _missing(path)
        row = self._rows[path]
        row["tags"] = sorted((set(row["tags"]) | set(body["tags_to_add"])) - set(body["tags_to_remove"]))
        return Answer({"tags": row["tags"]}, headers=_VERSION)


def _latest(rows: list[_Row]) -> list[_Row]:
    """Return the artifacts of the last attempt that has any."""
    last = max((row["attempt_id"] for row in rows), default=None)
    return [row for row in rows if row["attempt_id"] == last]


def _missing(path: str) -> Answer:
    return Answer({"message": f"{path}: not found"}, 404, _VERSION)
