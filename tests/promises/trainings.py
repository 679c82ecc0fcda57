"""Tiny fine-tunings in processes that die, or get a SIGTERM, at a failpoint: jobs `finetune` of `jobs.py`."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forking import Forks
from tiny_training import progress_of

from grpo.base.files import verified_manifest
from grpo.settings.kinds import NETWORK
from steps.names import HISTORY
from steps.run.work import read_journal


@dataclass(frozen=True)
class Result:
    output_hash: str
    history: str
    lines: list[tuple[int, str]]
    """Step and first metric of each line of the journal."""


def result_of(home: Path) -> Result:
    """Return the output, after checking that it is alone and that nothing is in progress any more."""
    assert not progress_of(home).exists()
    [folder] = (home / "outputs" / "finetune").glob("[!.]*")
    lines = [(row["record"]["step"], min(row["record"])) for row in read_journal(folder)]
    return Result(verified_manifest(folder)["output_hash"], (folder / HISTORY).read_text(), lines)


class Driver(Forks):
    def __init__(self, prepared: Path) -> None:
        super().__init__("finetune", variables={"AWS_EC2_METADATA_DISABLED": "true"})
        self._prepared = prepared
        self._last = 0

    def start(self, home: Path, kind: str = NETWORK, **job: Any) -> int:
        home.mkdir(exist_ok=True)
        (home / "log").write_text("")
        self._last = self.fork(home=str(home), log=str(home / "log"), prepared=str(self._prepared), kind=kind, **job)
        return self._last

    def end(self, home: Path) -> tuple[int, str]:
        """Wait until it ends, and return its exit status and what it printed."""
        return self.wait(self._last), (home / "log").read_text()

    def run(self, home: Path, kind: str = NETWORK, **job: Any) -> tuple[int, str]:
        self.start(home, kind, **job)
        return self.end(home)

    def kill_at(self, home: Path, failpoint: str, nth: int, kind: str = NETWORK, **job: Any) -> None:
        status, log = self.run(home, kind, failpoint=failpoint, nth=nth, **job)
        assert status == -signal.SIGKILL, log

    def told_at(self, home: Path, failpoint: str, nth: int) -> tuple[int, str]:
        """Run one that gets a SIGTERM at a failpoint, and return its exit status and what it printed."""
        pid = self.start(home, failpoint=failpoint, nth=nth, deed="pause")
        wait_for(home, "paused")
        os.kill(pid, signal.SIGTERM)
        return self.end(home)


def steps_of(home: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (progress_of(home) / "checkpoints").glob("step-*"))


def wait_for(home: Path, word: str) -> None:
    deadline = time.monotonic() + 300
    while word not in (home / "log").read_text():
        assert time.monotonic() < deadline, (home / "log").read_text()
        time.sleep(0.01)


def goes_on(driver: Driver, home: Path, whole: Result, kind: str = NETWORK, **job: Any) -> str:
    """Run the same again to its end, check that it ends as an undisturbed one, and return what it printed."""
    status, log = driver.run(home, kind, **job)
    assert status == 0, log
    assert result_of(home) == whole
    return log
