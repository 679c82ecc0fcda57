"""The model card of a policy: data, training, settings, results, limits and how to play it.

Text from reports and manifests is untrusted (names of files, of engines), so it is escaped: it cannot become Markdown or HTML.
"""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from grpo.base.errors import PlainError
from grpo.board.phases import PHASES
from grpo.play.matches import UNDECIDED, End
from grpo.settings.roles import is_on_card
from grpo.settings.tree import Settings
from steps.bodies.report import strength_lines
from steps.runs.facts import RunFacts

# Markdown's special characters: brackets only where they would end a link's text, underscores only outside of words.
_MARKUP: Final = re.compile(r"[\\`*{}|~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])")
_NOT_KNOWN: Final = "Unknown: the run that made this policy is not among the outputs of this machine.\n"


class CardError(PlainError, ValueError):
    """A report lacks a fact that the card needs."""


class CardWords(Protocol):
    """The parts of a model card that are specific to one kind of policy."""

    kind: str
    how: str
    """How to play it, as Markdown."""
    trained_by: str
    """How it was pretrained, in a few words."""
    parity: str
    """What the export compared."""

    def what(self, made: str) -> str:
        """Return the card's first paragraph as Markdown; `made` says how the policy was trained."""

    def pretraining(self, report: Mapping[str, Any]) -> list[str]:
        """Return how it was pretrained, from the report of `pretrain`, as lines of Markdown."""

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
    behind: RunFacts = field(default_factory=lambda: RunFacts(reports={}, manifests={}))
    parity: str = ""
    """Result of the comparison of the exported files; "" when there are none."""


def model_card(facts: CardFacts) -> str:
    """Return the card as Markdown.

    Optional keys of reports: `promoted` and `ladder` of `select`, `ladder` of `baseline`, and `adjudicated` of a match.
    Raises CardError when any other is missing.
    """
    try:
        sections = {
            "What it is": _what(facts),
            "How to play it": facts.words.how,
            "Data": _data(facts.behind),
            "Training": _training(facts),
            "Settings": _settings(facts),
            "Results": _results(facts),
            "Limits": _limits(facts),
            "Licence": _licence(facts),
            "Hashes": _hashes(facts),
        }
    except KeyError as error:
        raise CardError(
            f"a report or manifest of the run behind this policy has no {error}: other code wrote it; make the card with that code"
        ) from error
    title = f"# Chess policy {escaped(facts.run)}{_step(facts)}\n"
    return "\n".join([title, *(f"## {name}\n\n{text}" for name, text in sections.items())])


def _step(facts: CardFacts) -> str:
    return "" if facts.policy_step is None else f", step {facts.policy_step:,}"


def _what(facts: CardFacts) -> str:
    by = facts.words.trained_by
    if facts.policy_step is None:
        made = f"trained by {by}, and perhaps by GRPO"
    elif facts.policy_step == 0:
        made = f"trained by {by} only"
    else:
        made = f"trained by {by}, then by {facts.policy_step:,} steps of GRPO with an engine's values of all moves as rewards"
    return f"{facts.words.what(made)}\n"


def _data(behind: RunFacts) -> str:
    if "join_boards" not in behind.reports:
        return _NOT_KNOWN
    boards = behind.reports["join_boards"]
    inputs = _inputs(behind, "join_boards")
    splits = ", ".join(f"{thousands(boards['splits'][split])} {split}" for split in ("train", "validation", "heldout"))
    rows = [(phase.value, boards["natural_phases"][phase], boards["phases"][phase]) for phase in PHASES]
    sources = ", ".join(f"{escaped(name)} ({thousands(count)} boards)" for name, count in sorted(boards["sources"].items()))
    return (
        f"{thousands(boards['rows'])} boards from {thousands(boards['used_games'])} games ({splits}); no position is in two splits.\n\n"
        f"- Source: {sources}.\n- Moves to imitate from: {', '.join(escaped(name) for name in sorted(boards['labels']))}.\n"
        f"- Values of all legal moves by: {escaped(inputs['engine'])}.\n\n"
        "| phase | in the source | in the dataset |\n| --- | --- | --- |\n"
        + "".join(f"| {phase} | {thousands(natural)} | {thousands(selected)} |\n" for phase, natural, selected in rows)
    )


def _training(facts: CardFacts) -> str:
    behind = facts.behind
    lines = facts.words.pretraining(behind.reports["pretrain"]) if "pretrain" in behind.reports else []
    if "finetune" in behind.reports:
        training = behind.reports["finetune"]
        entropy = training["mean_entropy_at_end"]
        shown = "unknown (right after a rollback)" if entropy is None else f"{entropy:.2f} nats"
        because = f" ({escaped(training['message'])})" if training["message"] else ""
        lines.append(
            f"- GRPO: steps {thousands(training['first_step'])} to {thousands(training['last_step'])}, end reason"
            f" {escaped(training['reason'])}{because}; entropy at the end {shown}."
        )
    return "\n".join(lines) + "\n" if lines else _NOT_KNOWN


def _settings(facts: CardFacts) -> str:
    given: dict[str, Any] = {}
    for manifest in facts.behind.manifests.values():
        given.update(_flat(manifest["parts"]["settings"]))
    if not given:
        return _NOT_KNOWN
    defaults = _flat(Settings.model_validate({"policy": {"kind": facts.words.kind}}).model_dump(mode="json"))
    shown = [name for name in given if is_on_card(name) or (name in defaults and given[name] != defaults[name])]
    rows = "".join(f"| {escaped(name)} | {escaped(given[name])} | {escaped(defaults.get(name, '-'))} |\n" for name in sorted(shown))
    intro = "The main ones, and all that differ from the defaults of the code that wrote this card."
    return f"{intro}\n\n| setting | value | default |\n| --- | --- | --- |\n{rows}"


def _results(facts: CardFacts) -> str:
    rows, remarks = list(_confirmation_rows(facts.behind)) + list(_baseline_rows(facts.behind)), []
    if not rows:
        return _NOT_KNOWN
    decision = facts.behind.reports.get("select")
    if decision is not None:
        promoted = "" if "promoted" not in decision else "; promoted to champion" if decision["promoted"] else "; not promoted"
        remarks.append(
            f"Verdict: **{escaped(decision['verdict'])}**, by games {escaped(decision['scored_by'])}{promoted}. The confirmation games were"
            " played once, from openings that were not used before, after the candidate was chosen;"
            " of all games between checkpoints only these are reported.\n"
        )
        if "ladder_gain" in decision:  # Runs of early versions did not place the start beside the candidate.
            remarks.append("".join(f"- {escaped(line)}\n" for line in strength_lines(decision)))
        if facts.policy_step == 0:
            remarks.append("This policy is the pretrained one, the opponent in those games.\n")
        elif facts.policy_step not in (None, decision["candidate_step"]):
            remarks.append(
                f"**The confirmation was played by step {decision['candidate_step']:,}; this policy is step {facts.policy_step:,}, whose"
                " own strength was not confirmed.**\n"
            )
    if decision is not None and (answers := _answers(decision)):
        remarks.append(answers)
    remarks.append(
        "Scores with 95 % intervals, by pairs of games. Adjudicated: games drawn by repetition, fifty moves or the ply cap go to the side"
        " that an engine finds better.\n"
    )
    table = "".join(f"| {what} | {games} | {score} |\n" for what, games, score in rows)
    return "\n".join(remarks) + f"\n| match | games | score |\n| --- | --- | --- |\n{table}{_regret(facts)}"


def _answers(decision: Mapping[str, Any]) -> str:
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


def _confirmation_rows(behind: RunFacts) -> Iterator[tuple[str, str, str]]:
    decision = behind.reports.get("select")
    if decision is None:
        return
    step = f"step {decision['candidate_step']:,} against pretrained"
    yield from _rows(f"{step}, best moves", decision["confirmation_best_moves"])
    yield from _rows(f"{step}, sampled at T = 1", decision["confirmation_sampled_moves"])
    if decision["previous_champion"] is not None:
        yield from _rows(f"step {decision['candidate_step']:,} against the previous champion, best moves", decision["previous_champion"])
    yield from _ladder_rows(f"step {decision['candidate_step']:,}", decision)


def _baseline_rows(behind: RunFacts) -> Iterator[tuple[str, str, str]]:
    baseline = behind.reports.get("baseline")
    if baseline is None:
        return
    for name, match in baseline["matches"].items():
        yield from _rows(f"pretrained against {escaped(name)}, best moves", match)
    yield from _ladder_rows("pretrained", baseline)


def _ladder_rows(who: str, report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the rating on the ladder of opponents, on which a random mover has 0."""
    if "ladder" in report:
        placed = report["ladder"]
        yield f"{who} on the ladder", thousands(2 * sum(match["num_pairs"] for match in placed["games"])), escaped(placed["text"])


def _rows(what: str, match: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield _row(f"{what}, played out", match)
    if "adjudicated" in match:
        yield _row(f"{what}, adjudicated", match["adjudicated"])


def _row(what: str, match: Mapping[str, Any]) -> tuple[str, str, str]:
    return what, thousands(2 * match["num_pairs"]), escaped(match["text"])


def _regret(facts: CardFacts) -> str:
    """Return the regret on held-out boards, in win probability."""
    reports = facts.behind.reports
    lines = []
    if "baseline" in reports:
        heldout = reports["baseline"]["heldout"]
        phases = ", ".join(f"{phase} {heldout[f'heldout/regret_best/{phase}']:.4f}" for phase in PHASES)
        lines.append(f"- pretrained, best move: {heldout['heldout/regret_best']:.4f} ({phases})")
    regrets = reports["select"]["heldout_regret_best"] if "select" in reports else {}
    if facts.policy_step is not None and str(facts.policy_step) in regrets:
        lines.append(f"- step {facts.policy_step:,}, best move: {regrets[str(facts.policy_step)]['mean']:.4f}")
    return (
        "\nWin probability lost per move on held-out boards, by a search deeper than the reward's:\n\n" + "\n".join(lines) + "\n"
        if lines
        else ""
    )


def _limits(facts: CardFacts) -> str:
    behind = facts.behind
    lines = [
        "No search, no clock, no memory of the game: it cannot see a repetition coming, and blunders what a search of two plies would see.",
        "Elo differences are between the players of one match, not human ratings: none is a rating of Lichess or of any list,"
        " and a result against one opponent need not hold against another.",
        escaped(facts.words.limit()),
        "Values in training are an engine's at a low depth: the policy cannot learn what such a search misses.",
        "Standard chess only: no Chess960, no variants.",
    ]
    if "select" in behind.reports:
        ends = behind.reports["select"]["confirmation_best_moves"]["ends"]
        total = sum(ends.values())
        drawn = sum(ends[end] for end in UNDECIDED)
        lines.insert(
            1,
            f"{drawn / total:.0%} of the {total:,} confirmation games with best moves ended by repetition, fifty moves or the ply cap"
            f" ({ends[End.REPETITION] / total:.0%} by repetition): draws for lack of technique, whatever the position.",
        )
    else:
        lines.insert(0, "Its strength is unknown here.")
    return "".join(f"- {line}\n" for line in lines)


def _licence(facts: CardFacts) -> str:
    behind = facts.behind
    text = (
        "The code is under the MIT licence. Stockfish (GPL-3.0) ran as a separate program for values and moves; these files contain none"
        " of its code or networks."
    )
    if weights := facts.words.licence():
        text += f" {escaped(weights)}"
    if "join_boards" not in behind.reports:
        return f"{text} Source and licence of the boards are unknown here.\n"
    files = sorted(name for name in behind.reports["join_boards"]["sources"] if name != "engine")
    if not files:
        return f"{text} All boards come from games that the engine played for the run: no third party has rights in them.\n"
    named = ", ".join(map(escaped, files))
    return f"{text} Boards come from files ({named}), under their publisher's licence; the database of Lichess, if it is that, is CC0.\n"


def _hashes(facts: CardFacts) -> str:
    rows = dict(facts.hashes)
    for step, manifest in facts.behind.manifests.items():
        rows[f"output of {step}" if step != "join_boards" else "dataset"] = manifest["output_hash"]
    lines = [f"- {escaped(name)}: {escaped(digest)}" for name, digest in rows.items()]
    if "select" in facts.behind.manifests:
        code = facts.behind.manifests["select"]["code"]
        lines.append(f"- code: commit {escaped(code['commit'])}{' with changes' if code['is_dirty'] else ''}, lock {escaped(code['lock'])}")
        lines.append(f"- engine: {escaped(_inputs(facts.behind, 'select')['engine'])}")
    if facts.parity:
        lines.append(f"- {facts.words.parity}: {escaped(facts.parity)}")
    return "\n".join(lines) + "\n"


def _inputs(behind: RunFacts, step: str) -> Mapping[str, Any]:
    inputs: Mapping[str, Any] = behind.manifests[step]["parts"]["inputs"]
    return inputs


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def thousands(number: Any) -> str:
    """Return a whole number with commas."""
    return f"{int(number):,}"


def escaped(value: Any) -> str:
    """Escape an untrusted text for Markdown and HTML, on one line."""
    escaped = html.escape(" ".join(str(value).split()))
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", escaped)
