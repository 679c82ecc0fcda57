"""Cards: pictures and numbers of each step, live where it works for long. `pages` are pure; `live` alone here knows Metaflow."""

from steps.cards.live import LiveCard
from steps.cards.watching import draw_start, watch

__all__ = ["LiveCard", "draw_start", "watch"]
