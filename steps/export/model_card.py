"""The model card of a policy: data, training, settings, results, limits and how to play it.

Text from reports and manifests is untrusted (names of files, of engines), so it is escaped: it cannot become Markdown or HTML.
"""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.board.phases import PHASES
from grpo.metrics.table import TASKS
from grpo.play.matches import UNDECIDED, End
from grpo.policy.files import LANGUAGE, NETWORK
from grpo.settings.tree import Settings
from steps.export import language_card
from steps.runs.facts import RunFacts

_SHOWN_SETTINGS: Final = (
    "seed",
    "boards.source",
    "boards.num_train",
    "values.depth",
    "values.transform",
    "policy.channels",
    "policy.num_blocks",
    "policy.num_heads",
    "language.model",
    "language.max_questions",
    "pretrain.learning_rate",
    "grpo.num_steps",
    "grpo.states_per_step",
    "grpo.estimator",
    "grpo.group_size",
    "grpo.temperature",
    "grpo.learning_rate",
    "grpo.entropy_coefficient",
    "grpo.entropy_schedule",
    "grpo.kl_coefficient",
)
# Markdown's special characters: brackets only where they would end a link's text, underscores only outside of words.
_MARKUP: Final = re.compile(r"[\\`*{}|~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])")
_NOT_KNOWN: Final = "Unknown: the run that made this policy is not among the outputs of this machine.\n"


class CardError(PlainError, ValueError):
    """A report lacks a fact that the card needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """The facts of a card."""

    run: str
    """The run that made the policy, or the name of its folder."""
    policy_step: int | None
    """Training step; 0 is the pretrained policy, None when unknown."""
    network: Mapping[str, Any]
    """The section `policy` of the settings."""
    hashes: Mapping[str, str]
    """Name -> SHA-256."""
    behind: RunFacts = field(default_factory=lambda: RunFacts(reports={}, manifests={}))
    language: Mapping[str, Any] = field(default_factory=dict)
    """For a language model: `language` and `origin` of its `policy.json`; empty for a network."""
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
            "How to play it": language_card.HOW if facts.language else _HOW,
            "Data": _data(facts.behind),
            "Training": _training(facts.behind),
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
    title = f"# Chess policy {_plain(facts.run)}{_step(facts)}\n"
    return "\n".join([title, *(f"## {name}\n\n{text}" for name, text in sections.items())])


def _step(facts: CardFacts) -> str:
    return "" if facts.policy_step is None else f", step {facts.policy_step:,}"


def _what(facts: CardFacts) -> str:
    network = facts.network
    by = "behaviour cloning of answers" if facts.language else "behaviour cloning of moves"
    if facts.policy_step is None:
        made = f"trained by {by}, and perhaps by GRPO"
    elif facts.policy_step == 0:
        made = f"trained by {by} only"
    else:
        made = f"trained by {by}, then by {facts.policy_step:,} steps of GRPO with an engine's values of all moves as rewards"
    if facts.language:
        return _plain(language_card.what_it_is(facts.language, made)) + "\n"
    return (
        f"A network that gives every legal move of a chess position a probability, {made}. It has {_plain(network['channels'])} channels,"
        f" {_plain(network['num_blocks'])} residual blocks and one layer of attention, sees one position without the game before it,"
        " and does not search.\n"
    )


_HOW: Final = """\
- Against a person or another engine, in any chess program: `chess-grpo uci --model FOLDER` is a UCI engine.
- Against other players, with intervals: `chess-grpo match FOLDER stockfish:nodes=50`.
- Without this code: `policy.onnx` takes encoded positions and returns the logits of all 1,968 moves; `policy.json` says how to encode a
  position, lists the moves in order, and has worked examples to check one's own code with. Use the logits of legal moves only.
"""


def _data(behind: RunFacts) -> str:
    if "join_boards" not in behind.reports:
        return _NOT_KNOWN
    boards = behind.reports["join_boards"]
    inputs = _inputs(behind, "join_boards")
    splits = ", ".join(f"{_count(boards['splits'][split])} {split}" for split in ("train", "validation", "heldout"))
    rows = [(phase.value, boards["natural_phases"][phase], boards["phases"][phase]) for phase in PHASES]
    sources = ", ".join(f"{_plain(name)} ({_count(count)} boards)" for name, count in sorted(boards["sources"].items()))
    return (
        f"{_count(boards['rows'])} boards from {_count(boards['used_games'])} games ({splits}); no position is in two splits.\n\n"
        f"- Source: {sources}.\n- Moves to imitate from: {', '.join(_plain(name) for name in sorted(boards['labels']))}.\n"
        f"- Values of all legal moves by: {_plain(inputs['engine'])}.\n\n"
        "| phase | in the source | in the dataset |\n| --- | --- | --- |\n"
        + "".join(f"| {phase} | {_count(natural)} | {_count(selected)} |\n" for phase, natural, selected in rows)
    )


def _training(behind: RunFacts) -> str:
    lines: list[str] = []
    if "parse_rates" in behind.reports.get("pretrain", {}):
        lines += _cloning(behind.reports["pretrain"])
    elif "pretrain" in behind.reports:
        imitation = behind.reports["pretrain"]
        ended = "the validation loss stopped falling" if imitation["has_converged"] else "it reached its maximum: it has NOT converged"
        lines.append(
            f"- Behaviour cloning: {_count(imitation['num_steps'])} steps, ended because {ended}; validation loss"
            f" {imitation['validation_loss']:.3f} nats, top-1 {imitation['top1']:.3f}, top-5 {imitation['top5']:.3f}."
        )
    if "finetune" in behind.reports:
        training = behind.reports["finetune"]
        entropy = training["mean_entropy_at_end"]
        shown = "unknown (right after a rollback)" if entropy is None else f"{entropy:.2f} nats"
        because = f" ({_plain(training['message'])})" if training["message"] else ""
        lines.append(
            f"- GRPO: steps {_count(training['first_step'])} to {_count(training['last_step'])}, end reason"
            f" {_plain(training['reason'])}{because}; entropy at the end {shown}."
        )
    return "\n".join(lines) + "\n" if lines else _NOT_KNOWN


def _cloning(found: Mapping[str, Any]) -> Iterator[str]:
    commit = f" at commit {_plain(found['commit'])}" if found["commit"] else ""
    yield f"- Model: {_plain(found['model'])}{commit}, {_count(found['num_parameters'])} parameters, {_count(found['num_tokens'])} tokens."
    loss = f"; validation loss {found['clone_validation_loss']:.3f} nats per token" if found["num_steps"] else ""
    rates = ", ".join(
        f"{words} task {rate['rate']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"
        for task, words in TASKS.items()
        if (rate := found["parse_rates"].get(task))
    )
    yield f"- Behaviour cloning of answers from value tables: {_count(found['num_steps'])} steps{loss}. Parse rate at T = 1: {rates}."


def _settings(facts: CardFacts) -> str:
    given: dict[str, Any] = {}
    for manifest in facts.behind.manifests.values():
        given.update(_flat(manifest["parts"]["settings"]))
    if not given:
        return _NOT_KNOWN
    kind = LANGUAGE if facts.language else NETWORK
    defaults = _flat(Settings.model_validate({"policy": {"kind": kind}}).model_dump(mode="json"))
    shown = [name for name in given if name in _SHOWN_SETTINGS or (name in defaults and given[name] != defaults[name])]
    rows = "".join(f"| {_plain(name)} | {_plain(given[name])} | {_plain(defaults.get(name, '-'))} |\n" for name in sorted(shown))
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
            f"Verdict: **{_plain(decision['verdict'])}**, by games {_plain(decision['scored_by'])}{promoted}. The confirmation games were"
            " played once, from openings that were not used before, after the candidate was chosen;"
            " of all games between checkpoints only these are reported.\n"
        )
        if facts.policy_step == 0:
            remarks.append("This policy is the pretrained one, the opponent in those games.\n")
        elif facts.policy_step not in (None, decision["candidate_step"]):
            remarks.append(
                f"**The confirmation was played by step {decision['candidate_step']:,}; this policy is step {facts.policy_step:,}, whose"
                " own strength was not confirmed.**\n"
            )
    if decision is not None and (answers := language_card.answers_of(decision)):
        remarks.append(answers)
    remarks.append(
        "Scores with 95 % intervals, by pairs of games. Adjudicated: games drawn by repetition, fifty moves or the ply cap go to the side"
        " that an engine finds better.\n"
    )
    table = "".join(f"| {what} | {games} | {score} |\n" for what, games, score in rows)
    return "\n".join(remarks) + f"\n| match | games | score |\n| --- | --- | --- |\n{table}{_regret(facts)}"


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
        yield from _rows(f"pretrained against {_plain(name)}, best moves", match)
    yield from _ladder_rows("pretrained", baseline)


def _ladder_rows(who: str, report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the rating on the ladder of opponents, on which a random mover has 0."""
    if "ladder" in report:
        placed = report["ladder"]
        yield f"{who} on the ladder", _count(2 * sum(match["num_pairs"] for match in placed["games"])), _plain(placed["text"])


def _rows(what: str, match: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield _row(f"{what}, played out", match)
    if "adjudicated" in match:
        yield _row(f"{what}, adjudicated", match["adjudicated"])


def _row(what: str, match: Mapping[str, Any]) -> tuple[str, str, str]:
    return what, _count(2 * match["num_pairs"]), _plain(match["text"])


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


_DETERMINISTIC: Final = (
    "Best moves are deterministic: two such players play one game per opening and colour, so the number of distinct openings is the"
    " sample size, and the results say nothing about other openings."
)


def _limits(facts: CardFacts) -> str:
    behind = facts.behind
    lines = [
        "No search, no clock, no memory of the game: it cannot see a repetition coming, and blunders what a search of two plies would see.",
        "Elo differences are between the players of one match, not human ratings: none is a rating of Lichess or of any list,"
        " and a result against one opponent need not hold against another.",
        _plain(language_card.limits(facts.language)) if facts.language else _DETERMINISTIC,
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
        "The code is under the MIT licence. Stockfish (GPL-3.0) ran as a separate program for values and moves; these files contain none of"
        " its code or networks."
    )
    if facts.language and (weights := language_card.licence(facts.language)):
        text += f" {_plain(weights)}"
    if "join_boards" not in behind.reports:
        return f"{text} Source and licence of the boards are unknown here.\n"
    files = sorted(name for name in behind.reports["join_boards"]["sources"] if name != "engine")
    if not files:
        return f"{text} All boards come from games that the engine played for the run: no third party has rights in them.\n"
    named = ", ".join(map(_plain, files))
    return f"{text} Boards come from files ({named}), under their publisher's licence; the database of Lichess, if it is that, is CC0.\n"


def _hashes(facts: CardFacts) -> str:
    rows = dict(facts.hashes)
    for step, manifest in facts.behind.manifests.items():
        rows[f"output of {step}" if step != "join_boards" else "dataset"] = manifest["output_hash"]
    lines = [f"- {_plain(name)}: {_plain(digest)}" for name, digest in rows.items()]
    if "select" in facts.behind.manifests:
        code = facts.behind.manifests["select"]["code"]
        lines.append(f"- code: commit {_plain(code['commit'])}{' with changes' if code['is_dirty'] else ''}, lock {_plain(code['lock'])}")
        lines.append(f"- engine: {_plain(_inputs(facts.behind, 'select')['engine'])}")
    if facts.parity:
        lines.append(f"- {'as exported, against the policy' if facts.language else 'ONNX against torch'}: {_plain(facts.parity)}")
    return "\n".join(lines) + "\n"


def _inputs(behind: RunFacts, step: str) -> Mapping[str, Any]:
    inputs: Mapping[str, Any] = behind.manifests[step]["parts"]["inputs"]
    return inputs


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _count(number: Any) -> str:
    return f"{int(number):,}"


def _plain(value: Any) -> str:
    """Escape an untrusted text for Markdown and HTML, on one line."""
    escaped = html.escape(" ".join(str(value).split()))
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", escaped)
