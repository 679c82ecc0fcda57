"""The parts of a model card that are specific to language models."""

from collections.abc import Mapping
from typing import Any, Final

from grpo.policy.files import LANGUAGE
from grpo.settings.language import SMALL
from steps.step_io.results_text import escaped

_HOW: Final = """\
- Against a person or another engine, in any chess program: `chess-grpo uci --model FOLDER` is a UCI engine. If all its attempts (a
  setting) name no legal move, it resigns with the null move `0000`, which chess programs count as a loss.
- Against other players, with intervals: `chess-grpo match FOLDER stockfish:nodes=50`.
- Without this code: transformers loads the model of the folder.
"""


class LanguageCard:
    """What a card says of a language model."""

    kind = LANGUAGE
    how = _HOW
    trained_by = "behavior cloning of answers"

    def __init__(self, described: Mapping[str, Any]) -> None:
        """Take its `policy.json`, which has its settings and its origin."""
        self._max_questions, self._origin = int(described["language"]["max_questions"]), described["origin"]

    def what(self, made: str) -> str:
        """Return the card's first paragraph; `made` says how the model was trained."""
        return escaped(
            f"A causal language model that writes its moves as text, {made}. It started as {self._initial_weights()}. Its prompt is the FEN"
            " of a position, without the game before it, and it does not search."
            " It gives no probabilities of moves: it names one move, which may be illegal."
        )

    def limit(self) -> str:
        """Return the limits of its answers."""
        return (
            "Its answer may be illegal or unreadable. In games such an answer is counted, and a new one is sampled at"
            f" T = 1; after {self._max_questions} answers without a legal move the game is lost."
        )

    def licence(self) -> str:
        """Return the licence of the initial weights; "" if they are this project's."""
        if self._origin["model"] == SMALL:
            return ""
        return f"The initial weights are {self._initial_weights()}, under its publisher's licence."

    def _initial_weights(self) -> str:
        origin = self._origin
        if origin["model"] == SMALL:
            return "a small GPT-2 with random weights"
        return str(origin["model"]) + (f" (commit {origin['commit']})" if origin["commit"] else "")
