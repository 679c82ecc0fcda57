"""A step's Metaflow card, updated during the step and at its end."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from metaflow import current
from metaflow.cards import Markdown, VegaChart

from grpo.metrics.records import Record
from steps.cards.page import CardPart, Seen, style
from steps.run.terminal import Pace

CardFunction = Callable[[Seen], Sequence[CardPart]]  # A step's function `card`.

_SECONDS: Final = 60.0  # Between refreshes, each of which takes 1.5 CPU seconds.


class LiveCard:
    """An error in the card ends the card's updates, not the step."""

    def __init__(self, card_id: str, card_function: CardFunction, settings: Mapping[str, Any]) -> None:
        self.seen = Seen(settings)
        self._card_id, self._card_function = card_id, card_function
        self._shown: list[Any] = []
        self._pace = Pace()
        self._last = time.monotonic()
        self._is_broken = False

    def log(self, record: Record) -> None:
        self.seen.records.append(record)
        self._refresh_if_due()

    def progress(self, done: int, total: int, unit: str) -> None:
        self.seen.progress = (done / total if total else 0.0, self._pace.text(done, total, unit))
        self._refresh_if_due()

    def finished(self, folder: Path, *, is_reused: bool) -> None:
        self.seen.folder, self.seen.is_reused = folder, is_reused
        self._safely(self._update_parts)  # No refresh: Metaflow renders the card at the step's end.

    def failed(self, reason: str) -> None:
        self.seen.failure = reason
        self._safely(self._refresh)

    def _refresh_if_due(self) -> None:
        if time.monotonic() - self._last >= _SECONDS:
            self._safely(self._refresh)

    def _safely(self, draw: Callable[[], None]) -> None:
        if self._is_broken:
            return
        try:
            draw()
        except Exception as error:  # noqa: BLE001
            self._is_broken = True
            reason = f"{type(error).__name__}: {error}; the step continues without further updates of this card"
            print(f"card {self._card_id}: WARNING: {reason}", flush=True)

    def _refresh(self) -> None:
        self._last = time.monotonic()
        self._update_parts()
        current.card[self._card_id].refresh()

    def _update_parts(self) -> None:
        """Update the parts in place if the sequence of HTML and charts is unchanged, because Metaflow shows new parts with a delay."""
        parts = [style(), *self._card_function(self.seen)]
        kinds = [VegaChart if isinstance(part, dict) else Markdown for part in parts]
        if kinds == [type(component) for component in self._shown]:
            for part, component in zip(parts, self._shown, strict=True):
                component.update(part)
            return
        card = current.card[self._card_id]
        if self._shown:
            card.clear()
        self._shown = [kind(part) for kind, part in zip(kinds, parts, strict=True)]
        for number, component in enumerate(self._shown):
            # Metaflow's default ids are six random digits, and a card loses a part if two ids are equal.
            card.append(component, id=f"part_{number}")
