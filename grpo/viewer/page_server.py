"""Serves the page on which a person plays a policy, on this machine only."""

import json
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from grpo.viewer.human_game import HumanGame, MoveError
from grpo.viewer.page import offline_page

_LOOPBACK: Final = "127.0.0.1"
_MAX_BODY: Final = 1_000  # Bytes of a request.
_HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


class PlayServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, new_game: Callable[[bool | None], HumanGame], *, on_finished: Callable[[HumanGame], str], port: int = 0) -> None:
        """Listen on the loopback address; port 0 is a free port. Raises OSError for a taken port.

        `new_game` gets the person's color: White (True), Black (False) or either (None). `on_finished` gets a finished game and returns an
        error, or "".
        """
        super().__init__((_LOOPBACK, port), _Handler)
        self._new_game, self._on_finished = new_game, on_finished
        self._num_actions, self._unsaved = 0, ""
        self.game = new_game(None)
        self._count_action()
        self.lock = threading.Lock()  # A browser opens several connections, each with a thread.
        self.token = secrets.token_urlsafe(16)
        self.hosts = {f"{name}:{self.server_port}" for name in (_LOOPBACK, "localhost")}

    @property
    def address(self) -> str:
        """URL with the token that every request needs."""
        return f"http://{_LOOPBACK}:{self.server_port}/{self.token}/"

    def facts(self) -> dict[str, Any]:
        """Return the page's data. The caller holds `lock`."""
        return self.game.facts() | {"numActions": self._num_actions, "error": self._unsaved}

    def act(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Do an action and return `facts`. The caller holds `lock`. Raises MoveError.

        `wanted["do"]` is `move` (with `uci`), `undo`, `resign`, `hint`, or `new` (with `color`). Nothing is done if another page
        has acted since `wanted["numActions"]`.
        """
        if wanted.get("numActions") != self._num_actions:
            return self.facts() | {"error": "This page was old, so nothing was done. Now it shows the game."}
        game = self.game
        match wanted.get("do"):
            case "hint" if "hint" not in game.actions:
                raise MoveError("there is no hint: the game is over, or the policy gives no probabilities")
            case "move":
                game.play(str(wanted.get("uci")))
            case "undo":
                game.undo()
            case "resign":
                game.resign()
            case "hint":
                return self.facts() | {"hints": game.hints()}
            case "new":
                self.game = self._new_game({"white": True, "black": False}.get(str(wanted.get("color"))))
            case other:
                raise MoveError(f"there is no action {other!r}")
        self._count_action()
        return self.facts()

    def _count_action(self) -> None:
        self._num_actions += 1
        self._unsaved = self._on_finished(self.game) if self.game.end else ""


class _Handler(BaseHTTPRequestHandler):
    server: PlayServer
    timeout = 30.0  # Seconds until an idle connection is closed.

    def do_GET(self) -> None:
        if self._is_allowed(""):
            with self.server.lock:
                page = offline_page("play.html", title="Play", data=self.server.facts())
            self._reply(HTTPStatus.OK, "text/html; charset=utf-8", page)

    def do_POST(self) -> None:
        if self._is_allowed("act"):
            try:
                size = int(self.headers["Content-Length"])
                if not 0 <= size <= _MAX_BODY:  # A negative size would read without a limit.
                    raise MoveError(f"not an action: {size} bytes")
                wanted = json.loads(self.rfile.read(size))
                if not isinstance(wanted, dict):
                    raise MoveError("not an action")
                with self.server.lock:
                    facts = self.server.act(wanted)
            except (ValueError, TypeError, RecursionError) as error:  # MoveError is a ValueError.
                self._reply(HTTPStatus.BAD_REQUEST, "application/json", json.dumps({"error": str(error)}))
            else:
                self._reply(HTTPStatus.OK, "application/json", json.dumps(facts))

    def _is_allowed(self, path: str) -> bool:
        """Check token, host, origin (if sent), and a POST's content type. Reply 404 if one is wrong."""
        # A foreign host name can be made to resolve to 127.0.0.1 (DNS rebinding).
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        is_right_path = secrets.compare_digest(self.path.encode(), f"/{self.server.token}/{path}".encode())
        is_ours = host in self.server.hosts and (origin is None or origin == f"http://{host}")
        is_json = self.command == "GET" or self.headers.get("Content-Type") == "application/json"
        is_allowed = is_right_path and is_ours and is_json
        if not is_allowed:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", "not here")
        return is_allowed

    def _reply(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: the terminal belongs to the player."""
