"""Holds leases in a process of its own, as a test says: `python lease_driver.py '{"place": ..., "key": ..., "deed": "hold"}'`."""

import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from grpo.base.errors import PlainError
from steps.runtime.process_id import Writer
from steps.store.file_lock import BusyError, file_lock
from steps.store.object_lease import LeaseLostError, shared_lease
from steps.store.objects import objects_at


def writer_of(job: dict[str, Any]) -> Writer:
    """Return this process, or the same on a machine that nobody here can look into."""
    writer = Writer.here(job.get("task", ""), job.get("attempt", 0))
    return replace(writer, host=job["host"]) if "host" in job else writer


def lease_of(job: dict[str, Any]) -> Any:
    if "file" in job:
        return file_lock(Path(job["file"]), what="the output")
    return shared_lease(objects_at(job["place"]), job["key"], what="the output", writer=writer_of(job), seconds=job["seconds"])


def hold(job: dict[str, Any]) -> None:
    """Take the lease, print its fencing token, and answer each line that comes in; at the end of the input let it go."""
    try:
        with lease_of(job) as lease:
            print("held", lease.fencing_token if lease else 0, flush=True)
            for line in sys.stdin:
                try:
                    getattr(lease, line.strip())()
                    print("mine", flush=True)
                except LeaseLostError as error:
                    print(f"lost, may pass {error.may_pass}: {error}", flush=True)
    except BusyError as error:
        print(f"busy: {error}", flush=True)


def contend(job: dict[str, Any]) -> None:
    """Take the lease again and again, and count each time that somebody else was in the room."""
    room, rng = Path(job["room"]), random.Random(job["seed"])
    done = overlaps = 0
    tokens = []
    while done < job["rounds"]:
        try:
            with lease_of(job) as lease:
                try:
                    room.touch(exist_ok=False)
                except FileExistsError:
                    overlaps += 1
                time.sleep(rng.uniform(0, job["longest"]))
                room.unlink(missing_ok=True)
                done += 1
                tokens.append(lease.fencing_token if lease else 0)
        except BusyError:
            time.sleep(rng.uniform(0, 0.01))
    print(json.dumps({"overlaps": overlaps, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    try:
        {"hold": hold, "contend": contend}[chosen["deed"]](chosen)
    except PlainError as problem:
        print(f"{type(problem).__name__}: {problem}", flush=True)
