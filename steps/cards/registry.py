"""Maps each step to its Metaflow card."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from steps.cards import data_pages, games_pages, report_page, training_pages
from steps.cards.live import LiveCard, Page, finished_card
from steps.step_io.results import Results
from steps.step_io.spec import StepSpan

_SCREENING: Final = "The checkpoints with the lowest held-out regret play the pretrained policy; each round keeps the better half."
_CONFIRMING: Final = "One task's part of the fresh games that decide on the candidate, which the screening selected."

__all__ = ["PAGES", "draw_end", "draw_start", "finished_card", "watch"]

PAGES: Final[Mapping[str, tuple[str, Page]]] = {
    "build_boards": ("build", data_pages.build_page),
    "join_boards": ("join", data_pages.join_page),
    "check_boards": ("boards", data_pages.checks_page),
    "pretrain": ("pretrain", training_pages.pretrain_page),
    "calibrate": ("ladder", games_pages.ladder_page),
    "baseline": ("baseline", games_pages.baseline_page),
    "finetune": ("train", training_pages.finetune_page),
    "screen": ("screen", partial(games_pages.games_page, "Screening", _SCREENING)),
    "confirm": ("confirm", partial(games_pages.games_page, "Confirmation", _CONFIRMING)),
    "select": ("decision", games_pages.decision_page),
    "report": ("report", report_page.report_page),
}
"""Step -> id and page of its card; `start` and `end` have no output to show (`draw_start`, `draw_end`)."""


def watch(step: str, settings: Mapping[str, Any] | None = None) -> LiveCard:
    """Return a step's card: a sink for its records; pass the step's output to `finished` at the end."""
    card_id, page = PAGES[step]
    return LiveCard(card_id, page, settings)


def draw_end(overview: Callable[[], tuple[Results, Sequence[StepSpan], Mapping[str, str]]]) -> None:
    """Draw the card of `end`; what it shows is read while it is drawn, so that a failure to read costs the card alone."""
    card = LiveCard("end", lambda _: report_page.end_page(*overview()))
    card.drawn()


def draw_start(job: Mapping[str, Any]) -> None:
    """Draw the card of `start`."""
    card = LiveCard("start", lambda _: data_pages.start_page(job))
    card.drawn()
