"""Which card each step has."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from steps.cards import data_pages, games_pages, report_page, training_pages
from steps.cards.live import LiveCard, Page

_SCREENING: Final = "Checkpoints that look best on held-out boards play the pretrained policy; half of them stay, round after round."
_CONFIRMING: Final = "One task's share of the fresh games that judge the candidate, which the screening chose."

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
"""Step -> the id of its card, and what is on it. `start` has one of its own (`draw_start`); `end` says where the report's is."""


def watch(step: str, settings: Mapping[str, Any] | None = None) -> LiveCard:
    """Return a step's card: a sink for what it tells, to be handed its output at the end."""
    card_id, page = PAGES[step]
    return LiveCard(card_id, page, settings)


def draw_start(job: Mapping[str, Any]) -> None:
    """Draw the card of `start`."""
    card = LiveCard("start", lambda _: data_pages.start_page(job))
    card.drawn()
