"""A background thread that delivers a step's journal to MLflow, after the journals that earlier steps of the run left."""

import threading
import time
from contextlib import closing, suppress
from typing import Final

from grpo.base.files import StorageError
from steps.runtime.machine import Machine
from steps.store.objects import SharedStoreError
from steps.store.outputs import Store
from steps.tracking.client import TrackingStore
from steps.tracking.delivery import Delivery
from steps.tracking.journal import Journal, JournalFolder, Reader
from steps.tracking.outages import RetryPolicy, first_line

_MEBIBYTE: Final = 2**20


class DeliveryThread(threading.Thread):
    """Delivers now and then until `finish`; a server that is slow or down does not delay training."""

    def __init__(self, machine: Machine, policy: RetryPolicy, parent: str, journal: Journal | None = None) -> None:
        """Prepare to deliver the pending journals of the run `parent`, and then this process's own journal, if it has one."""
        super().__init__(name="tracking", daemon=True)
        self._journals = JournalFolder.of(machine)
        self._store = TrackingStore(machine, ())  # Without retries: the thread itself retries.
        self._outputs = Store.of(machine)
        self._policy = policy
        self._parent = parent
        self._journal = journal
        self._is_over = threading.Event()
        self._is_left = False
        self._error: StorageError | None = None
        self.reason = ""
        """Why the last delivery failed; empty when it succeeded."""

    def check(self) -> None:
        """Raise StorageError when the tracking store's disk is full."""
        if self._error is not None:
            raise self._error

    def finish(self, seconds: float, num_bytes: int = 0) -> bool:
        """Deliver everything, to which nothing is appended any more; return False when the time is over or the store is away.

        `num_bytes` is the size of the artifacts, which get more time. Raises StorageError when the store's disk is full.
        """
        self._is_over.set()
        if self.ident is None:
            self.start()
        self.join(seconds + self._policy.per_mebibyte * num_bytes / _MEBIBYTE)
        self.check()
        if self.is_alive():
            self.reason = f"it did not finish within {seconds:.0f} s"
        return not self.reason

    def leave(self) -> None:
        """Release the journal: now, or when the running delivery ends. Raises SharedStoreError as `JournalFolder.leave` does."""
        self._is_left = True
        if self._journal is None:
            return
        if self.is_alive():
            self._journals.share(self._journal, Reader.MLFLOW)  # The process may end first; logging a record twice is harmless.
        else:
            self._journals.leave(self._journal)

    def run(self) -> None:
        """Deliver until `finish` was called and everything is delivered, or the last attempt has failed."""
        policy, pause, num_outages = self._policy, 0.0, 0
        while self._error is None and not self._is_over.wait(pause):
            self.reason = self._deliver(is_over=False)
            pause = min(policy.after_outage * 2**num_outages, policy.longest) if self.reason else policy.between_deliveries
            num_outages = num_outages + 1 if self.reason else 0
        # A store that was already away gets one attempt; otherwise a single call may have failed, so it is retried.
        for wait in (*(() if self.reason else policy.between_tries), 0.0) if self._error is None else ():
            self.reason = self._deliver(is_over=True)
            if not self.reason:
                break
            time.sleep(wait)
        if self._is_left and self._journal is not None:
            with suppress(SharedStoreError):  # `leave` has shared it already.
                self._journals.leave(self._journal)

    def _deliver(self, *, is_over: bool) -> str:
        """Deliver what is there, and return why that failed, or an empty string."""
        try:
            with closing(self._journals.pending(Reader.MLFLOW, self._parent)) as left:
                for journal in left:
                    Delivery(journal, self._store, self._outputs).run(is_over=True)
            if self._journal is not None:
                Delivery(self._journal, self._store, self._outputs).run(is_over=is_over)
        except StorageError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - No error of the delivery may end the run; it is reported as not delivered.
            return f"{type(error).__name__}: {first_line(error)}"
        return ""
