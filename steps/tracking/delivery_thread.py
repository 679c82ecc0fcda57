"""A background thread that delivers a step's journal to MLflow, after the journals that earlier steps of the run left."""

import threading
import time
from contextlib import closing, suppress
from typing import Final

from grpo.base.files import StorageError
from steps.store.objects import SharedStoreError
from steps.store.outputs import Store
from steps.tracking.client import TrackingStore
from steps.tracking.delivery import Delivery
from steps.tracking.journal import Journal, JournalFolder
from steps.tracking.outages import RetryPolicy, failures, first_line

_MEBIBYTE: Final = 2**20


class DeliveryThread:
    """Delivers in a daemon thread, one delivery at a time.

    A server that is slow or down does not delay training. At the end of a step the wait is bounded by the retry policy.
    """

    def __init__(
        self, parent: str, journal: Journal | None, *, journals: JournalFolder, store: TrackingStore, outputs: Store, policy: RetryPolicy
    ) -> None:
        """Prepare to deliver the pending journals of a run, and then this process's own.

        Args:
            parent: MLflow's id of the run.
            journal: this process's own journal, if it has one.
            journals: the folder of journals.
            store: the tracking store to log to.
            outputs: the store of the outputs that journals name.
            policy: when to retry.
        """
        self._parent = parent
        self._journal = journal
        self._journals = journals
        self._store = store
        self._outputs = outputs
        self._policy = policy
        self._next = time.monotonic()
        self._num_outages = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_running = False
        self._is_over = False
        self._is_left = False
        self._error: StorageError | None = None
        self.reason = ""
        """Why the last delivery failed; empty when it succeeded."""

    def poke(self) -> None:
        """Start a delivery if one is due and none is running; raises StorageError when the store's disk is full."""
        if self._error is not None:
            raise self._error
        if not self._is_running and time.monotonic() >= self._next:
            self._begin()

    def finish(self, seconds: float, num_bytes: int = 0) -> bool:
        """Deliver everything and return True; False when the time is over or the store is away. Nothing may be appended any more.

        `num_bytes` is the size of the artifacts, which get more time. Raises StorageError when the store's disk is full.
        """
        deadline = time.monotonic() + seconds + self._policy.per_mebibyte * num_bytes / _MEBIBYTE
        if self._has_ended_by(deadline):
            self._is_over = True
            # A store that was already away gets one attempt; otherwise a single call may have failed, so it is retried.
            for pause in (*(() if self.reason else self._policy.between_tries), None):
                self._begin()
                if not self._has_ended_by(deadline):
                    break
                if self._error is not None:
                    raise self._error
                if not self.reason or pause is None or time.monotonic() + pause > deadline:
                    return not self.reason
                time.sleep(pause)
        self.reason = f"it did not finish within {seconds:.0f} s"
        return False

    def leave(self) -> None:
        """Release the journal: now, or when the running delivery ends. Raises SharedStoreError as `JournalFolder.leave` does."""
        if self._journal is None:
            return
        with self._lock:
            self._is_left = True
            if self._is_running:
                self._journals.share(self._journal)  # The process may end before the delivery; logging a record twice is harmless.
            else:
                self._journals.leave(self._journal)

    def _begin(self) -> None:
        self._is_running = True
        self._thread = threading.Thread(target=self._deliver, name="tracking", daemon=True)
        self._thread.start()

    def _has_ended_by(self, deadline: float) -> bool:
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            return not self._thread.is_alive()
        return True

    def _deliver(self) -> None:
        try:
            with closing(self._journals.pending(self._parent)) as left:
                for journal in left:
                    Delivery(journal, self._store, self._outputs).run(is_over=True)
            if self._journal is not None:
                Delivery(self._journal, self._store, self._outputs).run(is_over=self._is_over)
            self.reason, self._num_outages = "", 0
            self._next = time.monotonic() + self._policy.between_deliveries
        except StorageError as error:
            self._error = error
        except failures() as error:
            self.reason = first_line(error)
            self._next = time.monotonic() + min(self._policy.after_outage * 2**self._num_outages, self._policy.longest)
            self._num_outages += 1
        except Exception as error:  # noqa: BLE001 - No error of the delivery may end the run; it is reported as not delivered.
            self.reason = f"{type(error).__name__}: {first_line(error)}"
            self._next = time.monotonic() + self._policy.longest
        finally:
            with self._lock:
                self._is_running = False
                if self._is_left and self._journal is not None:
                    with suppress(SharedStoreError):  # `leave` has shared it already.
                        self._journals.leave(self._journal)
