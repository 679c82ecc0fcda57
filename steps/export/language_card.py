"""What the card of a language model says otherwise than that of a network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grpo.policy.files import LANGUAGE, policy_facts, policy_kind
from grpo.settings.language import SMALL

HOW: Final = """\
- Against a person or another engine, in any chess program: `chess-grpo uci --model FOLDER` is a UCI engine. Where it names no legal move,
  asked as often as its settings say, it gives the game up with the null move `0000`, which chess programs count as a loss.
- Against other players, with intervals: `chess-grpo match FOLDER stockfish:nodes=50`.
- Without this code: transformers loads the model of an exported folder; its `policy.json` says how to ask, and whose the tokenizer is.
"""


def language_facts(folder: Path) -> Mapping[str, Any]:
    """Return what a policy's `policy.json` says of a language model, its settings and its origin; nothing of a network."""
    described = policy_facts(folder)
    return {name: described[name] for name in ("language", "origin")} if policy_kind(folder) == LANGUAGE else {}


def what_it_is(language: Mapping[str, Any], made: str) -> str:
    """Return the card's first words; `made` says how it learnt."""
    return (
        f"A causal language model that writes its moves as text, {made}. It began as {_origin(language)}, is asked with the FEN of a"
        " position and nothing of the game before it, and does not search."
        " It has no probabilities of moves: it names one, which may be illegal."
    )


def limits(language: Mapping[str, Any]) -> str:
    """Return what to know of its answers."""
    return (
        "It may name a move that is illegal, or none that can be read. In games such an answer is counted and asked for again, drawn at"
        f" T = 1; after {int(language['language']['max_questions'])} answers without a legal move the game is lost."
    )


def answers_of(decision: Mapping[str, Any]) -> str:
    """Return what the candidate's answers were like in the confirmation games; "" where it is no language model."""
    answers = decision["confirmation_best_moves"].get("answers", {})
    if "first" not in answers:
        return ""
    told = {name: f"{int(count):,}" for name, count in answers["first"].items()}
    return (
        f"In the confirmation games with best moves the candidate gave {told['answers']} answers for {told['moves']} moves:"
        f" {told['unreadable']} unreadable, {told['illegal']} illegal; it was asked again {told['asked_again']} times, and forfeited"
        f" {told['forfeits']} games.\n"
    )


def licence(language: Mapping[str, Any]) -> str:
    """Return whose the first weights are, where they are not made here."""
    if language["origin"]["model"] == SMALL:
        return ""
    return f"The weights began as {_origin(language)}, and are under its publisher's licence."


def _origin(language: Mapping[str, Any]) -> str:
    origin = language["origin"]
    if origin["model"] == SMALL:
        return "a small GPT-2 with fresh weights, made for the run"
    return str(origin["model"]) + (f" (commit {origin['commit']})" if origin["commit"] else "")
