"""Stop rules as pure state machines, whose state is plain JSON in the checkpoint."""

from collections.abc import Mapping
from typing import Any, Protocol


class Controller(Protocol):
    """Watches one number a step; its state is a plain dict, so that a resumed run goes on where it was."""

    def state(self) -> dict[str, Any]:
        """Return the state, JSON-able."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned."""


class EntropyStop:
    """Says when the mean entropy over the last few steps is critical.

    The entropy is the exact one at T = 1, so that a raised temperature never counts as recovery.
    """

    def __init__(self, *, critical_nats: float, window: int) -> None:
        self._critical = critical_nats
        self._window = window
        self._recent: list[float] = []

    def observe(self, entropy_nats: float) -> bool:
        """Take the entropy of one step and return whether training must stop; never before the window is full."""
        self._recent = [*self._recent, entropy_nats][-self._window :]
        return len(self._recent) == self._window and self.mean() < self._critical

    def mean(self) -> float:
        """Return the mean over the window, in nats."""
        return sum(self._recent) / len(self._recent)

    def state(self) -> dict[str, Any]:
        """Return the entropies of the window."""
        return {"recent": list(self._recent)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the entropies of the window."""
        self._recent = [float(value) for value in state["recent"]]


class SkipStop:
    """Counts steps in a row that had to be left out because a number was not finite."""

    def __init__(self, *, max_in_a_row: int) -> None:
        self._max = max_in_a_row
        self.in_a_row = 0

    def observe(self, is_finite: bool) -> bool:
        """Take whether a step was finite and return whether training must stop."""
        self.in_a_row = 0 if is_finite else self.in_a_row + 1
        return self.in_a_row >= self._max

    def state(self) -> dict[str, Any]:
        """Return the count."""
        return {"in_a_row": self.in_a_row}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the count."""
        self.in_a_row = int(state["in_a_row"])
