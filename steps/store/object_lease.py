"""A lease in object storage, with a fencing token: one writer at a time among machines that share only a store of objects.

The holder renews the object three times per term. Clocks of two machines are never compared. The holder trusts its lease for one term
after its last successful write, by its own clock. A taker watches the object for a third longer, by its own clock, and takes the lease
over when nothing was written meanwhile. It need not watch when the holder has provably ended (a process of this machine) or is an earlier
attempt of the same task. All writes are compare-and-swap, so only one of two takers succeeds. A holder that was paused (a stopped
process, a suspended machine) learns of the takeover at its next `check`. A released lease stays as an object without a holder, because
the fencing token must keep growing and few stores have a conditional delete.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, json_text, parse_json_object
from steps.runtime.process_id import Writer
from steps.store.file_lock import BusyError
from steps.store.objects import Objects, SharedStoreError

_RENEWALS: Final = 3
"""Renewals per term: two may fail before the lease is lost."""
_PATIENCE: Final = 4 / 3
"""How long a taker watches, in terms of the holder: writes that began under the lease have time to finish."""
_LOOKS: Final = 20
"""Reads per term of a taker that watches."""
_LONGEST_TERM: Final = 3600.0
_TRIES: Final = 3


class LeaseLostError(PlainError, RuntimeError):
    """Another writer has taken over the lease, or may have by now; what was saved is complete, and a retry resumes from it."""

    may_pass = True  # A retry resumes from the last checkpoint, or is refused while the other writer runs.


def tracking_lease_key(mlflow_run: str, step: str) -> str:
    """Return the key of the lease on what a step logs to an MLflow run.

    >>> tracking_lease_key("0a1b", "finetune")
    'leases/tracking/0a1b/finetune.json'
    """
    return f"leases/tracking/{mlflow_run}/{step}.json"


@contextmanager
def shared_lease(objects: Objects, key: str, *, what: str, writer: Writer, seconds: float = 60.0) -> Iterator["Lease"]:
    """Hold the lease of this key, among all machines that share these objects; a thread renews it while the block lasts.

    Args:
        objects: the store of the lease.
        key: key of the lease's object.
        what: what is written under the lease, for messages.
        writer: this process.
        seconds: the term: how long the lease outlives a holder that has died. A taker waits at most a third longer.

    Raises BusyError, which names the holder, when a live writer has the lease; CorruptError when the object is not a lease.
    """
    lease = _acquired(objects, key, what, writer, seconds)
    is_over = threading.Event()
    renewing = threading.Thread(target=lease.renew_until, args=(is_over,), name="lease", daemon=True)
    renewing.start()
    try:
        yield lease
    finally:
        is_over.set()
        renewing.join(seconds / _RENEWALS)
        lease.release()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Claim:
    """The content of a lease's object."""

    writer: Writer | None
    """None when the lease is released."""
    token: int
    """The fencing token: each acquisition increments it."""
    claim: str
    """Unique id of this acquisition: by it a holder recognises its own writes, even those whose response was lost."""
    seconds: float
    since: str
    until: str
    """Wall-clock time for messages; never compared between machines."""
    renewals: int

    @classmethod
    def of(cls, data: bytes, place: str) -> Self:
        """Parse a lease's object; raises CorruptError when it is not a lease."""
        try:
            facts = parse_json_object(data, place)
            writer = None if facts["writer"] is None else Writer.from_facts(facts["writer"])
            claim = cls(**{**facts, "writer": writer})
            has_clock = datetime.fromisoformat(claim.until).tzinfo is not None
            is_one = type(claim.token) is int and 0 < claim.seconds <= _LONGEST_TERM and has_clock
        except (CorruptError, ValueError, TypeError, KeyError):
            is_one = False
        if not is_one:
            raise CorruptError(f"{place} is not a valid lease, so its holder is unknown: if nobody writes there, delete it and retry")
        return claim

    def data(self) -> bytes:
        return json_text(asdict(self)).encode()

    def renewed(self) -> "_Claim":
        return replace(self, renewals=self.renewals + 1, until=_now_text(self.seconds))


class Lease:
    """A lease held by this process until another takes it over; `shared_lease` acquires it."""

    def __init__(self, objects: Objects, key: str, *, what: str, claim: _Claim, tag: str, good_until: float) -> None:
        self.fencing_token = claim.token
        """Larger than the token of every earlier holder, so that of two writers the later one can be identified."""
        self._objects = objects
        self._key = key
        self._what = what
        self._claim = claim
        self._tag = tag
        self._good_until = good_until
        self._lost = ""
        self._lock = threading.Lock()

    def check(self) -> None:
        """Return if this process still holds the lease.

        Raises LeaseLostError once another process has taken it, or when it was not renewed within its term and cannot be renewed now.
        """
        if not self._lost and _clock() >= self._good_until:
            problem = self._renew()
            if not self._lost and _clock() >= self._good_until:
                self._lost = f"it could not be renewed in time{problem and f' ({problem})'}"
        if self._lost:
            raise LeaseLostError(
                f"{self._what} is no longer this process's to write: {self._lost} (lease {self._key} in {self._objects}, fencing token"
                f" {self.fencing_token}); the same command resumes from what was saved, once the other writer has ended"
            )

    def confirm(self) -> None:
        """Check the lease in the store, before a write that cannot be undone: `check` learns of a takeover up to a third of a term late.

        Raises LeaseLostError as `check` does, and SharedStoreError when the store does not answer.
        """
        if not self._lost and (problem := self._renew()):
            raise SharedStoreError(f"{self._what}: the store did not confirm that this process still holds the lease: {problem}")
        self.check()

    def renew_until(self, is_over: threading.Event) -> None:
        """Renew the lease periodically until `is_over` is set or the lease is lost."""
        pause = self._claim.seconds / _RENEWALS
        while not self._lost and not is_over.wait(pause):
            # Retry a failed renewal sooner, to succeed before the term ends.
            pause = self._claim.seconds / (_RENEWALS * 4 if self._renew() else _RENEWALS)

    def release(self) -> None:
        """Release the lease, if it is still held, so that others need not wait; an unreachable store makes them wait for the term's end."""
        if self._lost or not self._lock.acquire(timeout=self._claim.seconds / _RENEWALS):
            return
        try:
            with suppress(PlainError, OSError):
                self._swap(replace(self._claim, writer=None, until=_now_text()))
        finally:
            self._lost = "it was released"
            self._lock.release()

    def _renew(self) -> str:
        """Renew the lease, record a takeover, and return the problem when the store gave no answer."""
        if not self._lock.acquire(timeout=self._claim.seconds):
            return "the store has not answered yet"
        try:
            if not self._lost:
                began = _clock()
                if self._swap(self._claim.renewed()):
                    self._good_until = began + self._claim.seconds
        except (PlainError, OSError) as error:
            return str(error)
        finally:
            self._lock.release()
        return ""

    def _swap(self, claim: _Claim) -> bool:
        """Replace our last claim by this one; record the new holder when the lease was taken over."""
        for _ in range(_TRIES):
            if (tag := self._objects.replace(self._key, claim.data(), tag=self._tag)) is not None:
                self._claim, self._tag = claim, tag
                return True
            stored = self._objects.get(self._key)
            found = None if stored is None else _Claim.of(stored.data, f"{self._key} in {self._objects}")
            if stored is None or found is None or found.claim != self._claim.claim:
                self._lost = "its object is gone" if found is None else f"it is made by {_whose(found)}"
                return False
            self._tag = stored.tag  # Our own write, whose response was lost.
        return False


def _acquired(objects: Objects, key: str, what: str, writer: Writer, seconds: float) -> Lease:
    """Acquire the lease by the protocol in the module's docstring."""
    assert 0 < seconds <= _LONGEST_TERM
    place = f"{key} in {objects}"
    seen: tuple[str, float] | None = None
    while True:
        began, stored = _clock(), objects.get(key)
        held = None if stored is None else _Claim.of(stored.data, place)
        if stored is None or held is None or _is_free(held, writer) or (seen is not None and seen[0] == stored.tag and began >= seen[1]):
            claim = _Claim(
                writer=writer,
                token=1 if held is None else held.token + 1,
                claim=uuid.uuid4().hex,
                seconds=seconds,
                since=_now_text(),
                until=_now_text(seconds),
                renewals=0,
            )
            if (tag := _written(objects, key, claim.data(), None if stored is None else stored.tag)) is not None:
                return Lease(objects, key, what=what, claim=claim, tag=tag, good_until=began + seconds)
            continue  # Another process was faster: read the object again.
        if (seen is not None and seen[0] != stored.tag) or _is_surely_held(held):
            raise BusyError(
                f"{what} is being made by {_whose(held)} (it holds {place}): wait for it or stop it, then run the same command again"
            )
        if seen is None:
            seen = stored.tag, _clock() + held.seconds * _PATIENCE
            print(f"{what}: waiting up to {held.seconds * _PATIENCE:.0f} s to see whether it is still made by {_whose(held)}", flush=True)
        time.sleep(held.seconds / _LOOKS)


def _is_free(held: _Claim, writer: Writer) -> bool:
    return held.writer is None or held.writer.is_superseded_by(writer) or held.writer.is_alive_here() is False


def _is_surely_held(held: _Claim) -> bool:
    """Return whether the holder is alive on this machine and not overdue by this machine's clock."""
    return held.writer is not None and held.writer.is_alive_here() is True and datetime.fromisoformat(held.until) > datetime.now(UTC)


def _written(objects: Objects, key: str, data: bytes, tag: str | None) -> str | None:
    """Write a claim in place of the object with this tag (None: no object) and return the new tag; None when another was faster."""
    made = objects.create(key, data) if tag is None else objects.replace(key, data, tag=tag)
    if made is None and (stored := objects.get(key)) is not None and stored.data == data:
        return stored.tag  # Our own write: its response was lost, and the request was retried.
    return made


def _whose(claim: _Claim) -> str:
    return (
        "a process that has ended by now" if claim.writer is None else f"{claim.writer}, since {claim.since}, renewed until {claim.until}"
    )


def _now_text(later_seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later_seconds)).isoformat(timespec="seconds")


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts time in which the machine is suspended, too."""


def _clock() -> float:
    return time.clock_gettime(_CLOCK)
