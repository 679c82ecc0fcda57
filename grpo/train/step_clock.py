"""Where the wall time of a training step goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Times a step as a whole and its parts: `states`, `rollout` and `update`."""

    def __init__(self) -> None:
        """Start at zero."""
        self.total = 0.0
        """Seconds of the last step that ended."""
        self.begin()

    def begin(self) -> None:
        """Begin a step."""
        self._parts, self._started = dict.fromkeys(("states", "rollout", "update"), 0.0), time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the block's time to a part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._parts[name] += time.perf_counter() - started

    def end(self) -> None:
        """End the step."""
        self.total = time.perf_counter() - self._started

    def metrics(self) -> dict[str, float]:
        """Return the seconds of each part, and of the rest."""
        times = {f"time/{name}": seconds for name, seconds in self._parts.items()}
        return {**times, "time/other": max(0.0, self.total - sum(self._parts.values()))}
