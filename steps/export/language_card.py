"""What the model card says of a language model."""

from collections.abc import Mapping
from typing import Any, Final

from grpo.metrics.table import TASKS
from grpo.policy.files import LANGUAGE
from grpo.settings.language import SMALL
from steps.export.model_card import escaped, thousands

_HOW: Final = """\
- Against a person or another engine, in any chess program: `chess-grpo uci --model FOLDER` is a UCI engine. Where it names no legal move,
  asked as often as its settings say, it gives the game up with the null move `0000`, which chess programs count as a loss.
- Against other players, with intervals: `chess-grpo match FOLDER stockfish:nodes=50`.
- Without this code: transformers loads the model of an exported folder; its `policy.json` says how to ask, and whose the tokenizer is.
"""


class LanguageCard:
    """A language model as its card tells of it."""

    kind = LANGUAGE
    how = _HOW
    learnt_by = "cloning answers"
    parity = "as exported, against the policy"

    def __init__(self, described: Mapping[str, Any]) -> None:
        """Take its `policy.json`, which has its settings and its origin."""
        self._max_questions, self._origin = int(described["language"]["max_questions"]), described["origin"]

    def what(self, made: str) -> str:
        """Return what it is, and what it began as."""
        return escaped(
            f"A causal language model that writes its moves as text, {made}. It began as {self._beginning()}, is asked with the FEN of a"
            " position and nothing of the game before it, and does not search."
            " It has no probabilities of moves: it names one, which may be illegal."
        )

    def pretraining(self, report: Mapping[str, Any]) -> list[str]:
        """Return which model it is, and how cloning went."""
        commit = f" at commit {escaped(report['commit'])}" if report["commit"] else ""
        size = f"{thousands(report['num_parameters'])} parameters, {thousands(report['num_tokens'])} tokens"
        loss = f"; validation loss {report['clone_validation_loss']:.3f} nats a token" if report["num_steps"] else ""
        rates = ", ".join(
            f"{words} task {rate['rate']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"
            for task, words in TASKS.items()
            if (rate := report["parse_rates"].get(task))
        )
        return [
            f"- Model: {escaped(report['model'])}{commit}, {size}.",
            f"- Cloning of the value tables' answers: {thousands(report['num_steps'])} steps{loss}. Readable at T = 1: {rates}.",
        ]

    def limit(self) -> str:
        """Return what to know of its answers."""
        return (
            "It may name a move that is illegal, or none that can be read. In games such an answer is counted and asked for again, drawn at"
            f" T = 1; after {self._max_questions} answers without a legal move the game is lost."
        )

    def licence(self) -> str:
        """Return whose the first weights are, where they are not made here."""
        if self._origin["model"] == SMALL:
            return ""
        return f"The weights began as {self._beginning()}, and are under its publisher's licence."

    def _beginning(self) -> str:
        origin = self._origin
        if origin["model"] == SMALL:
            return "a small GPT-2 with fresh weights, made for the run"
        return str(origin["model"]) + (f" (commit {origin['commit']})" if origin["commit"] else "")
