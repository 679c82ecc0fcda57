"""Machines that are taken back: a spot instance says so two minutes before, and a task that is told by then keeps what it has.

On AWS Batch and Kubernetes Metaflow writes a file when the notice comes. But its watcher asks only where the instance's metadata calls it
spot, gives up in silence where a container cannot have a token (the metadata's hop limit), and sends its SIGTERM to its own parent, not to
the task; and a container's first process is a shell, which passes no signal on. So both the file and the metadata are looked at here.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

_DEFAULT_ENDPOINT: Final = "http://169.254.169.254"
_ANSWER_SECONDS: Final = 2.0
_TOKEN_SECONDS: Final = 21_600
_LOOKS_PER_QUESTION: Final = 5
"""The metadata service is asked once in so many looks for the file: it limits its clients."""
_MAX_ANSWER_BYTES: Final = 4096


@contextmanager
def watching(notice: Path | str | None, *, seconds: float = 1.0) -> Iterator[None]:
    """Send this process SIGTERM, once, when the machine is to be taken back while the block lasts.

    Args:
        notice: the file that appears then (Metaflow's `current.spot_termination_notice`); None: this machine is not of that kind, and
            nothing is watched.
        seconds: between two looks.
    """
    if notice is None:
        yield
        return
    watch = _Watch(Path(notice), seconds)
    threading.Thread(target=watch.run, name="reclaim", daemon=True).start()
    try:
        yield
    finally:
        watch.end()


class _Watch:
    """Looks until it has seen a notice, or is told to end."""

    def __init__(self, notice: Path, seconds: float) -> None:
        self._notice = notice
        self._seconds = seconds
        self._is_over = threading.Event()
        self._deed = threading.Lock()

    def run(self) -> None:
        metadata = _Metadata.here()
        looks = 0
        while not self._is_over.wait(self._seconds if looks else 0.0):
            told = f"{self._notice} is there" if self._notice.exists() else ""
            if not told and metadata is not None and looks % _LOOKS_PER_QUESTION == 0:
                told = metadata.notice()
            if told:
                self._tell(told)
                return
            looks += 1

    def end(self) -> None:
        with self._deed:
            self._is_over.set()

    def _tell(self, told: str) -> None:
        with self._deed:
            if not self._is_over.is_set():
                print(f"this machine is to be taken back ({told}): SIGTERM, so that what can be kept is kept", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)


class _Metadata:
    """The instance metadata service, asked with a token, as instances require that are set up well."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint
        self._token = token

    @classmethod
    def here(cls) -> "_Metadata | None":
        """Return this machine's service; None when there is none, or none for us: it is not asked again."""
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            return None
        endpoint = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
        token = _token(endpoint)
        return None if token is None else cls(endpoint, token)

    def notice(self) -> str:
        """Return what is to happen to this instance, and when; empty when nothing is, or nobody answers this time."""
        status, text = _answer(self._asked("/latest/meta-data/spot/instance-action"))
        if status == 401:  # The token has run out.
            self._token = _token(self._endpoint) or self._token
            status, text = _answer(self._asked("/latest/meta-data/spot/instance-action"))
        return _in_words(text) if status == 200 else ""

    def _asked(self, path: str) -> Request:
        return Request(self._endpoint + path, headers={"X-aws-ec2-metadata-token": self._token})  # noqa: S310


def _token(endpoint: str) -> str | None:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
    status, text = _answer(Request(f"{endpoint}/latest/api/token", method="PUT", headers=headers))  # noqa: S310
    return text if status == 200 else None


def _answer(request: Request) -> tuple[int, str]:
    """Return status and text of the answer; status 0 when there is none in time."""
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=_ANSWER_SECONDS) as answer:  # A proxy's metadata are not ours.
            return answer.status, answer.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace")
    except HTTPError as error:
        error.close()
        return error.code, ""
    except (OSError, ValueError):
        return 0, ""


def _in_words(text: str) -> str:
    try:
        facts = json.loads(text)
        return f"to {facts['action']} at {facts['time']}"
    except (ValueError, TypeError, KeyError):
        return "a notice of the instance's metadata"
