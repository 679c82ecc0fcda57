"""A Hugging Face hub of this machine: it speaks what huggingface_hub needs to publish a folder."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from local_server import served

TOKEN = "hf_a_secret_of_nobody"


@dataclass
class FakeHub:
    """What the hub was sent, and how it is to fail."""

    address: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`models/USER/NAME` -> what its maker asked for."""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """`models/USER/NAME` -> path -> content."""
    refusal: int = 0
    """Status of the answer to everything."""
    breaks_at: str = ""
    """The connection breaks at a request whose path holds this."""

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """Return status and content of an answer."""
        kind, _, rest = path.removeprefix("/api/").partition("/")
        if self.refusal:
            return self.refusal, {"error": "no"}
        if path == "/api/repos/create":
            asked = json.loads(body)
            repository = f"{asked.get('type', 'model')}s/{asked['organization']}/{asked['name']}"
            address = {"url": f"{self.address}/{repository.removeprefix('models/')}"}
            if repository in self.repositories:
                return 409, {"error": "You already created this repository"} | address
            self.repositories[repository] = asked
            return 200, address
        if path == "/api/validate-yaml":
            return 200, {}
        name = f"{kind}/{'/'.join(rest.split('/')[:2])}"
        if "/preupload/" in path:
            files = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in json.loads(body)["files"]]
            return 200, {"files": files}
        if "/commit/" in path:
            rows = [json.loads(line)["value"] for line in body.splitlines() if json.loads(line)["key"] == "file"]
            self.files.setdefault(name, {}).update({row["path"]: base64.b64decode(row["content"]) for row in rows})
            return 200, {"commitUrl": f"{self.address}/{name.removeprefix('models/')}/commit/{'1' * 40}", "commitOid": "1" * 40}
        return 404, {"error": f"nothing at {path}"}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Yield a hub that answers until the end of the block."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # The only method that publishing needs.
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            path = self.path.partition("?")[0]
            if hub.breaks_at and hub.breaks_at in path:
                self.close_connection = True
                return
            is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            status, content = hub.answer(path, body) if is_known else (401, {"error": "Invalid username or password."})
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with served(Handler) as hub.address:
        yield hub
