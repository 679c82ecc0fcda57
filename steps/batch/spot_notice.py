"""Spot interruption: turns the two-minute notice of an EC2 spot instance into SIGTERM, on which a step saves its progress.

On AWS Batch and Kubernetes Metaflow writes a file when the notice comes, but that is not enough. Its monitor runs only where the instance
metadata service (IMDS) reports a spot instance. It gives up silently where a container gets no IMDSv2 token (hop limit). It sends SIGTERM
to its own parent, not to the task, and a container's first process is a shell, which forwards no signals. So this module polls both the
file and IMDS.
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
_POLLS_PER_IMDS_QUERY: Final = 5
"""IMDS is queried once per so many polls of the file, because it limits the rate of requests."""
_MAX_ANSWER_BYTES: Final = 4096


@contextmanager
def sigterm_on_spot_notice(notice: Path | str | None, *, seconds: float = 1.0) -> Iterator[None]:
    """Send this process SIGTERM, once, when a spot interruption notice comes while the block lasts.

    Args:
        notice: the file that Metaflow writes then (`current.spot_termination_notice`); None when this is no spot instance: then nothing
            is polled.
        seconds: time between two polls.
    """
    if notice is None:
        yield
        return
    watch = _Watch(Path(notice), seconds)
    threading.Thread(target=watch.run, name="spot-notice", daemon=True).start()
    try:
        yield
    finally:
        watch.end()


class _Watch:
    """Polls until it sees a notice or `end` is called."""

    def __init__(self, notice: Path, seconds: float) -> None:
        self._notice = notice
        self._seconds = seconds
        self._is_over = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        metadata = _Metadata.here()
        num_polls = 0
        while not self._is_over.wait(self._seconds if num_polls else 0.0):
            found = f"{self._notice} exists" if self._notice.exists() else ""
            if not found and metadata is not None and num_polls % _POLLS_PER_IMDS_QUERY == 0:
                found = metadata.notice()
            if found:
                self._terminate(found)
                return
            num_polls += 1

    def end(self) -> None:
        with self._lock:
            self._is_over.set()

    def _terminate(self, notice: str) -> None:
        with self._lock:
            if not self._is_over.is_set():
                print(f"spot interruption notice ({notice}): sending SIGTERM, so that the step saves its progress", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)


class _Metadata:
    """The EC2 instance metadata service with a session token (IMDSv2)."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint
        self._token = token

    @classmethod
    def here(cls) -> "_Metadata | None":
        """Return this machine's service; None when there is none or it gives no token: it is not asked again."""
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            return None
        endpoint = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
        token = _token(endpoint)
        return None if token is None else cls(endpoint, token)

    def notice(self) -> str:
        """Return the announced action and its time; empty when there is no notice, or the service does not answer this time."""
        status, text = _answer(self._asked("/latest/meta-data/spot/instance-action"))
        if status == 401:  # The token has expired.
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
    """Return status and text of the response; status 0 when there is none in time."""
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=_ANSWER_SECONDS) as answer:  # IMDS must not go through a proxy.
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
        return "from the instance metadata service"
