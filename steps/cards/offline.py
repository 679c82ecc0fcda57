"""Metaflow's blank card without the request of its style sheet for a font of another host. `flows.chess_grpo` names its type."""

import re
from typing import Any, Final

from metaflow.plugins import CARDS
from metaflow.plugins.cards.card_modules.basic import BlankCard

_IMPORT: Final = re.compile(r'@import\s*"https?:[^"]*";')


class OfflineCard(BlankCard):
    """A card that shows no more than what was put on it, and needs no network."""

    type = "offline"

    def render(self, task: Any, components: Any = (), runtime: bool = False) -> str:
        """Return the page."""
        return _IMPORT.sub("", super().render(task, list(components), runtime))


CARDS.append(OfflineCard)  # Where Metaflow looks for the type of a card.
