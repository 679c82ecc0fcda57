"""The parts of a model card that are specific to language models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grpo.policy.files import LANGUAGE, policy_facts, policy_kind
from grpo.settings.language import SMALL

HOW: Final = """\
- Against a person or another engine, in any chess program: `chess-grpo uci --model FOLDER` is a UCI engine. If all its attempts (a
  setting) name no legal move, it resigns with the null move `0000`, which chess programs count as a loss.
- Against other players, with intervals: `chess-grpo match FOLDER stockfish:nodes=50`.
- Without this code: transformers loads the model of an exported folder; its `policy.json` has the prompts and names the tokenizer.
"""


def language_facts(folder: Path) -> Mapping[str, Any]:
    """Return a language model's settings and origin from its `policy.json`; empty for a network."""
    described = policy_facts(folder)
    return {name: described[name] for name in ("language", "origin")} if policy_kind(folder) == LANGUAGE else {}


def what_it_is(language: Mapping[str, Any], made: str) -> str:
    """Return the card's first paragraph; `made` says how the model was trained."""
    return (
        f"A causal language model that writes its moves as text, {made}. It started as {_origin(language)}. Its prompt is the FEN of a"
        " position, without the game before it, and it does not search."
        " It gives no probabilities of moves: it names one move, which may be illegal."
    )


def limits(language: Mapping[str, Any]) -> str:
    """Return the limits of its answers."""
    return (
        "Its answer may be illegal or unreadable. In games such an answer is counted, and a new one is sampled at"
        f" T = 1; after {int(language['language']['max_questions'])} answers without a legal move the game is lost."
    )


def answers_of(decision: Mapping[str, Any]) -> str:
    """Return counts of the candidate's answers in the confirmation games; "" if it is not a language model."""
    answers = decision["confirmation_best_moves"].get("answers", {})
    if "first" not in answers:
        return ""
    counts = {name: f"{int(count):,}" for name, count in answers["first"].items()}
    return (
        f"In the confirmation games with best moves the candidate gave {counts['answers']} answers for {counts['moves']} moves:"
        f" {counts['unreadable']} unreadable, {counts['illegal']} illegal; it was asked again {counts['asked_again']} times, and forfeited"
        f" {counts['forfeits']} games.\n"
    )


def licence(language: Mapping[str, Any]) -> str:
    """Return the licence of the initial weights; "" if they are this project's."""
    if language["origin"]["model"] == SMALL:
        return ""
    return f"The initial weights are {_origin(language)}, under its publisher's licence."


def _origin(language: Mapping[str, Any]) -> str:
    origin = language["origin"]
    if origin["model"] == SMALL:
        return "a small GPT-2 with random weights"
    return str(origin["model"]) + (f" (commit {origin['commit']})" if origin["commit"] else "")
