"""The parts of a model card that are specific to networks."""

from collections.abc import Mapping
from typing import Any, Final

from grpo.policy.files import NETWORK
from steps.step_io.results_text import escaped

_HOW: Final = """\
- Against a person or another engine, in any chess program: `chess-grpo uci --model FOLDER` is a UCI engine.
- Against other players, with intervals: `chess-grpo match FOLDER stockfish:nodes=50`.
- In Python: `mlflow.pyfunc.load_model` of a registered version, or `grpo.learning.checkpoints.load_policy` of the folder.
"""


class NetworkCard:
    """What a card says of a network."""

    kind = NETWORK
    how = _HOW
    trained_by = "behavior cloning of moves"

    def __init__(self, policy: Mapping[str, Any]) -> None:
        """Take the section `policy` of its settings."""
        self._policy = policy

    def what(self, made: str) -> str:
        """Return the card's first paragraph; `made` says how the network was trained."""
        width = escaped(self._policy["width"])
        return (
            f"A network that gives every legal move of a chess position a probability, {made}. It scores a move by the position"
            f" after it (a sum of embeddings {width} wide and two small layers). Of the game before, it sees only which moves return to a"
            " position of it. It does not search."
        )

    def limit(self) -> str:
        """Return what games of best moves cannot show."""
        return (
            "Best moves are deterministic: two such players play one game per opening and color, so the number of distinct openings is the"
            " sample size, and the results say nothing about other openings."
        )

    def licence(self) -> str:
        """Return "": the initial weights are this project's."""
        return ""
