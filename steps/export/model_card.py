"""The model card of a policy: data, training, settings, results, limits and how to play it, from the results of its run.

Text from the results is untrusted (names of files, of engines), so it is escaped: it cannot become Markdown or HTML.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from grpo.play.matches import UNDECIDED, End
from grpo.settings.roles import flattened, is_main
from grpo.settings.tree import Settings
from steps.step_io.results import Results
from steps.step_io.results_text import (
    PHASE_HEADERS,
    escaped,
    markdown_list,
    markdown_table,
    outcome,
    phase_rows,
    regret_table,
    summary,
    training_lines,
)

_NOT_KNOWN: Final = "Unknown: the results of the run that made this policy are not known here.\n"


class CardWords(Protocol):
    """The parts of a model card that are specific to one kind of policy."""

    kind: str
    how: str
    """How to play it, as Markdown."""
    trained_by: str
    """How it was pretrained, in a few words."""

    def what(self, made: str) -> str:
        """Return the card's first paragraph as Markdown; `made` says how the policy was trained."""

    def limit(self) -> str:
        """Return the limits of its moves."""

    def licence(self) -> str:
        """Return the licence of the initial weights; "" if they are this project's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """The facts of a card."""

    run: str
    """The run that made the policy, or the name of its folder."""
    policy_step: int | None
    """Training step; 0 is the pretrained policy, None when unknown."""
    words: CardWords
    """Of the policy's kind."""
    hashes: Mapping[str, str]
    """Name -> SHA-256."""
    results: Results | None
    """Of the run that made it; None where unknown."""


def model_card(facts: CardFacts) -> str:
    """Return the card as Markdown."""
    results = facts.results
    known = {
        "Data": _NOT_KNOWN if results is None else _data(results),
        "Training": _NOT_KNOWN if results is None else markdown_list(training_lines(results)) + "\n",
        "Settings": _NOT_KNOWN if results is None else _settings(results),
        "Results": _NOT_KNOWN if results is None else _results(results, facts.policy_step),
    }
    sections = {
        "What it is": _what(facts),
        "How to play it": facts.words.how,
        **known,
        "Limits": _limits(facts),
        "Licence": _licence(facts),
        "Hashes": _hashes(facts),
    }
    step = "" if facts.policy_step is None else f", step {facts.policy_step:,}"
    title = f"# Chess policy {escaped(facts.run)}{step}\n"
    return "\n".join([title, *(f"## {name}\n\n{text}" for name, text in sections.items())])


def _what(facts: CardFacts) -> str:
    by = facts.words.trained_by
    if facts.policy_step is None:
        made = f"trained by {by}, and perhaps by GRPO"
    elif facts.policy_step == 0:
        made = f"trained by {by} only"
    else:
        made = f"trained by {by}, then by {facts.policy_step:,} steps of GRPO with an engine's values of all moves as rewards"
    return f"{facts.words.what(made)}\n"


def _data(results: Results) -> str:
    boards = results["boards"]
    splits = ", ".join(f"{boards['splits'][split]:,} {split}" for split in ("train", "validation", "heldout"))
    sources = ", ".join(f"{name} ({count:,} boards)" for name, count in sorted(boards["sources"].items()))
    lines = [
        f"Source: {sources}.",
        f"Moves to imitate from: {', '.join(sorted(boards['labels']))}.",
        f"Values of all legal moves by: {results['engine']}.",
    ]
    counts = f"{boards['rows']:,} boards from {boards['used_games']:,} games ({splits}); no position is in two splits."
    return f"{counts}\n\n{markdown_list(lines)}\n\n{markdown_table(PHASE_HEADERS, phase_rows(boards))}\n"


def _settings(results: Results) -> str:
    given = results["settings"]
    defaults = flattened(Settings.model_validate({"policy": {"kind": results["kind"]}}).model_dump(mode="json"))
    shown = [name for name in sorted(given) if is_main(name) or (name in defaults and given[name] != defaults[name])]
    intro = "The main ones, and all that differ from the defaults of the code that wrote this card."
    rows = [(name, str(given[name]), str(defaults.get(name, "-"))) for name in shown]
    return f"{intro}\n\n{markdown_table(('setting', 'value', 'default'), rows)}\n"


def _results(results: Results, policy_step: int | None) -> str:
    decision = results["decision"]
    remarks = [f"Verdict of the run: **{escaped(decision['verdict'])}**; {outcome(decision)}."]
    if policy_step == 0:
        remarks.append("This policy is the pretrained one, the opponent in those games.")
    elif policy_step not in (None, decision["candidate_step"]):
        remarks.append(
            f"**The confirmation was played by step {decision['candidate_step']:,}; this policy is step {policy_step:,}, whose own strength"
            " was not confirmed.**"
        )
    regret = f"Held-out regret of best moves by phase:\n\n{markdown_table(*regret_table(results))}\n"
    if (measured := decision["heldout_regret_best"].get(str(policy_step))) is not None:
        regret += f"\nOf this policy, step {policy_step:,}, over all phases: {measured['mean']:.4f}.\n"
    return "\n\n".join([*remarks, summary(results)]) + f"\n{regret}"


def _limits(facts: CardFacts) -> str:
    lines = [
        "No search and no clock: it blunders what a search of two plies would see.",
        "Elo differences are between the players of one match, not human ratings: none is a rating of Lichess or of any list,"
        " and a result against one opponent need not hold against another.",
        facts.words.limit(),
        "Values in training are an engine's at a low depth: the policy cannot learn what such a search misses.",
        "Standard chess only: no Chess960, no variants.",
    ]
    if facts.results is None:
        lines.insert(0, "Its strength is unknown here.")
    else:
        ends = facts.results["decision"]["confirmation_best_moves"]["ends"]
        total, drawn = sum(ends.values()), sum(ends[end] for end in UNDECIDED)
        lines.insert(
            1,
            f"{drawn / total:.0%} of the {total:,} confirmation games with best moves ended by repetition, fifty moves or the ply cap"
            f" ({ends[End.REPETITION] / total:.0%} by repetition): draws for lack of technique, whatever the position.",
        )
    return markdown_list(lines) + "\n"


def _licence(facts: CardFacts) -> str:
    text = (
        "The code is under the MIT licence. Stockfish (GPL-3.0) ran as a separate program for values and moves; these files contain none"
        " of its code or networks."
    )
    if weights := facts.words.licence():
        text += f" {escaped(weights)}"
    if facts.results is None:
        return f"{text} Source and licence of the boards are unknown here.\n"
    files = sorted(name for name in facts.results["boards"]["sources"] if name != "engine")
    if not files:
        return f"{text} All boards come from games that the engine played for the run: no third party has rights in them.\n"
    named = ", ".join(map(escaped, files))
    return f"{text} Boards come from files ({named}), under their publisher's licence; the database of Lichess, if it is that, is CC0.\n"


def _hashes(facts: CardFacts) -> str:
    lines = [f"{name}: {digest}" for name, digest in facts.hashes.items()]
    if (results := facts.results) is not None:
        code = results["code"]
        lines += [f"output of {step}, version {each['version']}: {each['output_hash']}" for step, each in results["outputs"].items()]
        lines.append(f"code: commit {code['commit']}{' with changes' if code['is_dirty'] else ''}, lock {code['lock']}")
        lines.append(f"engine: {results['engine']}")
    return markdown_list(lines) + "\n"
