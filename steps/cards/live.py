"""A step's card while it works and when it is done: the one module here, with the deployment, that knows Metaflow.

Cards are for people who watch: whatever goes wrong in drawing one is told in one line of the log, and costs the step nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from metaflow import current
from metaflow.cards import Markdown, VegaChart

from grpo.metrics.table import Record
from steps.cards.html import CardPart, Html
from steps.cards.state import Seen
from steps.cards.style import STYLE
from steps.runtime.machine import Machine
from steps.store.outputs import StepOutput, Store

Page = Callable[[Seen], Sequence[CardPart]]

_LEAST_SECONDS: Final = 2.0
_MOST_SECONDS: Final = 30.0
_SHARE: Final = 0.05
"""Of the time at work that has to pass between two refreshes: Metaflow starts a process for each, with a second of imports."""


class LiveCard:
    """Takes what a step tells, and draws it now and then; the first drawing that fails is the last."""

    def __init__(self, card_id: str, page: Page, settings: Mapping[str, Any] | None = None) -> None:
        """Draw on the step's card of this id; nothing before there is something to tell."""
        self.seen = Seen(settings or {})
        self._card_id, self._page = card_id, page
        self._shown: list[tuple[CardPart, Any]] = []
        self._began = self._last = time.monotonic()
        self._is_broken = False

    def log(self, record: Record) -> None:
        """Keep a record, and redraw now and then."""
        self._draw(lambda: self.seen.log(record))
        self._refresh_if_due()

    def progress(self, done: int, total: int, unit: str) -> None:
        """Take note of how far the work is, and redraw now and then."""
        self._draw(lambda: self.seen.progressed(done, total, unit))
        self._refresh_if_due()

    def assessed(self, facts: Mapping[str, Any]) -> None:
        """Show what GRPO's look before the first update found; at once, so that a refused run has it too."""
        self.seen.learnability = facts
        self._draw(self._refresh)

    def drawn(self) -> None:
        """Draw what there is; Metaflow shows it when the step has ended."""
        self._draw(self._put)

    def finished(self, output: StepOutput) -> StepOutput:
        """Draw the stored output, whoever made it, and return it."""
        self._draw(lambda: self._finish(output))
        return output

    def _finish(self, output: StepOutput) -> None:
        self.seen.finish(Store.of(Machine.here()).open(output), is_reused=output["reused"])
        self._put()  # Metaflow draws the card once more when the step has ended.

    def _refresh_if_due(self) -> None:
        now = time.monotonic()
        if now - self._last >= min(max(_LEAST_SECONDS, _SHARE * (now - self._began)), _MOST_SECONDS):
            self._draw(self._refresh)

    def _refresh(self) -> None:
        self._last = time.monotonic()
        self._put()
        current.card[self._card_id].refresh()

    def _draw(self, draw: Callable[[], None]) -> None:
        if not self._is_broken:
            try:
                draw()
            except Exception as error:  # noqa: BLE001  No error of a drawing, Metaflow's own among them, is worth the work that it shows.
                self._is_broken = True
                told = f"{type(error).__name__}: {error}; the step goes on without the rest of this card"
                print(f"card {self._card_id}: WARNING: {told}", flush=True)

    def _put(self) -> None:
        """Bring the card up to date: in place where its parts are of the same kinds: a new layout makes Metaflow wait."""
        parts = [STYLE, *self._page(self.seen)]
        if [type(part) for part in parts] == [type(part) for part, _ in self._shown]:
            for number, (part, (before, component)) in enumerate(zip(parts, self._shown, strict=True)):
                if part != before:
                    component.update(part.markup if isinstance(part, Html) else part.spec)
                    self._shown[number] = part, component
            return
        card = current.card[self._card_id]
        if self._shown:
            card.clear()
        self._shown = []
        for part in parts:
            component = Markdown(part.markup) if isinstance(part, Html) else VegaChart(part.spec)
            card.append(component)
            self._shown.append((part, component))
