"""A notice that the machine is taken back ends the task as SIGTERM does, once."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from steps.batch.spot_notice import sigterm_on_spot_notice


class Told(BaseException):
    """SIGTERM came."""


@pytest.fixture(autouse=True)
def _told() -> Iterator[None]:
    def tell(number: int, frame: FrameType | None) -> None:
        raise Told

    before = signal.signal(signal.SIGTERM, tell)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_notice_that_comes_is_sigterm_once(tmp_path: Path) -> None:
    notice, times = tmp_path / "notice", []
    with sigterm_on_spot_notice(notice, seconds=0.01):
        time.sleep(0.1)  # Nothing happens before it comes.
        try:
            notice.touch()
            time.sleep(60)
        except Told:
            times.append(time.monotonic())
        time.sleep(0.1)
    assert len(times) == 1


@pytest.mark.parametrize("is_batch", [False, True])
def test_without_a_notice_and_after_the_task_nothing_comes(is_batch: bool, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    with sigterm_on_spot_notice(notice if is_batch else None, seconds=0.01):
        time.sleep(0.05)
    notice.touch()
    time.sleep(0.1)
