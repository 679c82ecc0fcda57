"""What is posted while people are away, and that no server holds a step up or learns a secret."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo.metrics.table import Event
from steps.runtime import notify
from steps.runtime.machine import Machine, MachineError
from steps.runtime.notify import Notice, Notifier

SECRET = "T0/B0/canary-5f0c1e7a"


class Webhook(ThreadingHTTPServer):
    """Answers by the first word of the path: ok, refuse, redirect; `hang` never answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, str]] = []
        self.is_over = threading.Event()

    def machine(self, manner: str) -> Machine:
        return machine(f"http://127.0.0.1:{self.server_port}/{manner}/{SECRET}")


class Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        manner = self.path.split("/")[1]
        if manner == "hang":
            self.server.is_over.wait()
        self.send_response({"refuse": 404, "redirect": 302}.get(manner, 200))
        self.send_header("Location", "http://127.0.0.1:9/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def machine(url: str) -> Machine:
    return Machine(stockfish="", home=Path(), tracking_uri="", device="cpu", num_threads=1, notify=url)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.is_over.set()
        server.shutdown()


def test_a_post_is_text_that_slack_shows_and_fields_that_programs_read(webhook: Webhook, capsys: pytest.CaptureFixture[str]) -> None:
    notifier = Notifier(webhook.machine("ok"), run="17", step="finetune")
    notifier.post(Notice.VERDICT, "better <by> 5 & more; the store https://me:S3cret@host/db")
    notifier.alarms(40, [Event("entropy_low", "0.4 nats"), Event("recovery_ended", "healthy")])
    notifier.alarms(41, [Event("entropy_low", "0.3 nats")])
    assert webhook.bodies == [
        {
            "text": "chess-grpo run 17, finetune: better &lt;by&gt; 5 &amp; more; the store https://host/db",
            "event": "verdict",
            "run": "17",
            "step": "finetune",
        },
        {"text": "chess-grpo run 17, finetune: step 40: entropy_low: 0.4 nats", "event": "alarm", "run": "17", "step": "finetune"},
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("manner", "why"), [("refuse", "HTTP 404"), ("redirect", "HTTP 302"), ("hang", "no answer within 0.2 s"), ("away", "ConnectionError")]
)
def test_a_server_that_fails_costs_one_bounded_wait_and_a_line_without_the_address(
    manner: str, why: str, webhook: Webhook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if manner == "hang":
        monkeypatch.setattr(notify, "_SECONDS", 0.2)
    there = machine(f"http://127.0.0.1:9/{SECRET}") if manner == "away" else webhook.machine(manner)
    notifier = Notifier(there, run="17", step="finetune")
    for _ in range(3):
        notifier.post(Notice.START, "started")
    assert capsys.readouterr().out == f"finetune: WARNING: CHESS_GRPO_NOTIFY at 127.0.0.1: {why}; this step posts no more\n"
    assert len(webhook.bodies) == (manner != "away")
    assert SECRET not in repr(there)


def test_an_address_of_another_kind_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_NOTIFY", f"ftp://{SECRET}")
    with pytest.raises(MachineError, match="CHESS_GRPO_NOTIFY") as caught:
        Machine.here()
    assert SECRET not in str(caught.value)
