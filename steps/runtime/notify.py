"""Posts the start, alarms, stop and verdict of a run to a webhook (Slack, Mattermost, an own server), for people who are away."""

import threading
from collections.abc import Iterable
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from grpo.metrics.table import ALARMS, Event
from steps.runtime.machine import NOTIFY, Machine, without_secrets

_SECONDS: Final = 5.0
"""How long a post may hold up a step, name resolution included."""
_MAX_LENGTH: Final = 1_500


class Notice(StrEnum):
    """What is posted."""

    START = "start"
    ALARM = "alarm"
    STOP = "stop"
    VERDICT = "verdict"


class Notifier:
    """Posts for one step of one run; does nothing without CHESS_GRPO_NOTIFY, and nothing more once a post has failed."""

    def __init__(self, machine: Machine, *, run: str, step: str) -> None:
        """Take the address from the machine; `run` is Metaflow's id."""
        self._url, self._run, self._step = machine.notify, run, step
        self._alarms: set[str] = set()

    def alarms(self, step: int, events: Iterable[Event]) -> None:
        """Post the events that are alarms, each kind once: the card has them all.

        Args:
            step: training step of the events.
            events: of one record.
        """
        for event in events:
            if event.name in ALARMS and event.name not in self._alarms:
                self._alarms.add(event.name)
                self.post(Notice.ALARM, f"step {step:,}: {event.name}: {event.message}")

    def post(self, notice: Notice, text: str) -> None:
        """Post `{"text", "event", "run", "step"}` as JSON, and wait at most five seconds for the answer."""
        if not self._url:
            return
        shown = without_secrets(text)[:_MAX_LENGTH]
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # Slack's only markup that cannot be meant literally.
            shown = shown.replace(character, entity)
        body = {"text": f"chess-grpo run {self._run}, {self._step}: {shown}", "event": notice, "run": self._run, "step": self._step}
        failures = [f"no answer within {_SECONDS:g} s"]
        # Time-outs of sockets bound neither name resolution nor an answer that comes byte by byte; a daemon thread is left behind.
        thread = threading.Thread(target=_send, args=(self._url, body, failures), daemon=True)
        thread.start()
        thread.join(_SECONDS)
        if failures:
            print(f"{self._step}: WARNING: {NOTIFY} at {urlsplit(self._url).hostname}: {failures[-1]}; this step posts no more", flush=True)
            self._url = ""


def _send(url: str, body: dict[str, str], failures: list[str]) -> None:
    """Post, and clear `failures` if the server accepts it. A message of an error may hold the address, which is a secret."""
    import requests  # Here, because most runs do not need it.

    try:
        with requests.post(url, json=body, timeout=_SECONDS, allow_redirects=False, stream=True) as answer:
            failures[:] = [] if answer.ok and not answer.is_redirect else [f"HTTP {answer.status_code}"]
    except requests.Timeout:
        return  # That is what `failures` says already.
    except requests.RequestException as error:
        failures.append(type(error).__name__)
