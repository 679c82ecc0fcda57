"""A lease on an object: one writer at a time among machines that share nothing but a store of objects.

Its holder writes the object anew three times within its term. No two machines' clocks are compared: the holder trusts its lease for one
term after a write that succeeded, by its own clock; who wants it watches the object for a third longer than that, by its own clock, and
takes it over when nothing was written meanwhile. It need not watch where the holder has provably ended (its process was on this machine)
or is an earlier attempt of the same task. All writes are compare-and-swap, so that of two takers one gets it, and a holder that slept (a
stopped process, a suspended machine) learns of the taker at its next `check`. A released lease stays as an object without a holder: its
token has to go on growing, and a store that can delete an object only if it is still one's own is rare.
"""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, json_text
from steps.runtime.process_id import Writer
from steps.store.file_lock import BusyError
from steps.store.objects import Objects, SharedStoreError

_RENEWALS: Final = 3
"""In one term: two may fail before the lease is lost."""
_PATIENCE: Final = 4 / 3
"""How long a taker watches, in terms of the holder: what the holder had begun to write while it still trusted its lease has time to end."""
_LOOKS: Final = 20
"""Of a watching taker, in one term."""
_LONGEST_TERM: Final = 3600.0
_TRIES: Final = 3


class LeaseLostError(PlainError, RuntimeError):
    """Another writer has what this one had, or may have it by now; what was saved is whole, and can be gone on from."""

    may_pass = True  # Another try goes on from the last checkpoint, or is refused while the other writer is at work.


def tracking_lease_key(mlflow_run: str, step: str) -> str:
    """Return the key of the lease of what a step writes into a tracked run.

    >>> tracking_lease_key("0a1b", "finetune")
    'leases/tracking/0a1b/finetune.json'
    """
    return f"leases/tracking/{mlflow_run}/{step}.json"


@contextmanager
def shared_lease(objects: Objects, key: str, *, what: str, writer: Writer, seconds: float = 60.0) -> Iterator["Lease"]:
    """Hold the lease of this key, among all machines that see these objects, and renew it in a thread while the block lasts.

    Args:
        objects: where the lease is.
        key: of its object.
        what: is made under it, for messages.
        writer: this process.
        seconds: the term: how long the lease outlives a holder that cannot be asked. A taker waits a third longer at most.

    Raises BusyError, which says who holds it since when, when another writer does and lives; CorruptError when the object is no lease.
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
    """None: released."""
    token: int
    claim: str
    """Unlike that of every other taking: by it a holder knows its own writes, those too whose answer was lost."""
    seconds: float
    since: str
    until: str
    """For people, who have clocks and know how far to trust them."""
    renewals: int

    @classmethod
    def of(cls, data: bytes, place: str) -> Self:
        """Return what a lease's object says; raises CorruptError when it is none."""
        try:
            facts = json.loads(data)
            writer = None if facts["writer"] is None else Writer.from_facts(facts["writer"])
            claim = cls(**{**facts, "writer": writer})
            has_clock = datetime.fromisoformat(claim.until).tzinfo is not None
            is_one = type(claim.token) is int and 0 < claim.seconds <= _LONGEST_TERM and has_clock
        except (ValueError, TypeError, KeyError):
            is_one = False
        if not is_one:
            raise CorruptError(f"{place} is no lease, so nobody can say who writes there: if nobody does, delete it and run the same again")
        return claim

    def data(self) -> bytes:
        return json_text(asdict(self)).encode()

    def renewed(self) -> "_Claim":
        return replace(self, renewals=self.renewals + 1, until=_now_text(self.seconds))


class Lease:
    """A lease that is held, until another takes it; made by `shared_lease`."""

    def __init__(self, objects: Objects, key: str, *, what: str, claim: _Claim, tag: str, good_until: float) -> None:
        self.token = claim.token
        """Larger than all holders' before: written beside what is written, it tells the later of two writers."""
        self._objects = objects
        self._key = key
        self._what = what
        self._claim = claim
        self._tag = tag
        self._good_until = good_until
        self._lost = ""
        self._lock = threading.Lock()

    def check(self) -> None:
        """Return if this process may write on.

        Raises LeaseLostError once another has taken the lease, or when it could not be renewed within its term and cannot be now.
        """
        if not self._lost and _clock() >= self._good_until:
            problem = self._renew()
            if not self._lost and _clock() >= self._good_until:
                self._lost = f"it could not be renewed in time{problem and f' ({problem})'}"
        if self._lost:
            raise LeaseLostError(
                f"{self._what} is no longer this process's to write: {self._lost} (lease {self._key} in {self._objects}, token"
                f" {self.token}); the same again goes on from what was saved, when the other writer has ended"
            )

    def confirm(self) -> None:
        """Ask the store now, before a write that nobody could take back: `check` knows of a later attempt a third of a term late.

        Raises LeaseLostError as `check` does, and SharedStoreError when the store cannot be asked.
        """
        if not self._lost and (problem := self._renew()):
            raise SharedStoreError(f"{self._what}: whether it is still this process's to write could not be asked: {problem}")
        self.check()

    def renew_until(self, is_over: threading.Event) -> None:
        """Renew it again and again until told to end, or lost."""
        pause = self._claim.seconds / _RENEWALS
        while not self._lost and not is_over.wait(pause):
            # What fails now may work a moment later, and has to before the term ends.
            pause = self._claim.seconds / (_RENEWALS * 4 if self._renew() else _RENEWALS)

    def release(self) -> None:
        """Let others have it at once, unless another has it already; an unreachable store makes them wait for the end of the term."""
        if self._lost or not self._lock.acquire(timeout=self._claim.seconds / _RENEWALS):
            return
        try:
            with suppress(PlainError, OSError):
                self._swap(replace(self._claim, writer=None, until=_now_text()))
        finally:
            self._lost = "it is released"
            self._lock.release()

    def _renew(self) -> str:
        """Renew it, note when another has it, and return why it could not be known."""
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
        """Write the claim in place of our last one; note who has the lease when it is not ours."""
        for _ in range(_TRIES):
            if (tag := self._objects.replace(self._key, claim.data(), tag=self._tag)) is not None:
                self._claim, self._tag = claim, tag
                return True
            stored = self._objects.get(self._key)
            found = None if stored is None else _Claim.of(stored.data, f"{self._key} in {self._objects}")
            if stored is None or found is None or found.claim != self._claim.claim:
                self._lost = "its object is gone" if found is None else f"it is made by {_whose(found)}"
                return False
            self._tag = stored.tag  # Ours, written by a request whose answer was lost.
        return False


def _acquired(objects: Objects, key: str, what: str, writer: Writer, seconds: float) -> Lease:
    """Return the lease as soon as it can be this writer's; see the module for when that is."""
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
            continue  # Somebody was faster: look again.
        if (seen is not None and seen[0] != stored.tag) or _is_surely_held(held):
            raise BusyError(f"{what} is being made by {_whose(held)} (it holds {place}): wait for it, or end it, and run the same again")
        if seen is None:
            seen = stored.tag, _clock() + held.seconds * _PATIENCE
            print(f"{what}: waiting up to {held.seconds * _PATIENCE:.0f} s to see whether it is still made by {_whose(held)}", flush=True)
        time.sleep(held.seconds / _LOOKS)


def _is_free(held: _Claim, writer: Writer) -> bool:
    return held.writer is None or held.writer.is_superseded_by(writer) or held.writer.is_alive_here() is False


def _is_surely_held(held: _Claim) -> bool:
    """Return whether the holder lives here and is not late, by the clock that it has read too."""
    return held.writer is not None and held.writer.is_alive_here() is True and datetime.fromisoformat(held.until) > datetime.now(UTC)


def _written(objects: Objects, key: str, data: bytes, tag: str | None) -> str | None:
    """Write a claim in place of what had this tag (None: nothing) and return its tag; None when somebody was faster."""
    made = objects.create(key, data) if tag is None else objects.replace(key, data, tag=tag)
    if made is None and (stored := objects.get(key)) is not None and stored.data == data:
        return stored.tag  # Ours, by a request whose answer was lost and that was sent again.
    return made


def _whose(claim: _Claim) -> str:
    return "another that has ended by now" if claim.writer is None else f"{claim.writer}, since {claim.since}, renewed until {claim.until}"


def _now_text(later_seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later_seconds)).isoformat(timespec="seconds")


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine is suspended, as the other machines' clocks do."""


def _clock() -> float:
    return time.clock_gettime(_CLOCK)
