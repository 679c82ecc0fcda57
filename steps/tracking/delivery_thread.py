"""Delivers a writer's journal, and before it those that earlier writers of the same run left, beside the work and never in its way."""

import threading
import time
from contextlib import closing, suppress
from typing import Final

from grpo.base.files import StorageError
from steps.store.objects import SharedStoreError
from steps.store.outputs import Store
from steps.tracking.client import TrackingStore
from steps.tracking.delivery import Delivery
from steps.tracking.journal import Journal, Outbox
from steps.tracking.outages import Patience, failures, first_line

_MEBIBYTE: Final = 2**20


class Courier:
    """One delivery at a time, in a thread that ends with the process, however long the store lets it wait.

    So a server that answers late, or never, costs the work nothing, and its end the patience that was agreed on.
    """

    def __init__(
        self,
        parent: str,
        *,
        outbox: Outbox,
        store: TrackingStore,
        outputs: Store,
        patience: Patience,
        journal: Journal | None = None,
    ) -> None:
        """Deliver what writers of this run left, and then the journal, which is this process's own.

        Args:
            parent: MLflow's id of the run.
            outbox: where its journals are.
            store: whom to tell.
            outputs: where the files are that journals name.
            patience: when to try again.
            journal: the process's own, if it has one.
        """
        self._parent = parent
        self._journal = journal
        self._outbox = outbox
        self._store = store
        self._outputs = outputs
        self._patience = patience
        self._next = time.monotonic()
        self._num_outages = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_under_way = False
        self._is_left = False
        self._error: StorageError | None = None
        self.reason = ""
        """Why the last delivery broke off; empty when it did not."""

    def poke(self) -> None:
        """Begin a delivery if it is time for one and none is under way; raises StorageError when the store's disk was found full."""
        if self._error is not None:
            raise self._error
        if not self._is_under_way and time.monotonic() >= self._next:
            self._begin()

    def finish(self, seconds: float, num_bytes: int = 0) -> bool:
        """Deliver what there is; return whether that is done, or False when the seconds are over or the store is away.

        `num_bytes` is the size of the files among it, which are given more time. Raises StorageError when the store's disk is full.
        """
        deadline = time.monotonic() + seconds + self._patience.per_mebibyte * num_bytes / _MEBIBYTE
        if not self._has_ended_by(deadline):
            return self._is_late(seconds)
        # A store that was away just now is tried once; one that was not may have failed a single call.
        for pause in (*(() if self.reason else self._patience.between_tries), None):
            self._begin()
            if not self._has_ended_by(deadline):
                return self._is_late(seconds)
            if self._error is not None:
                raise self._error
            if not self.reason:
                return True
            if pause is None or time.monotonic() + pause > deadline:
                return False
            time.sleep(pause)
        return False

    def leave(self) -> None:
        """Give the journal up: now, or when the delivery ends that is under way. Raises SharedStoreError as `Outbox.leave` does."""
        if self._journal is None:
            return
        with self._lock:
            self._is_left = True
            if self._is_under_way:
                self._outbox.share(self._journal)  # The process may end before the delivery does; to tell something twice does no harm.
            else:
                self._outbox.leave(self._journal)

    def _begin(self) -> None:
        self._is_under_way = True
        self._thread = threading.Thread(target=self._deliver, name="tracking", daemon=True)
        self._thread.start()

    def _has_ended_by(self, deadline: float) -> bool:
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            return not self._thread.is_alive()
        return True

    def _is_late(self, seconds: float) -> bool:
        self.reason = f"it is not done with what it was told within {seconds:.0f} s"
        return False

    def _deliver(self) -> None:
        try:
            with closing(self._outbox.left(self._parent)) as left:
                for journal in left:
                    Delivery(journal, self._store, self._outputs).run(is_left=True)
            if self._journal is not None:
                Delivery(self._journal, self._store, self._outputs).run(is_left=False)
            self.reason, self._num_outages = "", 0
            self._next = time.monotonic() + self._patience.between_deliveries
        except StorageError as error:
            self._error = error
        except failures() as error:
            self.reason = first_line(error)
            self._next = time.monotonic() + min(self._patience.after_outage * 2**self._num_outages, self._patience.longest)
            self._num_outages += 1
        except Exception as error:  # noqa: BLE001 - Whatever it is: the run does not end by it, and it is told as not delivered.
            self.reason = f"{type(error).__name__}: {first_line(error)}"
            self._next = time.monotonic() + self._patience.longest
        finally:
            with self._lock:
                self._is_under_way = False
                if self._is_left and self._journal is not None:
                    with suppress(SharedStoreError):  # It was shared when it was given up.
                        self._outbox.leave(self._journal)
