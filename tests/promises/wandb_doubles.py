"""W&B for tests of the mirror: a server of our own that keeps what a run logs."""

import json
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any, Self

from local_server import LocalServer


class WandbServer:
    """Server with the calls of W&B that a run needs: keeps each run's rows, and answers a resumed run with their number."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        """Id of a run -> what it began with (`group`, `jobType`, `config`, ...), `rows` by number, `summary`, `exit_code`."""
        self.num_again = 0
        """Number of rows that came with a number that an earlier row had."""
        self.is_silent = False
        """Whether it lets all who call wait."""
        self._ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.is_silent:
                    outer._ended.wait()
                answer = outer._streamed(self.path.split("/")[4], body) if self.path.endswith("/file_stream") else outer._asked(body)
                content = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = LocalServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        given, query = body.get("variables") or {}, body["query"]
        project = {"id": "p", "name": given.get("project"), "entity": {"id": "e", "name": "somebody"}}
        if "RunResumeStatus" in query:
            return {"data": {"model": {**project, "bucket": self._known(given["name"])}}}
        if "upsertBucket" in query:
            run = self.runs.setdefault(given["name"], {"rows": {}})
            run.update({name: value for name, value in given.items() if value is not None})
            bucket = {"id": "r", "name": given["name"], "displayName": run["displayName"], "project": project, "historyLineCount": 0}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.address}/uploads/{name}"} for name in given["files"]]
            return {"data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def _known(self, run: str) -> dict[str, Any] | None:
        if run not in self.runs:
            return None
        rows = self.runs[run]["rows"]
        tail = json.dumps([json.dumps(rows[max(rows)])] if rows else [])
        kept = {"summaryMetrics": json.dumps(self.runs[run].get("summary", {})), "config": self.runs[run]["config"]}
        known = {"id": "r", "name": run, "displayName": "", "tags": [], "wandbConfig": '{"t": 1}', **kept}
        return known | {"historyTail": tail, "historyLineCount": len(rows), "eventsTail": "[]", "eventsLineCount": 0, "logLineCount": 0}

    def _streamed(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        run, files = self.runs[name], body.get("files") or {}
        history = files.get("wandb-history.jsonl", {"offset": 0, "content": []})
        for number, line in enumerate(history["content"], start=history["offset"]):
            self.num_again += number in run["rows"]
            run["rows"][number] = json.loads(line)
        for line in files.get("wandb-summary.json", {"content": []})["content"]:
            run["summary"] = json.loads(line)
        if body.get("complete"):
            run["exit_code"] = body["exitcode"]
        return {}
